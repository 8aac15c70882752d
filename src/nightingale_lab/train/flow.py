"""Stage `flow`: speech tokens and a speaker to mel, first as a plain flow, then in two steps.

1. *Matching.* The estimator learns the velocity that carries noise to mel along straight lines. The token
   encoder's output is also asked to be near the mel.
2. *Refining.* Two steps from nothing instead of noise, trained together to arrive at the recorded mel: tokens
   and speaker say nearly all of it, and what they leave open the vocoder learns to fill in, since it ends its
   training on these mels. (Distilling guided steps was tried: words were lost. dev/LOG.md.)

Attention is block-causal with block sizes drawn at random, so that any chunking of a stream, and the whole
utterance, are things the network has seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from nightingale.models.chatterbox.s3gen.config import FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale_lab.train.corpus import Corpus, whole_clips
from nightingale_lab.train.flow_step import FlowTraining
from nightingale_lab.train.loop import (
    Every,
    GraphedStep,
    JsonlLog,
    Schedule,
    Watch,
    load_state,
    save_state,
    silent,
)
from nightingale_lab.train.weights import save_half

RENDER_BLOCK_TOKENS = 25
RENDER_BATCH_TOKENS = 12_800


def train_flow(
    corpus: Corpus,
    tokens: Tensor,
    out: Path,
    config: FlowConfig,
    *,
    match_s: float,
    refine_s: float,
    budget_s: float = float("inf"),
    device: torch.device,
    batch: int = 128,
    eager: bool = False,
    peak_lr: float = 6e-4,
    start_from: Path | None = None,
    say: Callable[[dict[str, Any]], None] = silent,
) -> None:
    """Both phases; their seconds are the whole plan, over all calls. A call goes on where the last one ended,
    and lasts `budget_s` at most: the next may bring more speech.

    `flow.refine.safetensors` is the two-step model. start_from: a flow of another machine, used when `out`
    holds no state.
    """
    begun_s = time.monotonic()
    training = FlowTraining(corpus, tokens, config, device=device, batch=batch, eager=eager)
    log, state_path = JsonlLog(out / "flow.jsonl"), out / "flow.state.pt"
    done: dict[str, Any] = {"step": 0, "match": 0.0, "refine": 0.0}
    if state_path.exists():
        state = load_state(state_path, device)
        training.load_state_dict(state)
        done = state["done"]
    elif start_from is not None and start_from.exists():
        training.net.load_state_dict({k: v.float() for k, v in load_file(start_from).items()})
        training.ema.reset()

    def run(phase: str, advance: GraphedStep, schedule: Schedule, plan_s: float) -> None:
        left_s = min(plan_s - done[phase], begun_s + budget_s - time.monotonic())
        watch = Watch(left_s, plan_s=plan_s, elapsed_s=done[phase])
        fresh, report, keep = 0, Every(15, watch.begun_s), Every(60, watch.begun_s)

        def note() -> None:
            first, second = training.losses.tolist()
            record = {"phase": phase, "step": done["step"], "seconds": watch.elapsed_s}
            record |= {"first": first, "second": second, **training.measure()}
            log.write(record | {"refusal": advance.refusal})
            say(record)

        def save() -> None:
            done[phase] = watch.elapsed_s
            save_half(training.averaged(), out / f"flow.{phase}.safetensors")
            save_state(state_path, {"done": done, **training.state_dict()})

        while not watch.over():
            training.optimizer.lr.fill_(schedule.at(fresh, watch.progress))
            advance()
            done["step"], fresh = done["step"] + 1, fresh + 1
            now = watch.begun_s + watch.spent_s
            if report(now):
                note()
            if keep(now):
                save()
        note()
        save()

    if done["match"] < match_s:
        run("match", training.match, Schedule(peak=peak_lr, warmup_steps=300), match_s)
    if done["refine"] < refine_s:
        if not training.refining:
            training.begin_refining()
        training.match.forget()  # its memory goes to the second graph
        run("refine", training.refine, Schedule(peak=peak_lr, warmup_steps=100), refine_s)


@torch.no_grad()
def render_mels(
    weights: Path, corpus: Corpus, tokens: Tensor, config: FlowConfig, *, device: torch.device, seed: int = 0
) -> NDArray[np.float16]:
    """What the two-step model makes of the corpus's true tokens: (frames, bands), for the vocoder to learn.

    Frame for frame beside the audio, since tokens and audio share a clock.
    """
    net = Flow(config).to(device).eval()
    net.load_state_dict({k: v.float() for k, v in load_file(weights).items()})
    noise = torch.Generator(device).manual_seed(seed)
    offsets = torch.from_numpy(corpus.token_offsets)
    counts, flat = offsets.diff(), tokens.to(device)
    speaker = torch.from_numpy(corpus.speaker).to(device)
    out = torch.zeros(2 * len(flat), config.mel_bands, dtype=torch.float16, device=device)
    for rows, length in whole_clips(counts, batch_tokens=RENDER_BATCH_TOKENS):
        start, real = offsets[rows].to(device), counts[rows].to(device)
        place = torch.arange(length, device=device)
        valid = place[None] < real[:, None]
        ids = flat[(start[:, None] + place).clamp(max=len(flat) - 1)].long() * valid
        with torch.autocast(device.type, torch.bfloat16):
            mel = net(
                ids,
                prompt_mel=torch.zeros(len(ids), config.mel_bands, 0, device=device),
                speaker=speaker[rows.to(device)].float(),
                noise=torch.randn(len(ids), config.mel_bands, 2 * length, generator=noise, device=device),
                valid=valid,
                blocks=(place // RENDER_BLOCK_TOKENS)[None],
            )
        frame = torch.arange(2 * length, device=device)
        keep = frame[None] < 2 * real[:, None]
        out[(2 * start[:, None] + frame)[keep]] = mel.transpose(1, 2)[keep].half()
    return out.cpu().numpy()

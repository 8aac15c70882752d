"""Stage `flow`: train the network from speech tokens and a speaker to mel, by flow matching, then in two steps.

1. *Matching.* The estimator learns the velocity from noise to mel along straight lines (flow matching). An
   auxiliary loss keeps the output of the token encoder close to the mel.
2. *Refining.* Two steps from zeros instead of noise are trained end to end to reach the recorded mel. Tokens and
   speaker determine most of it; the vocoder, which ends its training on these mels, learns to fill in the rest.
   (Distilling guided steps was tried and lost words: dev/log-archive.md.) After a while, some rows are rendered with
   the speaker of another clip. Their speaker is judged (mel_speaker.py), and their mean pitch if there is a
   vocoder with a pitch predictor; the phonemes of all rows are compared (mel_content.py). A discriminator can
   keep the mels from becoming flat (mel_discriminator.py); after some minutes, their contrast was above that
   of recordings (dev/log-archive.md).

Attention is block-causal with random block sizes, so the network is trained for any chunk size of a stream and
for whole utterances.
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

from nightingale.models.chatterbox.encoders.voice_encoder import VoiceEncoder
from nightingale.models.chatterbox.s3gen.config import FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.compact import unpack
from nightingale_lab.train.corpus import Corpus, whole_clips
from nightingale_lab.train.flow_step import LOSSES, FlowTraining
from nightingale_lab.train.loop import (
    GraphedStep,
    JsonlLog,
    Schedule,
    TimeBudget,
    ignore_progress,
    resume,
    run_steps,
    save_state,
    save_weights,
)
from nightingale_lab.train.vocoder import load_vocoder

RENDER_BLOCK_TOKENS = 25
RENDER_BATCH_TOKENS = 12_800
CONSISTENCY = 0.3
"""Loss weight of the speaker of rows with another clip's speaker, and of phonemes."""
CONSISTENCY_FROM = 0.12
"""Share of the refining before that loss begins, while its judge learns; it has its full weight after twice as long."""
ADVERSARIAL_FROM = 0.08
"""Share of the refining before that loss begins, while the discriminator learns; it is full after twice as long."""
JUDGE_LR, DISCRIMINATOR_LR = 1e-3, 3e-4


def train_flow(
    corpus: Corpus,
    tokens: Tensor,
    out: Path,
    config: FlowConfig,
    *,
    match_s: float,
    refine_s: float,
    teacher: VoiceEncoder,
    budget_s: float = float("inf"),
    device: torch.device,
    batch: int = 128,
    eager: bool = False,
    peak_lr: float = 6e-4,
    adversarial: float = 0.0,
    pitch_from: Path | None = None,
    start_from: Path | None = None,
    converted: Tensor | None = None,
    on_progress: Callable[[dict[str, Any]], None] = ignore_progress,
) -> None:
    """Run both phases. `match_s` and `refine_s` are the seconds of all calls together.

    A call resumes from the state in `out` and lasts `budget_s` at most. `flow.refine.safetensors` is the
    two-step model. teacher: of the speaker vectors; adversarial: the gradient of a discriminator's loss
    as a share of that of the distance to the recorded mel; pitch_from: weights of wren's vocoder, whose predictor
    judges the pitch of swapped rows; start_from: weights to start from when `out` holds no state; converted:
    other tokens of the same clips (converted.py), which some rows get.
    """
    started_s = time.monotonic()
    training = FlowTraining(
        corpus,
        tokens,
        config,
        teacher=teacher,
        device=device,
        batch=batch,
        eager=eager,
        adversarial=adversarial > 0,
        pitch=load_vocoder(pitch_from, torch.device("cpu")) if pitch_from else None,
        converted=converted,
    )
    log, state_path = JsonlLog(out / "flow.jsonl"), out / "flow.state.pt"
    done = {"step": 0, "match": 0.0, "refine": 0.0, **resume(training, state_path, start_from)}

    judge_schedule = Schedule(peak=JUDGE_LR, warmup_steps=100)
    discriminator_schedule = Schedule(peak=DISCRIMINATOR_LR, warmup_steps=100, floor=0.2)

    def run(phase: str, advance: GraphedStep, schedule: Schedule, plan_s: float) -> None:
        left_s = min(plan_s - done[phase], started_s + budget_s - time.monotonic())
        clock = TimeBudget(left_s, plan_s=plan_s, elapsed_s=done[phase])
        first_step = done["step"]

        def log_progress() -> None:
            record = {"phase": phase, "step": done["step"], "seconds": clock.elapsed_s}
            record |= dict(zip(LOSSES, training.losses.tolist(), strict=True))
            record |= training.validate()
            log.write(record | {"capture_error": advance.capture_error})
            on_progress(record)

        def save() -> None:
            done[phase] = clock.elapsed_s
            save_weights(training.ema.named(training.net), out / f"flow.{phase}.safetensors")
            save_state(state_path, {"done": done, **training.state_dict()})

        def step() -> None:
            fresh_steps = int(done["step"] - first_step)
            training.optimizer.lr.fill_(schedule.at(fresh_steps, clock.progress))
            training.judge_optimizer.lr.fill_(judge_schedule.at(fresh_steps, clock.progress))
            training.consistency.fill_(CONSISTENCY * ramp(clock.progress, CONSISTENCY_FROM))
            if adversarial:
                discriminator_lr = discriminator_schedule.at(fresh_steps, clock.progress)
                training.discriminator_optimizer.lr.fill_(discriminator_lr)
                training.adversarial.fill_(adversarial * ramp(clock.progress, ADVERSARIAL_FROM))
            advance()
            done["step"] += 1

        run_steps(step, clock, log=log_progress, save=save, log_every_s=15)

    if done["match"] < match_s:
        run("match", training.match, Schedule(peak=peak_lr, warmup_steps=300), match_s)
    if done["refine"] < refine_s:
        if not training.refining:
            training.start_refining()
        training.match.forget()  # free its memory for the second graph
        run("refine", training.refine, Schedule(peak=peak_lr, warmup_steps=100), refine_s)


def ramp(progress: float, start: float) -> float:
    """Return 0 up to `start`, then a line to 1, which it reaches at twice as much."""
    return min(1.0, max(0.0, progress / start - 1))


@torch.no_grad()
def render_mels(
    weights: Path,
    corpus: Corpus,
    tokens: Tensor,
    config: FlowConfig,
    *,
    device: torch.device,
    seed: int = 0,
    speakers: NDArray[np.float16] | None = None,
) -> NDArray[np.float16]:
    """Render the corpus's tokens with the two-step model: mels (frames, bands), frame by frame as the audio.

    speakers: (clips, 256); default: those of the clips.
    """
    net = Flow(config).to(device).eval()
    net.load_state_dict({k: v.float() for k, v in unpack(load_file(weights)).items()})
    noise = torch.Generator(device).manual_seed(seed)
    offsets = torch.from_numpy(corpus.token_offsets)
    counts, flat = offsets.diff(), tokens.to(device)
    speaker = torch.from_numpy(corpus.speaker if speakers is None else speakers).to(device)
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
        inside = frame[None] < 2 * real[:, None]
        out[(2 * start[:, None] + frame)[inside]] = mel.transpose(1, 2)[inside].half()
    return out.cpu().numpy()

"""Stage `vocoder`: train on mel losses alone, then against discriminators, in resumable calls.

    python -m nightingale_lab.train.vocoder --bank DIR --out DIR --budget-s 500 --plan-s 1500 --resume

`--budget-s` is the time of this call; `--plan-s` is that of all calls together and determines the phases and the
learning rate, so the number of calls does not matter.

    state.pt               the exact state; stays on the machine (about 130 MB)
    vocoder.safetensors    averaged generator, loads into FrameVocoder
    discriminators.safetensors   in bfloat16; with the file above enough to continue elsewhere
    log.jsonl              one line every few seconds
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from nightingale.errors import CheckpointError
from nightingale.models.compact import unpack
from nightingale.models.frame_vocoder.config import (
    DELAY_SAMPLES,
    FLUSH_FRAMES,
    SILENT_LOG_MEL,
    FrameVocoderConfig,
)
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale.models.layers.mel import FlowMel
from nightingale_lab.train.bank import HOP, AudioBank
from nightingale_lab.train.loop import (
    Every,
    GraphedStep,
    JsonlLog,
    Schedule,
    load_state,
    progress_line,
    save_state,
)
from nightingale_lab.train.measured_pitch import measure_pitch
from nightingale_lab.train.vocoder_data import VocoderData, VocoderDataSource
from nightingale_lab.train.vocoder_step import STATS, VocoderPlan, VocoderStage

WREN_VOCODER: Final = FrameVocoderConfig()
"""The sizes of wren's vocoder."""


def train_vocoder(
    bank: AudioBank,
    out_dir: Path,
    *,
    budget_s: float,
    seed: int,
    device: torch.device,
    resume: bool,
    eager: bool,
    plan: VocoderPlan | None = None,
    plan_s: float | None = None,
    plan_steps: int | None = None,
    max_steps: int | None = None,
    state_dir: Path | None = None,
    resume_from: Path | None = None,
    mels: NDArray[np.float16] | None = None,
    limited: NDArray[np.bool_] | None = None,
    newer: Callable[[], VocoderData | None] | None = None,
    log_every_s: float = 5.0,
    save_every_s: float = 60.0,
    on_progress: Callable[[str], None] | None = None,
) -> FrameVocoder:
    """Train until the budget or the plan ends; return the averaged network.

    plan_s: seconds of the whole training (default: this budget). plan_steps: measure progress in steps instead,
    for a run that is reproducible. max_steps: steps of this call at most. state_dir: folder of the large exact
    state (default: out_dir). resume_from: files of another machine, used when there is no exact state; their
    seconds count. newer: called from time to time to get better data. limited: (clips,) mask of band-limited
    clips.
    """
    started = time.monotonic()
    plan = plan or VocoderPlan()
    whole_s, state_path = plan_s or budget_s, (state_dir or out_dir) / "state.pt"
    out_dir.mkdir(parents=True, exist_ok=True)
    stage = VocoderStage(bank, plan, device=device, seed=seed, mels=mels, limited=limited)
    done: dict[str, Any] = {"step": 0, "gan_step": 0, "fresh_step": 0, "elapsed_s": 0.0}
    earlier = _resume(stage, state_path, resume_from or out_dir) if resume else {}
    done.update(earlier)
    if not earlier:
        stage.set_start_levels()
    log = JsonlLog(out_dir / "log.jsonl")
    g_rate = Schedule(peak=plan.lr, warmup_steps=plan.warmup_steps)
    d_rate = Schedule(peak=plan.discriminator_lr, warmup_steps=plan.warmup_steps)
    mel_step = GraphedStep(stage.mel_step, eager=eager)
    gan_step = GraphedStep(stage.gan_step, eager=eager)
    discriminator_step = GraphedStep(stage.discriminator_step, eager=eager)
    before_s, first_step, now = done["elapsed_s"], done["step"], time.monotonic()
    log_due, save_due = Every(log_every_s, now), Every(save_every_s, now)
    logged = (first_step, now)

    def checkpoint() -> None:
        save_state(state_path, {"done": dict(done), **stage.state_dict()})
        export(stage, out_dir, done)

    with torch.backends.cudnn.flags(enabled=True, benchmark=device.type == "cuda", allow_tf32=True):
        while True:
            progress = done["step"] / plan_steps if plan_steps else done["elapsed_s"] / whole_s
            spent = time.monotonic() - started
            if progress >= 1 or spent >= budget_s or (max_steps and done["step"] - first_step >= max_steps):
                break
            warming = progress < plan.discriminator_share
            if plan.discriminator_share and not warming and not done["gan_step"]:
                done["fresh_step"] = done["step"]
                discriminator_step.forget()
            adversarial = not warming and progress >= plan.mel_only_share
            if adversarial and not done["gan_step"]:
                stage.ema.reset()
                mel_step.forget()  # its memory goes to the second graph
            ramp = (progress - plan.mel_only_share) / max(1e-9, plan.predicted_f0_share - plan.mel_only_share)
            stage.predicted_share.fill_(min(1.0, max(0.0, ramp)))
            rate = g_rate.at(int(done["step"] - done["fresh_step"]), progress)
            stage.opt_g.lr.fill_(rate)
            stage.opt_f0.lr.fill_(rate * plan.f0_lr / plan.lr)
            fresh = done["step"] - done["fresh_step"]
            fresh = min(done["gan_step"], fresh) if not plan.discriminator_share else done["step"]
            stage.opt_d.lr.fill_(d_rate.at(int(fresh), progress))
            stage.sample()
            step = discriminator_step if warming else gan_step if adversarial else mel_step
            step()
            done["step"] += 1
            done["gan_step"] += adversarial
            now = time.monotonic()
            done["elapsed_s"] = before_s + now - started
            if log_due(now):
                if newer and (data := newer()):
                    stage.set_data(data.bank, data.mels, data.limited)
                    for each in (mel_step, gan_step, discriminator_step):
                        each.forget()
                record = _record(stage, done, logged, rate, now, step.capture_error)
                log.write(record)
                if on_progress:
                    on_progress(progress_line(record))
                logged = (done["step"], time.monotonic())
            if save_due(now):
                checkpoint()
    if done["step"] > logged[0]:
        log.write(_record(stage, done, logged, 0.0, time.monotonic(), None))
    checkpoint()
    return averaged_network(stage)


def _record(
    stage: VocoderStage,
    done: dict[str, Any],
    logged: tuple[int, float],
    rate: float,
    now: float,
    capture_error: str | None,
) -> dict[str, Any]:
    """Return the means since the last record, and reset them."""
    steps = done["step"] - logged[0]
    means = (stage.stats / max(1, steps)).tolist()
    stage.stats.zero_()
    speed = steps / max(1e-9, now - logged[1])
    record = {"step": done["step"], "seconds": done["elapsed_s"], "steps_per_s": speed, "lr": rate}
    if capture_error:
        record["capture_error"] = capture_error
    return record | dict(zip(STATS, means, strict=True))


def averaged_network(stage: VocoderStage) -> FrameVocoder:
    """Return a network with the averaged weights, on the CPU."""
    net = FrameVocoder(stage.plan.network)
    net.load_state_dict({name: tensor.cpu() for name, tensor in stage.ema.named(stage.net).items()})
    return net.eval()


def export(stage: VocoderStage, out_dir: Path, done: dict[str, Any]) -> None:
    """Write the two small files from which training can continue on another machine."""
    counts = {name: str(value) for name, value in done.items()}
    averaged = {name: t.float().cpu().contiguous() for name, t in stage.ema.named(stage.net).items()}
    discriminators = {
        name: t.to("cpu", torch.bfloat16).contiguous()
        for name, t in stage.discriminators.state_dict().items()
    }
    for name, tensors in (("vocoder", averaged), ("discriminators", discriminators)):
        partial = out_dir / f"{name}.partial"
        save_file(tensors, partial, metadata=counts)
        partial.replace(out_dir / f"{name}.safetensors")


def _resume(stage: VocoderStage, state_path: Path, exported: Path) -> dict[str, Any]:
    """Load the exact state, or else the exported files, if there are any; return the counts to go on from.

    A generator without its discriminators begins a new plan, in which new discriminators have time to learn.
    """
    if state_path.is_file():
        state = load_state(state_path, stage.device)
        stage.load_state_dict(state)
        done: dict[str, Any] = state["done"]
        return done
    generator, discriminators = exported / "vocoder.safetensors", exported / "discriminators.safetensors"
    if not generator.is_file():
        return {}
    _load_weights(stage.net, generator)
    stage.ema.reset()
    with safe_open(generator, framework="pt") as file:
        meta = {"step": "0", "elapsed_s": "0", **(file.metadata() or {})}
    step = int(meta["step"])
    stage.generator.manual_seed(stage.generator.initial_seed() + step)  # other crops than before
    if not discriminators.is_file():
        return {"step": 0, "gan_step": 0, "fresh_step": 0, "elapsed_s": 0.0}
    stage.discriminators.load_state_dict(load_file(discriminators))
    return {
        "step": step,
        "gan_step": int(meta["gan_step"]),
        "fresh_step": step,
        "elapsed_s": float(meta["elapsed_s"]),
    }


def load_vocoder(weights: Path, device: torch.device) -> FrameVocoder:
    """Load wren's vocoder, packed or not."""
    net = FrameVocoder(WREN_VOCODER).to(device).eval()
    _load_weights(net, weights)
    return net


def _load_weights(net: FrameVocoder, weights: Path) -> None:
    tensors = unpack(load_file(weights))
    if tensors.keys() != net.state_dict().keys():
        raise CheckpointError(
            "these are not the weights of a frame vocoder",
            got=f"{weights} with {', '.join(sorted(tensors)[:3])}, …",
            allowed=", ".join(sorted(net.state_dict())[:3]) + ", …",
        )
    net.load_state_dict(tensors)


@torch.no_grad()
def render_samples(net: FrameVocoder, mel: Tensor, generator: torch.Generator) -> Tensor:
    """Return the rendering (batch, 480·T) of mels (batch, bands, T). generator: on the device of the mels."""
    padded = F.pad(mel, (0, FLUSH_FRAMES), value=SILENT_LOG_MEL)
    noise = torch.randn(len(mel), padded.shape[-1] * HOP, generator=generator, device=mel.device)
    samples, _ = net(padded, noise, net.initial_state(len(mel)))
    return samples[:, DELAY_SAMPLES : DELAY_SAMPLES + mel.shape[-1] * HOP]


def copy_synthesis(net: FrameVocoder, samples: Tensor, seed: int = 0) -> Tensor:
    """Return the vocoder's rendering of the mel of recorded samples, (batch, 480·T)."""
    return render_samples(net, FlowMel()(samples), torch.Generator().manual_seed(seed))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nightingale_lab.train.vocoder")
    parser.add_argument("--bank", type=Path, required=True, help="a corpus folder, which may still grow")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget-s", type=float, required=True)
    parser.add_argument("--plan-s", type=float)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--state-dir", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--resume-from", type=Path)
    parser.add_argument("--mels", type=Path, help="float16 .npy of shape (frames of the bank, 80)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=VocoderPlan().batch)
    parser.add_argument("--lr", type=float, default=VocoderPlan().lr)
    parser.add_argument("--f0-lr", type=float, default=VocoderPlan().f0_lr)
    parser.add_argument("--mel-only-share", type=float, default=VocoderPlan().mel_only_share)
    parser.add_argument("--discriminator-share", type=float, default=VocoderPlan().discriminator_share)
    parser.add_argument("--predicted-f0-share", type=float, default=VocoderPlan().predicted_f0_share)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--device", default="cuda")
    return parser


def main(arguments: list[str] | None = None) -> None:
    args = build_parser().parse_args(arguments)

    def report(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    source, device = VocoderDataSource(args.bank), torch.device(args.device)

    def measured(data: VocoderData) -> VocoderData:
        return replace(data, bank=measure_pitch(data.bank, device))

    def newer() -> VocoderData | None:
        data = source.newer()
        return measured(data) if data else None

    data = measured(source.current())
    train_vocoder(
        data.bank,
        args.out,
        budget_s=args.budget_s,
        seed=args.seed,
        device=device,
        resume=args.resume,
        eager=args.eager,
        plan=VocoderPlan(
            network=WREN_VOCODER,
            batch=args.batch,
            lr=args.lr,
            f0_lr=args.f0_lr,
            mel_only_share=args.mel_only_share,
            discriminator_share=args.discriminator_share,
            predicted_f0_share=args.predicted_f0_share,
        ),
        plan_s=args.plan_s,
        max_steps=args.max_steps,
        state_dir=args.state_dir,
        resume_from=args.resume_from,
        mels=np.load(args.mels) if args.mels else data.mels,
        limited=data.limited,
        newer=newer,
        on_progress=report,
    )


if __name__ == "__main__":
    main()

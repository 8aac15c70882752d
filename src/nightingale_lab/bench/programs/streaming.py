"""Differences and cost of streaming: every table of docs/streaming.md.

    python -m nightingale_lab.bench streaming [--only flow,seams,...] [--clips FOLDER] [--vocoder FILE] [--model NAME]
    python -m nightingale_lab.bench streaming --tiny      # one of everything: proves that it runs

Without files, networks have seeded random weights and the voice is synthetic. --clips is a folder of
recordings, for copy synthesis by the vocoder and for planted faults. --vocoder is a trained vocoder of wren's
shape. --model synthesizes the text of `segments`. Times are processor times of one thread. It takes some
minutes; on a busy machine set OPENBLAS_NUM_THREADS=1. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nightingale.audio.loudness import integrated_loudness
from nightingale.backends.torch.mel_stream import MelStream, prepare_prompt, render_mel
from nightingale.engine import TTS
from nightingale.engine.requests.segments import segment_text
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.voices.voice import Voice
from nightingale_lab.bench import runner
from nightingale_lab.bench.programs import streaming_vocoder
from nightingale_lab.bench.programs.streaming_vocoder import RATE_HZ, SEED
from nightingale_lab.bench.runner import option, print_records, print_table
from nightingale_lab.bench.timing import cpu_ms
from nightingale_lab.random_models import random_voice, seeded, tiny_preset

MEDIUM = FlowConfig(
    encoder_width=128, encoder_heads=4, encoder_blocks=3, encoder_up_blocks=2, encoder_ffn=256,
    estimator_width=64, estimator_heads=2, estimator_mid_stages=4, estimator_stage_blocks=2,
)  # fmt: skip
FLOWS = {
    "guided, windows": MEDIUM,
    "meanflow, windows": replace(MEDIUM, meanflow=True),
    "wren, block-causal": replace(PRESETS["wren"].flow, speaker_width=192),
}
RAMPS_TOKENS = {"8, 16, 32, 64": (8, 64), "all of 8": (8, 8), "all of 25": (25, 25)}
PROMPTED = ["turbo", "english"]
"""Presets whose prompt state is measured."""
COUNTS = {"tokens": 120, "chunks": 32, "copies": 8}
BOOK = (
    "It was a bright day, and the road went up into the hills. Nobody was on it but a boy and his dog. "
    "He had walked since six o'clock! How far is it to the village, he asked a man at the well? "
    "That depends, said the man, on whether you mean to go by the bridge or by the ford.\n\n"
)


def ids_of(count: int) -> list[int]:
    rng = torch.Generator().manual_seed(3)
    ids: list[int] = torch.randint(SPEECH_CODES, (count,), generator=rng).tolist()
    return ids


def voice_with(prompt_tokens: int) -> Voice:
    preset = replace(PRESETS["wren"], flow=MEDIUM)
    return random_voice(preset, prompt_tokens=prompt_tokens, seed=2)


def mel_in_chunks(flow: Flow, ids: list[int], voice: Voice, first: int, most: int) -> Tensor:
    stream, parts, at, size = MelStream(flow, voice, seed=SEED, streaming=True), [], 0, first
    end = first + LOOKAHEAD_TOKENS
    while at < len(ids):
        parts.append(stream.push(ids[at:end], final=end >= len(ids)))
        size = min(2 * size, most)
        at, end = end, end + size
    return torch.cat(parts, dim=1)


def flow() -> dict[str, Any]:
    """Measure how far streamed mel is from exact mode's, and whether a chunk costs more later in a stream."""
    distances, costs = {}, {}
    for name, config in FLOWS.items():
        net = seeded(Flow(config), 1)
        voice, ids = voice_with(0 if config.block_causal else 100), ids_of(COUNTS["tokens"])
        whole = render_mel(net, ids, voice, seed=SEED)
        spread = (whole - whole.mean(dim=1, keepdim=True)).norm()
        for ramp, (first, most) in RAMPS_TOKENS.items():
            mel = mel_in_chunks(net, ids, voice, first, most)
            distances[f"{name}; {ramp}"] = round(float((mel - whole).norm() / spread), 4)
        stream = MelStream(net, voice, seed=SEED, streaming=True)
        ms = [cpu_ms(partial(stream.push, ids_of(16), final=False)) for _ in range(COUNTS["chunks"])]
        costs[name] = [round(statistics.median(part), 1) for part in (ms[1:6], ms[-5:])]
    print_table(
        f"Relative L2 of streamed mel to exact mode's, the same noise; {COUNTS['tokens']} tokens",
        ("flow", "chunks (tokens)", "relative L2"),
        ((*key.split("; "), f"{value:.3f}") for key, value in distances.items()),
    )
    print_table(
        "CPU time of a chunk of 16 tokens (0.64 s of speech)",
        ("flow", "early (chunks 2-6), ms", "after 20 s, ms"),
        ((name, f"{early:.0f}", f"{late:.0f}") for name, (early, late) in costs.items()),
    )
    prompts = {}
    for preset in PROMPTED:
        with torch.device("meta"):  # shapes alone
            net = Flow(PRESETS[preset].flow)
        prompts[preset] = round(prepare_prompt(net, voice_with(250)).nbytes / 1e6)
    print_table("State kept of a prompt of 10 s, full size, float32", ("flow", "MB"), prompts.items())
    return {"mel_relative_l2": distances, "chunk_ms_early_late": costs, "prompt_mb": prompts}


def segments(model: str) -> dict[str, Any]:
    """Measure the loudness of the segments of a long text: its spread and drift."""
    tts = TTS(model)
    defaults = tts._model.defaults
    texts = segment_text(
        tts._model.frontend,
        BOOK * COUNTS["copies"],
        None,
        split_chars=defaults.split_chars,
        fill=defaults.fill_segments,
    )
    measured = (integrated_loudness(tts.say(p.text, seed=n).samples, RATE_HZ) for n, p in enumerate(texts))
    levels = np.array([lufs for lufs in measured if np.isfinite(lufs)])
    place = np.arange(len(levels))
    found = {
        "model": tts.name,
        "segments": len(levels),
        "mean, LUFS": round(float(levels.mean()), 2),
        "spread, LU": round(float(levels.std(ddof=1)), 2),
        "drift over all, LU": round(float(np.polyfit(place, levels, 1)[0]) * len(levels), 2),
        "its standard error": round(float(levels.std(ddof=2) / place.std() * len(levels) ** 0.5), 2),
        "correlation of neighbours": round(float(np.corrcoef(levels[:-1], levels[1:])[0, 1]), 2),
    }
    print_records("Loudness of the segments of a long text", found)
    return {"segments": found}


def prepared(case: runner.Case) -> runner.Case:
    """Return the case on one thread, without gradients, and at tiny sizes if they are asked for."""

    @torch.inference_mode()
    def measure(asked: argparse.Namespace) -> dict[str, Any]:
        torch.set_num_threads(1)
        if asked.tiny:
            make_tiny()
        about = {"clips": asked.clips, "vocoder": asked.vocoder}
        return {**{key: path.name if path else None for key, path in about.items()}, **case(asked)}

    return measure


def main(arguments: Sequence[str] | None = None) -> None:
    cases: dict[str, runner.Case] = {
        "flow": lambda _: flow(),
        "vocoder": lambda asked: streaming_vocoder.vocoder(asked.vocoder, asked.clips),
        "seams": lambda asked: streaming_vocoder.seams(asked.vocoder, asked.clips),
        "faults": lambda asked: streaming_vocoder.faults(asked.clips),
        "segments": lambda asked: segments(asked.model),
    }
    runner.run(
        __doc__,
        "streaming",
        {name: prepared(case) for name, case in cases.items()},
        option("--clips", type=Path, help="a folder of recordings of speech"),
        option("--vocoder", type=Path, help="a trained vocoder of wren's shape"),
        option("--model", default="noise", help="the model of `segments`"),
        arguments=arguments,
    )


def make_tiny() -> None:
    """Leave one small flow and one chunk size."""
    streaming_vocoder.make_tiny()
    FLOWS.clear()
    FLOWS["meanflow, windows"] = tiny_preset(PRESETS["turbo"]).flow
    del PROMPTED[1:]
    RAMPS_TOKENS.pop("all of 8", None)
    RAMPS_TOKENS.pop("all of 25", None)
    COUNTS.update(tokens=24, chunks=8, copies=5)

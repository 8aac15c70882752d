"""The vocoder sections of streaming.py: streamed samples, chunk boundaries and planted faults."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from nightingale.audio.read import read_audio
from nightingale.audio.resample import resample
from nightingale.backends.torch.sample_stream import CrossfadedStream, open_sample_stream, render_samples
from nightingale.clocks import CLOCKS
from nightingale.models.chatterbox.build import Vocoder, new_vocoder
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.receptive_field import lookahead_samples, mel_span
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.frame_vocoder.config import DELAY_SAMPLES, FrameVocoderConfig
from nightingale.models.layers.mel import FlowMel
from nightingale.types import Samples
from nightingale_lab.bench.runner import print_table
from nightingale_lab.bench.seams import SeamReport, seam_report
from nightingale_lab.bench.shifts import shift_report
from nightingale_lab.bench.timing import cpu_ms
from nightingale_lab.bench.voicelike import voicelike

RATE_HZ, FRAME = CLOCKS.sample_rate_hz, CLOCKS.samples_per_frame
SEED = 7
RAMP = "16, 32, 64, 128"
RAMPS_FRAMES = {
    **{f"all of {n}": [n] * 9999 for n in (1, 2, 5, 16, 50)},
    RAMP: [16, 32, 64, *[128] * 999],
}
SHAPES: dict[str, HiftConfig | FrameVocoderConfig] = {
    "wren": PRESETS["wren"].vocoder,
    "official shape": HiftConfig(base_channels=64, f0_channels=64),
}
"""The official shape has an eighth of its width."""
HOLDS: dict[str, tuple[int | None, ...]] = {"wren": (None,), "official shape": (20, 14, 8, 4, 2)}
"""Frames that the stream holds back; None where its lookahead decides that."""
COUNTS = {"clips": 4, "frames": 200, "faulty clips": 10, "faults": 10, "seconds": 4}
BOUNDARIES = [480, 960, 2400, 6000, 24_000]
"""Distances of boundaries in untouched speech, in samples."""


def make_tiny() -> None:
    """Leave one small network, two chunk sizes and one short clip."""
    SHAPES.clear()
    SHAPES["wren"] = FrameVocoderConfig(width=16, hidden=24, blocks=2, pitch_width=8)
    for name in list(RAMPS_FRAMES):
        if name not in ("all of 16", RAMP):
            del RAMPS_FRAMES[name]
    COUNTS.update({"clips": 1, "frames": 60, "faulty clips": 1, "faults": 1, "seconds": 3})
    del BOUNDARIES[:-1]


def decibels(difference: Samples, whole: Samples) -> float:
    return 10 * float(
        np.log10(np.sum(difference**2, dtype=np.float64) / np.sum(whole**2, dtype=np.float64) + 1e-20)
    )


def networks(path: Path | None) -> dict[str, Vocoder]:
    """Return a vocoder of each shape; wren's is trained if there is a file."""
    found = {name: voiced(config) for name, config in SHAPES.items()}
    if path is not None:
        found["wren"].load_state_dict(load_file(path))
    return found


def voiced(config: HiftConfig | FrameVocoderConfig) -> Vocoder:
    """Return a network with torch's initial weights, but with a pitch that depends on the mel."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = new_vocoder(config).eval().requires_grad_(False)
    predictor: Any = net.f0_predictor if isinstance(net, Hift) else net.pitch_predictor
    predictor.classifier.weight.data *= 10
    predictor.classifier.bias.data.fill_(150.0)
    return net


def recordings(folder: Path | None, count: int) -> list[Samples]:
    """Return speech at 24 kHz: the first recordings of the folder, or synthetic ones."""
    if folder is None:
        return [voicelike(seconds=COUNTS["seconds"], seed=seed) for seed in range(count)]
    paths = sorted(p for p in folder.iterdir() if p.suffix in (".wav", ".flac", ".ogg", ".opus", ".mp3"))
    found = []
    for path in paths:
        samples, rate_hz = read_audio(path)
        if 2.5 <= len(samples) / rate_hz <= 8:
            found.append(resample(samples, rate_hz, RATE_HZ))
        if len(found) == count:
            break
    return found


def in_chunks(net: Vocoder, mel: Tensor, ramp: Sequence[int], hold: int | None = None) -> list[Samples]:
    """Return the chunks of a stream. hold: frames that HiFT's holds back."""
    stream = open_sample_stream(net, seed=SEED, streaming=True)
    if hold is not None:
        assert isinstance(net, Hift)
        stream = CrossfadedStream(net, seed=SEED, hold_frames=hold)
    ends = [*(end for end in accumulate(ramp) if end < mel.shape[1]), mel.shape[1]]
    chunks = [stream.push(mel[:, a:b], final=b == mel.shape[1]) for a, b in pairwise([0, *ends])]
    return [chunk for chunk in chunks if len(chunk)]


def vocoder(trained: Path | None, clips: Path | None) -> dict[str, Any]:
    """Measure how far streamed samples are from the whole, and what a chunk costs."""
    nets = networks(trained)
    mels = [FlowMel()(torch.from_numpy(x)[None])[0] for x in recordings(clips, COUNTS["clips"])]
    reaches = []
    for name, net in nets.items():
        ahead, span = DELAY_SAMPLES, f"from -{DELAY_SAMPLES}"
        if isinstance(net, Hift):
            first, last = mel_span(net)
            ahead, span = lookahead_samples(net), f"{first} … +{last}"
        reaches.append((name, span, f"{ahead} samples: {ahead / FRAME:.2f} frames"))
    print_table("Receptive field", ("network", "a mel frame changes samples", "look-ahead"), reaches)
    apart = {}
    for name, net in nets.items():
        wholes = [render_samples(net, mel, seed=SEED) for mel in mels]
        for hold in HOLDS[name]:
            db = []
            for mel, whole in zip(mels, wholes, strict=True):
                chunks = in_chunks(net, mel, RAMPS_FRAMES[RAMP], hold)
                db.append(decibels(np.concatenate(chunks) - whole, whole))
            held = f"{DELAY_SAMPLES / FRAME:.2f}" if hold is None else hold
            apart[f"{name}; {held}"] = [round(statistics.mean(db), 1), round(max(db), 1)]
    print_table(
        "Streamed samples against the whole: power of the difference",
        ("network", "frames held back", "mean, dB", "worst, dB"),
        ((*key.split("; "), *values) for key, values in apart.items()),
    )
    wren, mel, costs = nets["wren"], torch.cat(mels, dim=1), {}
    for chunk in (4, 16, 50):
        early, late = (chunk_ms(wren, mel, chunk, after=after) for after in (20, 300))
        spans = (mel[:, :chunk], mel[:, : chunk + 21])
        whole_ms, window_ms = (cpu_ms(partial(render_samples, wren, span, seed=0), 3) for span in spans)
        costs[chunk] = [round(ms) for ms in (whole_ms, early, late, window_ms)]
    print_table(
        "CPU time of a chunk, wren, ms",
        (
            "chunk, frames",
            "a whole that long",
            "stream, after 20 frames",
            "after 300",
            "window of 17 + chunk + 4",
        ),
        ((key, *values) for key, values in costs.items()),
    )
    return {"vocoder_db_mean_worst": apart, "vocoder_chunk_ms": costs}


def chunk_ms(net: Vocoder, mel: Tensor, chunk: int, *, after: int) -> float:
    def once() -> float:
        stream = open_sample_stream(net, seed=0, streaming=True)
        for start in range(0, after, 20):
            stream.push(mel[:, start : start + 20], final=False)
        return cpu_ms(lambda: stream.push(mel[:, after : after + chunk], final=False))

    return min(once() for _ in range(3))


def seams(trained: Path | None, clips: Path | None) -> dict[str, Any]:
    """Compare boundaries with the inside of chunks, and chunks with the whole, for every chunk size."""
    nets, frames = networks(trained), COUNTS["frames"]
    mels = [FlowMel()(torch.from_numpy(x)[None])[0][:, :frames] for x in recordings(clips, 2)]
    rows, streams = [], {}
    for (name, net), (ramp, sizes) in ((n, r) for n in nets.items() for r in RAMPS_FRAMES.items()):
        reports, slips = [], 0
        for mel in mels:
            chunks = in_chunks(net, mel, sizes)
            starts, samples = list(accumulate(len(chunk) for chunk in chunks[:-1])), np.concatenate(chunks)
            reports.append(seam_report(samples, starts, RATE_HZ))
            slips += not shift_report(samples, starts, render_samples(net, mel, seed=SEED)).clean
        step, flux = (above_share(reports, measure) for measure in ("step", "flux"))
        found = sum(len(report.seams) for report in reports)
        boundaries = sum(len(report.boundaries) for report in reports)
        rows.append((name, ramp, boundaries, step, flux, found, slips))
        streams[f"{name}; {ramp}"] = [boundaries, step, flux, found, slips]
    print_table(
        f"Streams of {len(mels)} clips: boundaries above the 99th percentile inside (1 % is chance)",
        ("network", "chunks (frames)", "boundaries", "step above", "flux above", "seams", "streams shifted"),
        rows,
    )
    return {"streams": streams}


def faults(clips: Path | None) -> dict[str, Any]:
    """Count the planted faults that each check detects."""
    planted = plant([x[: 4 * RATE_HZ] for x in recordings(clips, COUNTS["faulty clips"])])
    columns = ("fault", "planted", "detected in the stream alone", "detected with the whole")
    print_table(
        "Faults planted in clean speech, one at a time", columns, ((k, *v) for k, v in planted.items())
    )
    return {"planted": planted}


def above_share(reports: list[SeamReport], measure: str) -> str:
    above = sum(getattr(report, measure).above for report in reports)
    return f"{100 * above / max(1, sum(len(report.boundaries) for report in reports)):.1f} %"


Fault = Callable[[Samples, int], Samples]
FAULTS: dict[str, Fault] = {
    "one sample lost": lambda x, at: np.delete(x, at),
    "one sample doubled": lambda x, at: np.insert(x, at, x[at - 1]),
    "10 ms gap put in": lambda x, at: np.insert(x, at, np.zeros(RATE_HZ // 100, np.float32)),
    "10 ms silenced": lambda x, at: np.concatenate([x[:at], np.zeros(240, np.float32), x[at + 240 :]]),
    "10 ms lost": lambda x, at: np.delete(x, slice(at, at + RATE_HZ // 100)),
}


def plant(clips: list[Samples]) -> dict[str, list[int]]:
    """Return by fault how many were planted, detected in the stream alone, and detected with the whole."""
    counts = {name: [0, 0, 0] for name in (*FAULTS, "nothing, at every boundary of 20 to 1000 ms")}
    rng = np.random.default_rng(5)
    for clip in clips:
        level = np.sqrt(np.convolve(clip**2, np.full(480, 1 / 480), "same"))
        for at in rng.choice(np.flatnonzero(level[6000:-6000] > 0.02) + 6000, COUNTS["faults"]).tolist():
            for name, fault in FAULTS.items():
                start = max(0, at - RATE_HZ)
                near = clip[start : at + RATE_HZ]
                count(counts[name], fault(near, at - start), [at - start], near)
        for size in BOUNDARIES:
            count(
                counts["nothing, at every boundary of 20 to 1000 ms"],
                clip,
                range(size, len(clip), size),
                clip,
            )
    return counts


def count(counts: list[int], stream: Samples, boundaries: Sequence[int], whole: Samples) -> None:
    beside = shift_report(stream, boundaries, whole)
    counts[0] += len(boundaries)
    counts[1] += len(seam_report(stream, boundaries, RATE_HZ).seams)
    counts[2] += max(len(beside.slips), int(not beside.clean))

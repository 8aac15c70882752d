"""What streaming changes and what it costs: every table of docs/streaming.md, by one command.

    python benchmarks/streaming.py [--only flow,seams,...] [--clips FOLDER] [--vocoder FILE] [--model NAME]

Without files it needs nothing: networks have seeded random weights, and the voice is made of numbers. --clips
is a folder of recordings of speech, for the vocoder to say again and for faults to be planted in. --vocoder
is a trained vocoder of wren's shape. --model is what `pieces` lets speak. Times are CPU times of one thread.
It takes some minutes; on a busy machine set OPENBLAS_NUM_THREADS=1, or numpy's threads wait by spinning. The
last line is JSON, and is added to benchmarks/results/streaming.jsonl.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nightingale.engine.standin import seeded
from safetensors.torch import load_file
from torch import Tensor

from nightingale.audio.loudness import integrated_loudness
from nightingale.audio.read import read_audio
from nightingale.audio.resample import resample
from nightingale.backends.torch.mel_stream import MelStream, prepare_prompt, render_mel
from nightingale.backends.torch.sample_stream import SampleStream, render_samples
from nightingale.clocks import CLOCKS
from nightingale.engine import TTS
from nightingale.engine.requests.segments import segment_text
from nightingale.models.chatterbox.hift.config import HiftConfig
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.models.chatterbox.hift.receptive_field import lookahead_samples, mel_span
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, SPEECH_CODES, FlowConfig
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.layers.mel import FlowMel
from nightingale.types import Samples
from nightingale.voices.voice import Voice
from nightingale_lab.bench.seams import SeamReport, seam_report
from nightingale_lab.bench.shifts import shift_report
from nightingale_lab.bench.voicelike import voicelike

RATE_HZ, FRAME = CLOCKS.sample_rate_hz, CLOCKS.samples_per_frame
SEED = 7
RESULTS = Path(__file__).parent / "results" / "streaming.jsonl"
MIDDLING = FlowConfig(
    encoder_width=128, encoder_heads=4, encoder_blocks=3, encoder_up_blocks=2, encoder_ffn=256,
    estimator_width=64, estimator_heads=2, estimator_mid_stages=4, estimator_stage_blocks=2,
)  # fmt: skip
FLOWS = {
    "guided, windows": MIDDLING,
    "meanflow, windows": replace(MIDDLING, meanflow=True),
    "wren, block-causal": replace(PRESETS["wren"].flow, speaker_width=192),
}
RAMPS_TOKENS = {"8, 16, 32, 64": (8, 64), "all of 8": (8, 8), "all of 25": (25, 25)}
RAMPS_FRAMES = {
    **{f"all of {n}": [n] * 9999 for n in (1, 2, 5, 16, 50)},
    "16, 32, 64, 128": [16, 32, 64, *[128] * 999],
}
OFFICIAL = HiftConfig(base_channels=64, f0_channels=64)
"""The official shape at an eighth of its width."""
BOOK = (
    "It was a bright day, and the road went up into the hills. Nobody was on it but a boy and his dog. "
    "He had walked since six o'clock! How far is it to the village, he asked a man at the well? "
    "That depends, said the man, on whether you mean to go by the bridge or by the ford.\n\n"
)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'|'.join('---' for _ in columns)}|")
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |", flush=True)


def cpu_ms(act: Callable[[], object]) -> float:
    begun = time.process_time()
    act()
    return 1000 * (time.process_time() - begun)


def decibels(difference: Samples, whole: Samples) -> float:
    return 10 * float(
        np.log10(np.sum(difference**2, dtype=np.float64) / np.sum(whole**2, dtype=np.float64) + 1e-20)
    )


def ids_of(count: int) -> list[int]:
    drawn: list[int] = torch.randint(
        SPEECH_CODES, (count,), generator=torch.Generator().manual_seed(3)
    ).tolist()
    return drawn


def voice_of(prompt_tokens: int) -> Voice:
    rng = torch.Generator().manual_seed(2)
    return Voice.checked(
        name="somebody",
        family="wren",
        speaker=torch.randn(16, generator=rng),
        prompt_ids=torch.zeros(0, dtype=torch.int64),
        flow_prompt_ids=torch.randint(SPEECH_CODES, (prompt_tokens,), generator=rng),
        flow_prompt_mel=torch.randn(2 * prompt_tokens, 80, generator=rng),
        flow_speaker=torch.randn(192, generator=rng),
    )


def mel_in_chunks(flow: Flow, ids: list[int], voice: Voice, first: int, most: int) -> Tensor:
    stream, pieces, at, size = MelStream(flow, voice, seed=SEED, streaming=True), [], 0, first
    end = first + LOOKAHEAD_TOKENS
    while at < len(ids):
        pieces.append(stream.push(ids[at:end], final=end >= len(ids)))
        size = min(2 * size, most)
        at, end = end, end + size
    return torch.cat(pieces, dim=1)


def flow() -> dict[str, Any]:
    """How far streamed mel is from exact mode's, and whether a chunk costs more after much was spoken."""
    distances, costs = {}, {}
    for name, config in FLOWS.items():
        net = seeded(Flow(config), torch.Generator().manual_seed(1))
        voice, ids = voice_of(0 if config.block_causal else 100), ids_of(120)
        whole = render_mel(net, ids, voice, seed=SEED)
        spread = (whole - whole.mean(dim=1, keepdim=True)).norm()
        for ramp, (first, most) in RAMPS_TOKENS.items():
            mel = mel_in_chunks(net, ids, voice, first, most)
            distances[f"{name}; {ramp}"] = round(float((mel - whole).norm() / spread), 4)
        stream = MelStream(net, voice, seed=SEED, streaming=True)
        ms = [cpu_ms(partial(stream.push, ids_of(16), final=False)) for _ in range(32)]
        costs[name] = [round(statistics.median(part), 1) for part in (ms[1:6], ms[-5:])]
    table(
        "Relative L2 of streamed mel to exact mode's, the same noise; 120 tokens",
        ("flow", "chunks (tokens)", "relative L2"),
        ((*key.split("; "), f"{value:.3f}") for key, value in distances.items()),
    )
    table(
        "CPU time of a chunk of 16 tokens (0.64 s of speech)",
        ("flow", "early (chunks 2-6), ms", "after 20 s, ms"),
        ((name, f"{early:.0f}", f"{late:.0f}") for name, (early, late) in costs.items()),
    )
    prompts = {}
    for preset in ("turbo", "english"):
        with torch.device("meta"):  # shapes alone
            net = Flow(PRESETS[preset].flow)
        prompts[preset] = round(prepare_prompt(net, voice_of(250)).nbytes / 1e6)
    table("What is remembered of a prompt of 10 s, full size, float32", ("flow", "MB"), prompts.items())
    return {"mel_relative_l2": distances, "chunk_ms_early_late": costs, "prompt_mb": prompts}


def wren_vocoder(path: Path | None) -> Hift:
    """Wren's: trained, or with random weights."""
    net = voiced(PRESETS["wren"].hift)
    if path is not None:
        missing, _ = net.load_state_dict(load_file(path), strict=False)
        assert not [name for name in missing if "window" not in name], missing
    return net


def voiced(config: HiftConfig) -> Hift:
    """A network as torch draws it, but with a pitch, which the mel moves."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Hift(config).eval().requires_grad_(False)
    net.f0_predictor.classifier.weight.data *= 10
    net.f0_predictor.classifier.bias.data.fill_(150.0)
    return net


def recordings(folder: Path | None, count: int) -> list[Samples]:
    """Speech at 24 kHz: the first recordings of the folder, or the voice of numbers."""
    if folder is None:
        return [voicelike(seconds=4, seed=seed) for seed in range(count)]
    paths = sorted(p for p in folder.iterdir() if p.suffix in (".wav", ".flac", ".ogg", ".opus", ".mp3"))
    found = []
    for path in paths:
        samples, rate_hz = read_audio(path)
        if 2.5 <= len(samples) / rate_hz <= 8:
            found.append(resample(samples, rate_hz, RATE_HZ))
        if len(found) == count:
            break
    return found


def in_chunks(net: Hift, mel: Tensor, ramp: Sequence[int], **options: int) -> list[Samples]:
    stream = SampleStream(net, seed=SEED, streaming=True, **options)
    ends = [*(end for end in accumulate(ramp) if end < mel.shape[1]), mel.shape[1]]
    pieces = [stream.push(mel[:, a:b], final=b == mel.shape[1]) for a, b in pairwise([0, *ends])]
    return [piece for piece in pieces if len(piece)]


def vocoder(trained: Path | None, clips: Path | None) -> dict[str, Any]:
    """How far samples rendered in pieces are from the whole, and what a piece costs."""
    wren, official = wren_vocoder(trained), voiced(OFFICIAL)
    mels = [FlowMel()(torch.from_numpy(x)[None])[0] for x in recordings(clips, 4)]
    reaches = []
    for name, net in (("wren (causal)", wren), ("official (two-sided)", official)):
        first, last = mel_span(net)
        ahead = lookahead_samples(net)
        reaches.append((name, f"{first} … +{last}", f"{ahead} samples: {ahead / FRAME:.2f} frames"))
    table("How far the network hears", ("network", "a mel frame changes samples", "look-ahead"), reaches)
    apart = {}
    for name, net, holds in (
        ("wren", wren, (4, 3, 2, 1, 0)),
        ("official shape", official, (20, 14, 8, 4, 2)),
    ):
        wholes = [render_samples(net, mel, seed=SEED) for mel in mels]
        for hold in holds:
            db = []
            for mel, whole in zip(mels, wholes, strict=True):
                pieces = in_chunks(net, mel, RAMPS_FRAMES["16, 32, 64, 128"], hold_frames=hold)
                db.append(decibels(np.concatenate(pieces) - whole, whole))
            apart[f"{name}; {hold}"] = [round(statistics.mean(db), 1), round(max(db), 1)]
    table(
        "Samples in pieces against the whole: power of the difference",
        ("network", "frames held back", "mean, dB", "worst, dB"),
        ((*key.split("; "), *values) for key, values in apart.items()),
    )
    mel, costs = torch.cat(mels, dim=1), {}
    for chunk in (4, 16, 50):
        early, late = (chunk_ms(wren, mel, chunk, after=after) for after in (20, 300))
        spans = (mel[:, :chunk], mel[:, : chunk + 21])
        whole_ms, window_ms = (best_ms(partial(render_samples, wren, span, seed=0)) for span in spans)
        costs[chunk] = [round(ms) for ms in (whole_ms, early, late, window_ms)]
    table(
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


def best_ms(act: Callable[[], object]) -> float:
    return min(cpu_ms(act) for _ in range(3))


def chunk_ms(net: Hift, mel: Tensor, chunk: int, *, after: int) -> float:
    def once() -> float:
        stream = SampleStream(net, seed=0, streaming=True)
        for start in range(0, after, 20):
            stream.push(mel[:, start : start + 20], final=False)
        return cpu_ms(lambda: stream.push(mel[:, after : after + chunk], final=False))

    return min(once() for _ in range(3))


def seams(trained: Path | None, clips: Path | None) -> dict[str, Any]:
    """Streams of every ramp: boundaries against inside, and chunks against the whole."""
    nets = {"wren": wren_vocoder(trained), "official shape": voiced(OFFICIAL)}
    mels = [FlowMel()(torch.from_numpy(x)[None])[0][:, :200] for x in recordings(clips, 2)]
    rows, streams = [], {}
    for (name, net), (ramp, sizes) in ((n, r) for n in nets.items() for r in RAMPS_FRAMES.items()):
        reports, slips = [], 0
        for mel in mels:
            pieces = in_chunks(net, mel, sizes)
            starts, samples = list(accumulate(len(piece) for piece in pieces[:-1])), np.concatenate(pieces)
            reports.append(seam_report(samples, starts, RATE_HZ))
            slips += not shift_report(samples, starts, render_samples(net, mel, seed=SEED)).clean
        step, flux = (above_share(reports, measure) for measure in ("step", "flux"))
        found = sum(len(report.seams) for report in reports)
        boundaries = sum(len(report.boundaries) for report in reports)
        rows.append((name, ramp, boundaries, step, flux, found, slips))
        streams[f"{name}; {ramp}"] = [boundaries, step, flux, found, slips]
    table(
        f"Streams of {len(mels)} clips: boundaries above the 99th percentile inside (1 % is chance)",
        ("network", "chunks (frames)", "boundaries", "step above", "flux above", "seams", "streams shifted"),
        rows,
    )
    return {"streams": streams}


def faults(clips: Path | None) -> dict[str, Any]:
    """What each check finds of what was planted in clean speech."""
    planted = plant([x[: 4 * RATE_HZ] for x in recordings(clips, 10)])
    columns = ("fault", "planted", "found by the sound alone", "found beside the whole")
    table("Faults planted in clean speech, one at a time", columns, ((k, *v) for k, v in planted.items()))
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
    """By fault: how many were planted, and how many were found by the sound alone and beside the whole."""
    counts = {name: [0, 0, 0] for name in (*FAULTS, "nothing, at every boundary of 20 to 1000 ms")}
    rng = np.random.default_rng(5)
    for clip in clips:
        level = np.sqrt(np.convolve(clip**2, np.full(480, 1 / 480), "same"))
        for at in rng.choice(np.flatnonzero(level[6000:-6000] > 0.02) + 6000, 10).tolist():
            for name, fault in FAULTS.items():
                start = max(0, at - RATE_HZ)
                near = clip[start : at + RATE_HZ]
                count(counts[name], fault(near, at - start), [at - start], near)
        for size in (480, 960, 2400, 6000, 24_000):
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


def pieces(model: str) -> dict[str, Any]:
    """The level of each piece of a long text: how far apart, and whether it drifts."""
    tts = TTS(model)
    defaults = tts._model.defaults
    texts = segment_text(
        tts._model.frontend, BOOK * 8, None, split_chars=defaults.split_chars, fill=defaults.fill_pieces
    )
    heard = (integrated_loudness(tts.say(p.text, seed=n).samples, RATE_HZ) for n, p in enumerate(texts))
    levels = np.array([lufs for lufs in heard if np.isfinite(lufs)])
    place = np.arange(len(levels))
    found = {
        "model": tts.name,
        "pieces": len(levels),
        "mean, LUFS": round(float(levels.mean()), 2),
        "spread, LU": round(float(levels.std(ddof=1)), 2),
        "drift over all, LU": round(float(np.polyfit(place, levels, 1)[0]) * len(levels), 2),
        "its standard error": round(float(levels.std(ddof=2) / place.std() * len(levels) ** 0.5), 2),
        "one piece with the next": round(float(np.corrcoef(levels[:-1], levels[1:])[0, 1]), 2),
    }
    table("Loudness of the pieces of a long text", tuple(found), [tuple(found.values())])
    return {"pieces": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="flow,vocoder,seams,faults,pieces")
    for option in ("--clips", "--vocoder"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--model", default="noise")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "flow": flow,
        "vocoder": lambda: vocoder(asked.vocoder, asked.clips),
        "seams": lambda: seams(asked.vocoder, asked.clips),
        "faults": lambda: faults(asked.clips),
        "pieces": lambda: pieces(asked.model),
    }
    result: dict[str, Any] = {}
    with torch.inference_mode():
        for name in asked.only.split(","):
            result |= sections[name]()
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result |= {
        "clips": asked.clips.name if asked.clips else None,
        "vocoder": asked.vocoder.name if asked.vocoder else None,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "commit": git.stdout.strip(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    line = json.dumps(result)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    print(f"\n{line}")


if __name__ == "__main__":
    main()

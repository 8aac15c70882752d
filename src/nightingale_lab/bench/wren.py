"""Measure the table of wren's model card: a table, then one line of JSON, which is stored.

    python -m nightingale_lab.bench.wren [FOLDER] [--parts default,voices] [--references DIR] [--every 10]
        [--teachers] [--readers DIR]

FOLDER is what `nightingale train export` wrote (default: the model in the package). Sentences are synthesized
one by one, each with its own seed, then judged. References are recordings of the teacher's voices,
`<voice>*.wav`; without them the speaker is not judged.

    default     200 sentences, default voice
    voices      some of them in every voice
    varied      500 texts of 1 to 60 words: defects, and words that were skipped or repeated
    hard        spelled letters, digits, names, single words and long sentences, with two seeds each
    clones      with --readers, a folder of recordings for each reader: clones of people, and the voice encoder
    questions   the final pitch of 40 sentences with a question mark over that with a period
    speed       real-time factor, first audio, cold start

With --teachers, they speak the same texts: hibari those of `default`, `varied` and `hard`, Kokoro those of `voices`,
each voice with its own. They are installed in the user's cache the first time.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nightingale.audio.read import read_audio
from nightingale.audio.resample import resample
from nightingale.backends.torch.weights import load_voice_encoders
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.engine import TTS
from nightingale_lab import reference
from nightingale_lab.bench import clones, runner
from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.peers.client import PeerProcess
from nightingale_lab.bench.peers.install import homes, install
from nightingale_lab.bench.peers.peer_list import KOKORO_VOICES, PEERS
from nightingale_lab.bench.pitch import final_semitones
from nightingale_lab.bench.quality import Ask, Clip, Quality, ask_with, measure
from nightingale_lab.bench.sentences import sentences
from nightingale_lab.bench.wren_goals import (
    DISTILL_MOS_HEAD,
    RECOGNIZERS,
    Speed,
    TableResults,
    distill_mos_rows,
    goals,
    skipped_words,
    table,
)

KIND = "wren"
CARD = "card.json"
SENTENCE = "The birch canoe slid on the smooth planks."
TINY_SENTENCES = 2
HARD_SEEDS = (1, 2)
CLONE_SENTENCES = 3


def render(
    tts: TTS,
    lines: Sequence[str],
    folder: Path,
    *,
    voice: Path | None = None,
    references: Sequence[Path] = (),
    seed: int | None = None,
    on_clip: Callable[[int, int], object] = lambda *_: None,
) -> tuple[list[Clip], Speed]:
    """Synthesize one recording per line, `000.wav` onwards, and time it.

    seed: of all lines; without it, each has its number.
    """
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    clips, factors, firsts = [], [], []
    tts.say(SENTENCE, voice=voice, seed=0)  # warm up
    for number, line in enumerate(lines):
        begun, first_s, chunks = time.perf_counter(), None, [np.zeros(0, np.float32)]
        stream = tts.stream(line, voice=voice, seed=number if seed is None else seed)
        for chunk in stream:
            first_s = first_s if first_s is not None else time.perf_counter() - begun
            chunks.append(chunk.samples)
        total_s = time.perf_counter() - begun
        path = folder / f"{number:03d}.wav"
        soundfile.write(path, np.concatenate(chunks), tts.sample_rate_hz, subtype="PCM_16")
        clips.append(Clip(wav=path, text=line, reference=tuple(references)))
        # Pauses between segments cost nothing, so only the audio of tokens counts.
        factors.append(total_s * CLOCKS.token_rate_hz / max(1, stream.metrics.tokens))
        firsts.append(1000 * (first_s or total_s))
        on_clip(number + 1, len(lines))
    speed = Speed(real_time_factor=statistics.median(factors), first_audio_ms=statistics.median(firsts))
    return clips, speed


def render_teacher(
    lines: Sequence[str], folder: Path, *, voice: str | None = None, seed: int = 0
) -> list[Clip]:
    """Let hibari speak the lines, or Kokoro with its voice of that name, after the same text front end."""
    from nightingale.text.english import normalize

    peer, more = PEERS["kokoro" if voice else "hibari"], [KOKORO_VOICES[voice]] if voice else []
    home = homes() / peer.name
    python = install(peer, home, lambda line: sys.stderr.write(f"{line}\n"))
    folder.mkdir(parents=True, exist_ok=True)
    clips = [Clip(wav=folder / f"{number:03d}.wav", text=line) for number, line in enumerate(lines)]
    with PeerProcess(peer, home, python, *more, threads=1) as process:
        for clip in clips:
            process.save(normalize(clip.text), seed, clip.wav)
    return clips


def measure_people(
    tts: TTS, model: Path | None, readers: Path, lines: Sequence[str], folder: Path, ask: Ask
) -> tuple[clones.CloneReport, clones.EncoderReport]:
    """Clone every reader of a folder, and compare the voice encoder with its teacher."""
    import torch

    found = clones.readers_in(readers)
    encoder = load_voice_encoders(reference.load(model).source).voice_encoder

    def embed(path: Path) -> NDArray[np.float32]:
        samples, rate_hz = read_audio(path)
        vector: NDArray[np.float32] = encoder.embed(
            torch.from_numpy(resample(samples, rate_hz, ANALYSIS_RATE_HZ))
        ).numpy()
        return vector

    def speak(name: str, clip: Path) -> list[Path]:
        return [made.wav for made in render(tts, lines, folder / name, voice=clip)[0]]

    return clones.compare_clones(speak, found, ask), clones.compare_encoder(embed, found, ask)


def rises(tts: TTS, lines: Sequence[str], folder: Path) -> list[float]:
    """Return how much higher each line ends as a question than as a statement, in semitones.

    Lines of which one version is hardly voiced are left out.
    """
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, line in enumerate(lines):
        ends = []
        for name, mark in (("statement", "."), ("question", "?")):
            samples = tts.say(line + mark, seed=number).samples
            soundfile.write(
                folder / f"{number:03d}-{name}.wav", samples, tts.sample_rate_hz, subtype="PCM_16"
            )
            ends.append(final_semitones(samples, tts.sample_rate_hz))
        statement, question = ends
        if statement is not None and question is not None:
            found.append(question - statement)
    return found


def cold_start_s(model: Path | None) -> float:
    """Return the seconds of `nightingale say` from a fresh process to the file; the better of two."""
    with tempfile.TemporaryDirectory() as scratch:
        given = ["say", SENTENCE, "-o", str(Path(scratch) / "x.wav"), "--quiet"]
        command = [sys.executable, "-m", "nightingale", *given, *(["-m", str(model)] if model else [])]
        times = []
        for _ in range(2):
            begun = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - begun)
    return min(times)


def parse(argv: Sequence[str] | None) -> Namespace:
    parser = runner.parser(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="default: the model in the package")
    parser.add_argument("--references", type=Path, help="recordings of the teacher's voices: <voice>*.wav")
    parser.add_argument("--readers", type=Path, help="recordings of people, one subfolder for each of them")
    parser.add_argument("--teachers", action="store_true", help="let hibari and Kokoro speak the same texts")
    parser.add_argument("--keep", type=Path, help="leave the recordings here")
    parser.add_argument("--judges", default="tiny,base,dnsmos,distillmos,speaker", help="empty: none")
    parser.add_argument("--every", type=int, default=1, help="only every so many sentences")
    parser.add_argument("--profile", help="default: the model's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--per-voice", type=int, default=20, help="sentences of each voice")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--parts", default="default,voices,varied,hard,questions,clones,speed", help="only these"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    names = tuple(name for name in args.judges.split(",") if name)
    ask = ask_with(judges_python(), args.workers) if names else None
    card = Path(str(args.folder or files("nightingale.wren"))) / CARD
    others = json.loads(card.read_text(encoding="utf-8"))["voices"]

    def some(name: str) -> list[str]:
        lines = sentences(name)[:: args.every]
        return sorted(lines, key=len)[:TINY_SENTENCES] if args.tiny else lines

    def references(voice: str) -> list[Path]:
        return sorted(args.references.glob(f"{voice}*.wav")) if args.references else []

    def progress(what: str) -> Callable[[int, int], object]:
        return lambda done, of: sys.stderr.write(f"\r{what}: {done}/{of}   ")

    def judged(clips: list[Clip], by: Sequence[str] = names) -> Quality:
        judges = [name for name in by if name != "speaker" or clips[0].reference]
        return measure(clips, ask, judges, progress("judged"))

    parts, found = frozenset(args.parts.split(",")), TableResults()
    engine = TTS(args.folder, profile=args.profile, device=args.device)
    with tempfile.TemporaryDirectory() as scratch, engine as tts:
        folder = args.keep or Path(scratch)
        lines, words_only = some("wren_200"), [name for name in names if name in RECOGNIZERS]
        if "speed" in parts:  # first, since judges would compete for the processors
            found.speed = render(tts, lines[::5], folder / "speed", on_clip=progress("timed"))[1]
        if "questions" in parts:
            found.rises = rises(tts, some("wren_questions"), folder / "questions")
        if "default" in parts:
            clips, _ = render(
                tts,
                lines,
                folder / "default",
                references=references(others[0]),
                on_clip=progress("rendered"),
            )
            found.default = judged(clips)
            if args.teachers:
                found.teacher_default = judged(render_teacher(lines, folder / "teacher_default"))
        if "voices" in parts:
            for name in others:
                path = card.parent / "voices" / f"{name}.safetensors"
                chosen = lines[:: max(1, len(lines) // args.per_voice)]
                clips, _ = render(tts, chosen, folder / name, voice=path, references=references(name))
                found.voices[name] = judged(clips)
                if args.teachers:
                    clips = render_teacher(chosen, folder / f"teacher_{name}", voice=name)
                    found.teacher_voices[name] = judged(clips)
        if "hard" in parts:
            clips = [
                clip
                for seed in HARD_SEEDS
                for clip in render(tts, some("wren_hard"), folder / f"hard{seed}", seed=seed)[0]
            ]
            found.hard = judged(clips, words_only)
            if args.teachers:
                clips = [
                    clip
                    for seed in HARD_SEEDS
                    for clip in render_teacher(some("wren_hard"), folder / f"teacher{seed}", seed=seed)
                ]
                found.teacher_hard = judged(clips, words_only)
        if "clones" in parts and args.readers and ask:
            chosen = lines[:: max(1, len(lines) // CLONE_SENTENCES)][:CLONE_SENTENCES]
            found.clones, found.encoder = measure_people(
                tts, args.folder, args.readers, chosen, folder / "clones", ask
            )
        if "varied" in parts:
            clips, _ = render(tts, some("wren_500"), folder / "varied", on_clip=progress("varied"))
            found.varied = judged(clips, words_only)
            if args.teachers:
                clips = render_teacher(some("wren_500"), folder / "teacher_varied")
                found.teacher_varied = judged(clips, words_only)
    found.cold_s = cold_start_s(args.folder) if "speed" in parts else None
    rows = goals(found)
    sys.stderr.write("\n")
    sys.stdout.write(f"{table(rows)}\n")
    if by_voice := distill_mos_rows(found):
        runner.print_table("Distill-MOS", DISTILL_MOS_HEAD, by_voice)
    result = {
        "kind": KIND,
        "parts": sorted(parts),
        "every": args.every,
        "profile": str(engine.plan.profile.name),
        "rows": {row.what: row.reached for row in rows},
        "default": found.default.summary() if found.default else None,
        "teacher_default": found.teacher_default.summary() if found.teacher_default else None,
        "voices": {name: report.summary() for name, report in found.voices.items()},
        "teacher_voices": {name: report.summary() for name, report in found.teacher_voices.items()},
        "varied": found.varied.summary() if found.varied else None,
        "hard": found.hard.summary() if found.hard else None,
        "teacher_hard": found.teacher_hard.summary() if found.teacher_hard else None,
        "clones": clones.summary(found.clones, found.encoder),
        "rises": [round(rise, 2) for rise in found.rises],
        "skipped": {
            name: [clip.report() for clip in report.clips if skipped_words(clip)]
            for name, report in (("wren", found.varied), ("teacher", found.teacher_varied))
            if report
        },
        "defective": [clip.report() for clip in found.varied.defective] if found.varied else None,
    }
    runner.finish(result, KIND, args)


if __name__ == "__main__":
    main()

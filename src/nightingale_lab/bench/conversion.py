"""Measure voice conversion of wren's own speech or of people's: the words that are kept, and the speaker.

    python -m nightingale_lab.bench.conversion [--pairs 20] [--sentences 10] [--live] [--model FOLDER]
    python -m nightingale_lab.bench.conversion --readers DIR [--live] [--model FOLDER]

For each pair of built-in voices, wren speaks some sentences in the first voice and converts them to the second one.
With --readers, it converts the first seconds of two recordings of each reader to the built-in voices in turn; the
sentence is what Whisper base understands of the recording itself. Judges compare the words of both recordings with
the sentence, and the converted one with other recordings of both speakers. --live converts while the recording
arrives. A table, then one line of JSON, which is stored; those of people's recordings have the number of "readers".
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from nightingale.audio.read import read_audio
from nightingale.engine import TTS
from nightingale.errors import ConfigError
from nightingale.types import AudioChunk, Samples
from nightingale_lab.bench import runner
from nightingale_lab.bench.clones import readers_in
from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.quality import Ask, ask_with
from nightingale_lab.bench.sentences import sentences
from nightingale_lab.bench.wer import Comparison, compare, corpus_rate

KIND = "conversion"
RECOGNIZERS = ("tiny", "base")
REFERENCES = 4
"""Recordings of each voice that converted ones are compared with, of other sentences."""
LIVE_PART_S = 0.1
OFFSETS = (1, 3, 7, 9)
"""Distances between the two voices of a pair in the list of voices, in the order in which they are used."""
CONVERTED_PER_READER = 2
READER_SECONDS = 8.0
WORST = 3
"""Clips whose transcripts are stored: those with the most errors."""
TRANSCRIBER = "base"
"""The recognizer whose transcript of a reader's recording is the expected text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One sentence of one pair."""

    pair: tuple[str, str]
    """The names of the speaker and of the target."""
    text: str
    source: Path
    converted: Path


def pairs_of(voices: Sequence[str], count: int) -> list[tuple[str, str]]:
    """Return pairs in which every voice is the source and the target about as often."""
    size = len(voices)
    offsets = [offset for offset in OFFSETS if offset < size]
    pairs = [(voices[at], voices[(at + offset) % size]) for offset in offsets for at in range(size)]
    return pairs[:count]


def convert(tts: TTS, audio: AudioChunk, voice: str, *, seed: int, live: bool) -> Samples:
    if not live:
        return tts.convert(audio, voice=voice, seed=seed).samples
    step = int(LIVE_PART_S * audio.sample_rate_hz)
    parts = (audio.samples[at : at + step] for at in range(0, len(audio.samples), step))
    chunks = tts.converter.stream(parts, audio.sample_rate_hz, voice=voice, seed=seed)
    return np.concatenate([chunk.samples for chunk in chunks])


def render(
    tts: TTS, pairs: Sequence[tuple[str, str]], per_pair: int, folder: Path, *, live: bool
) -> list[Case]:
    """Speak and convert every sentence."""
    texts, cases = sentences("wren_200"), []
    for number, pair in enumerate(pairs):
        for place in range(per_pair):
            at = number * per_pair + place
            text = texts[at % len(texts)]
            case = Case(
                pair=pair, text=text, source=folder / f"s{at:03d}.wav", converted=folder / f"c{at:03d}.wav"
            )
            said = tts.say(text, voice=pair[0], seed=at)
            write(case.source, said.samples, tts.sample_rate_hz)
            write(case.converted, convert(tts, said, pair[1], seed=at, live=live), tts.sample_rate_hz)
            cases.append(case)
        sys.stderr.write(f"\r{number + 1}/{len(pairs)} pairs converted")
    sys.stderr.write("\n")
    return cases


def render_readers(
    tts: TTS, readers: Mapping[str, Sequence[Path]], per_reader: int, folder: Path, ask: Ask, *, live: bool
) -> list[Case]:
    """Convert the first seconds of recordings of each reader, and let a recognizer transcribe these seconds."""
    voices, cases = list(tts.voices), []
    recordings = [(name, path) for name, paths in readers.items() for path in paths[:per_reader]]
    for at, (name, path) in enumerate(recordings):
        samples, rate_hz = read_audio(path)
        audio = AudioChunk(samples=samples[: int(READER_SECONDS * rate_hz)], sample_rate_hz=rate_hz)
        case = Case(
            pair=(speaker_of(name), voices[at % len(voices)]),
            text="",
            source=folder / f"s{at:03d}.wav",
            converted=folder / f"c{at:03d}.wav",
        )
        write(case.source, audio.samples, rate_hz)
        write(case.converted, convert(tts, audio, case.pair[1], seed=at, live=live), tts.sample_rate_hz)
        cases.append(case)
        sys.stderr.write(f"\r{at + 1}/{len(recordings)} recordings converted")
    sys.stderr.write("\n")
    answers = ask([{"wav": str(case.source)} for case in cases], (TRANSCRIBER,))
    texts = {answer["wav"]: answer[TRANSCRIBER]["transcript"] for answer in answers}
    return [replace(case, text=texts[str(case.source)]) for case in cases]


def speaker_of(reader: str) -> str:
    """Return the name of a reader among speakers, which no built-in voice has."""
    return f"reader {reader}"


def write(path: Path, samples: Samples, rate_hz: int) -> None:
    import soundfile

    soundfile.write(path, samples, rate_hz, subtype="PCM_16")


def references(tts: TTS, voices: Sequence[str], folder: Path) -> dict[str, list[str]]:
    """Speak other sentences in each voice."""
    lines = sentences("wren_500")[:REFERENCES]
    found: dict[str, list[str]] = {}
    for voice in voices:
        paths = [folder / f"r-{voice}-{number}.wav" for number in range(len(lines))]
        for seed, (path, line) in enumerate(zip(paths, lines, strict=True)):
            write(path, tts.say(line, voice=voice, seed=1000 + seed).samples, tts.sample_rate_hz)
        found[voice] = [str(path) for path in paths]
    return found


def reader_references(readers: Mapping[str, Sequence[Path]], per_reader: int) -> dict[str, list[str]]:
    """Return recordings of each reader that are not converted.

    Raises:
        ConfigError: a reader has none.
    """
    for name, paths in readers.items():
        if len(paths) <= per_reader:
            raise ConfigError(
                "a reader has too few recordings",
                got=f"{len(paths)} of {name}",
                allowed=f"{per_reader} to convert, and at least one to compare them with",
            )
    return {
        speaker_of(name): [str(path) for path in paths[per_reader : per_reader + REFERENCES]]
        for name, paths in readers.items()
    }


def judge(cases: Sequence[Case], speakers: dict[str, list[str]], ask: Ask) -> dict[str, Any]:
    """Return word error rates of both recordings, the pairs with their cosines, and the clips with the most errors."""
    jobs: list[dict[str, Any]] = [
        {"wav": str(path)} for case in cases for path in (case.source, case.converted)
    ]
    transcribed = {answer["wav"]: answer for answer in ask(jobs, RECOGNIZERS)}
    jobs = [
        {"wav": str(path), "speakers": {name: speakers[name] for name in case.pair}}
        for case in cases
        for path in (case.source, case.converted)
    ]
    cosines = {answer["wav"]: answer["speaker"]["cosines"] for answer in ask(jobs, ("speaker",))}

    def compared(recognizer: str, kind: str) -> list[Comparison]:
        found = (transcribed[str(getattr(case, kind))][recognizer]["transcript"] for case in cases)
        return [compare(case.text, text) for case, text in zip(cases, found, strict=True)]

    wer = {
        name: {kind: corpus_rate(compared(name, kind)) for kind in ("source", "converted")}
        for name in RECOGNIZERS
    }
    errors = {name: [each.errors for each in compared(name, "converted")] for name in RECOGNIZERS}
    most = sorted(range(len(cases)), key=lambda at: -max(counts[at] for counts in errors.values()))[:WORST]
    worst = [
        {
            "text": cases[at].text,
            "errors": {name: counts[at] for name, counts in errors.items()},
            "transcripts": {
                name: transcribed[str(cases[at].converted)][name]["transcript"] for name in RECOGNIZERS
            },
        }
        for at in most
    ]
    words = sum(each.words for each in compared(RECOGNIZERS[0], "converted"))
    rows = [
        pair_row(pair, [case for case in cases if case.pair == pair], cosines) for pair in pairs_in(cases)
    ]
    nearer = sum(row["to_target"] > row["to_source"] for row in rows)
    return {
        "wer": wer, "pairs": rows, "nearer_to_target": nearer, "clips": len(cases), "words": words, "worst": worst
    }  # fmt: skip


def pairs_in(cases: Sequence[Case]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(case.pair for case in cases))


def pair_row(
    pair: tuple[str, str], cases: Sequence[Case], cosines: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """Return the mean cosines of a pair's recordings to both voices."""

    def mean(kind: str, voice: str) -> float:
        return round(statistics.fmean(cosines[str(getattr(case, kind))][voice] for case in cases), 3)

    source, target = pair
    return {
        "source": source,
        "target": target,
        "to_target": mean("converted", target),
        "to_source": mean("converted", source),
        "source_to_source": mean("source", source),
        "source_to_target": mean("source", target),
    }


def parse(argv: Sequence[str] | None) -> Namespace:
    parser = runner.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=10, help="of each pair")
    parser.add_argument(
        "--readers", type=Path, help="convert recordings of people instead: one subfolder for each of them"
    )
    parser.add_argument("--live", action="store_true", help="convert while the recording arrives")
    parser.add_argument("--model", help="a folder; default: the model in the package")
    parser.add_argument("--keep", type=Path, help="leave the recordings in this folder")
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args(argv)


def measure_pairs(tts: TTS, options: Namespace, folder: Path, ask: Ask) -> dict[str, Any]:
    """Measure the conversion of wren's own speech."""
    pairs = pairs_of(list(tts.voices), 2 if options.tiny else options.pairs)
    cases = render(tts, pairs, 1 if options.tiny else options.sentences, folder, live=options.live)
    used = sorted({name for pair in pairs for name in pair})
    return judge(cases, references(tts, used, folder), ask)


def measure_readers(tts: TTS, options: Namespace, folder: Path, ask: Ask) -> dict[str, Any]:
    """Measure the conversion of people's recordings."""
    readers, per_reader = readers_in(options.readers), CONVERTED_PER_READER
    if options.tiny:
        readers, per_reader = dict(list(readers.items())[:2]), 1
    speakers = reader_references(readers, per_reader)
    cases = render_readers(tts, readers, per_reader, folder, ask, live=options.live)
    used = sorted({case.pair[1] for case in cases})
    result = judge(cases, speakers | references(tts, used, folder), ask)
    return {**result, "readers": len(readers)}


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    ask = ask_with(judges_python(), options.workers)
    with tempfile.TemporaryDirectory() as temporary, TTS(options.model) as tts:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure = measure_readers if options.readers else measure_pairs
        result = measure(tts, options, folder, ask)
    runner.print_table(
        "Cosines of converted recordings",
        tuple(result["pairs"][0]),
        [tuple(row.values()) for row in result["pairs"]],
    )
    rows = [(name, rate["source"], rate["converted"]) for name, rate in result["wer"].items()]
    runner.print_table("Word error rates", ("recognizer", "source", "converted"), rows)
    runner.finish({**result, "live": options.live, "model": options.model or "wren"}, KIND, options)


if __name__ == "__main__":
    main()

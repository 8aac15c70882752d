"""The measured numbers that pages state, each under one name.

A page writes `<!--wren.rtf-->0.130<!---->`; `make docs` fills in the text between the two comments, which readers do
not see, and `make check` fails where a page has another value. A number is the newest stored value of its place:
the last line of a file of benchmarks/results that has one, among lines that were not made at tiny sizes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nightingale_lab.bench.store import read_lines

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PUBLISHED = ROOT / "benchmarks" / "published.json"
MARK = re.compile(r"<!--([a-z][\w.-]*)-->(.*?)<!---->")
SECONDS_OF_102_TOKENS = 102 / 25
"""The utterance of the benchmarks gpu_engine and cpu: 102 speech tokens, 25 to a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number as text, and the line it is from; None for a size that was read from a file."""

    text: str
    value: float
    line: Mapping[str, Any] | None
    kind: str | None


def at(value: Any, path: str) -> Any:
    """Return what is at a path such as `lengths>who=hibari,text=short>rtf_p50`, or None."""
    for step in path.split(">"):
        if isinstance(value, list) and "=" in step:
            wanted = dict(pair.split("=") for pair in step.split(","))
            value = next((row for row in value if all(str(row.get(k)) == v for k, v in wanted.items())), None)
        elif isinstance(value, list):
            value = value[int(step)] if int(step) < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
        if value is None:
            return None
    return value


@cache
def lines(kind: str) -> list[dict[str, Any]]:
    return [line for line in read_lines(RESULTS, kind) if not line.get("tiny")]


def stored(kind: str, path: str, form: str, scale: float = 1.0, **wanted: str) -> Number:
    """Return the newest value at a path of a results file.

    wanted: other paths of the line, with __ for >, and their values.
    """
    for line in reversed(lines(kind)):
        matches = all(str(at(line, key.replace("__", ">"))) == value for key, value in wanted.items())
        if matches and isinstance(value := at(line, path), int | float):
            scaled = value if scale == 1 else value * scale
            return Number(text=form.format(scaled), value=scaled, line=line, kind=kind)
    raise LookupError(f"no line of {kind}.jsonl has {path}")


def published(name: str, field: str, form: str = "{}") -> Number:
    """Return what another project publishes about itself."""
    value = json.loads(PUBLISHED.read_text(encoding="utf-8"))[name][field]
    return Number(text=form.format(value), value=value, line=None, kind=None)


def size(folder: str, pattern: str) -> Number:
    """Return the size of files of the package in MB."""
    found = sum(path.stat().st_size for path in (ROOT / folder).rglob(pattern) if path.is_file()) / 1e6
    return Number(text=f"{found:.0f}", value=found, line=None, kind=None)


def _gpu(row: str, form: str, column: str = "reached", scale: float = 1.0) -> Callable[[], Number]:
    return lambda: stored("gpu_engine", f"table>{row}>{column}", form, scale)


def _short(who: str, what: str, form: str) -> Callable[[], Number]:
    """Return a column of the short text in `nightingale bench --peer all`."""
    return lambda: stored("bench", f"lengths>who={who},text=short>{what}", form)


def _judged(engine: str, path: str, form: str, scale: float = 1.0) -> Callable[[], Number]:
    return lambda: stored("peers", f"engines>{engine}>{path}", form, scale)


def _arm(path: str, form: str, scale: float = 1.0) -> Callable[[], Number]:
    return lambda: stored("cpu", path, form, scale, machine__cpu="Neoverse-N1")


_PER_S = 1 / (1000 * SECONDS_OF_102_TOKENS)
NUMBERS: dict[str, Callable[[], Number]] = {
    # nightingale bench -m wren --table
    "wren.rtf": lambda: stored("headline", "listeners>listeners=1>rtf_p50", "{:.3f}"),
    "wren.first-audio-ms": lambda: stored("headline", "listeners>listeners=1>ttfa_ms_p50", "{:.0f}"),
    "wren.say-s": lambda: stored("headline", "say>say_s", "{:.2f}"),
    "wren.say-over-import-torch": lambda: stored("headline", "say>over_import_torch", "{:.2f}"),
    "wren.memory-mb": lambda: stored("headline", "fresh>peak_memory_mb", "{:.0f}"),
    "wren.underruns-1": lambda: stored("headline", "listeners>listeners=1>underruns", "{}"),
    "wren.underruns-2": lambda: stored("headline", "listeners>listeners=2>underruns", "{}"),
    "wren.underruns-4": lambda: stored("headline", "listeners>listeners=4>underruns", "{}"),
    "wren.first-audio-2-of-2-ms": lambda: stored(
        "headline", "listeners>listeners=2>ttfa_ms_by_arrival>1", "{:.0f}"
    ),
    "wren.first-audio-4-of-4-ms": lambda: stored(
        "headline", "listeners>listeners=4>ttfa_ms_by_arrival>3", "{:.0f}"
    ),
    "wren.size-mb": lambda: size("src/nightingale/wren", "*"),
    # python -m nightingale_lab.bench.wren
    "wren.wer-tiny": lambda: stored("wren", "default>wer>tiny", "{:.2f}", 100),
    "wren.wer-base": lambda: stored("wren", "default>wer>base", "{:.2f}", 100),
    "wren.dnsmos": lambda: stored("wren", "default>dnsmos>ovrl", "{:.2f}"),
    "wren.voices-wer-tiny": lambda: stored("wren", "rows>WER %, all voices, tiny", "{:.1f}"),
    "wren.voices-wer-base": lambda: stored("wren", "rows>WER %, all voices, base", "{:.1f}"),
    "wren.distill-mos": lambda: stored("wren", "default>distill_mos>mean", "{:.2f}"),
    "wren.worst-voice-dnsmos": lambda: stored("wren", "rows>DNSMOS, worst voice", "{:.2f}"),
    "wren.speaker-cosine": lambda: stored("wren", "voices>heart>cosine", "{:.2f}"),
    "wren.hard-errors": lambda: stored("wren", "rows>hard clips with an error, %, base", "{:.0f}"),
    "wren.question-rise": lambda: stored("wren", "rows>question minus statement, semitones", "{:+.2f}"),
    "wren.questions-rising": lambda: stored("wren", "rows>questions above +1.5, %", "{:.0f}"),
    "wren.clone-cosine": lambda: stored("wren", "rows>cosine of clones to their references", "{:.2f}"),
    "wren.clone-semitones": lambda: stored(
        "wren", "rows>pitch of clones to their references, semitones", "{:.1f}"
    ),
    "wren.clones-nearest": lambda: stored("wren", "rows>clones nearest to their own reader, %", "{:.0f}"),
    "wren.encoder-cosine": lambda: stored("wren", "rows>voice encoder, cosine to its teacher", "{:.3f}"),
    "wren.encoder-eer": lambda: stored("wren", "rows>voice encoder, equal error rate, %", "{:.1f}"),
    "wren.defects": lambda: stored("wren", "rows>defects in 500 varied", "{:.0f}"),
    "wren.skipped-per-10000": lambda: stored("wren", "rows>skipped or repeated in 10,000, 500", "{:.1f}"),
    "wren.teacher-skipped-per-10000": lambda: stored("wren", "rows>the same, the teacher", "{:.1f}"),
    "wren.hard-over-teacher": lambda: stored("wren", "rows>the same over the teacher's share", "{:.1f}"),
    # nightingale bench --peer all: a short text, one request at a time
    **{
        f"{who}.{name}": _short(who, column, form)
        for who in ("hibari", "kokoro", "piper")
        for name, column, form in (("rtf", "rtf_p50", "{:.3f}"), ("first-audio-ms", "ttfa_ms_p50", "{:,.0f}"))
    },
    # python -m nightingale_lab.bench gpu_engine: random weights of full size
    "gpu.sentence-ms": _gpu("default profile: sentence, ms", "{:.0f}"),
    "gpu.rtf": _gpu("default profile: sentence, ms", "{:.3f}", scale=_PER_S),
    "gpu.default-first-audio-ms": _gpu("default profile: first audio of 3 sentences, ms", "{:.0f}"),
    "gpu.block-sentence-ms": _gpu("one listener: sentence, ms", "{:.0f}"),
    "gpu.block-first-audio-ms": _gpu("one listener: first audio p50, ms", "{:.0f}"),
    "gpu.upstream-sentence-ms": _gpu("one listener: sentence, ms", "{:,.0f}", "upstream"),
    "gpu.upstream-rtf": _gpu("one listener: sentence, ms", "{:.2f}", "upstream", _PER_S),
    "gpu.step-ms": _gpu("one listener: T3 step, ms", "{:.2f}"),
    "gpu.upstream-step-ms": _gpu("one listener: T3 step, ms", "{:.1f}", "upstream"),
    "gpu.turbo-sentence-ms": _gpu("Turbo, one listener: sentence, ms", "{:.0f}"),
    "gpu.turbo-first-audio-ms": _gpu("Turbo, one listener: first audio p50, ms", "{:.0f}"),
    "gpu.turbo-upstream-sentence-ms": _gpu("Turbo, one listener: sentence, ms", "{:,.0f}", "upstream"),
    "gpu.64-segment-audio": _gpu("64 listeners, own voices, segment: audio s/s", "{:.0f}"),
    "gpu.64-segment-first-audio-p95-ms": _gpu(
        "64 listeners, own voices, segment: first audio p95, ms", "{:,.0f}"
    ),
    "gpu.64-block-audio": _gpu("64 listeners, own voices, block: audio s/s", "{:.0f}"),
    "gpu.64-block-first-audio-p95-ms": _gpu(
        "64 listeners, own voices, block: first audio p95, ms", "{:,.0f}"
    ),
    "gpu.64-block-stalled": _gpu("64 listeners, own voices, block: listeners with underruns", "{:.0f}"),
    "gpu.most-listeners": _gpu("most listeners, block, together", "{:.0f}"),
    "gpu.turbo-most-listeners": _gpu("Turbo: most listeners, block, together", "{:.0f}"),
    # python -m nightingale_lab.bench cpu, on the ARM machine
    "cpu.multilingual-rtf": _arm("table>multilingual, 10 guided steps, real-time factor", "{:.2f}"),
    "cpu.multilingual-meanflow-rtf": _arm("table>multilingual + s3gen=meanflow, real-time factor", "{:.2f}"),
    "cpu.nano-rtf": _arm("table>Nano, real-time factor", "{:.2f}"),
    "cpu.multilingual-speed-up": _arm("table>speed-up over upstream: multilingual", "{:.1f}"),
    "cpu.nano-speed-up": _arm("table>speed-up over upstream: Nano", "{:.1f}"),
    "cpu.multilingual-memory-gib": _arm("table>peak memory, multilingual, GiB", "{:.1f}"),
    # python -m nightingale_lab.bench engine and server.py
    "engine.overhead": lambda: stored("engine", "engine_over_bare", "{:.2f}"),
    "engine.ten-together": lambda: stored("engine", "ten_together_over_ten_in_a_row", "{:.2f}"),
    "engine.ten-together-fastest": lambda: stored("engine", "granted_together_over_in_a_row", "{:.2f}"),
    **{
        f"server.overhead-{kind}-ms": lambda kind=kind: stored(
            "server", f"overhead_ms_p50>{kind}", "{:.1f}", profile="exact"
        )
        for kind in ("pcm", "mp3", "opus")
    },
    "server.exact-wrong": lambda: stored("server", "load>wrong", "{}", profile="exact"),
    "server.balanced-audio": lambda: stored(
        "server", "load>audio_seconds_per_s", "{:.1f}", profile="balanced"
    ),
    "server.overload-served": lambda: stored("server", "overload>statuses>200", "{:,}", profile="exact"),
    "server.overload-rejected": lambda: stored("server", "overload>statuses>429", "{:,}", profile="exact"),
    # python -m nightingale_lab.bench peer_quality
    **{
        f"{who}.{name}": _judged(who, path, form, scale)
        for who in ("hibari", "kokoro", "piper")
        for name, path, form, scale in (
            ("wer-tiny", "wer>tiny", "{:.2f}", 100),
            ("wer-base", "wer>base", "{:.2f}", 100),
            ("dnsmos", "dnsmos>ovrl", "{:.2f}", 1.0),
        )
    },
    # published by others
    "pocket-tts.rtf": lambda: published("pocket-tts", "real_time_factor", "{:.2f}"),
    "pocket-tts.first-audio-ms": lambda: published("pocket-tts", "first_audio_ms"),
    "pocket-tts.wer": lambda: published("pocket-tts", "word_error_rate_percent", "{:.1f}"),
}


@cache
def number(name: str) -> Number:
    """Return a number by its name."""
    if name not in NUMBERS:
        raise LookupError(f"no number is named {name}; tools/docs_numbers.py has them")
    return NUMBERS[name]()


def filled(text: str) -> str:
    """Return a page with each marked number replaced by what the results say."""
    return MARK.sub(lambda found: f"<!--{found[1]}-->{number(found[1]).text}<!---->", text)


def marked(name: str) -> str:
    return f"<!--{name}-->{number(name).text}<!---->"

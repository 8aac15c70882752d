"""Measure the error of word timestamps against a forced aligner, and what they cost.

    python -m nightingale_lab.bench.word_times [--model wren] [--clips 200] [--rank-heads]

The model speaks sentences in all of its voices. `judges/aligner.py` aligns the audio with the words it spoke; an
error is the difference of a word's start or end. The cost is the CPU time that T3 and the timing of words take, with
timestamps and without, in turn. With --rank-heads, every head of T3 is ranked by the error of word starts that
it gives alone, without the energy of the audio. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import numpy as np

from nightingale import TTS, Audio
from nightingale.backends.base import Decoder
from nightingale.clocks import CLOCKS
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.host_decoder import DecodeRow, Tokens
from nightingale.decoding.word_alignment import WordAligner
from nightingale.engine.load import Model, load_model
from nightingale.engine.rendering import utterance
from nightingale.engine.rendering.word_timer import WordTimer
from nightingale.engine.requests.whole import audio_of
from nightingale.text.source_words import SourceWords
from nightingale.types import Samples, TimedWord
from nightingale_lab.bench.judges.aligner import spoken_words
from nightingale_lab.bench.judges.client import judges_python, run_judges
from nightingale_lab.bench.sentences import sentences


@contextmanager
def cpu_time(into: list[float]) -> Iterator[None]:
    """Append the CPU time of this thread to a list: other programs may take turns with it."""
    started = time.thread_time()
    yield
    into.append(time.thread_time() - started)


class TimedDecoder:
    """Calls a decoder, and measures the CPU time of its thread. On two cores T3 has no other thread."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder, self.spent = decoder, list[float]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def prefill(self, slot: int, decoding: Decoding) -> list[int]:
        with cpu_time(self.spent):
            return self._decoder.prefill(slot, decoding)

    def decode(self, rows: Sequence[DecodeRow]) -> list[Tokens]:
        with cpu_time(self.spent):
            return self._decoder.decode(rows)


class KeptTimer(WordTimer):
    """A timer that is kept, and that measures the time it takes."""

    last: ClassVar[KeptTimer]
    spent: ClassVar[list[float]] = []
    """CPU seconds of each call."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        KeptTimer.last = self

    def push(self, samples: Samples, *, tokens: int, final: bool) -> None:
        with cpu_time(self.spent):
            super().push(samples, tokens=tokens, final=final)

    def take(self, speed: float) -> list[TimedWord]:
        with cpu_time(self.spent):
            return super().take(speed)

    def starts_s(self, head: int) -> list[float]:
        """Return the start of each spoken word by the attention of one head."""
        aligner = WordAligner(self.columns, len(self._source.words))
        aligner.extend(self.trace.attention_by_head()[head][self._rows[: self._tokens]])
        path = aligner.path(final=True)
        return [bisect_left(path, word) / CLOCKS.token_rate_hz for word in range(aligner.words)]


def kept_timers() -> AbstractContextManager[object]:
    """Let the engine use timers that are kept."""
    return mock.patch.object(utterance, "WordTimer", KeptTimer)


class Spoken(NamedTuple):
    """A text that was spoken as one segment."""

    text: str
    spoken: str
    """The words as they were spoken."""
    audio: Audio
    timer: KeptTimer
    wav: str


class JudgedWord(NamedTuple):
    """One of the author's words as the aligner times it."""

    first: int
    """The index of its first spoken word."""
    start_s: float
    end_s: float


def with_all_heads(model: Model) -> Model:
    """Return a model whose traces have all heads of T3."""
    info, t3 = model.info, model.info.preset.t3
    heads = tuple((layer, head) for layer in range(t3.backbone.layers) for head in range(t3.backbone.heads))
    preset = replace(info.preset, t3=replace(t3, alignment_heads=heads))
    return replace(model, source=model.source.with_info(replace(info, preset=preset)))


def judged_words(one: Spoken, words: Sequence[tuple[str, float, float]], model: Model) -> list[JudgedWord]:
    """Return the author's words, from the aligner's times of the words that were spoken."""
    sources = SourceWords(one.text)
    sources.add(model.frontend.spell(one.text, None))
    found, at = list[JudgedWord](), 0
    spoken = list(zip(sources.take_words(one.spoken), one.spoken.split(), strict=True))
    for _, group in groupby(enumerate(spoken), key=lambda numbered: numbered[1][0]):
        own = list(group)
        count = sum(len(spoken_words(word)) for _, (_, word) in own)
        found.append(JudgedWord(own[0][0], words[at][1], words[at + count - 1][2]))
        at += count
    return found


def speak(model: Model, texts: Sequence[str], folder: Path) -> list[Spoken]:
    """Speak the texts in all voices; leave out those that are not one segment."""
    spoken = []
    with TTS.over(model) as tts, kept_timers():
        for number, text in enumerate(texts):
            voice = tts.voices[number % len(tts.voices)]
            session = tts.open(text, voice=voice, seed=number, timestamps=True)
            chunks = list(session.chunks())
            segments = [one.begins.text for one in chunks if one.begins is not None and one.begins.text]
            if len(segments) == 1:
                path = folder / f"{number:04}.wav"
                audio = audio_of(session, chunks)
                audio.save(path)
                spoken.append(Spoken(text, segments[0], audio, KeptTimer.last, str(path)))
            sys.stderr.write(f"\r{number + 1}/{len(texts)} texts spoken")
    sys.stderr.write("\n")
    return spoken


def align(spoken: Sequence[Spoken], python: Path, model: Model) -> list[tuple[Spoken, list[JudgedWord]]]:
    """Return the clips that the aligner could align, with their words."""
    jobs = [{"wav": one.wav, "text": one.spoken} for one in spoken]
    answers = {
        answer["wav"]: answer["aligner"] for answer in run_judges(jobs, only=["aligner"], python=python)
    }
    return [
        (one, judged_words(one, answers[one.wav]["words"], model))
        for one in spoken
        if "words" in answers[one.wav]
    ]


def summary(errors_s: Sequence[float]) -> dict[str, float]:
    """Return median, 95th percentile and largest absolute error, and the median error, in milliseconds."""
    errors = 1000 * np.array(errors_s)
    size = np.abs(errors)
    return {
        "median_ms": round(float(np.median(size)), 1),
        "p95_ms": round(float(np.percentile(size, 95)), 1),
        "max_ms": round(float(size.max()), 1),
        "bias_ms": round(float(np.median(errors)), 1),
    }


def measure_errors(clips: Sequence[tuple[Spoken, list[JudgedWord]]]) -> dict[str, Any]:
    """Return the errors of all word starts and ends."""
    pairs = [pair for one, judged in clips for pair in zip(one.audio.words, judged, strict=True)]
    starts = [word.start_s - judged.start_s for word, judged in pairs]
    ends = [word.end_s - judged.end_s for word, judged in pairs]
    counts = {"clips": len(clips), "words": len(pairs)}
    return {**counts, "all": summary([*starts, *ends]), "starts": summary(starts), "ends": summary(ends)}


def rank_heads(
    clips: Sequence[tuple[Spoken, list[JudgedWord]]], heads: Sequence[tuple[int, int]]
) -> list[dict[str, Any]]:
    """Return each head with its error of word starts around their median, best first; first words do not count."""
    ranked = []
    for number, (layer, head) in enumerate(heads):
        errors: list[float] = []
        for one, judged in clips:
            starts = one.timer.starts_s(number)
            errors += [starts[word.first] - word.start_s for word in judged[1:]]
        median = float(np.median(errors))
        row = {"layer": layer, "head": head, **summary(list(np.array(errors) - median))}
        ranked.append({**row, "bias_ms": round(1000 * median, 1)})
    return sorted(ranked, key=lambda row: (row["median_ms"], row["p95_ms"]))


def measure_cost(model: Model, texts: Sequence[str]) -> dict[str, float]:
    """Return the CPU time of T3 for each token, without and with timestamps, and that of timing the words."""
    sums = {"plain": 0.0, "traced": 0.0, "timing": 0.0}
    tokens = 0
    with TTS.over(model) as tts, kept_timers():
        tts.say(texts[0], timestamps=True)
        decoder = tts._worker.decoder = TimedDecoder(tts._worker.decoder)
        for number, text in enumerate(texts):
            for kind in ("plain", "traced"):
                decoder.spent.clear()
                KeptTimer.spent.clear()
                metrics = tts.say(text, seed=number, timestamps=kind == "traced").metrics
                sums[kind] += sum(decoder.spent)
                sums["timing"] += sum(KeptTimer.spent)
            tokens += metrics.tokens
    return {
        **{f"{name}_us_per_token": round(1e6 * spent / tokens, 1) for name, spent in sums.items()},
        "cost_percent": round(100 * ((sums["traced"] + sums["timing"]) / sums["plain"] - 1), 2),
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="nightingale_lab.bench.word_times", description=__doc__)
    parser.add_argument("--model", default="wren", help="a model whose weights are here")
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--texts", default="wren_200", help="a list of nightingale_lab/bench/texts")
    parser.add_argument("--rank-heads", action="store_true")
    parser.add_argument("--cost-texts", type=int, default=30, help="texts to measure the cost with; 0: none")
    parser.add_argument("--judges", type=Path, help="the folder of the judges' environment")
    options = parser.parse_args(argv)
    model = load_model(options.model, offline=True, options={})
    texts = sentences(options.texts)[: options.clips]
    python, result = judges_python(options.judges), dict[str, Any]()
    spoken_by = with_all_heads(model) if options.rank_heads else model
    with tempfile.TemporaryDirectory() as folder:
        clips = align(speak(spoken_by, texts, Path(folder)), python, model)
    if options.rank_heads:
        result["heads"] = rank_heads(clips, spoken_by.info.preset.t3.alignment_heads)[:10]
    else:
        result["errors"] = {"texts": len(texts), **measure_errors(clips)}
        if options.cost_texts:
            result["cost"] = measure_cost(model, texts[: options.cost_texts])
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()

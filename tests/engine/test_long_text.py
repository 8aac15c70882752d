"""Long texts: spoken from the first page while the last is not segmented yet, in bounded memory."""

from __future__ import annotations

import gc
import sys
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from engine_helpers import is_drained, is_stalled, open_engine, wait_until

from nightingale import TTS, EmptyText, UnsupportedLanguage
from nightingale.backends.profiles import PROFILES
from nightingale.decoding.philox import nth_seed, uniform
from nightingale.engine.load import Model
from nightingale.engine.requests.segments import segment_text
from nightingale.text.languages import check_language

PARAGRAPH = (
    "It was a bright day, and the road went up into the hills; nobody was on it but a boy and his dog. "
    "He had walked since six o'clock. “How far is it to the village?” he asked a man at the well. "
    "“That depends,” said the man, “on whether you mean to go by the bridge or by the ford.”\n\n"
)
BOOK_CHARS = 100_000
BOOK = (PARAGRAPH * (BOOK_CHARS // len(PARAGRAPH) + 1))[:BOOK_CHARS]
TOKENS = 2
"""Tokens of each segment."""


class CountingTokenizer:
    """A tokenizer of bytes for English only, which counts the segments it encodes."""

    vocab_size = 256

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, text: str, language: str | None = None) -> list[int]:
        self.calls += 1
        if language is not None:
            check_language(language, ("en",))
        return list(text.encode())[:8]  # few, so that the model is quick


class Text(str):
    """A string that can be weakly referenced."""


@pytest.fixture
def tokenizer() -> CountingTokenizer:
    return CountingTokenizer()


@pytest.fixture(params=["exact", "balanced"])
def tts(request: pytest.FixtureRequest, noise_model: Model, tokenizer: CountingTokenizer) -> Iterator[TTS]:
    """An engine that generates at most a second ahead of its reader."""
    model = replace(noise_model, frontend=replace(noise_model.frontend, tokenizer=tokenizer))
    profile = replace(PROFILES[request.param], ahead_seconds=1.0)
    with open_engine(model, profile, max_new_tokens=TOKENS) as engine:
        yield engine


@pytest.fixture
def traced_bytes() -> Iterator[Callable[[], int]]:
    """Bytes that Python and numpy hold, without what the interpreter caches.

    CPython caches attribute lookups under the address of the name. `Pattern.finditer` and methods of numpy
    scalars look up a new string in each call, of which the cache keeps up to 4096.
    """
    clear = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache

    def read() -> int:
        clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    # Philox caches the round keys of its last 256 streams. A segment has two, so this cache would become full
    # in the second quarter of the book.
    for key in range(256):
        uniform(key, 0, np.zeros(1, np.int64))
    yield read
    tracemalloc.stop()


def test_a_book_is_read_to_its_end_in_flat_memory(
    tts: TTS, tokenizer: CountingTokenizer, traced_bytes: Callable[[], int]
) -> None:
    frontend = replace(tts._model.frontend, tokenizer=CountingTokenizer())
    segments = sum(1 for _ in segment_text(frontend, BOOK, None, split_chars=280, fill=True))
    assert segments > 350
    session = tts.open(BOOK, seed=1)
    chunks = session.chunks()
    next(chunks)
    assert tokenizer.calls < 40, "the book was segmented before it was spoken"
    samples = 0
    held: list[list[int]] = [[], [], [], []]
    for number, chunk in enumerate(chunks):
        samples += len(chunk.samples)
        if number % 8 == 0:
            assert wait_until(lambda: is_stalled(tts), 60)
            if not session._ended:  # the same amount of audio waits for the reader each time
                held[min(tokenizer.calls * 4 // segments, 3)].append(traced_bytes())
    assert tokenizer.calls == segments
    assert samples >= TOKENS * 960 * (segments - 1)
    assert min(map(len, held)) >= 5
    # What remains is the sample of 512 gaps between chunks: 32 bytes per chunk.
    _, second, _, last = map(min, held)
    assert last - second < 30_000, held
    assert is_drained(tts)


def test_a_stalled_reader_of_a_book_holds_a_page(tts: TTS, tokenizer: CountingTokenizer) -> None:
    session = tts.open(BOOK, seed=1)
    chunks = session.chunks()
    next(chunks)
    assert wait_until(lambda: is_stalled(tts), 60)
    calls = tokenizer.calls
    held_s = sum(chunk.seconds for chunk in session._chunks)
    assert 1 <= held_s < 3
    assert calls < 40
    time.sleep(0.1)
    assert tokenizer.calls == calls
    # Other requests run meanwhile, and the reader gets the next page when it reads again.
    assert len(tts.say("Another request.", seed=2).samples) == TOKENS * 960
    read_s = 0.0
    while read_s < held_s + 1:
        read_s += next(chunks).seconds
    assert tokenizer.calls > calls + 1
    session.cancel()


def test_a_book_that_is_closed_in_the_middle_is_released(
    tts: TTS, tokenizer: CountingTokenizer, traced_bytes: Callable[[], int]
) -> None:
    tts.say(PARAGRAPH * 3, seed=0)
    before = traced_bytes()
    book = Text(BOOK)
    book_reference = weakref.ref(book)
    chunks = tts.stream(book, seed=1)
    del book
    for _ in range(20):
        next(chunks)
    assert book_reference() is not None
    chunks.close()
    assert is_drained(tts)
    calls = tokenizer.calls
    assert book_reference() is None
    assert traced_bytes() - before < 60_000
    assert len(tts.say("The next request.", seed=2).samples) == TOKENS * 960
    assert tokenizer.calls == calls + 1


@pytest.mark.parametrize(
    ("text", "language", "error"), [(" … \n" * 10_000, None, EmptyText), (BOOK, "xx", UnsupportedLanguage)]
)
def test_a_bad_text_is_refused_when_the_stream_is_opened(
    tts: TTS, text: str, language: str | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        tts.stream(text, language=language)
    assert not tts._worker._jobs


def test_a_segment_of_a_long_text_equals_the_segment_alone(noise_model: Model) -> None:
    """Voice and level cannot drift: only the voice is carried from one segment to the next."""
    tts = open_engine(noise_model, "exact", max_new_tokens=6, split_chars=60, fill_segments=False)
    segments = list(segment_text(noise_model.frontend, PARAGRAPH, None, split_chars=60))
    assert len(segments) > 5
    alone = [tts.say(s.text, seed=nth_seed(3, number)).samples for number, s in enumerate(segments)]
    padded = [np.pad(samples, (0, s.pause_samples)) for samples, s in zip(alone, segments, strict=True)]
    assert np.array_equal(tts.say(PARAGRAPH, seed=3).samples, np.concatenate(padded))

"""A book: spoken from its first page while the last is not yet cut, in the memory of a page."""

from __future__ import annotations

import gc
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from nightingale import TTS, EmptyText, UnsupportedLanguage
from nightingale.backends.torch.renderer import Block, TorchRenderer
from nightingale.decoding.seeds import nth_seed
from nightingale.engine import profiles
from nightingale.engine.model import Model
from nightingale.engine.requests.segments import PAUSE_MS, cut
from nightingale.text.languages import check_language
from nightingale.text.sentences import Ending
from nightingale.types import Samples

PARAGRAPH = (
    "It was a bright day, and the road went up into the hills; nobody was on it but a boy and his dog. "
    "He had walked since six o'clock. “How far is it to the village?” he asked a man at the well. "
    "“That depends,” said the man, “on whether you mean to go by the bridge or by the ford.”\n\n"
)
BOOK_CHARS = 100_000
BOOK = (PARAGRAPH * (BOOK_CHARS // len(PARAGRAPH) + 1))[:BOOK_CHARS]


class Letters:
    """A byte is an id; counts the pieces it was asked for, and speaks English only."""

    vocab_size = 256

    def __init__(self) -> None:
        self.asked = 0

    def encode(self, text: str, language: str | None = None) -> list[int]:
        self.asked += 1
        if language is not None:
            check_language(language, ("en",))
        return list(text.encode())[:8]  # few, so that the small model is quick; nobody understands it anyway


class Text(str):
    """A text whose end of life can be seen."""


@pytest.fixture
def letters() -> Letters:
    return Letters()


@pytest.fixture(params=["exact", "balanced"])
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reader(
    noise_model: Model, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], TTS]]:
    """An engine that draws two tokens a piece and is never more than a second ahead."""
    opened: list[TTS] = []

    def make(profile: str) -> TTS:
        plan = {name: replace(p, ahead_seconds=1.0) for name, p in profiles.PROFILES.items()}
        monkeypatch.setattr(profiles, "PROFILES", plan)
        defaults = replace(noise_model.defaults, max_new_tokens=2)
        frontend = replace(noise_model.frontend, tokenizer=letters)
        opened.append(TTS.over(replace(noise_model, defaults=defaults, frontend=frontend), profile))
        return opened[-1]

    yield make
    for tts in opened:
        tts.close()


def within(seconds: float, done: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def tensors() -> int:
    gc.collect()
    return sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor)


def silence(self: TorchRenderer, block: Block, mel: None) -> Samples:
    """In place of rendering, which takes long and keeps nothing beyond its piece."""
    return np.zeros(1920, np.float32)


@pytest.mark.parametrize(
    ("profile", "rendered"),
    [
        ("balanced", False),
        pytest.param("balanced", True, marks=pytest.mark.slow),
        pytest.param("exact", True, marks=pytest.mark.slow),
    ],
)
def test_a_book_streams_to_its_end_in_flat_memory(
    profile: str,
    rendered: bool,
    reader: Callable[[str], TTS],
    letters: Letters,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not rendered:
        monkeypatch.setattr(TorchRenderer, "mel", lambda *_: None)
        monkeypatch.setattr(TorchRenderer, "excite", lambda *_: None)
        monkeypatch.setattr(TorchRenderer, "samples", silence)
    tts = reader(profile)
    frontend = replace(tts._model.frontend, tokenizer=Letters())
    pieces = sum(1 for _ in cut(frontend, BOOK, None, split_chars=280, fill=True))
    assert pieces > 350
    chunks = tts.stream(BOOK, seed=1)
    next(chunks)
    assert letters.asked < 40, "the book was cut before it was spoken"
    samples = 0
    # What waits to be rendered or heard is bounded by itself and differs from moment to moment, so a
    # quarter of the book is judged by the least that it ever held.
    held: list[list[tuple[int, int]]] = [[], [], [], []]
    tracemalloc.start()
    try:
        for number, chunk in enumerate(chunks):
            samples += len(chunk.samples)
            if number % 8 == 0:
                now = tensors(), tracemalloc.get_traced_memory()[0]
                held[min(letters.asked * 4 // pieces, 3)].append(now)
    finally:
        tracemalloc.stop()
    assert letters.asked == pieces
    assert samples >= 1920 * (pieces - 1)
    assert min(map(len, held)) >= 5
    # In the first quarter caches still fill up; a leak would go on growing in the others.
    _, second, _, last = ([min(column) for column in zip(*quarter, strict=True)] for quarter in held)
    assert last[0] <= second[0] + 20, held
    assert last[1] - second[1] < 60_000, held
    assert within(30, lambda: not tts._worker._jobs)


def test_a_listener_who_falls_asleep_over_a_book_costs_a_page(
    reader: Callable[[str], TTS], letters: Letters, profile: str
) -> None:
    tts = reader(profile)
    session = tts.open(BOOK, seed=1)
    chunks = session.chunks()
    next(chunks)
    assert within(60, lambda: session.is_ahead and not tts._worker._has_work())
    asked = letters.asked
    held_s = sum(chunk.seconds for chunk in session._chunks)
    assert held_s < 3
    assert asked < 40
    time.sleep(0.1)
    assert letters.asked == asked
    # Others are served meanwhile, and whoever wakes up hears the next page.
    assert len(tts.say("Somebody else.", seed=2).samples) > 0
    heard = 0.0
    while heard < held_s + 1:
        heard += next(chunks).seconds
    assert letters.asked > asked
    session.cancel()


def test_a_book_that_is_closed_in_the_middle_is_forgotten(
    reader: Callable[[str], TTS], letters: Letters, profile: str
) -> None:
    tts = reader(profile)
    tts.say("Warm up.", seed=0)
    before = tensors()
    book = Text(BOOK)
    gone = weakref.ref(book)
    chunks = tts.stream(book, seed=1)
    del book
    for _ in range(20):
        next(chunks)
    assert gone() is not None
    chunks.close()
    assert within(30, lambda: not tts._worker._jobs and tts._worker.scheduler.idle)
    asked = letters.asked
    gc.collect()
    assert gone() is None
    assert tensors() <= before + 20
    assert len(tts.say("The next reader.", seed=2).samples) > 0
    assert letters.asked == asked + 1


def test_what_is_wrong_with_a_book_is_said_when_it_is_opened(reader: Callable[[str], TTS]) -> None:
    tts = reader("balanced")
    for text, language, refusal in ((" … \n" * 10_000, None, EmptyText), (BOOK, "xx", UnsupportedLanguage)):
        with pytest.raises(refusal):
            tts.stream(text, language=language)
    assert not tts._worker._jobs


def test_a_piece_in_the_middle_of_a_book_is_what_it_is_alone(noise_model: Model) -> None:
    """Why voice and level cannot drift: nothing but the voice is carried from one piece to the next."""
    defaults = replace(noise_model.defaults, max_new_tokens=6, split_chars=60, fill_pieces=False)
    tts = TTS.over(replace(noise_model, defaults=defaults), "exact")
    said = tts.say(PARAGRAPH, seed=3)
    pieces = list(cut(noise_model.frontend, PARAGRAPH, None, split_chars=60))
    alone = [tts.say(p.text, seed=nth_seed(3, n)).samples for n, p in enumerate(pieces)]
    padded = [np.pad(x, (0, p.pause_samples)) for x, p in zip(alone, pieces, strict=True)]
    assert len(pieces) > 5
    assert np.array_equal(said.samples, np.concatenate(padded))


def test_a_paragraph_is_followed_by_more_quiet_than_a_sentence_and_that_by_more_than_a_comma() -> None:
    assert PAUSE_MS[Ending.PARAGRAPH] > PAUSE_MS[Ending.SENTENCE] > PAUSE_MS[Ending.CLAUSE] > 0

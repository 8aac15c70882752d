"""Tokens that are sampled on the device and read late: the same tokens as on the host, in any batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch
from backends.cuda.eager import FAST, TEXTS, eager_plan

from nightingale import TTS
from nightingale.backends.cuda import graph_decoder
from nightingale.backends.cuda.graph_decoder import GraphDecoder
from nightingale.backends.cuda.t3.decode_loop import DecodeLoop
from nightingale.decoding.decoding import Prompt
from nightingale.engine.load import Model
from nightingale.engine.pacing import Pacing
from nightingale.engine.rendering.utterance import Utterance
from nightingale.engine.snapshot import EngineSnapshot
from nightingale.errors import EngineFault


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """Return the tokens that each request sampled in its last attempt, by its seed."""
    kept: dict[int, list[int]] = {}
    plain, begin = Utterance.accept, Utterance._start_attempt

    def accept(self: Utterance, token: int) -> None:
        plain(self, token)
        kept[self.request.seed].append(token)

    def begin_attempt(self: Utterance) -> None:
        begin(self)
        kept[self.request.seed] = []

    monkeypatch.setattr(Utterance, "accept", accept)
    monkeypatch.setattr(Utterance, "_start_attempt", begin_attempt)
    return kept


def engine(model: Model, *, device: bool, tokens: int = 21, **defaults: Any) -> TTS:
    model = model.with_defaults(max_new_tokens=tokens, **defaults)
    return TTS.over(model, FAST, plan=eager_plan(model, FAST, decoder=device))


def together(tts: TTS, **controls: Any) -> list[Iterator[Any]]:
    return [tts.stream(text, seed=i, **controls) for i, text in enumerate(TEXTS * 2)]


def finish(streams: list[Iterator[Any]]) -> None:
    for stream in streams:
        list(stream)


@pytest.mark.parametrize("temperature", [0.8, 0.0], ids=["sampled", "greedy"])
@pytest.mark.parametrize("cfg_weight", [0.5, 0.0])
def test_tokens_are_those_of_the_host_in_a_batch_that_moves_slots(
    tiny_model: Model, drawn: dict[int, list[int]], cfg_weight: float, temperature: float
) -> None:
    found = []
    for device in (False, True):
        with engine(tiny_model, device=device) as tts:
            assert isinstance(tts._worker.decoder, GraphDecoder) is device
            finish(together(tts, temperature=temperature, cfg_weight=cfg_weight))
        found.append(dict(drawn))
    assert found[0] == found[1]
    assert len(set(map(tuple, found[0].values()))) > 2, "different texts must say different things"


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(
    tiny_model: Model, drawn: dict[int, list[int]]
) -> None:
    with engine(tiny_model, device=True) as tts:
        finish(together(tts))
        batched = dict(drawn)
        drawn.clear()
        for i, text in enumerate(TEXTS * 2):
            tts.say(text, seed=i)
    assert drawn == batched
    assert len(set(map(tuple, batched.values()))) == len(batched)


def test_an_utterance_that_a_step_leaves_out_loses_no_token(
    tiny_model: Model, drawn: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may leave out those that have tokens enough, and they go on all the same."""
    plain, turn = Pacing.rows_to_decode, count()

    def some(self: Pacing, rows: list[int], ready: Any, snapshot: EngineSnapshot) -> list[int]:
        asked = plain(self, rows, ready, snapshot)
        return asked[next(turn) % 2 :: 2] or asked

    with engine(tiny_model, device=True) as tts:
        finish(together(tts))
        expected = dict(drawn)
        monkeypatch.setattr(Pacing, "rows_to_decode", some)
        finish(together(tts))
    assert drawn == expected


def test_a_cancelled_request_disturbs_no_other(tiny_model: Model, drawn: dict[int, list[int]]) -> None:
    with engine(tiny_model, device=True) as tts:
        finish(together(tts))
        expected = dict(drawn)
        streams = together(tts)
        next(streams[0])
        streams[0].close()  # type: ignore[attr-defined]
        streams[2].close()  # type: ignore[attr-defined]
        finish(streams[1:2] + streams[3:])
    for seed in (1, 3, 4, 5, 6, 7):
        assert drawn[seed] == expected[seed]


def test_an_attempt_that_is_given_up_leaves_no_token_behind(
    tiny_model: Model, drawn: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard sees the fourth token when four more are under way."""
    apply, seen = Utterance._apply, []

    def once(self: Utterance, guard: Any) -> None:
        apply(self, guard)
        if self._attempt == 0 and self.decoding.appended == 4:
            seen.append(list(drawn[self.request.seed]))
            self.must_restart = True

    monkeypatch.setattr(Utterance, "_apply", once)
    with engine(tiny_model, device=True, guarded=True) as tts:
        audio = tts.say("Again, please.", seed=3)
    assert audio.metrics.retries == 1
    assert len(seen) == 1
    assert len(drawn[3]) == 21
    assert drawn[3][:3] != seen[0][:3], "another attempt draws other tokens"


def test_logits_that_are_not_numbers_end_one_request_and_no_other(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = graph_decoder.embed_prompt
    texts = {text.encode(): i for i, text in enumerate(TEXTS)}

    def poisoned(t3: Any, prompt: Prompt, **options: Any) -> torch.Tensor:
        made = plain(t3, prompt, **options)
        return made * float("nan") if texts.get(bytes(prompt.text_ids)) == 1 else made

    monkeypatch.setattr(graph_decoder, "embed_prompt", poisoned)
    with engine(tiny_model, device=True) as tts:
        good, bad, other = (tts.stream(TEXTS[i], seed=i) for i in range(3))
        with pytest.raises(EngineFault, match="not finite"):
            list(bad)
        for stream in (good, other):
            assert sum(len(chunk.samples) for chunk in stream) == 21 * 960
        again = [
            tts.stream(f"{text} Again.", seed=9) for text in TEXTS
        ]  # in every slot, the poisoned one too
        for stream in again:
            assert sum(len(chunk.samples) for chunk in stream) == 21 * 960


def test_a_slot_is_moved_only_if_a_gap_is_left_before_it(
    tiny_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[tuple[int, int]] = []
    move = DecodeLoop.move

    def count(self: DecodeLoop, source: int, target: int) -> None:
        moved.append((source, target))
        move(self, source, target)

    monkeypatch.setattr(DecodeLoop, "move", count)
    with engine(tiny_model, device=True) as tts:
        decoder = tts._worker.decoder
        assert isinstance(decoder, GraphDecoder)
        decoder._places = {0: 0, 1: 1, 2: 2, 3: 3}
        decoder._running = dict.fromkeys(decoder._places)  # type: ignore[arg-type]
        for last in (3, 2, 1):  # as the scheduler closes a gap: the last one takes the free slot
            decoder.release(0)
            decoder.move(last, 0)
        assert decoder._places == {0: 1}
        assert not moved
        decoder._loop._slots[1] = (1, False)
        decoder._close_gaps()
    assert moved == [(1, 0)]

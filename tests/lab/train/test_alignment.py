"""Guided attention: the words of tokens and texts, the loss of a head, and a step of training."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from lab.train.test_token_bank import make_bank
from tiny_wren import TINY

from nightingale_lab.no_kv_cache import NoKVCache
from nightingale_lab.train import parallel, t3
from nightingale_lab.train.alignment import UNKNOWN, GuidedAttention, words_of_text, words_of_tokens
from nightingale_lab.train.prepare import MARK_IDS
from nightingale_lab.train.t3 import T3Recipe, T3Training
from nightingale_lab.train.t3_rows import build_buckets
from nightingale_lab.train.token_bank import TokenBank

CPU = torch.device("cpu")


def test_words_are_counted_from_spaces_in_phonemes_and_in_text() -> None:
    # Two clips of two frames per token; the second clip has one word.
    phones = np.array([5, 5, 16, 16, 7, 7, 16, 8, 9, 9, 9, 9], dtype=np.uint8)
    words = words_of_tokens(phones, np.array([0, 8, 12]))
    assert words.tolist() == [0, 1, 1, 2, 0, 0]
    text = np.array([40, 41, 2, 42, 2, 2, 43, 8], dtype=np.int16)
    assert words_of_text(text).tolist() == [0, 0, UNKNOWN, 1, UNKNOWN, UNKNOWN, 2, 2]


def guided_loss(word: int, *, heads: tuple[int, ...] = (0,)) -> float:
    """Return the loss of a query that attends to the first of two words, when it is to speak `word`."""
    keys = torch.tensor([[0, 1, UNKNOWN]])
    queries = torch.tensor([[UNKNOWN, UNKNOWN, word]])
    k = torch.zeros(1, 2, 3, 4)
    k[0, 0, 0] = 3.0
    q = torch.ones(1, 2, 3, 4)
    guide = GuidedAttention(heads, queries, keys)
    v = torch.randn(1, 2, 3, 4)
    assert torch.equal(guide.attend(q, k, v), NoKVCache().attend(q, k, v))
    return float(guide.loss)


def test_a_guided_head_is_penalized_for_attention_to_other_words() -> None:
    assert guided_loss(0) < 0.1
    assert guided_loss(1) > 4.0
    assert guided_loss(UNKNOWN) == 0.0
    assert guided_loss(7) == 0.0, "a word that the text does not have"
    assert guided_loss(1, heads=(1,)) == pytest.approx(np.log(3), abs=1e-4), (
        "uniform attention over three keys"
    )


def aligned_bank(clips: int = 12) -> TokenBank:
    """Return a bank with a text of two words for every clip."""
    bank = make_bank(clips)
    texts = np.tile(np.array([20, 2, 21, MARK_IDS["?"]], dtype=np.int16), clips)
    counts = np.diff(bank.token_offsets)
    words = np.concatenate([np.arange(count) * 2 // count for count in counts]).astype(np.int16)
    return replace(bank, text_ids=texts, text_offsets=np.arange(clips + 1) * 4, word=words)


def training(bank: TokenBank, **recipe: float) -> T3Training:
    options = {"dropout": 0.0, "smoothing": 0.0, "corruption": 0.0, **recipe}
    torch.manual_seed(0)
    return T3Training(bank, TINY.t3, T3Recipe(**options), marks=frozenset(), device=CPU, eager=True, seed=0)  # type: ignore[arg-type]


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t3, "BATCH_IDS", 256)
    monkeypatch.setattr(t3, "GUIDED_HEADS", {0: (0,)})
    monkeypatch.setattr(torch, "autocast", lambda *_: nullcontext())


@pytest.mark.usefixtures("_small")
def test_training_with_guidance_teaches_a_head_to_attend_to_the_spoken_word() -> None:
    state = torch.get_rng_state()
    results = {}
    for guidance in (0.0, 1.0):
        made = training(aligned_bank(), guidance=guidance)
        size, bucket = next(iter(made.buckets.items()))
        made.optimizer.lr.fill_(0.03)
        for _ in range(10):
            made.steps[size]()
        made.recipe = T3Recipe(dropout=0.0, smoothing=0.0, corruption=0.0, guidance=1.0)
        made.guided_loss.zero_()
        with torch.no_grad():
            made.loss(bucket, torch.arange(len(bucket.ids)), corruption=0.0, smoothing=0.0)
        results[guidance] = float(made.guided_loss) / 0.02
    torch.set_rng_state(state)
    assert results[1.0] < 0.6 * results[0.0]


@pytest.mark.usefixtures("_small")
def test_only_the_end_of_questions_and_exclamations_has_a_higher_weight() -> None:
    state, losses = torch.get_rng_state(), {}
    for mark in "?.":
        bank = aligned_bank()
        bank.text_ids[3::4] = MARK_IDS[mark]
        made = training(bank)
        _, bucket = next(iter(made.buckets.items()))
        pick = torch.arange(len(bucket.ids))
        mask = made._final_tokens(bucket, pick, bucket.ids[pick].long())
        losses[mark] = int(mask.sum())
        if mark == "?":
            for row, count in zip(mask, bucket.count.tolist(), strict=True):
                assert row[: max(0, count - 1 - t3.FINAL_TOKENS)].sum() == 0
                assert bool(row[count - 2])
    torch.set_rng_state(state)
    assert losses["?"] > 0
    assert losses["."] == 0


def test_words_of_a_clip_are_unknown_where_speech_and_text_have_different_numbers() -> None:
    bank = aligned_bank()
    bank.word[bank.token_offsets[2] : bank.token_offsets[3]] += 1
    buckets = build_buckets(
        bank, TINY.t3, chosen=np.ones(12, bool), marks=frozenset(), joined_share=0.0, seed=0, device=CPU
    )
    for bucket in buckets.values():
        for row, clip, text_count, count in zip(
            bucket.word, bucket.clip.tolist(), bucket.text_count.tolist(), bucket.count.tolist(), strict=True
        ):
            assert row[:text_count].tolist() == [UNKNOWN, 0, UNKNOWN, 1, 1, UNKNOWN]
            speech = set(row[text_count + 1 : count - 1].tolist())
            assert speech == ({UNKNOWN} if clip == 2 else {0, 1})


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_work_is_the_same_by_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    items = np.arange(50) ** 2

    def work(first: int, end: int) -> list[int]:
        return [int(item) for item in items[first:end]]

    assert parallel.map_spans(work, 50, workers=2) == [items.tolist()]
    monkeypatch.setattr(parallel, "MIN_ITEMS", 10)
    parts = parallel.map_spans(work, 50, workers=2)
    assert len(parts) == 4
    assert [item for part in parts for item in part] == items.tolist()

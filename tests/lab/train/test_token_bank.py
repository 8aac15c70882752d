"""Token banks, held-out lines, and checks of the assets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_wren import TINY

from nightingale.errors import CheckpointError, ConfigError
from nightingale_lab.train.alignment import UNKNOWN
from nightingale_lab.train.asset_files import Assets
from nightingale_lab.train.assets import checked, normalized
from nightingale_lab.train.corpus import HELD_OUT, ready_parts, whole_clips
from nightingale_lab.train.loop import TimeBudget, read_log
from nightingale_lab.train.t3 import T3Recipe, train_t3
from nightingale_lab.train.t3_rows import build_buckets
from nightingale_lab.train.token_bank import TokenBank

ARRAYS = ("tokens", "word", "token_offsets", "text_ids", "text_offsets", "line", "voice", "speed")


def encode(line: int) -> list[int]:
    return [10 + line % 5, 20, 30]


def make_bank(clips: int = 120, seed: int = 0) -> TokenBank:
    rng = np.random.default_rng(seed)
    counts = rng.integers(5, 40, clips)
    speaker = rng.standard_normal((clips, 256)).astype(np.float32)
    return TokenBank(
        tokens=rng.integers(0, 6561, counts.sum()).astype(np.int16),
        token_offsets=np.cumsum([0, *counts]).astype(np.int64),
        text_ids=np.array([x for i in range(clips) for x in encode(i)], dtype=np.int16),
        text_offsets=np.arange(clips + 1, dtype=np.int64) * 3,
        line=np.arange(clips, dtype=np.int32),
        voice=rng.integers(0, 14, clips).astype(np.int16),
        speed=np.ones(clips, np.float16),
        word=np.concatenate([np.arange(count) // 7 for count in counts]).astype(np.int16),
        speaker=(speaker / np.linalg.norm(speaker, axis=1, keepdims=True)).astype(np.float16),
    )


def test_a_bank_is_saved_and_loaded_with_text_from_the_lines(tmp_path: Path) -> None:
    bank = make_bank()
    bank.save(tmp_path / "bank.safetensors")
    back = TokenBank.load(tmp_path / "bank.safetensors", encode)
    for name in ARRAYS:
        assert np.array_equal(getattr(bank, name), getattr(back, name)), name
    assert np.abs(bank.speaker.astype(np.float32) - back.speaker.astype(np.float32)).max() < 3e-3


def test_the_compact_form_has_the_same_words_and_one_speaker_vector_for_each_voice(tmp_path: Path) -> None:
    bank = make_bank()
    bank.save(tmp_path / "bank.safetensors")
    bank.save_compact(tmp_path / "compact.safetensors", lines_digest="abc")
    back = TokenBank.load(tmp_path / "compact.safetensors", encode, lines_digest="abc")
    for name in ARRAYS:
        assert np.array_equal(getattr(bank, name), getattr(back, name)), name
    for voice in np.unique(bank.voice):
        mean = bank.speaker[bank.voice == voice].astype(np.float32).sum(0)
        rows = back.speaker[back.voice == voice].astype(np.float32)
        assert np.abs(rows - mean / np.linalg.norm(mean)).max() < 2e-3
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("bank", "compact")]
    assert sizes[1] < 0.5 * sizes[0]


def test_tokens_of_unknown_words_stay_unknown_in_the_compact_form(tmp_path: Path) -> None:
    bank = make_bank()
    clip = slice(bank.token_offsets[3], bank.token_offsets[4])
    bank.word[clip] = UNKNOWN
    bank.save_compact(tmp_path / "compact.safetensors", lines_digest="abc")
    assert np.array_equal(TokenBank.load(tmp_path / "compact.safetensors", encode).word, bank.word)


def test_a_bank_with_the_line_numbers_of_another_text_is_refused(tmp_path: Path) -> None:
    make_bank().save_compact(tmp_path / "compact.safetensors", lines_digest="abc")
    with pytest.raises(ConfigError, match="another text"):
        TokenBank.load(tmp_path / "compact.safetensors", encode, lines_digest="def")


def test_blended_speakers_of_two_banks_differ_and_named_voices_are_shared() -> None:
    first, second = make_bank(seed=0), make_bank(seed=1)
    both = TokenBank.join([first, second])
    assert both.clips == first.clips + second.clips
    named = second.voice < 10
    assert np.array_equal(both.voice[first.clips :][named], second.voice[named])
    assert not set(both.voice[first.clips :][~named]) & set(first.voice)
    start = both.token_offsets[first.clips]
    assert np.array_equal(both.tokens[start:], second.tokens)


def test_lines_that_are_held_out_are_in_no_sequence_of_training() -> None:
    bank = make_bank(200)
    out = np.flatnonzero(bank.held_out)
    assert list(out) == list(range(HELD_OUT - 1, 200, HELD_OUT))
    shown, unseen = (
        build_buckets(
            bank,
            TINY.t3,
            chosen=chosen,
            marks=frozenset(),
            joined_share=share,
            seed=0,
            device=torch.device("cpu"),
        )
        for chosen, share in ((~bank.held_out, 0.9), (bank.held_out, 0.0))
    )
    assert not {int(c) for b in shown.values() for c in b.clip} & set(out.tolist())
    assert {int(c) for b in unseen.values() for c in b.clip} == set(out.tolist())
    pairs = sum(len(b.ids) for b in shown.values()) - (200 - len(out))
    assert pairs > 50


def test_t3_resumes_and_keeps_its_best_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightingale_lab.train.t3.BATCH_IDS", 128)
    monkeypatch.setattr(torch, "autocast", lambda *_: __import__("contextlib").nullcontext())
    given = {"marks": frozenset({30}), "device": torch.device("cpu"), "eager": True, "plan_s": 900.0}
    for _ in range(2):
        train_t3(make_bank(), tmp_path, TINY.t3, budget_s=0.2, recipe=T3Recipe(warmup_steps=5), **given)  # type: ignore[arg-type]
    first, second = read_log(tmp_path / "t3.jsonl")
    assert second["step"] > first["step"]
    assert second["seconds"] > first["seconds"]
    state = torch.load(tmp_path / "t3.state.pt", weights_only=True)
    assert state["best_loss"] == pytest.approx(
        min(first["validation_loss"], second["validation_loss"]), rel=1e-4
    )


def test_whole_clips_come_in_few_shapes_and_none_is_left_out() -> None:
    counts = torch.randint(1, 90, (300,), generator=torch.Generator().manual_seed(0))
    seen, shapes = set(), set()
    for rows, length in whole_clips(counts, batch_tokens=1000):
        assert int(counts[rows].max()) <= length
        seen |= set(rows.tolist())
        shapes.add((len(rows), length))
    assert seen == set(range(300))
    assert len(shapes) <= 6


def test_a_time_budget_counts_earlier_calls() -> None:
    watch = TimeBudget(10.0, plan_s=100.0, elapsed_s=50.0)
    assert watch.progress == pytest.approx(0.5, abs=0.01)
    assert not watch.over()
    assert TimeBudget(10.0, plan_s=50.0, elapsed_s=50.0).over()


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [("He went home.", "He went home."), ("It costs 5 dollars.", None), ("It was Chapter IV.", None)],
)
def test_a_line_is_kept_only_if_inference_has_the_same_words(raw: str, wanted: str | None) -> None:
    assert normalized(raw) == wanted


def test_a_teacher_that_has_changed_is_refused() -> None:
    with pytest.raises(CheckpointError, match="another digest"):
        checked("x.bin", b"other", "0" * 64)


def test_missing_assets_and_an_empty_corpus_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"voices\.npz"):
        Assets(tmp_path).file("voices.npz")
    with pytest.raises(ConfigError, match="no corpus yet"):
        ready_parts(tmp_path)


def test_reencoded_clips_keep_their_speech_without_the_held_out_lines() -> None:
    bank = make_bank()
    other = bank.reencoded(lambda line: [line % 7, 1, 2, 3])
    kept = np.flatnonzero(~bank.held_out)
    assert other.clips == len(kept) < bank.clips
    assert not other.held_out.any()
    for new, old in enumerate(kept):
        assert np.array_equal(
            other.tokens[other.token_offsets[new] : other.token_offsets[new + 1]],
            bank.tokens[bank.token_offsets[old] : bank.token_offsets[old + 1]],
        )
        assert np.array_equal(
            other.word[other.token_offsets[new] : other.token_offsets[new + 1]],
            bank.word[bank.token_offsets[old] : bank.token_offsets[old + 1]],
        )
        text = other.text_ids[other.text_offsets[new] : other.text_offsets[new + 1]]
        assert text.tolist() == [int(bank.line[old]) % 7, 1, 2, 3]

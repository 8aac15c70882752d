"""Speech tokens made on CPUs equal those of the stage `data`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tiny_wren import TINY
from torch import Tensor
from torch.nn import functional as F

from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale_lab.train.alignment import UNKNOWN
from nightingale_lab.train.prepare import MARK_PHONEMES
from nightingale_lab.train.resample import To16k
from nightingale_lab.train.single_speaker import (
    VOICE,
    lines_from_the_end,
    synthesize_tokens,
    tokenize_utterance,
)
from nightingale_lab.train.speakers import SPEAKER_SHARES
from nightingale_lab.train.token_bank import TokenBank


class Tone:
    """A noise between two silences, longer for more phonemes."""

    def speak_ids(self, ids: Sequence[int], *, speed: float = 1.0, seed: int = 0) -> Tensor:
        del speed
        noise = torch.randn(2400 * len(ids), generator=torch.Generator().manual_seed(seed)) * 0.1
        return F.pad(noise, (12_000, 12_000))


def tokenizer() -> SpeechTokenizer:
    torch.manual_seed(0)
    return SpeechTokenizer(TINY.speech_tokenizer).eval()


def test_lines_that_can_be_spoken_become_a_bank_of_the_teachers_voice(tmp_path: Path) -> None:
    phonemes = [np.full(n, 17, np.uint8) for n in (10, 0, 20, 5)]
    question = np.array([17, 17, MARK_PHONEMES["?"]], np.uint8)
    speaker = np.full(256, 1 / 16, np.float16)
    synthesize_tokens(
        Tone(),
        tokenizer(),
        [*phonemes, question],
        iter([2, 4, 1, 0]),
        speaker,
        tmp_path / "bank.safetensors",
        budget_s=60,
    )
    bank = TokenBank.load(tmp_path / "bank.safetensors", lambda line: [line])
    assert bank.line.tolist() == [2, 0]  # neither the empty line nor the question
    assert set(bank.word.tolist()) == {UNKNOWN}
    assert set(bank.voice.tolist()) == {list(SPEAKER_SHARES).index(VOICE)}
    assert np.abs(bank.speaker.astype(np.float32) - 1 / 16).max() < 1e-3
    longer, shorter = np.diff(bank.token_offsets)
    # 2 s and 1 s of sound with the margins of the stage `data`: 60 ms before, 120 ms after.
    assert (longer, shorter) == (55, 30)


def test_silence_around_the_speech_changes_no_token() -> None:
    net, to16k = tokenizer(), To16k()
    sound = Tone().speak_ids([1] * 10)
    more = F.pad(sound, (7200, 4800))
    assert np.array_equal(tokenize_utterance(net, to16k, sound), tokenize_utterance(net, to16k, more))


def test_processes_share_the_lines_and_begin_where_the_gpu_would_end() -> None:
    order = np.random.default_rng(0).permutation(100)
    shards = [list(lines_from_the_end(100, seed=0, shard=i, shards=2)) for i in range(2)]
    assert sorted(shards[0] + shards[1]) == list(range(100))
    assert shards[0][0] == order[-1]
    assert shards[1][0] == order[-2]

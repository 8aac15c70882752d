"""Embeddings of speech codes are initialized from the digits of the codes."""

from __future__ import annotations

import torch

from nightingale.models.chatterbox.encoders.speech_tokenizer import fsq_ids
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES
from nightingale_lab.train.code_init import code_digits, init_from_digits


def test_digits_are_those_that_the_tokenizer_rounds_to() -> None:
    digits = code_digits()
    assert torch.equal(fsq_ids(10.0 * digits), torch.arange(SPEECH_CODES))


def test_codes_that_share_digits_begin_alike_and_the_scale_stays() -> None:
    table = 0.02 * torch.randn(SPEECH_CODES + 2, 64)
    others, scale = table[SPEECH_CODES:].clone(), table[:SPEECH_CODES].std()
    init_from_digits(table)
    digits = code_digits()
    near = (digits != digits[0]).sum(1) == 1
    far = (digits != digits[0]).all(1)
    distance = (table[:SPEECH_CODES] - table[0]).norm(dim=1)
    assert distance[near].mean() < 0.5 * distance[far].mean()
    assert distance[1:].min() > 0
    torch.testing.assert_close(table[:SPEECH_CODES].std(), scale)
    assert torch.equal(table[SPEECH_CODES:], others)

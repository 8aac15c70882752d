"""The network that finds the tokens of a mel: it learns them, and its gradient reaches the mel."""

from __future__ import annotations

import torch

from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES
from nightingale_lab.train.mel_content import MelContent


def test_it_finds_the_tokens_that_a_mel_was_made_from() -> None:
    torch.manual_seed(0)
    sounds = torch.randn(SPEECH_CODES, 80)
    content = MelContent(torch.ones(1, 80, 1), width=16)
    vocabulary = torch.randint(SPEECH_CODES, (8,))
    optimizer = torch.optim.Adam(content.parameters(), lr=1e-2)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        ids = vocabulary[torch.randint(8, (4, 12))]
        return sounds[ids].transpose(1, 2).repeat_interleave(2, dim=2), ids

    everywhere = torch.ones(4, 12, dtype=torch.bool)
    for _ in range(80):
        optimizer.zero_grad()
        content.loss(*batch(), everywhere).backward()
        optimizer.step()
    mel, ids = batch()
    mel.requires_grad_()
    right, wrong = content.loss(mel, ids, everywhere), content.loss(mel, ids.roll(1, 1), everywhere)
    assert right < 0.1 < wrong
    assert torch.autograd.grad(wrong, mel)[0].abs().sum() > 0


def test_only_counted_tokens_are_judged() -> None:
    torch.manual_seed(0)
    content = MelContent(torch.ones(1, 80, 1), width=16)
    mel, ids = torch.randn(1, 80, 24), torch.randint(SPEECH_CODES, (1, 12))
    counted = torch.arange(12)[None] < 6
    other = torch.where(counted, ids, (ids + 1) % SPEECH_CODES)
    assert torch.equal(content.loss(mel, ids, counted), content.loss(mel, other, counted))
    assert content.loss(mel, ids, torch.zeros_like(counted)) == 0

"""The network that finds the phonemes of a mel: it learns them, and its gradient reaches the mel."""

from __future__ import annotations

import torch

from nightingale_lab.train.mel_content import UNKNOWN, MelContent, phoneme_weights
from nightingale_lab.train.teachers.kokoro_net import PHONEMES


def test_it_finds_the_phonemes_that_a_mel_was_made_from() -> None:
    torch.manual_seed(0)
    sounds = torch.randn(PHONEMES, 80)
    content = MelContent(torch.ones(1, 80, 1), width=16)
    vocabulary = torch.randint(1, PHONEMES, (8,))
    optimizer = torch.optim.Adam(content.parameters(), lr=1e-2)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        phones = vocabulary[torch.randint(8, (4, 24))]
        return sounds[phones].transpose(1, 2), phones

    for _ in range(120):
        optimizer.zero_grad()
        content.loss(*batch()).backward()
        optimizer.step()
    mel, phones = batch()
    other = sounds[phones.roll(1, 1)].transpose(1, 2).requires_grad_()
    assert content.loss(mel, phones) < 0.1 < content.loss(other, phones)

    everywhere = torch.ones(4, 24, dtype=torch.bool)
    wanted = content(mel)
    near, far = (content.distance(content(each), wanted.logits.detach(), everywhere) for each in (mel, other))
    assert near < 1e-4 < 0.1 < far
    same, else_ = (
        content.state_distance(content(each), wanted.states.detach(), everywhere) for each in (mel, other)
    )
    assert same < 1e-4 < 0.1 < else_
    assert torch.autograd.grad(far, other)[0].abs().sum() > 0


def test_only_known_phonemes_and_counted_frames_are_judged() -> None:
    torch.manual_seed(0)
    content = MelContent(torch.ones(1, 80, 1), width=16)
    mel, phones = torch.randn(1, 80, 24), torch.randint(1, PHONEMES, (1, 24))
    counted = torch.arange(24)[None] < 12
    assert content.loss(mel, torch.full_like(phones, UNKNOWN)) == 0
    assert content.loss(mel, torch.where(counted, phones, UNKNOWN)) != content.loss(mel, phones)
    wanted, changed = torch.randn(1, 24, 2, PHONEMES), torch.randn(1, 24, 2, PHONEMES)
    changed = torch.where(counted[..., None, None], wanted, changed)
    found = content(mel)
    assert torch.equal(content.distance(found, wanted, counted), content.distance(found, changed, counted))
    assert content.distance(found, wanted, torch.zeros_like(counted)) == 0


def test_the_narrow_network_sees_140_ms() -> None:
    torch.manual_seed(0)
    content = MelContent(torch.ones(1, 80, 1), width=16)
    mel = torch.randn(1, 80, 40)
    other = mel.clone()
    other[:, :, 20] += 1
    changed = (content(mel).logits != content(other).logits).any(3)[0, :, 1]
    assert changed.nonzero().flatten().tolist() == list(range(17, 24))


def test_short_phonemes_count_as_much_as_long_ones() -> None:
    phones = torch.tensor([[5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 5, 5, 5, 5, UNKNOWN, UNKNOWN]])
    weights = phoneme_weights(phones)[0].tolist()
    assert weights == [2.0] * 2 + [0.5] * 8 + [1.0] * 4 + [1.0] * 2

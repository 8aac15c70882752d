"""The discriminator of the flow's mels, and the balance of its loss."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nightingale_lab.train.flow import ramp
from nightingale_lab.train.loop import Optimizer
from nightingale_lab.train.mel_discriminator import MelDiscriminator, balanced
from nightingale_lab.train.seeding import seeded

BANDS, FRAMES = 80, 32


def mels(generator: torch.Generator, rows: int = 4) -> tuple[Tensor, Tensor]:
    """Return mels that alternate between bands, and the same without that detail."""
    smooth = torch.randn(rows, 1, FRAMES, generator=generator).expand(-1, BANDS, -1)
    detail = torch.tensor([1.0, -1.0]).repeat(BANDS // 2)[None, :, None]
    return smooth + detail, smooth


def test_a_discriminator_learns_to_tell_flat_mels_and_its_gradient_adds_detail() -> None:
    generator = torch.Generator().manual_seed(0)
    with seeded(0):
        net = MelDiscriminator(torch.float32)
    optimizer = Optimizer(net.parameters())
    optimizer.lr.fill_(1e-3)
    losses = []
    for _ in range(30):
        recorded, flat = mels(generator)
        loss = net.loss(recorded, flat, flat)
        optimizer.step(loss)
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    recorded, flat = mels(generator)
    rendered = flat.clone().requires_grad_()
    gradient = torch.autograd.grad(net.flow_loss(recorded, rendered, flat), rendered)[0]
    assert ((recorded - flat) * -gradient).sum() > 0


@torch.no_grad()
def test_equal_mels_have_equal_features() -> None:
    net, nothing = MelDiscriminator(torch.float32), torch.zeros(2, BANDS, FRAMES)
    missed = sum(float((1 - logits).square().mean()) for logits, _ in net(nothing, nothing))
    assert float(net.flow_loss(nothing, nothing, nothing)) == pytest.approx(missed, rel=1e-5)


def test_a_balanced_loss_has_a_share_of_the_other_gradient() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    loss, other = 3 * x.sum(), 100 * x.square().sum()
    scaled = balanced(loss, other, x, torch.tensor(0.5))
    gradients = [torch.autograd.grad(each, x, retain_graph=True)[0] for each in (loss, scaled)]
    norms = [float(gradient.norm()) for gradient in gradients]
    assert norms[1] == pytest.approx(0.5 * norms[0], rel=1e-4)
    assert float(balanced(loss, other, x, torch.tensor(0.0)).detach()) == 0.0


def test_a_ramp_starts_late() -> None:
    assert [ramp(progress, 0.1) for progress in (0.0, 0.1, 0.15, 0.2, 1.0)] == pytest.approx(
        [0, 0, 0.5, 1, 1]
    )

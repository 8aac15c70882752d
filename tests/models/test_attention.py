"""Attention passes PyTorch an aligned mask for tensors of a GPU; tested without one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from nightingale.models.chatterbox.s3gen.token_encoder import RelativeAttention


class OnGpu(Tensor):
    """A tensor that says that it lies on a GPU."""

    is_cuda = True


@pytest.mark.parametrize(("kind", "copied"), [(Tensor, False), (OnGpu, True)])
def test_scores_by_distance_are_an_aligned_mask_on_cuda_and_a_view_elsewhere(
    kind: type[Tensor], copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks: list[Tensor] = []

    def capture(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor, is_causal: bool) -> Tensor:
        del k, v, is_causal
        masks.append(attn_mask)
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", capture)
    x, distances = (torch.randn(1, length, 64).as_subclass(kind) for length in (16, 31))
    RelativeAttention(64, 1)(x, distances, None)
    (mask,) = masks
    assert mask.shape == (1, 1, 16, 16)
    assert mask.is_contiguous() == copied

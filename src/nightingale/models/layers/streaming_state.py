"""What layers hand from one piece of a sequence to the next, as a value.

A causal convolution needs the few inputs before its piece; attention needs the keys and values before it.
Each such layer, in the order of the forward pass, takes from the carry what it left there last time and
leaves something for next time. The layers hold nothing; `past` is never written to, so many streams may start
from one.
"""

from __future__ import annotations

from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor

Past = tuple[Tensor, ...]
"""What was left, in the order of the forward pass."""


class Carry:
    """One pass over one piece: takes from `past`, gathers what to `leave`.

    advance: how far into this piece the next one starts; less than all of it when the next one begins with
    some of this one again. remember: whether attention also remembers this piece, or only what it knew.
    at_most: how many positions attention remembers; None is all of them.
    """

    def __init__(
        self,
        past: Past | None = None,
        *,
        advance: Fraction = Fraction(1),
        remember: bool = True,
        at_most: int | None = None,
    ) -> None:
        self._past = None if past is None else list(reversed(past))
        self._advance, self._remember, self._at_most = advance, remember, at_most
        self._left: list[Tensor] = []

    def leave(self) -> Past:
        """The past of the next piece."""
        assert not self._past, "the past belongs to another network"
        return tuple(self._left)

    @property
    def known(self) -> int:
        """How many positions the next attention layer knows already."""
        return 0 if self._past is None else self._past[-1].shape[-2]

    def behind(self, x: Tensor, width: int) -> Tensor:
        """(…, time) -> (…, width + time): x after the `width` positions before it, zeros at the start."""
        joined = F.pad(x, (width, 0)) if self._past is None else torch.cat([self._past.pop(), x], dim=-1)
        start = int(self._advance * x.shape[-1])
        self._left.append(joined[..., start : start + width].clone())  # a view would keep the whole piece
        return joined

    def among(self, x: Tensor) -> Tensor:
        """(…, time, width) -> (…, known + time, width): keys or values after those known already."""
        past = x.new_empty(*x.shape[:-2], 0, x.shape[-1]) if self._past is None else self._past.pop()
        joined = torch.cat([past, x], dim=-2)
        left = joined if self._remember else past
        if self._at_most is not None and left.shape[-2] > self._at_most:
            left = left[..., -self._at_most :, :].clone()
        self._left.append(left)
        return joined

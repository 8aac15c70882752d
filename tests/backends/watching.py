"""Sees what a recorded function may not do: wait for the host, or bring something from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

WAITS = (
    "aten._local_scalar_dense",
    "aten.is_nonzero",
    "aten.nonzero",
    "aten.masked_select",
    "aten.repeat_interleave.Tensor",
    "aten.unique",
    "aten._unique2",
    "aten.equal",
)
BRINGS = ("aten.lift_fresh",)
"""The operation that torch.tensor([...]) ends in."""


class HostWatch(TorchDispatchMode):
    """Use as a context; `found` is what a capture would have failed at.

    Not in inference mode, in which torch does not show what its composed operations do inside.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.operations = 0

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        self.operations += 1
        name = str(function)
        if name.startswith((*WAITS, *BRINGS)):
            self.found.append(name)
        return function(*args, **(kwargs or {}))

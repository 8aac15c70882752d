"""Capture the inputs and outputs of a module while other code runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def outputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Collect every tensor that the module returns while the context is open."""
    captured: list[Tensor] = []

    def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        captured.append(output.detach().clone())

    handle = module.register_forward_hook(hook)
    try:
        yield captured
    finally:
        handle.remove()


@contextmanager
def arguments_of(module: nn.Module, which: str | int) -> Iterator[list[Tensor]]:
    """Collect every tensor passed to the module as this keyword, or at this position."""
    captured: list[Tensor] = []

    def hook(_module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        argument = inputs[which] if isinstance(which, int) else keywords[which]
        captured.append(argument.detach().clone())

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield captured
    finally:
        handle.remove()

"""Listening in on a network while its own code runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def outputs_of(module: nn.Module) -> Iterator[list[Tensor]]:
    """Every tensor the module returns while the context is open, in order."""
    heard: list[Tensor] = []

    def listen(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        heard.append(output.detach().clone())

    handle = module.register_forward_hook(listen)
    try:
        yield heard
    finally:
        handle.remove()


@contextmanager
def arguments_of(module: nn.Module, which: str | int) -> Iterator[list[Tensor]]:
    """Every tensor passed to the module as this keyword or at this place while the context is open."""
    heard: list[Tensor] = []

    def listen(_module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        argument = inputs[which] if isinstance(which, int) else keywords[which]
        heard.append(argument.detach().clone())

    handle = module.register_forward_pre_hook(listen, with_kwargs=True)
    try:
        yield heard
    finally:
        handle.remove()

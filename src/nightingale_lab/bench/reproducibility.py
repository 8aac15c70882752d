"""Find the CUDA graphs, and the operations inside them, whose bits differ for the same input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nightingale.backends.cuda.graphs import Replay, reproducible


def same_bits(ones: Iterable[Any], others: Iterable[Any]) -> bool:
    """Compare tensors bit by bit, except for the sign of zero; NaN equals NaN."""
    pairs = [(a, b) for a, b in zip(ones, others, strict=True) if isinstance(a, Tensor)]
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def different_replays(graph: Replay[Any], times: int) -> int:
    """Return how many of that many replays differ from the first."""
    first = [t.clone() for t in tree_leaves(graph())]
    return sum(not same_bits(first, tree_leaves(graph())) for _ in range(times))


class RepeatedDispatch(TorchDispatchMode):
    """Repeats each operation without side effects, and compares the results."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times
        self.different: Counter[str] = Counter()

    def __torch_dispatch__(self, act: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = act(*args, **given)
        if act._schema.is_mutable or "empty" in act._schema.name:
            return result
        first = tree_leaves(result)
        if not all(same_bits(first, tree_leaves(act(*args, **given))) for _ in range(self._times)):
            shapes = " ".join(str(tuple(a.shape)) for a in tree_leaves(args) if isinstance(a, Tensor))
            self.different[f"{act} of {shapes}"] += 1
        return result


@torch.no_grad()
def different_operations(
    act: Callable[[], object], *, times: int = 6, deterministic: bool = True
) -> Counter[str]:
    """Count the operations of `act` that are not reproducible.

    deterministic: with the settings for cuDNN that are used when a graph is recorded.
    """
    settings: AbstractContextManager[Any] = reproducible() if deterministic else nullcontext()
    with settings, RepeatedDispatch(times) as repeated:
        act()
    return repeated.different


def unreproducible(graphs: Iterable[Replay[Any]], *, times: int = 10) -> dict[str, Any]:
    """Return, by graph, how many replays differed and which operations did, with either setting of cuDNN."""
    found: dict[str, Any] = {}
    for graph in graphs:
        if different := different_replays(graph, times):
            act = lambda graph=graph: graph._function(**graph._buffers)  # noqa: E731
            found[graph.name] = {
                "different": f"{different} of {times}",
                "by": dict(different_operations(act)),
                "by, without deterministic cuDNN": dict(different_operations(act, deterministic=False)),
            }
    return found

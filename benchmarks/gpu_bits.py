"""Who gives other bits for the same input: a graph, and the operation inside it.

Not a script: gpu_engine.py asks when a sentence was not the same twice, gpu_trace.py always.
"""

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


def same(ones: Iterable[Any], others: Iterable[Any]) -> bool:
    """Bit for bit, but for the sign of zero; what is no number is the same as what is none."""
    pairs = [(a, b) for a, b in zip(ones, others, strict=True) if isinstance(a, Tensor)]
    return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)


def different_replays(graph: Replay[Any], times: int) -> int:
    """How many of so many replays gave other bits than the first."""
    one = [t.clone() for t in tree_leaves(graph())]
    return sum(not same(one, tree_leaves(graph())) for _ in range(times))


class Again(TorchDispatchMode):
    """Each operation that changes nothing is done some more times, and compared with itself."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times
        self.different: Counter[str] = Counter()
        self.seen = 0

    def __torch_dispatch__(self, act: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        result = act(*args, **given)
        if act._schema.is_mutable or "empty" in act._schema.name:
            return result
        self.seen += 1
        ones = tree_leaves(result)
        if not all(same(ones, tree_leaves(act(*args, **given))) for _ in range(self._times)):
            shapes = " ".join(str(tuple(a.shape)) for a in tree_leaves(args) if isinstance(a, Tensor))
            self.different[f"{act} of {shapes}"] += 1
        return result


@torch.no_grad()
def different_operations(act: Callable[[], object], *, times: int = 6, promised: bool = True) -> Counter[str]:
    """The operations of `act` that are not the same each time. promised: cuDNN is asked to add up in one
    order, as it is when a graph is recorded."""
    way: AbstractContextManager[Any] = reproducible() if promised else nullcontext()
    with way, Again(times) as again:
        act()
    return again.different


def look_into(graphs: Iterable[Replay[Any]], *, times: int = 10) -> dict[str, Any]:
    """By graph: how many replays were different, and by which operations, with the promise and without."""
    found: dict[str, Any] = {}
    for graph in graphs:
        different = different_replays(graph, times)
        if different:
            found[graph.name] = {"different": f"{different} of {times}"} | {
                name: dict(different_operations(lambda g=graph: g._function(**g._buffers), promised=promised))  # type: ignore[misc]
                for name, promised in (("by", True), ("by, without the promise", False))
            }
    return found

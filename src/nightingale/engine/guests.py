"""Every faster way there is, by the stage it serves, and what stands against it on a given machine.

To add one: a line in `GUESTS`, a wish in a profile (profiles.py), and the place in load.py where it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nightingale.engine.plan import DTYPES, Guest, Machine, Sizes
from nightingale.engine.profiles import Profile

FREE_SHARE: Final = 0.6
"""Of the memory that is free, T3's may take so much: weights, graphs and the flow need some too."""


def _no_graphs(sizes: Sizes, machine: Machine, profile: Profile, dtype: str) -> str | None:  # noqa: ARG001
    """What stands against any graph."""
    if machine.obstacle is not None:
        return machine.obstacle
    if dtype == "bfloat16" and machine.architecture < 80:
        return f"{machine.name} ({machine.instructions}) does not compute in bfloat16"
    return None


def _no_t3_graphs(sizes: Sizes, machine: Machine, profile: Profile, dtype: str) -> str | None:
    needed = sizes.t3_memory_bytes(profile.slots, DTYPES[dtype].itemsize)
    free = machine.free_bytes
    if free is not None and needed > FREE_SHARE * free:
        return (
            f"{profile.slots} slots need {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; "
            "choose fewer slots"
        )
    return _no_graphs(sizes, machine, profile, dtype)


def _no_render_graphs(sizes: Sizes, machine: Machine, profile: Profile, dtype: str) -> str | None:
    if sizes.flow.block_causal:
        return "a block-causal flow remembers more with each piece, and a graph's shapes are fixed"
    return _no_graphs(sizes, machine, profile, dtype)


GUESTS: Final[Mapping[tuple[str, str], Guest]] = {
    (guest.stage, guest.way): guest
    for guest in (
        Guest(
            way="graphs",
            stage="t3",
            kind="cuda",
            what="a CUDA graph a step, draws included; tokens are read while the next steps run",
            refusal=_no_t3_graphs,
        ),
        Guest(
            way="graphs",
            stage="flow",
            kind="cuda",
            what="a CUDA graph for each size of block, beside T3 on a stream of its own",
            refusal=_no_render_graphs,
        ),
        Guest(
            way="graphs",
            stage="vocoder",
            kind="cuda",
            what="a CUDA graph for each size of block, after the flow's",
            refusal=_no_render_graphs,
        ),
    )
}

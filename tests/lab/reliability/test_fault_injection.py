"""One fault of each kind at each call site of the engine, with other requests running."""

from __future__ import annotations

from nightingale_lab.reliability.fault_injection import inject_faults
from nightingale_lab.reliability.fault_sites import SITES


def test_a_fault_ends_at_most_one_request_and_leaves_nothing_behind() -> None:
    kinds = sum(len(site.kinds) for site in SITES)
    result = inject_faults(kinds, seed=0)
    assert result["problems"] == []
    assert len(result["rows"]) == kinds
    assert result["total"]["fired"] > 0.9 * kinds

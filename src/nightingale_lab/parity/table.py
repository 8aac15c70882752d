"""One comparison is one row: the difference between the two sides, its tolerance and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Measure = Literal["relative", "absolute", "exact"]
HEADER = ("family", "stage", "max error", "rel. error", "allowed", "verdict", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityRow:
    """`relative` is ‖ours - theirs‖ / ‖theirs‖. Ids are compared exactly; their error is a count."""

    family: str
    stage: str
    max_abs: float
    relative: float
    measure: Measure
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        error = self.relative if self.measure == "relative" else self.max_abs
        return error <= self.tolerance

    def cells(self) -> tuple[str, ...]:
        allowed = "equal" if self.measure == "exact" else f"{self.measure[:3]} {self.tolerance:.0e}"
        verdict = "ok" if self.passed else "MISSED"
        errors = (f"{self.max_abs:.2e}", f"{self.relative:.2e}")
        return (self.family, self.stage, *errors, allowed, verdict, self.note)


@dataclass(frozen=True, slots=True)
class Rows:
    """Collects the rows of one family."""

    family: str
    rows: list[ParityRow] = field(default_factory=list)

    def close(
        self,
        stage: str,
        ours: Tensor,
        theirs: Tensor,
        *,
        relative: float | None = None,
        absolute: float | None = None,
        note: str = "",
    ) -> None:
        """Add a row for numbers that must agree within one of the two tolerances."""
        assert (relative is None) != (absolute is None)
        max_abs = spread = float("inf")
        if ours.shape != theirs.shape:
            note = f"shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
        else:
            gap = ours.double() - theirs.double()
            max_abs, spread = float(gap.abs().max()), float(gap.norm() / theirs.double().norm())
            # NaN compares false with every bound, so it becomes infinity.
            max_abs, spread = (x if x == x else float("inf") for x in (max_abs, spread))
        self._add(
            stage, max_abs, spread, "relative" if absolute is None else "absolute", relative or absolute, note
        )

    def same_ids(self, stage: str, ours: Tensor, theirs: Tensor, *, distinct: int) -> None:
        """Add a row for ids that must be equal. Fewer than `distinct` different ones fail."""
        ours, theirs = ours.flatten(), theirs.flatten()
        kinds = len(set(theirs.tolist()))
        note = f"{len(theirs)} ids, {kinds} distinct"
        if len(ours) != len(theirs):
            wrong, note = max(len(ours), len(theirs)), f"{len(ours)} ids instead of {len(theirs)}"
        else:
            wrong = int((ours != theirs).sum())
        if kinds < distinct:
            wrong, note = max(wrong, 1), f"{note}: too few to prove anything"
        self._add(stage, float(wrong), wrong / max(len(theirs), 1), "exact", 0.0, note)

    def same_filter(self, stage: str, ours: Tensor, theirs: Tensor, *, relative: float) -> None:
        """Add a row for filtered logits: the same entries kept, with the same values."""
        kept = torch.isfinite(theirs)
        note = f"{int(kept.sum())} of {kept.numel()} kept"
        if not torch.equal(torch.isfinite(ours), kept):
            self._add(stage, float("inf"), float("inf"), "relative", relative, f"{note}; ours kept others")
        else:
            self.close(stage, ours[kept], theirs[kept], relative=relative, note=note)

    def _add(
        self, stage: str, max_abs: float, spread: float, measure: Measure, tolerance: float | None, note: str
    ) -> None:
        self.rows.append(
            ParityRow(
                family=self.family,
                stage=stage,
                max_abs=max_abs,
                relative=spread,
                measure=measure,
                tolerance=tolerance or 0.0,
                note=note,
            )
        )


def render(rows: list[ParityRow]) -> str:
    """Return the table as text with aligned columns."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

"""One comparison is one row: how far apart the two sides are, how far they may be, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Measure = Literal["relative", "absolute", "exact"]
HEADER = ("family", "stage", "max error", "rel. error", "allowed", "verdict", "note")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`relative` is ‖ours - theirs‖ / ‖theirs‖; ids are compared exactly and their error is a count."""

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

    @property
    def allowed(self) -> str:
        return "equal" if self.measure == "exact" else f"{self.measure[:3]} {self.tolerance:.0e}"

    def cells(self) -> tuple[str, ...]:
        verdict = "ok" if self.passed else "MISSED"
        errors = (f"{self.max_abs:.2e}", f"{self.relative:.2e}")
        return (self.family, self.stage, *errors, self.allowed, verdict, self.note)


@dataclass(frozen=True, slots=True)
class Rows:
    """Collects the rows of one family."""

    family: str
    rows: list[Row]

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
        """Numbers that must agree within one of the two tolerances."""
        assert (relative is None) != (absolute is None)
        max_abs = spread = float("inf")
        if ours.shape != theirs.shape:
            note = f"shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
        else:
            gap = ours.double() - theirs.double()
            max_abs, spread = float(gap.abs().max()), float(gap.norm() / theirs.double().norm())
            # A NaN compares false with every bound, and must not pass for it.
            max_abs, spread = (x if x == x else float("inf") for x in (max_abs, spread))
        self._add(
            stage, max_abs, spread, "relative" if absolute is None else "absolute", relative or absolute, note
        )

    def same_ids(self, stage: str, ours: Tensor, theirs: Tensor, *, distinct: int) -> None:
        """Ids that must be equal, and lively enough (`distinct` different ones) for that to mean a thing."""
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
        """Logits of which some were struck out: the same ones kept, with the same values."""
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
            Row(
                family=self.family,
                stage=stage,
                max_abs=max_abs,
                relative=spread,
                measure=measure,
                tolerance=tolerance or 0.0,
                note=note,
            )
        )


def render(rows: list[Row]) -> str:
    """The table, columns aligned."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )

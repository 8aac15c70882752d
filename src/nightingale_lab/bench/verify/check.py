"""A check is a value with a bound; a report is all checks of one model and profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["pass", "fail", "missing"]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report. Without a value it could not be made, and `detail` says what is missing."""

    group: str
    name: str
    value: float | None
    _: KW_ONLY
    low: float | None = None
    high: float | None = None
    unit: str = ""
    detail: str = ""

    @property
    def verdict(self) -> Verdict:
        """NaN passes no bound."""
        if self.value is None:
            return "missing"
        above = self.low is None or self.value >= self.low
        below = self.high is None or self.value <= self.high
        return "pass" if above and below and self.value == self.value else "fail"

    @property
    def bound(self) -> str:
        if self.low is not None and self.low == self.high:
            return f"= {self.low:g}"
        bounds = {"≥": self.low, "≤": self.high}
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None)

    def as_row(self) -> dict[str, Any]:
        row = {**asdict(self), "verdict": self.verdict}
        value = self.value
        # JSON has no NaN.
        row["value"] = None if value is None or value != value else round(value, 6)
        return row


def missing(group: str, name: str, why: str) -> Check:
    return Check(group, name, None, detail=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstClip:
    """A clip that a person should listen to."""

    wav: str
    text: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    model: str
    profile: str
    against: str | None = None
    """The profile it was compared with."""
    checks: tuple[Check, ...]
    worst: tuple[WorstClip, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """Numbers without a bound, which the report page shows beside the speed."""

    @property
    def ok(self) -> bool:
        """No check failed. A missing check is not a failure."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict == "fail")

    @property
    def absent(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.verdict == "missing")

    def as_row(self) -> dict[str, Any]:
        return {
            "kind": "verify",
            "model": self.model,
            "profile": self.profile,
            "against": self.against,
            "ok": self.ok,
            "checks": [check.as_row() for check in self.checks],
            "worst": [asdict(clip) for clip in self.worst],
            "facts": self.facts,
        }


def worst_of(values: Iterable[float], *, lowest: bool = False) -> float:
    """Return the largest (or lowest) value; NaN if one of them is NaN, or if there are none."""
    kept = list(values)
    if not kept or any(value != value for value in kept):
        return float("nan")
    return min(kept) if lowest else max(kept)

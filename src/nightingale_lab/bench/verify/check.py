"""What a check is: a value held against a bound. And what many of them make together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["pass", "fail", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the report. Without a value it could not be made, and `detail` says what is missing."""

    group: str
    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    detail: str = ""

    @property
    def verdict(self) -> Verdict:
        """A value that is not a number passes no bound."""
        if self.value is None:
            return "missing"
        above = self.low is None or self.value >= self.low
        below = self.high is None or self.value <= self.high
        return "pass" if above and below and self.value == self.value else "fail"

    @property
    def bound(self) -> str:
        parts = [
            f"≥ {self.low:g}" if self.low is not None else "",
            f"≤ {self.high:g}" if self.high is not None else "",
        ]
        if self.low is not None and self.low == self.high:
            return f"= {self.low:g}"
        return " and ".join(part for part in parts if part)

    def as_row(self) -> dict[str, Any]:
        row = {**asdict(self), "verdict": self.verdict}
        value = self.value
        # JSON has no word for what is not a number.
        row["value"] = None if value is None or value != value else round(value, 6)
        return row


def missing(group: str, name: str, why: str) -> Check:
    return Check(group=group, name=name, value=None, detail=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstClip:
    """A clip that somebody should listen to."""

    wav: str
    text: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All checks of one model and profile."""

    model: str
    profile: str
    against: str | None = None
    checks: tuple[Check, ...]
    worst: tuple[WorstClip, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    """Numbers without a bound: what the report page shows beside the speed."""

    @property
    def ok(self) -> bool:
        """Nothing failed. What is missing is named, and is no failure."""
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
    """The largest (or lowest) value; not a number if one of them is not, or if there are none."""
    held = list(values)
    if not held or any(value != value for value in held):
        return float("nan")
    return min(held) if lowest else max(held)

"""Small plots as SVG text: lines, bars and a waterfall. The page's style sheet has their colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 92, 16, 16, 52
"""Margins for numbers in the larger type of a phone."""
ROW = 32
COLOURS = 8
"""Classes c0 … c7 of the page's style sheet."""
WIDE_RANGE = 30.0
"""A larger ratio of values gets a logarithmic axis."""

Point = tuple[float, float]


def ticks(top: float, count: int = 5, least: float = 0.0) -> list[float]:
    """Return round numbers from 0 to at least `top`, with a distance of at least `least`."""
    if top <= 0:
        return [0.0, 1.0]
    rough = top / count
    power = 10.0 ** floor(log10(rough))
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough)
    step = max(step, least)
    found = [0.0]
    while found[-1] < top:
        found.append(round(found[-1] + step, 10))
    return found


def powers(low: float, high: float) -> list[float]:
    """Return the powers of ten around two positive numbers."""
    return [
        10.0**power for power in range(floor(log10(low)), max(ceil(log10(high)), floor(log10(low)) + 1) + 1)
    ]


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}" if value == int(value) else f"{value:.3g}"


def short(value: float) -> str:
    """Return a number for an axis, with thousands as k."""
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else number(value)


def _open(height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>"
    )


def _text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def lines(title: str, series: Mapping[str, Sequence[Point]], *, x_label: str, y_label: str) -> str:
    """Draw one line per name, with its points marked."""
    points = [point for line in series.values() for point in line]
    if not points:
        return ""
    whole = all(x == int(x) for x, _ in points)
    across = ticks(max(x for x, _ in points), least=1.0 if whole else 0.0)
    heights = [y for _, y in points]
    by_powers = min(heights) > 0 and max(heights) / min(heights) > WIDE_RANGE
    up = powers(min(heights), max(heights)) if by_powers else ticks(max(heights))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> Point:
        share = log10(y / up[0]) / log10(up[-1] / up[0]) if by_powers else y / up[-1]
        return LEFT + wide * x / across[-1], TOP + high * (1 - share)

    parts = [_open(HEIGHT, title)]
    for y in up:
        left, level = place(0, y)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{level:.1f}" y2="{level:.1f}"/>'
        )
        parts.append(_text(LEFT - 8, level + 4, short(y), "end"))
    parts += [_text(place(x, up[0])[0], HEIGHT - BOTTOM + 20, short(x)) for x in across]
    parts.append(_text(LEFT + wide / 2, HEIGHT - 6, x_label))
    parts.append(_text(14, TOP + high / 2, y_label, more=f'transform="rotate(-90 14 {TOP + high / 2:.0f})"'))
    for index, line in enumerate(series.values()):
        placed = [place(x, y) for x, y in line]
        colour = f"c{index % COLOURS}"
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline class="line {colour}" points="{path}"/>')
        parts += [f'<circle class="dot {colour}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in placed]
    return "".join([*parts, "</svg>", legend(list(series))])


def legend(names: Sequence[str]) -> str:
    items = "".join(f'<li class="c{i % COLOURS}">{escape(name)}</li>' for i, name in enumerate(names))
    return f'<ul class="legend">{items}</ul>'


def bars(title: str, values: Mapping[str, float], *, unit: str, mark: tuple[str, float] | None = None) -> str:
    """Draw one bar per name."""
    return waterfall(title, [(name, 0.0, value) for name, value in values.items()], unit=unit, mark=mark)


def waterfall(
    title: str, steps: Sequence[tuple[str, float, float]], *, unit: str, mark: tuple[str, float] | None = None
) -> str:
    """Draw steps (name, begin, length) one below the other on one scale; `mark` is a labelled position."""
    if not steps:
        return ""
    end = max([begin + length for _, begin, length in steps] + ([mark[1]] if mark else [])) or 1.0
    height, left = TOP + ROW * len(steps) + (28 if mark else 8), 110
    wide = WIDTH - left - 120
    parts = [_open(height, title)]
    if mark:
        x = left + wide * mark[1] / end
        foot = height - 24
        anchor = "start" if x < WIDTH / 3 else "end" if x > 2 * WIDTH / 3 else "middle"
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{foot}"/>')
        parts.append(_text(x, height - 5, f"{mark[0]} {number(mark[1])} {unit}", anchor))
    for index, (name, begin, length) in enumerate(steps):
        y, x = TOP + ROW * index, left + wide * begin / end
        size = max(1.0, wide * length / end)
        parts.append(_text(left - 8, y + 16, name, "end"))
        parts.append(
            f'<rect class="bar c{index % COLOURS}" x="{x:.1f}" y="{y}" '
            f'width="{size:.1f}" height="{ROW - 8}"/>'
        )
        parts.append(_text(x + size + 6, y + 16, f"{number(length)} {unit}", "start"))
    return "".join([*parts, "</svg>"])

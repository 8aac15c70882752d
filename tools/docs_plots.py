"""The plots of the site and the badges of the README, as SVG text made from benchmarks/results.

Everything is drawn with plain strings, so the same results give the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log10

from docs_numbers import lines as stored_lines
from docs_numbers import number

from nightingale_lab.bench.report.svg import number as shown
from nightingale_lab.bench.report.svg import powers, ticks

WIDTH, LEFT, RIGHT, TOP = 720, 210, 90, 44
ROW = 30
OURS, OTHERS = "#00796b", "#90a4ae"
COLORS = ("#00796b", "#5e35b1", "#ef6c00")
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#263238}.title{font-weight:600;font-size:15px}"
    ".note{fill:#607d8b;font-size:11px}.grid{stroke:#cfd8dc}"
)


def document(height: int, title: str, parts: Sequence[str]) -> str:
    """Return a picture with a background of its own, so that it can be read on dark pages too."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    paper = '<rect width="100%" height="100%" rx="8" fill="#fff"/>'
    begin = f"<title>{escape(title)}</title><style>{STYLE}</style>{paper}"
    return "\n".join([head, begin, text(16, 26, title, "start", "title"), *parts, "</svg>"]) + "\n"


def text(x: float, y: float, content: str, anchor: str = "middle", kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(content)}</text>'


def bars(title: str, values: Mapping[str, float], unit: str, note: str, ours: Sequence[str]) -> str:
    """Draw one bar for each name, on a logarithmic scale if the values differ much."""
    low, high = min(values.values()), max(values.values())
    by_powers = high / low > 30
    begin = powers(low, high)[0] if by_powers else 0.0
    wide = WIDTH - LEFT - RIGHT

    def length(value: float) -> float:
        return wide * (log10(value / begin) / log10(high / begin) if by_powers else value / high)

    parts = []
    for index, (name, value) in enumerate(values.items()):
        y = TOP + ROW * index
        color = OURS if name in ours else OTHERS
        parts.append(text(LEFT - 10, y + 16, name, "end"))
        size = max(2.0, length(value))
        parts.append(
            f'<rect x="{LEFT}" y="{y}" width="{size:.1f}" height="{ROW - 8}" rx="3" fill="{color}"/>'
        )
        parts.append(text(LEFT + size + 6, y + 16, f"{shown(value)} {unit}", "start"))
    height = TOP + ROW * len(values) + 26
    scale = " Logarithmic scale." if by_powers else ""
    return document(height, title, [*parts, text(16, height - 10, note + scale, "start", "note")])


def axes(
    x_ticks: Sequence[float], y_ticks: Sequence[float], x_label: str, y_label: str, *, log_x: bool
) -> tuple[list[str], float, float, float, float]:
    """Return a grid with labels, and the rectangle that it covers."""
    left, top, right, bottom = 64.0, 48.0, WIDTH - 150.0, 268.0
    parts = []
    for y in y_ticks:
        level = bottom - (bottom - top) * y / y_ticks[-1]
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}"/>')
        parts.append(text(left - 8, level + 4, shown(y), "end"))
    for x in x_ticks:
        share = log10(x / x_ticks[0]) / log10(x_ticks[-1] / x_ticks[0]) if log_x else x / x_ticks[-1]
        parts.append(text(left + (right - left) * share, bottom + 18, shown(x)))
    parts.append(text((left + right) / 2, bottom + 36, x_label, "middle", "note"))
    turned = 'text-anchor="middle" class="note" transform="rotate(-90 18 158)"'
    parts.append(f'<text x="18" y="158" {turned}>{escape(y_label)}</text>')
    return parts, left, top, right, bottom


def capacity() -> str:
    """Draw audio seconds per second by listeners, for wren on two cores."""
    line = next(one for one in reversed(stored_lines("headline")) if one.get("listeners"))
    points = [(row["listeners"], row["audio_seconds_per_s"]) for row in line["listeners"]]
    needed = [(n, float(n)) for n, _ in points]
    x_ticks = [0.0, *(float(n) for n, _ in points)]
    parts, left, top, right, bottom = axes(
        x_ticks,
        ticks(max(y for _, y in points)),
        "listeners at once",
        "audio seconds per second",
        log_x=False,
    )
    for series, color, name in ((points, COLORS[0], "made"), (needed, OTHERS, "played")):
        placed = [
            (left + (right - left) * x / x_ticks[-1], bottom - (bottom - top) * y / ticks(points[-1][1])[-1])
            for x, y in series
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for x, y in placed]
        parts.append(text(placed[-1][0] + 10, placed[-1][1] + 4, name, "start"))
    note = "wren, two Neoverse-N1 cores: what the engine makes, and what the listeners play in that time"
    return document(330, "Capacity", [*parts, text(16, 322, note, "start", "note")])


def quality_by_size() -> str:
    """Draw word error rate by size for the small engines that were judged on the same sentences."""
    engines = {
        "wren": ("wren.size-mb", "wren.wer-base"),
        "hibari": (7.9, "hibari.wer-base"),
        "Kokoro-82M int8": (92.4, "kokoro.wer-base"),
        "Piper medium": (78.6, "piper.wer-base"),
    }
    points = {
        name: (number(size).value if isinstance(size, str) else size, number(rate).value)
        for name, (size, rate) in engines.items()
    }
    x_ticks = [1.0, 10.0, 100.0, 1000.0]
    y_ticks = ticks(max(rate for _, rate in points.values()))
    parts, left, top, right, bottom = axes(
        x_ticks, y_ticks, "size of the model, MB (logarithmic)", "word error rate, %", log_x=True
    )
    for name, (size, rate) in points.items():
        x = left + (right - left) * log10(size / x_ticks[0]) / log10(x_ticks[-1] / x_ticks[0])
        y = bottom - (bottom - top) * rate / y_ticks[-1]
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="{OURS if name == "wren" else OTHERS}"/>')
        # Wren's name stands to the left: Kokoro's dot is near.
        side, anchor = (-10, "end") if name == "wren" else (10, "start")
        parts.append(text(x + side, y + 4, f"{name}, {rate:.1f} %", anchor))
    note = "Whisper base; lower is better. Wren: 200 sentences, the others: 20 or 40 of them"
    return document(330, "Quality against size", [*parts, text(16, 322, note, "start", "note")])


def first_audio() -> str:
    values = {
        "hibari": number("hibari.first-audio-ms").value,
        "wren": number("wren.first-audio-ms").value,
        "Piper, medium": number("piper.first-audio-ms").value,
        "Kokoro-82M int8": number("kokoro.first-audio-ms").value,
        "Turbo, H200": number("gpu.turbo-first-audio-ms").value,
        "multilingual, H200": number("gpu.block-first-audio-ms").value,
        "upstream multilingual, H200": number("gpu.upstream-sentence-ms").value,
    }
    note = "Small engines on two Neoverse-N1 cores. Upstream has no streaming: its whole sentence."
    ours = ("wren", "Turbo, H200", "multilingual, H200")
    return bars("Time to first audio", values, "ms", note, ours)


def cold_start() -> str:
    again, first = (
        f"table>files to first audio, {which}, s>reached" for which in ("again", "first on a machine")
    )
    values = {
        "wren: say, process to file": number("wren.say-s").value,
        "multilingual, H200, again": _gpu_value(again),
        "multilingual, H200, first time": _gpu_value(first),
    }
    note = "From a new process: to a finished file (wren), to the first audio (multilingual)."
    return bars("Cold start", values, "s", note, list(values))


def _gpu_value(path: str) -> float:
    from docs_numbers import stored

    return stored("gpu_engine", path, "{}").value


def badge(label: str, value: str) -> str:
    """Return a badge: a gray name and a colored value."""
    left, right = 7 * len(label) + 14, 7 * len(value) + 14
    font = 'font-family="Verdana,sans-serif" font-size="11" fill="#fff" text-anchor="middle"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">'
        f"<title>{escape(label)}: {escape(value)}</title>"
        f'<rect width="{left + right}" height="20" rx="3" fill="#455a64"/>'
        f'<rect x="{left}" width="{right}" height="20" rx="3" fill="{OURS}"/>'
        f'<text x="{left / 2:.1f}" y="14" {font}>{escape(label)}</text>'
        f'<text x="{left + right / 2:.1f}" y="14" {font}>{escape(value)}</text></svg>\n'
    )


def pictures() -> dict[str, str]:
    """Return path in the repository -> SVG."""
    return {
        "docs/img/plot-first-audio.svg": first_audio(),
        "docs/img/plot-capacity.svg": capacity(),
        "docs/img/plot-cold-start.svg": cold_start(),
        "docs/img/plot-quality-size.svg": quality_by_size(),
        "docs/img/badge-python.svg": badge("python", "3.11 or newer"),
        "docs/img/badge-license.svg": badge("license", "MIT"),
        "docs/img/badge-rtf.svg": badge("real-time factor, 2 cores", number("wren.rtf").text),
        "docs/img/badge-first-audio.svg": badge(
            "first audio, 2 cores", f"{number('wren.first-audio-ms').text} ms"
        ),
        "docs/img/badge-wer.svg": badge("word error rate", f"{number('wren.wer-base').text} %"),
    }

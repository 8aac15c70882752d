"""The HTML page of `nightingale report`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nightingale_lab.bench.report import rows, svg
from nightingale_lab.bench.report.listen import players
from nightingale_lab.bench.report.rows import Line, ReportRow
from nightingale_lab.bench.store import commit_label

STYLE = Path(__file__).with_name("style.css")
CELLS: dict[str, Callable[[ReportRow], object]] = {
    "first audio, ms": lambda row: row.speed.get("ttfa_ms_p50"),
    "p95": lambda row: row.speed.get("ttfa_ms_p95"),
    "rtf": lambda row: row.speed.get("rtf_p50"),
    "ms/step": lambda row: row.speed.get("t3_ms_per_step"),
    "underruns": lambda row: row.speed.get("underruns"),
    "peak MB": lambda row: row.memory_mb,
    "WER, tiny": lambda row: _percent(row.quality.get("wer", {}).get("tiny")),
    "WER, moonshine": lambda row: _percent(row.quality.get("wer", {}).get("moonshine")),
    "Distill-MOS": lambda row: row.quality.get("distill_mos", {}).get("mean"),
    "DNSMOS": lambda row: row.quality.get("dnsmos", {}).get("ovrl"),
    "cosine": lambda row: row.quality.get("cosine"),
    "verify": lambda row: _verdict(row),
}


def page(bench: Sequence[Line], verify: Sequence[Line], *, clips: int = 6) -> str:
    """Return the page. bench, verify: stored lines, oldest first. clips: how many texts get players."""
    runs, bench = bench, rows.peers_apart(bench)
    found = rows.table_rows(bench, verify)
    sections = [
        ("Speed and quality", _table(found)),
        (
            "First audio over concurrency",
            _plot(
                rows.series(bench, "concurrency", "concurrency", "ttfa_ms_p50"), "concurrency", "ms, median"
            ),
        ),
        (
            "Real-time factor over length",
            _plot(
                rows.series(bench, "lengths", "seconds", "rtf_p50"),
                "seconds of audio",
                "real-time factor",
            ),
        ),
        ("One request, by stage", _stages(found)),
        ("Cost over floor", _floor(bench)),
        ("Listen", players(verify, clips)),
        ("Checks", "".join(_checks(row.verify) for row in found if row.verify)),
        ("Trend over commits", _trend(runs)),
        ("Where this was measured", _where([*bench[-1:], *verify[-1:]])),
    ]
    body = "".join(
        f"<section><h2>{escape(title)}</h2>{inner}</section>" for title, inner in sections if inner
    )
    style = STYLE.read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Nightingale: speed and quality</title><style>{style}</style></head>"
        f"<body><h1>Nightingale</h1><p>Speed and quality, from stored results.</p>{body}</body></html>"
    )


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"


def _verdict(row: ReportRow) -> str | None:
    if row.verify is None:
        return None
    failed = sum(check["verdict"] == "fail" for check in row.verify["checks"])
    return "pass" if not failed else f"{failed} failed"


def _shown(value: object) -> str:
    if value is None:
        return "–"
    return svg.number(value) if isinstance(value, float) else str(value)


def _table(found: Sequence[ReportRow]) -> str:
    if not found:
        return (
            "<p>No results yet: run <code>nightingale bench</code> and <code>nightingale verify</code>.</p>"
        )
    head = "".join(f"<th>{escape(name)}</th>" for name in ("model", "profile", *CELLS))
    lines = []
    for row in found:
        values = [escape(_shown(cell(row))) for cell in CELLS.values()]
        cells = "".join(f"<td>{value}</td>" for value in values)
        lines.append(f"<tr><th>{escape(row.model)}</th><th>{escape(row.profile)}</th>{cells}</tr>")
    body = "".join(lines)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _plot(series: Mapping[str, Sequence[svg.Point]], x_label: str, y_label: str) -> str:
    return svg.lines(f"{y_label} over {x_label}", series, x_label=x_label, y_label=y_label)


def _stages(found: Sequence[ReportRow]) -> str:
    """Draw the stages of the short text one after another; in a stream they alternate."""
    drawn = []
    for row in found:
        spent = row.speed.get("stage_ms_per_audio_s")
        if not spent:
            continue
        seconds = row.speed["audio_seconds"] / max(1, row.speed["requests"])
        at, steps = 0.0, []
        for stage, per_second in spent.items():
            steps.append((stage, at, per_second * seconds))
            at += per_second * seconds
        title = f"{row.model}, {row.profile}: {seconds:.1f} s of speech"
        mark = ("first audio", float(row.speed["ttfa_ms_p50"]))
        drawn.append(f"<h3>{escape(title)}</h3>{svg.waterfall(title, steps, unit='ms', mark=mark)}")
    return "".join(drawn)


def _floor(bench: Sequence[Line]) -> str:
    for line in reversed(bench):
        if line.get("distance"):
            values = {row["stage"]: float(row["over_floor"]) for row in line["distance"]}
            notes = "; ".join(f"{row['stage']}: {row['floor_of']}" for row in line["distance"])
            return (
                svg.bars("time over floor", values, unit="×", mark=("the floor:", 1.0))
                + f"<p>{escape(line['model'])}. {escape(notes)}.</p>"
            )
    return ""


def _checks(line: Line | None) -> str:
    assert line is not None
    rows_ = []
    for check in line["checks"]:
        value = "–" if check["value"] is None else f"{svg.number(float(check['value']))} {check['unit']}"
        cells = (f"{check['group']}: {check['name']}", value, _bound(check), check["detail"])
        html = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
        rows_.append(f'<tr class="{escape(check["verdict"])}"><th>{escape(check["verdict"])}</th>{html}</tr>')
    held = f" against {line['against']}" if line.get("against") else ""
    title = escape(f"{line['model']}, {line['profile']}{held}: {'all passed' if line['ok'] else 'failures'}")
    opened = "" if line["ok"] else " open"
    body = f'<div class="wide"><table class="checks"><tbody>{"".join(rows_)}</tbody></table></div>'
    return f"<details{opened}><summary>{title}</summary>{body}</details>"


def _bound(check: Mapping[str, Any]) -> str:
    bounds = {"≥": check.get("low"), "≤": check.get("high")}
    return " ".join(f"{sign} {bound:g}" for sign, bound in bounds.items() if bound is not None)


def _trend(bench: Sequence[Line]) -> str:
    if len(bench) < 2:
        return ""
    drawn = []
    for name, label in (("ttfa_ms_p50", "first audio, ms"), ("rtf_p50", "real-time factor")):
        series, _ = rows.trend(bench, name)
        drawn.append(svg.lines(f"{label} by run", series, x_label="run", y_label=label))
    _, commits = rows.trend(bench, "rtf_p50")
    named = ", ".join(f"{number}: {commit}" for number, commit in enumerate(commits, start=1))
    return "".join(drawn) + f"<p>Runs and their commits: {escape(named)}.</p>"


def _where(lines: Sequence[Line]) -> str:
    html = []
    for line in lines:
        facts: dict[str, Any] = {
            **line.get("machine", {}),
            **line.get("versions", {}),
            "commit": commit_label(line),
            "date": line.get("date"),
        }
        items = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items())
        html.append(f"<h3>{escape(str(line.get('kind')))}</h3><dl>{items}</dl>")
    return "".join(html)

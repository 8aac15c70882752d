"""A bench result as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table


def tables(result: Mapping[str, Any]) -> list[Table]:
    found = []
    if result["lengths"]:
        found.append(
            _table(
                "one request at a time",
                {
                    "who": "who",
                    "text": "text",
                    "ttfa p50": "ttfa_ms_p50",
                    "p95": "ttfa_ms_p95",
                    "rtf p50": "rtf_p50",
                    "ms/step": "t3_ms_per_step",
                    "tok/s": "t3_tokens_per_s",
                    "flow": "flow",
                    "vocoder": "vocoder",
                    "gap p95": "gap_ms_p95",
                    "dry": "underruns",
                },
                ({**row.get("stage_ms_per_audio_s", {}), **row} for row in result["lengths"]),
            )
        )
    if result["crowds"]:
        found.append(
            _table(
                "several at a time",
                {
                    "who": "who",
                    "at a time": "concurrency",
                    "ttfa p50": "ttfa_ms_p50",
                    "p95": "ttfa_ms_p95",
                    "rtf p50": "rtf_p50",
                    "audio s/s": "audio_seconds_per_s",
                    "gap p95": "gap_ms_p95",
                    "dry": "underruns",
                    "failed": "failed",
                },
                result["crowds"],
            )
        )
    if result.get("cold"):
        names = {"who": "who", "import": "import_ms", "load": "load_ms", "first ttfa": "first_ttfa_ms"}
        more = {"process to sound": "process_to_sound_ms", "peak MB": "peak_memory_mb"}
        found.append(_table("a fresh process", {**names, **more}, result["cold"]))
    if result.get("distance"):
        columns = {
            "stage": "stage",
            "ms": "took_ms",
            "floor ms": "floor_ms",
            "over floor": "over_floor",
            "": "floor_of",
        }
        found.append(_table("distance from the floor", columns, result["distance"]))
    return found


def _table(title: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title)
    for name, key in columns.items():
        table.add_column(name, justify="left" if key in ("who", "text", "stage", "floor_of") else "right")
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in columns.values()))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


CAPTION: Sequence[str] = (
    "ttfa: time to first audio, ms. rtf: seconds of waiting per second of audio. flow, vocoder:",
    "ms per second of audio. gap: between two chunks, ms. dry: times a player starting at once would starve.",
)

"""A bench result as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.table import Table

LENGTHS = {
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
    "underruns": "underruns",
}
LEVELS = {
    "who": "who",
    "concurrency": "concurrency",
    "ttfa p50": "ttfa_ms_p50",
    "p95": "ttfa_ms_p95",
    "rtf p50": "rtf_p50",
    "audio s/s": "audio_seconds_per_s",
    "gap p95": "gap_ms_p95",
    "underruns": "underruns",
    "failed": "failed",
}
LISTENERS = {
    "who": "who",
    "listeners": "listeners",
    "voices": "voices",
    "ttfa p50": "ttfa_ms_p50",
    "p95": "ttfa_ms_p95",
    "audio s/s": "audio_seconds_per_s",
    "underruns": "underruns",
    "listeners with underruns": "stalled_listeners",
    "memory MB": "memory_mb",
    "GPU MB": "gpu_memory_mb",
}
CAPACITY = {
    "who": "who",
    "most listeners": "listeners",
    "voices": "voices",
    "arrivals": "arrivals",
    "more are limited by": "limited_by",
}
NEW_VOICE = {
    "who": "who",
    "ttfa seen": "ttfa_ms_seen",
    "ttfa new": "ttfa_ms_new",
    "extra ms": "extra_ms",
    "kept MB per voice": "kept_mb_per_voice",
}
COLD = {
    "who": "who",
    "run": "run",
    "import": "import_ms",
    "load": "load_ms",
    "first ttfa": "first_ttfa_ms",
    "process to sound": "process_to_sound_ms",
    "peak MB": "peak_memory_mb",
}
HEADLINE = {"": "what", "measured": "value", "unit": "unit"}
FLOOR = {
    "stage": "stage",
    "ms": "took_ms",
    "floor ms": "floor_ms",
    "over floor": "over_floor",
    "": "floor_of",
}
LEFT = ("who", "text", "stage", "floor_of", "what", "unit", "run", "arrivals", "limited_by")
"""Columns of text."""
CAPTION = (
    "ttfa: time to first audio, ms. rtf: seconds of waiting per second of audio. flow, vocoder: ms per",
    "second of audio. gap: between two chunks, ms. underruns: times a player has nothing to play.",
)


def tables(result: Mapping[str, Any]) -> list[Table]:
    lengths = [{**row.get("stage_ms_per_audio_s", {}), **row} for row in result.get("lengths", ())]
    listeners = result.get("listeners") if result.get("kind") == "listeners" else None
    parts = (
        ("one request at a time", LENGTHS, lengths),
        ("several requests at a time", LEVELS, result.get("concurrency")),
        (f"listeners at once, arriving: {result.get('arrivals')}", LISTENERS, listeners),
        ("capacity", CAPACITY, result.get("capacity")),
        ("a voice never seen before", NEW_VOICE, result.get("new_voice")),
        ("a fresh process", COLD, result.get("cold")),
        ("distance from the floor", FLOOR, result.get("distance")),
        (machine_name(result), HEADLINE, result.get("headline")),
    )
    return [_table(title, columns, rows) for title, columns, rows in parts if rows]


def machine_name(result: Mapping[str, Any]) -> str:
    machine = result.get("machine", {})
    return ", ".join(
        str(part) for part in (machine.get("arch"), machine.get("cpu"), f"{machine.get('cores')} cores")
    )


def _table(title: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title)
    for name, key in columns.items():
        table.add_column(name, justify="left" if key in LEFT else "right")
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in columns.values()))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)

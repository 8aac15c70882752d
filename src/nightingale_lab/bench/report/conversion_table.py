"""The table of docs/conversion.md: what `python -m nightingale_lab.bench.conversion` has measured last with wren."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from nightingale_lab.bench.report.markdown import NOT_YET, newest, percent, source
from nightingale_lab.bench.report.rows import Line
from nightingale_lab.bench.runner import markdown_table

KIND = "conversion"
HEAD = (
    "recordings",
    "clips",
    "Whisper tiny, before",
    "Whisper tiny, converted",
    "Whisper base, before",
    "Whisper base, converted",
    "cosine to the source",
    "cosine to the target",
    "nearer to the target",
)
ROWS = {
    "wren's own speech": (False, False),
    "wren's own speech, as a stream": (False, True),
    "people's recordings": (True, False),
    "people's recordings, as a stream": (True, True),
}
"""Name of a row to whether its line is of people's recordings, and of a stream."""


def conversion(lines: Sequence[Line]) -> str:
    """Return one row for each kind of recordings that has a line, and where it was measured."""
    own = [line for line in lines if line["model"] == "wren"]
    found = {
        name: line
        for name, wanted in ROWS.items()
        if (line := newest([one for one in own if ("readers" in one, one["live"]) == wanted])) is not None
    }
    if not found:
        return f"*{NOT_YET[0].upper()}{NOT_YET[1:]}.*"
    table = markdown_table(HEAD, [(name, *_cells(line)) for name, line in found.items()])
    sources = [f"- {name}: `{line['command']}`; {source(line, KIND)}" for name, line in found.items()]
    return "\n".join([table, "", *sources])


def _cells(line: Line) -> list[str]:
    rates = [
        percent(line["wer"][name][kind]) for name in ("tiny", "base") for kind in ("source", "converted")
    ]
    pairs = line["pairs"]
    cosines = [f"{statistics.fmean(pair[to] for pair in pairs):.2f}" for to in ("to_source", "to_target")]
    nearer = f"{line['nearer_to_target']} of {len(pairs)}"
    return [str(line["clips"]), *map(str, rates), *cosines, nearer]

"""A quality report as a table for the terminal."""

from __future__ import annotations

from rich.table import Table

from nightingale_lab.bench.quality import DNSMOS_PARTS, RECOGNIZERS, Quality


def _number(value: float | None, form: str) -> str:
    return "not measured" if value is None else format(value, form)


def quality_table(report: Quality, *, title: str) -> Table:
    """Return the measurements, and the bounds where the project has set one."""
    table = Table("what", "value", "must", "aim", title=title)
    for name in RECOGNIZERS:
        if (rate := report.wer(name)) is not None:
            bounds = ("≤ 4 %", "≤ 2 %") if name != "moonshine" else ("", "")
            table.add_row(f"word error rate, {name}", f"{rate:.2%}", *bounds)
    table.add_row("Distill-MOS, mean", _number(report.distill_mos.get("mean"), ".2f"))
    table.add_row("Distill-MOS, lowest tenth", _number(report.distill_mos.get("p10"), ".2f"))
    table.add_row("DNSMOS overall", _number(report.mos(), ".2f"), "≥ 3.0", "≥ 3.25")
    for part in DNSMOS_PARTS[1:]:
        table.add_row(f"DNSMOS {part}", _number(report.mos(part), ".2f"))
    table.add_row("speaker cosine", _number(report.cosine, ".3f"), "≥ 0.85", "≥ 0.92")
    summary = report.summary()
    table.add_row("speech time over expected", _number(summary["rate"], ".2f"))
    table.add_row("pitch, median Hz", _number(summary["pitch_hz"], ".0f"))
    table.add_row("pitch spread, semitones", _number(summary["pitch_spread"], ".2f"))
    table.add_row("clips with a defect", f"{len(report.defective)} of {len(report.clips)}", "0", "0")
    for clip in report.defective[:10]:
        table.add_row(f"  {clip.clip.wav.name}", ", ".join(clip.defects) or str(clip.error))
    for clip in report.worst(5):
        table.add_row(f"  transcript of {clip.clip.wav.name}", next(iter(clip.transcripts.values()), ""))
    return table

"""Stored results as Markdown tables for docs/performance.md (tools/make_docs.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from nightingale_lab.bench.report import rows
from nightingale_lab.bench.report.rows import Line, ReportRow
from nightingale_lab.bench.runner import markdown_table
from nightingale_lab.bench.store import commit_label

NOT_YET = "not measured yet"
Goals = Mapping[str, Sequence[Any]]
"""Name of a row to sign, must and aim."""


def number(value: float | None, digits: int = 3) -> str | None:
    """Return a number with three significant digits and no exponent."""
    if value is None:
        return None
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}g}"


def percent(share: float | None, digits: int = 1) -> str | None:
    return None if share is None else f"{100 * share:.{digits}f} %"


def machine(line: Line) -> str:
    """Describe the machine of a line. Lines of older scripts have a sentence."""
    found = line["machine"]
    if "description" in found:
        return str(found["description"])
    cores = f"{found.get('cores', '?')} cores {found.get('cpu', '?')}"
    return f"{found['gpu']}, {cores}" if "gpu" in found else cores


def source(line: Line, kind: str) -> str:
    """Return the source of a table."""
    where = machine(line)
    load = line["machine"].get("load_1m")
    loaded = f", load {load:g} before the end" if load is not None else ""
    when = f", {line['date'][:10]}"
    commit = f", commit {commit_label(line)}" if line["commit"] else ""
    note = f", {line['note']}" if "note" in line else ""
    return f"*{where}{loaded}{note}{when}{commit}: `benchmarks/results/{kind}.jsonl`*"


def newest(lines: Sequence[Line], among: str = "", name: str = "") -> Line | None:
    """Return the last line that was not made at tiny sizes or of some parts only; one with `name` if given."""
    real = [line for line in lines if not line.get("tiny") and line.get("part", "*") == "*"]
    return next((line for line in reversed(real) if not name or name in line[among]), None)


def measured(
    lines: Sequence[Line],
    kind: str,
    head: Sequence[str],
    body: Callable[[Line], Iterable[Sequence[object]]],
    *,
    signed: Line | None = None,
) -> str:
    """Return a table of the newest line, and where it was measured. signed: the line to name instead."""
    line = newest(lines)
    if line is None:
        return f"*{NOT_YET[0].upper()}{NOT_YET[1:]}.*"
    return f"{markdown_table(head, body(line))}\n\n{source(signed or line, kind)}"


def cpu(lines: Sequence[Line], goals: Goals) -> str:
    """Return the goals of the large models on a CPU, and what their times consist of.

    A run may measure some models only: other rows are those of the run before it, and name its commit.
    """

    def body(own: Sequence[Line], line: Line) -> Iterable[Sequence[object]]:
        for name, (sign, must, aim) in goals.items():
            found = newest(own, "table", name) or line
            made_of = _made_of(name, found["parts"])
            if found is not line:
                made_of = f"{made_of}; commit {commit_label(found)}".removeprefix("; ")
            limit = "" if must is None else f"{sign} {must:g}"
            yield name, limit, f"{sign} {aim:g}", number(found["table"].get(name)) or NOT_YET, made_of

    head = ["102 tokens, warm", "must", "aim", "reached", "of which"]
    return "\n\n".join(measured(own, "cpu", head, partial(body, own)) for own in _by_machine(lines))


def _made_of(name: str, parts: Mapping[str, Any]) -> str:
    family = "nano" if name.startswith("Nano") or name.endswith("Nano") else "multilingual"
    family += "+meanflow" if "meanflow" in name else ""
    step, sentence = parts.get(f"step {family}", {}), parts.get(f"sentence {family}", {})
    theirs = parts.get(f"upstream {family}", {})
    if "int8 step" in name and "step_ms" in step:
        bandwidth = f"{step['gb_per_s']:.1f} GB/s"
        took = f"{step['step_ms']:.1f} ms, at least {step['step_ms_least']:.1f},"
        return f"{took} over {step['reading_ms']:.1f} ms at {bandwidth}"
    if "real-time" in name and "seconds" in sentence:
        spent, per = sentence["seconds"], sentence["seconds"]["whole"] / sentence["rtf"]
        t3 = (spent["prompt"] + spent["steps"]) / per
        return f"T3 {t3:.2f}, flow {spent['flow'] / per:.2f}, vocoder {spent['vocoder'] / per:.2f}"
    if "upstream" in name and "seconds" in theirs and "seconds" in sentence:
        return f"{theirs['seconds']['whole']:.1f} s and {sentence['seconds']['whole']:.1f} s in one run"
    return ""


def cpu_quality(lines: Sequence[Line]) -> str:
    """Return int8 against float32 on the same weights and the same tokens."""

    def body(own: Sequence[Line], line: Line) -> Iterable[Sequence[object]]:
        for family in ("multilingual", "nano"):
            name = f"quality {family}"
            if "greedy_same" in (found := (newest(own, "parts", name) or line)["parts"].get(name, {})):
                yield (
                    family,
                    percent(found["score_error_of_spread"]),
                    percent(found["greedy_same"], 0),
                    percent(found["greedy_among_five"], 0),
                    found["tokens"],
                )

    head = [
        "T3 in int8",
        "logit error over their spread",
        "same greedy token",
        "among the first five",
        "steps",
    ]
    return "\n\n".join(measured(own, "cpu", head, partial(body, own)) for own in _by_machine(lines))


def _by_machine(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the lines of each kind of processor, in order of their first measurement; at least one list."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.get("machine", {}).get("cpu", ""), []).append(line)
    return [*found.values()] or [[]]


def gpu(lines: Sequence[Line]) -> str:
    """Return the goals on one GPU, beside upstream over the same weights.

    A run may measure some parts only: each row is that of the last run that measured it, and names its commit.
    """
    real = [line for line in lines if not line.get("tiny") and "table" in line]

    def last(name: str, column: str) -> tuple[float | None, str]:
        """Return the value of the last run that has one, and its commit."""
        for line in reversed(real):
            if (value := line["table"].get(name, {}).get(column)) is not None:
                return value, commit_label(line)
        return None, ""

    def body(line: Line) -> Iterable[Sequence[object]]:
        for name, found in line["table"].items():
            sign = found.get("sign") or ("≥" if "per second" in name else "≤")
            goals = ["" if found[goal] is None else f"{sign} {found[goal]:g}" for goal in ("must", "aim")]
            reached, commit = last(name, "reached")
            yield name, number(last(name, "upstream")[0], 4), *goals, number(reached), commit

    what = "random weights of full size: multilingual (ten guided steps) unless Turbo is named; 102 tokens"
    head = [what, "upstream", "must", "aim", "reached", "commit"]
    return measured(lines, "gpu_engine", head, body, signed=real[-1] if real else None)


def gpu_engine(lines: Sequence[Line]) -> str:
    """Return all rows of `python -m nightingale_lab.bench gpu_engine`."""
    return measured(
        lines,
        "gpu_engine",
        ["through the engine", ""],
        lambda line: [(name, number(value)) for name, value in line["rows"].items()],
    )


def engine(lines: Sequence[Line]) -> str:
    names = {
        "engine over the bare model calls": ("engine_over_bare", "engine_over_bare_spread"),
        "ten requests at once over ten in a row": ("ten_together_over_ten_in_a_row", "ten_together_spread"),
        "the same with the fastest backend": ("granted_together_over_in_a_row", "granted_together_spread"),
    }

    def body(line: Line) -> Iterable[Sequence[object]]:
        for name, (value, spread) in names.items():
            if value not in line:  # an older line
                continue
            low, high = line[spread]
            yield name, f"{line[value]:.2f}", f"{low:.2f} to {high:.2f}"

    return measured(lines, "engine", ["ratio of times", "median", "spread"], body)


def server(lines: Sequence[Line]) -> str:
    def body(line: Line) -> Iterable[Sequence[object]]:
        for kind, ms in line["overhead_ms_p50"].items():
            yield f"HTTP over the engine, to the first audio, {kind}", f"{ms:.1f} ms"
        for load in (line["load"], line["overload"]):
            statuses = ", ".join(f"{count} × {status}" for status, count in load["statuses"].items())
            who = f"{load['clients']} clients for {load['seconds']:.0f} s"
            yield f"{who}: answers by status (0: none)", statuses
            yield f"{who}: audio seconds a second", number(load["audio_seconds_per_s"])
            yield f"{who}: `/health`, p95", f"{load['health_ms_p95']:.1f} ms"
            yield f"{who}: memory before and after", "{} and {} MB".format(*load["memory_mb"])

    line = newest(lines)
    head = [f"{line['model']}, {line['profile']}" if line else "", ""]
    return measured(lines, "server", head, body)


def bench(bench_lines: Sequence[Line], verify_lines: Sequence[Line]) -> str:
    """Return speed and quality of the newest run of each model and profile, and of its peers."""
    found = rows.table_rows(rows.peers_apart(bench_lines), verify_lines)
    if not found:
        return "*Nothing stored yet: run `nightingale bench` and `nightingale verify`.*"
    head = ["model", "profile", "first audio p50", "p95", "rtf", "peak MB"]
    head += ["WER, two recognizers", "Distill-MOS", "DNSMOS", "cosine"]
    where = source(bench_lines[-1], "bench") if bench_lines else source(verify_lines[-1], "verify")
    return f"{markdown_table(head, map(_bench_cells, found))}\n\n{where}"


def _bench_cells(row: ReportRow) -> Sequence[object]:
    first = [number(row.speed.get(name)) for name in ("ttfa_ms_p50", "ttfa_ms_p95")]
    wer = [percent(row.quality.get("wer", {}).get(judge)) for judge in ("tiny", "moonshine")]
    return (
        row.model,
        row.profile,
        *(None if ms is None else f"{ms} ms" for ms in first),
        number(row.speed.get("rtf_p50")),
        number(row.memory_mb),
        ", ".join(rate for rate in wer if rate) or None,
        number(row.quality.get("distill_mos", {}).get("mean")),
        number(row.quality.get("dnsmos", {}).get("ovrl")),
        number(row.quality.get("cosine")),
    )


def concurrency(bench_lines: Sequence[Line]) -> str:
    """Return the rows of the newest run with several requests at a time."""
    lines = [
        line for line in bench_lines if any(row["concurrency"] > 1 for row in line.get("concurrency", ()))
    ]
    return measured(
        lines,
        "bench",
        ["who", "concurrency", "first audio p50", "audio s/s", "underruns"],
        lambda line: [
            (
                row["who"],
                row["concurrency"],
                f"{number(row['ttfa_ms_p50'])} ms",
                number(row["audio_seconds_per_s"]),
                row["underruns"],
            )
            for row in line["concurrency"]
        ],
    )

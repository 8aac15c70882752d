"""Run a benchmark: read its options, measure its cases, print tables, and write the result as one line of JSON.

A benchmark is a module of `nightingale_lab.bench.programs`, or of `nightingale_lab.reliability`, whose `main` calls
`run` with its cases. A case is a function that takes the options, prints tables with `print_table`, `print_rows` or
`print_records`, and returns entries of the result. The result is the last line that the process prints. The line is
also appended to `benchmarks/results/<kind>.jsonl` with command, machine and commit, except at tiny sizes or with
`--no-store`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nightingale_lab.bench import store

Case = Callable[[argparse.Namespace], Mapping[str, Any]]
"""Measures something, prints its tables, and returns entries of the result."""
TINY_NOTE = "tiny sizes: these numbers prove that the benchmark runs and measure nothing"


@dataclass(frozen=True, slots=True)
class BenchmarkOption:
    """An option of a benchmark: the arguments of `ArgumentParser.add_argument`."""

    names: tuple[str, ...]
    settings: Mapping[str, Any]


def option(*names: str, **settings: Any) -> BenchmarkOption:
    return BenchmarkOption(names, settings)


def run(
    doc: str | None,
    kind: str,
    cases: Case | Mapping[str, Case],
    *options: BenchmarkOption,
    tiny: Mapping[str, Any] | None = None,
    failed: Callable[[Mapping[str, Any]], bool] = lambda _: False,
    arguments: Sequence[str] | None = None,
) -> None:
    """Run a benchmark as a program.

    Args:
        doc: The docstring of the module, which `--help` prints.
        kind: The name of the results file.
        cases: One case, or several by name, of which `--only` chooses some.
        options: Options besides those of every benchmark.
        tiny: Options that `--tiny` sets to other values.
        failed: Says by the result whether the process ends with status 1.
        arguments: The command line; default: that of the process.
    """
    made = parser(doc)
    add_options(made, options)
    if not callable(cases):
        names = ",".join(cases)
        made.add_argument("--only", default=names, help=f"cases with commas; default: {names}")
    asked = made.parse_args(arguments)
    if asked.tiny:
        vars(asked).update(tiny or {})
    chosen = [cases] if callable(cases) else [cases[name] for name in asked.only.split(",")]
    result: dict[str, Any] = {}
    for case in chosen:
        result |= case(asked)
    finish(result, kind, asked)
    if failed(result):
        sys.exit(1)


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark. doc: the docstring of the module."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tiny", action="store_true", help="tiny sizes: proves that the benchmark runs")
    made.add_argument("--no-store", action="store_true", help="do not append to the results file")
    made.add_argument(
        "--commit", help="the commit, where this copy of the files has no .git; with a plus if files differ"
    )
    made.add_argument("--results", type=Path, default=store.results_folder(), help="folder of results files")
    return made


def add_options(made: argparse.ArgumentParser, options: Iterable[BenchmarkOption]) -> None:
    for one in options:
        made.add_argument(*one.names, **one.settings)


def finish(result: Mapping[str, Any], kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Sign the result, store it if the options allow it, and print it as the last line."""
    tiny = getattr(options, "tiny", False)
    line = store.signed({**result, "tiny": True} if tiny else result)
    if options.commit:
        line |= {"commit": options.commit.rstrip("+"), "clean": not options.commit.endswith("+")}
    if not options.no_store and not tiny:
        store.append(line, kind, options.results)
    report(json.dumps(line, separators=(",", ":")))
    return line


def run_child(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, show: bool = False
) -> dict[str, Any]:
    """Run a program whose last line is JSON, and return that line.

    Args:
        command: The program and its arguments.
        environment: Variables to add to those of this process.
        show: Print the end of what the program wrote to its standard error.

    Raises:
        ChildFailed: The program ended with another status than 0. The message is the last line of its errors.
    """
    variables = {**os.environ, **(environment or {})}
    done = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    if show:
        sys.stdout.write(done.stderr[-2000:])
    if done.returncode != 0:
        raise ChildFailed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


class ChildFailed(RuntimeError):
    """A program that a benchmark started ended with an error."""


def report(line: str) -> None:
    """Print a line at once, also where the output is a file."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def markdown_table(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. None becomes a dash, floats get four digits."""

    def cell(value: object) -> str:
        return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    rows = ["| " + " | ".join(map(cell, row)) + " |" for row in (head, *body)]
    return "\n".join([rows[0], "|" + "---|" * len(head), *rows[1:]])


def print_table(title: str, head: Sequence[str], body: Iterable[Sequence[object]]) -> None:
    report(f"\n{title}\n\n{markdown_table(head, body)}")


def print_rows(title: str, rows: Mapping[str, Mapping[str, object]]) -> None:
    """Print a table whose columns are the keys of the rows, in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    body = [(name, *(row.get(column, "") for column in columns)) for name, row in rows.items()]
    print_table(title, ("", *columns), body)


def print_records(title: str, *records: Mapping[str, object]) -> None:
    """Print a table of records that have the same keys."""
    print_table(title, tuple(records[0]), [tuple(record.values()) for record in records])


def print_checks(checks: Iterable[Mapping[str, Any]]) -> None:
    """Print checks, each with what it checks, its value, its bound, and whether it passed."""
    rows = [(one["what"], one["value"], one["bound"], "PASS" if one["passed"] else "FAIL") for one in checks]
    print_table("Checks", ("check", "value", "bound", ""), rows)


def failed_checks(result: Mapping[str, Any]) -> bool:
    """Return whether a check of a result failed."""
    return any(not one["passed"] for one in result["checks"])

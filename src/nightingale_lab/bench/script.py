"""Common parts of all benchmark scripts: options for storing, tables on the terminal, and the last line.

Every script prints tables for people and then its result as one line of JSON. The line is also appended to
`benchmarks/results/<kind>.jsonl` with command, machine and commit, except at tiny sizes or with `--no-store`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nightingale_lab.bench import store


def parser(doc: str | None, *, tiny: bool = True) -> argparse.ArgumentParser:
    """Return a parser with `--tiny`, `--no-store`, `--commit` and `--results`. doc: the docstring of the script."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if tiny:
        made.add_argument("--tiny", action="store_true", help="tiny sizes: proves that the script runs")
    made.add_argument("--no-store", action="store_true", help="do not append to the results file")
    made.add_argument(
        "--commit", help="the commit, where this copy of the files has no .git; with a plus if files differ"
    )
    made.add_argument("--results", type=Path, default=store.results_folder(), help="folder of results files")
    return made


def finish(result: Mapping[str, Any], kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Sign the result, store it if the options allow it, and print it as the last line."""
    tiny = getattr(options, "tiny", False)
    line = store.signed({**result, "tiny": True} if tiny else result)
    if options.commit:
        line |= {"commit": options.commit.rstrip("+"), "clean": not options.commit.endswith("+")}
    if not options.no_store and not tiny:
        store.append(line, kind, options.results)
    sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")
    sys.stdout.flush()
    return line


def markdown_table(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table. None becomes a dash, floats get four digits."""

    def cell(value: object) -> str:
        return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)

    rows = ["| " + " | ".join(map(cell, row)) + " |" for row in (head, *body)]
    return "\n".join([rows[0], "|" + "---|" * len(head), *rows[1:]])


def print_table(title: str, head: Sequence[str], body: Iterable[Sequence[object]]) -> None:
    sys.stdout.write(f"\n{title}\n\n{markdown_table(head, body)}\n")
    sys.stdout.flush()


def print_rows(title: str, rows: Mapping[str, Mapping[str, object]]) -> None:
    """Print a table whose columns are the keys of the rows, in order of appearance."""
    columns = list(dict.fromkeys(key for row in rows.values() for key in row))
    body = [(name, *(row.get(column, "") for column in columns)) for name, row in rows.items()]
    print_table(title, ("", *columns), body)

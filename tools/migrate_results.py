"""Give the lines of benchmarks/results that older versions of the scripts wrote the fields of today's lines.

Keys are renamed and what is unknown becomes null; no value is made up. Lines that are right stay as they are, so it
can be run again, such as after a merge of a branch that still writes the old form.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from nightingale_lab.bench.store import FIELDS, problems

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


def migrated(line: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the line with every field of `FIELDS`."""
    if not problems(line, kind):
        return line
    known = dict(line)
    commit, note = str(known.pop("commit", None) or ""), None
    if commit and not re.fullmatch(r"[0-9a-f]{7,40}\+?", commit):
        commit, note = "", commit
    machine = known.pop("machine", None) or ({"gpu": known.pop("device")} if "device" in known else None)
    # Where git was not asked, the absence of a plus means nothing.
    by_git = isinstance(machine, dict) and "gpu" not in machine and bool(commit)
    clean = known.pop("clean", False if commit.endswith("+") else True if by_git else None)
    if isinstance(machine, str):
        machine = {"description": machine}
    old = {name: known.pop(name) for name in ("torch", "python") if name in known}
    versions = known.pop("versions", None) or old or None
    known |= {
        "kind": known.get("kind", kind),
        "command": known.get("command"),
        "commit": commit.rstrip("+") or None,
        "clean": clean,
        "machine": machine,
        "versions": versions,
        "date": known.pop("date"),
    }
    return known | ({"commit_note": note} if note else {})


def main() -> None:
    for path in sorted(RESULTS.glob("*.jsonl")):
        lines = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
        new = [migrated(line, path.stem) for line in lines]
        if new != lines:
            path.write_text("".join(json.dumps(line) + "\n" for line in new), encoding="utf-8")
            print(f"{path.name}: {sum(a != b for a, b in zip(lines, new, strict=True))} lines")
        for line in new:
            for problem in problems(line, path.stem):
                print(f"{path.name}: {problem}; the fields are {', '.join(FIELDS)}")


if __name__ == "__main__":
    main()

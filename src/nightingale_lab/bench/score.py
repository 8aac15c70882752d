"""Score a folder of recordings against their texts: a table, then one line of JSON.

    python -m nightingale_lab.bench.score FOLDER TEXTS [--reference WAV …] [--judges tiny,distillmos]

FOLDER holds *.wav, TEXTS one line for each of them in name order.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.quality import ask_with, clips_in, measure
from nightingale_lab.bench.quality_table import quality_table


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="nightingale_lab.bench.score", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument(
        "--reference", type=Path, nargs="*", default=[], help="recordings of the wanted speaker"
    )
    parser.add_argument(
        "--judges", default="tiny,base,dnsmos,distillmos,speaker", help="empty: only endings and pitch"
    )
    parser.add_argument("--limit", type=int, default=0, help="only the first N recordings")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="write every clip's scores here, as JSON lines")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    from rich.console import Console

    options = parse(argv)
    clips = clips_in(options.folder, options.texts, options.reference)[: options.limit or None]
    judges = [name for name in options.judges.split(",") if name]
    ask = ask_with(judges_python(), options.workers) if judges else None
    report = measure(clips, ask, judges, lambda done, of: sys.stderr.write(f"\r{done}/{of} clips judged"))
    sys.stderr.write("\n")
    if options.rows:
        options.rows.write_text("".join(json.dumps(clip.row()) + "\n" for clip in report.clips))
    Console().print(quality_table(report, title=str(options.folder)))
    sys.stdout.write(json.dumps(report.summary()) + "\n")


if __name__ == "__main__":
    main()

"""`nightingale report`: write stored results as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightingale.errors import ConfigError
from nightingale_lab.cli.lab_console import Results

Out = Annotated[Path, typer.Option("-o", "--out", help="The page to write.")]
Clips = Annotated[int, typer.Option(help="Number of audio clips per model.", min=0)]


def report(out: Out = Path("report.html"), results: Results = None, clips: Clips = 6) -> None:
    """Write one self-contained HTML page from the results of bench and verify."""
    from nightingale.files import write_whole
    from nightingale_lab.bench import store
    from nightingale_lab.bench.report.page import page

    folder = results or store.results_folder()
    if folder is None or not folder.is_dir():
        raise ConfigError(
            "no folder with results",
            got=str(folder),
            allowed="a folder with bench.jsonl or verify.jsonl",
            fix="Name it with --results, or run `nightingale bench --results FOLDER` first.",
        )
    bench, verify = store.read_lines(folder, "bench"), store.read_lines(folder, "verify")
    write_whole(out, page(bench, verify, clips=clips).encode())
    print(f"{out}: {len(bench)} runs of bench, {len(verify)} of verify")

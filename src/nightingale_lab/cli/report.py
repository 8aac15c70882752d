"""`nightingale report`: write stored results as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nightingale.errors import ConfigError
from nightingale_lab.cli.lab_console import Results

Out = Annotated[Path, typer.Option("-o", "--out", help="The page to write.")]
Clips = Annotated[int, typer.Option(help="Number of audio clips per model, or of pairs.", min=0)]

Blind = Annotated[
    bool,
    typer.Option("--blind", help="Write a blind A/B page of two profiles instead, from verify --against."),
]
Folders = Annotated[
    list[Path] | None,
    typer.Option("--folder", help="For --blind: two folders of WAV files instead.", show_default=False),
]


def report(
    out: Out = Path("report.html"),
    results: Results = None,
    clips: Clips = 6,
    blind: Blind = False,
    folders: Folders = None,
) -> None:
    """Write one self-contained HTML page from the results of bench and verify."""
    from nightingale.files import write_whole
    from nightingale_lab.bench import store
    from nightingale_lab.bench.report.blind import folders_of
    from nightingale_lab.bench.report.page import page

    if blind and folders:
        if len(folders) != 2:
            raise ConfigError(
                "not two folders", got=str(len(folders)), fix="Name two: --folder A --folder B."
            )
        _write_blind(out, folders[0], folders[1], [], clips)
        return
    folder = results or store.results_folder()
    if folder is None or not folder.is_dir():
        raise ConfigError(
            "no folder with results",
            got=str(folder),
            allowed="a folder with bench.jsonl or verify.jsonl",
            fix="Name it with --results, or run `nightingale bench --results FOLDER` first.",
        )
    bench, verify = store.read_lines(folder, "bench"), store.read_lines(folder, "verify")
    if blind:
        _write_blind(out, *folders_of(verify), clips)
        return
    write_whole(out, page(bench, verify, clips=clips).encode())
    print(f"{out}: {len(bench)} runs of bench, {len(verify)} of verify")


def _write_blind(out: Path, first: Path, second: Path, texts: list[str], clips: int) -> None:
    from nightingale.files import write_whole
    from nightingale_lab.bench.report.blind import blind_page

    write_whole(out, blind_page(first, second, texts, most=max(1, clips)).encode())
    print(f"{out}: open it in a browser, and answer; it needs no network")

"""`nightingale verify`: check the quality of a model's speech."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightingale.cli import options
from nightingale.cli.console import loading, note, parse_options, progress_line
from nightingale_lab.cli.lab_console import Results, console, progress

if TYPE_CHECKING:
    from rich.table import Table

    from nightingale_lab.bench.verify.check import VerifyReport
    from nightingale_lab.bench.verify.verification import Panel

FAILED = 1
MARKS = {
    "pass": "[green]PASS[/green]",
    "fail": "[bold red]FAIL[/bold red]",
    "missing": "[yellow]missing[/yellow]",
}

Against = Annotated[
    str | None, typer.Option(help="Another profile to compare with, such as exact.", show_default=False)
]
Accept = Annotated[
    bool, typer.Option("--accept", help="Store this run's baseline instead of comparing with the stored one.")
]
Sentences = Annotated[int, typer.Option(help="Number of sentences to speak and judge.", min=1, max=200)]
References = Annotated[
    list[Path] | None,
    typer.Option("--reference", help="A recording of the speaker.", show_default=False),
]
Judges = Annotated[
    bool, typer.Option("--judges/--no-judges", help="Use speech recognizers and quality models.")
]
Keep = Annotated[
    Path | None, typer.Option(help="Folder for the recordings.", show_default="the user's cache folder")
]


def verify(
    model: options.Model = None,
    profile: options.Profile = None,
    against: Against = None,
    accept: Accept = False,
    voice: options.VoiceName = None,
    sentences: Sentences = 30,
    references: References = None,
    judges: Judges = True,
    keep: Keep = None,
    results: Results = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    choices: options.Choices = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Check determinism, audio quality, chunk boundaries, words, speaker, endings and languages.

    Prints PASS or FAIL for each check, then one line of JSON. Exits 1 if a check fails.
    """
    model_options = parse_options(choices)
    _check_profiles(profile, against)
    with progress_line(loading(model), quiet=quiet):
        from nightingale.engine.load import default_model, load_model
        from nightingale_lab.bench import store
        from nightingale_lab.bench.verify import verification
        from nightingale_lab.bench.verify.subject import EngineSubject

        loaded = load_model(model or default_model(), offline=offline, options=model_options)
        subject = EngineSubject(loaded, profile, voice, device)
        other = EngineSubject(loaded, against, voice, device) if against else None
    if loaded.notice is not None:
        note(f"note: {loaded.notice}")
    folder = keep or _cache(loaded.name)
    panel = _panel(judges, references or [])
    with progress(quiet=quiet) as show_progress:
        report = verification.verify(
            subject,
            verification.sentences(sentences),
            folder,
            panel=panel,
            other=other,
            accept=accept,
            progress=show_progress,
        )
    line = store.signed(report.as_row())
    store.append(line, "verify", results or store.results_folder())
    if not as_json:
        _print(report)
    print(json.dumps(line))
    if not report.ok:
        raise typer.Exit(FAILED)


def _check_profiles(*names: str | None) -> None:
    from nightingale.backends.profiles import profile_named

    for name in names:
        if name is not None:
            profile_named(name)


def _cache(model: str) -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("nightingale") / "verify" / model


def _panel(use_judges: bool, references: list[Path]) -> Panel:
    from nightingale_lab.bench.verify.judged import JUDGES, find_judges
    from nightingale_lab.bench.verify.verification import Panel

    if not use_judges:
        return Panel(absent=dict.fromkeys(JUDGES, "not used: --no-judges"), references=references)
    ask, absent = find_judges()
    names = [name for name in JUDGES if name not in absent]
    return Panel(ask=ask, absent=absent, names=names, references=references)


def _print(report: VerifyReport) -> None:
    shown = console()
    shown.print(_table(report))
    for clip in report.worst:
        shown.print(f"[dim]{clip.wav}[/dim]\n  {clip.text}\n  {clip.why}", markup=True, highlight=False)
    failed, absent = len(report.failed), len(report.absent)
    passed = len(report.checks) - failed - absent
    print(f"{passed} passed, {failed} failed, {absent} missing")


def _table(report: VerifyReport) -> Table:
    from rich import box
    from rich.table import Table

    held = f" against {report.against}" if report.against else ""
    table = Table(box=box.SIMPLE_HEAD, title=f"{report.model}, {report.profile}{held}")
    for column in ("check", "value", "bound", "verdict"):
        table.add_column(column, no_wrap=column != "check")
    group = ""
    for check in report.checks:
        if check.group != group:
            group = check.group
            table.add_row(f"[bold]{group}[/bold]")
        value = "–" if check.value is None else f"{check.value:.4g} {check.unit}".strip()
        table.add_row(f"  {check.name}", value, check.bound, MARKS[check.verdict])
        if check.detail and check.verdict != "pass":
            table.add_row(f"    [dim]{check.detail}[/dim]")
    return table

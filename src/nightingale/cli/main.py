"""The `nightingale` command: its verbs, and how errors end it.

Verbs import what is heavy inside their functions, so that `--help` answers at once. Results go to stdout;
progress, notices and errors go to stderr. An expected error is one message and the exit code of its class,
never a traceback.
"""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from nightingale import __version__
from nightingale.cli import bench, doctor, models, report, say, serve, train, verify, voices
from nightingale.cli.talk import complain
from nightingale.errors import NightingaleError

INTERRUPTED = 130
"""128 + SIGINT, as shells expect."""


class Verbs(TyperGroup):
    """A group that turns the errors of its verbs into messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except NightingaleError as error:
            complain(error)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from interrupt


# rich_markup_mode=None: plain help is quicker to print, and docs/cli.md is made of it.
_PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "add_completion": False}

app = typer.Typer(name="nightingale", cls=Verbs, pretty_exceptions_enable=False, **_PLAIN)
models_app = typer.Typer(help="List the known models, download them, find them on disk.", **_PLAIN)
voices_app = typer.Typer(help="Keep voices by name.", **_PLAIN)

app.command("say")(say.say)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.command("verify")(verify.verify)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("train", context_settings=train.FORWARD)(train.train)
app.add_typer(models_app, name="models")
app.add_typer(voices_app, name="voices")
models_app.command("list")(models.list_models)
models_app.command("pull")(models.pull)
models_app.command("path")(models.path)
voices_app.command("list")(voices.list_voices)
voices_app.command("add")(voices.add)
voices_app.command("remove")(voices.remove)
voices_app.command("export")(voices.export)


def _version(asked: bool) -> None:
    if asked:
        print(f"nightingale {__version__}")
        raise typer.Exit


@app.callback()
def nightingale(
    version: Annotated[  # the callback acts on it
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Text to speech on your own machine."""


def main() -> None:
    """The console script."""
    # Killed politely, it tidies up as it does when interrupted. A verb that knows better sets its own.
    signal.signal(signal.SIGTERM, _leave)
    try:
        app()
    except KeyboardInterrupt:  # before any verb began
        sys.exit(INTERRUPTED)


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)

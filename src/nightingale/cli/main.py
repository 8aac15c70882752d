"""The `nightingale` command: its subcommands, and how errors end it.

Subcommands import heavy packages inside their functions, so that `--help` answers at once. Results go to
stdout; progress, notices and errors go to stderr. The class of an error determines the exit code.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from nightingale import __version__
from nightingale.cli import doctor, export, models, say, serve, voices
from nightingale.cli.console import print_error
from nightingale.cli.options import option
from nightingale.errors import ConfigError, NightingaleError

INTERRUPTED = 130
"""128 + SIGINT, as shells expect."""
LAB_COMMANDS = {
    "verify": "Check the quality of a model's speech.",
    "bench": "Measure speed.",
    "report": "Write a page from the results of bench and verify.",
    "train": "Train wren.",
}
"""Commands of the package nightingale_lab, and their help where it is not installed."""


class ErrorHandlingGroup(TyperGroup):
    """A group of commands whose errors become messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except NightingaleError as error:
            print_error(error)
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt as interrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from interrupt


# rich_markup_mode=None: plain help prints faster, and docs/cli.md contains it.
_PLAIN: dict[str, Any] = {"no_args_is_help": True, "rich_markup_mode": None, "add_completion": False}
# The command parses all of its arguments, including --help, itself.
_FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(name="nightingale", cls=ErrorHandlingGroup, pretty_exceptions_enable=False, **_PLAIN)
models_app = typer.Typer(help="List and download models, and find their files.", **_PLAIN)
voices_app = typer.Typer(help="Manage named voices.", **_PLAIN)


def _add_lab_command(name: str) -> None:
    """Add a command of nightingale_lab or, if that is not installed, one that says how to install it."""

    def missing(_: typer.Context) -> None:
        raise ConfigError(f"`nightingale {name}` is not installed", fix="pip install 'nightingale-tts[lab]'")

    missing.__doc__ = f"{LAB_COMMANDS[name]} Needs `pip install 'nightingale-tts[lab]'`."
    command: Callable[..., None] = missing
    try:
        command = getattr(import_module(f"nightingale_lab.cli.{name}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nightingale_lab":
            raise
    forwards = name == "train" or command is missing
    app.command(name, context_settings=_FORWARD if forwards else None)(command)


app.command("say")(say.say)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
app.command("export")(export.export)
for _name in LAB_COMMANDS:
    _add_lab_command(_name)
app.add_typer(models_app, name="models")
app.add_typer(voices_app, name="voices")
models_app.command("list")(models.list_models)
models_app.command("pull")(models.pull)
models_app.command("path")(models.path)
voices_app.command("list")(voices.list_voices)
voices_app.command("add")(voices.add)
voices_app.command("remove")(voices.remove)
voices_app.command("export")(voices.export)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"nightingale {__version__}")
        raise typer.Exit


@app.callback()
def nightingale(
    version: Annotated[
        bool, option("Print the version.", "--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Text to speech on your own machine."""


def main() -> None:
    """Run the command; the entry point of the console script."""
    # Clean up on SIGTERM as on an interrupt. `serve` installs a handler of its own.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        app()
    except KeyboardInterrupt:  # before a command has started
        sys.exit(INTERRUPTED)

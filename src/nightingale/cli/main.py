"""The `nightingale` command: its subcommands, and how errors end it.

Subcommands import heavy packages inside their functions, so that `--help` answers at once. Results go to
stdout; progress, notices and errors go to stderr. An expected error is printed without a traceback, and its
class determines the exit code.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from nightingale import __version__
from nightingale.cli import doctor, models, say, serve, voices
from nightingale.cli.console import print_error
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


def lab_command(name: str) -> Callable[..., None]:
    """Return a command of nightingale_lab or, if that is not installed, one that says how to install it."""
    try:
        command: Callable[..., None] = getattr(import_module(f"nightingale_lab.cli.{name}"), name)
        return command
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nightingale_lab":
            raise

    def missing(_: typer.Context) -> None:
        raise ConfigError(f"`nightingale {name}` is not installed", fix="pip install 'nightingale-tts[lab]'")

    missing.__doc__ = f"{LAB_COMMANDS[name]} Needs `pip install 'nightingale-tts[lab]'`."
    return missing


app.command("say")(say.say)
app.command("serve")(serve.serve)
app.command("doctor")(doctor.doctor)
for _name in LAB_COMMANDS:
    _command = lab_command(_name)
    _forwards = _name == "train" or _command.__name__ == "missing"
    app.command(_name, context_settings=_FORWARD if _forwards else None)(_command)
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
    version: Annotated[  # handled by the callback
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Text to speech on your own machine."""


def main() -> None:
    """Run the command; the entry point of the console script."""
    # Clean up on SIGTERM as on an interrupt. `serve` installs a handler of its own.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        app()
    except KeyboardInterrupt:  # before a command has started
        sys.exit(INTERRUPTED)


def _exit_on_signal(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)

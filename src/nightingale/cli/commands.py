"""The subcommands of `nightingale`, and how errors end them.

Subcommands import heavy packages inside their functions, so that `--help` answers at once. Results go to
stdout; progress, notices and errors go to stderr. The class of an error determines the exit code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, get_args

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from nightingale import __version__
from nightingale.cli import (
    book,
    cluster,
    convert,
    detect,
    docs,
    doctor,
    export,
    keys,
    lexicon,
    models,
    say,
    serve,
    voices,
)
from nightingale.cli.arguments import parameters_of
from nightingale.cli.console import exit_on_error
from nightingale.cli.options import Argument, Option
from nightingale.errors import ConfigError
from nightingale.install import install_command

LAB_COMMANDS = {
    "verify": "Check the quality of a model's speech.",
    "bench": "Measure speed.",
    "report": "Write a page from the results of bench and verify.",
    "train": "Train wren.",
}
"""Commands of the package nightingale_lab, and their help where it is not installed."""


HYPHEN_HINT = 'A text that begins with a hyphen comes after --: nightingale say -- "-5 degrees"'
QUOTE_HINT = 'Quote the text: nightingale say "Hello there"'
SAY_HINT = 'A text comes after say: nightingale say "Hello there"'
MEANT = {
    "--output": "--out",
    "--rate": "--speed",
    "--lang": "--language",
    "clone": "voices add",
    "download": "models pull",
    "list": "models list",
    "pull": "models pull",
    "server": "serve",
    "speak": "say",
    "synthesize": "say",
    "tts": "say",
    "version": "--version",
}
"""Options and commands that people expect, and ours in their place."""


class ErrorHandlingGroup(TyperGroup):
    """A group of commands whose errors become messages and exit codes."""

    def invoke(self, ctx: Any) -> Any:
        with exit_on_error():
            try:
                return super().invoke(ctx)
            except Exception as error:
                _add_hint(error)
                raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            if " " in args[0]:
                error.message = f"No such command {args[0]!r}. {SAY_HINT}"  # type: ignore[attr-defined]
            elif args[0] in MEANT:
                meant = f"nightingale {MEANT[args[0]]}"
                error.message = f"No such command {args[0]!r}. It is: {meant}"  # type: ignore[attr-defined]
            raise


def _add_hint(error: Any) -> None:
    """Name the right word in typer's errors, whose module depends on typer's version."""
    unknown, message = getattr(error, "option_name", None), getattr(error, "message", None)
    if not isinstance(message, str):
        return
    if isinstance(unknown, str) and hasattr(error, "possibilities"):  # not a missing argument of an option
        known = {name for one in error.ctx.command.params for name in one.opts}
        if MEANT.get(unknown) in known:
            error.message, error.possibilities = f"{message}. It is: {MEANT[unknown]}", []
        elif len(unknown) == 2:
            error.message = f"{message}. {HYPHEN_HINT}"
    elif message.startswith("Got unexpected extra argument") and error.ctx.command.name == "say":
        error.message = f"{message}. {QUOTE_HINT}"


# rich_markup_mode=None: plain help prints faster, and docs/cli.md contains it.
_PLAIN: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
# The command parses all of its arguments, including --help, itself.
_FORWARD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(name="nightingale", cls=ErrorHandlingGroup, pretty_exceptions_enable=False, **_PLAIN)
models_app = typer.Typer(
    help="List and download models, and find their files.", add_completion=False, **_PLAIN
)
lexicon_app = typer.Typer(help="Respellings of words.", add_completion=False, **_PLAIN)
voices_app = typer.Typer(help="Manage named voices.", add_completion=False, **_PLAIN)
keys_app = typer.Typer(help="Manage the tenants of a server and their keys.", add_completion=False, **_PLAIN)
cluster_app = typer.Typer(
    help="Serve from, and speak libraries of text on, a Ray cluster.", add_completion=False, **_PLAIN
)


def add_command(group: typer.Typer, name: str, command: Callable[..., None], **settings: Any) -> None:
    """Add a command whose parameters are described by `option` and `argument`, or by typer itself."""

    @wraps(command)
    def described(*arguments: Any, **options: Any) -> None:
        command(*arguments, **options)

    parameters = [
        one.replace(annotation=_with_typer(one.annotation)) for one in parameters_of(command).values()
    ]
    described.__annotations__ = {one.name: one.annotation for one in parameters}
    described.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    group.command(name, **settings)(described)


def add_server_command(group: typer.Typer, name: str, command: Callable[..., None]) -> None:
    """Add a command with settings of the server as flags, made when it is used: their class imports pydantic."""

    class ServerCommand(TyperCommand):
        def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
            made = typer.Typer(add_completion=False, **_PLAIN)
            try:
                add_command(made, name, command)
            except ImportError as error:
                fix = install_command("server")
                raise ConfigError(
                    "the packages of the server are not installed", got=str(error), fix=fix
                ) from error
            return typer.main.get_command(made).make_context(info_name, args, parent, **extra)

    def listed() -> None: ...

    listed.__doc__ = command.__doc__
    group.command(name, cls=ServerCommand)(listed)


def _with_typer(hint: Any) -> Any:
    """Return a parameter's type with typer's description in the place of ours."""
    parts: tuple[Any, ...] = (*get_args(hint), None, None)
    kind, about = parts[:2]
    if isinstance(about, Option):
        return Annotated[kind, typer.Option(*about.names, **about.settings)]
    return Annotated[kind, typer.Argument(**about.settings)] if isinstance(about, Argument) else hint


def _add_lab_command(name: str) -> None:
    """Add a command of nightingale_lab or, if that is not installed, one that says how to install it."""

    def missing(_: typer.Context) -> None:
        raise ConfigError(f"`nightingale {name}` is not installed", fix=install_command("lab"))

    missing.__doc__ = f"{LAB_COMMANDS[name]} Needs the extra `lab`."
    command: Callable[..., None] = missing
    try:
        command = getattr(import_module(f"nightingale_lab.cli.{name}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "nightingale_lab":
            raise
    forwards = name == "train" or command is missing
    add_command(app, name, command, context_settings=_FORWARD if forwards else None)


add_command(app, "say", say.say)
add_command(app, "book", book.book)
add_command(app, "convert", convert.convert)
add_command(app, "detect", detect.detect)
add_server_command(app, "serve", serve.serve)
add_command(app, "doctor", doctor.doctor)
add_command(app, "docs", docs.docs)
add_command(app, "export", export.export)
for _name in LAB_COMMANDS:
    _add_lab_command(_name)
app.add_typer(models_app, name="models")
app.add_typer(lexicon_app, name="lexicon")
app.add_typer(voices_app, name="voices")
app.add_typer(keys_app, name="keys")
app.add_typer(cluster_app, name="cluster")
add_command(models_app, "list", models.list_models)
add_command(models_app, "pull", models.pull)
add_command(models_app, "path", models.path)
add_command(lexicon_app, "check", lexicon.check)
add_command(voices_app, "list", voices.list_voices)
add_command(voices_app, "add", voices.add)
add_command(voices_app, "remove", voices.remove)
add_command(voices_app, "export", voices.export)
add_command(keys_app, "list", keys.list_tenants)
add_command(keys_app, "add", keys.add_tenant)
add_command(keys_app, "rotate", keys.rotate)
add_command(keys_app, "remove", keys.remove_tenant)
add_server_command(cluster_app, "serve", cluster.serve)
add_command(cluster_app, "speak", cluster.speak)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"nightingale {__version__}")
        raise typer.Exit


@app.callback()
def nightingale(
    version: Annotated[
        bool,
        typer.Option("-V", "--version", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Text to speech on your own machine."""

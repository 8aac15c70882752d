"""The entry point of the `nightingale` command.

`nightingale say` with plain arguments starts without typer, whose import takes a tenth of the time of a short
sentence. Help, mistakes and every other command are typer's: see commands.py.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from io import TextIOWrapper

from nightingale.cli.arguments import parse_plain
from nightingale.cli.console import INTERRUPTED, check_import_name, exit_on_error
from nightingale.cli.say import say


def main() -> None:
    """Run the command; the entry point of the console script."""
    # Imports and loading create no garbage; `say` enables the collector before it speaks.
    gc.disable()
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        # Code pages such as cp1252 lack characters of help texts and of the user's texts.
        sys.stdout.reconfigure(errors="backslashreplace")
    # Clean up on SIGTERM as on an interrupt. `serve` installs a handler of its own.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        plain = parse_plain(say, sys.argv[2:]) if sys.argv[1:2] == ["say"] else None
        if plain is not None:
            # numpy's products here are small; its second thread would take time from the networks.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            with exit_on_error():
                say(**plain)
            return
        try:
            from nightingale.cli.commands import app
        except ImportError:
            with exit_on_error():
                check_import_name()
            raise

        gc.enable()
        app()
    except KeyboardInterrupt:  # before a command has started
        sys.exit(INTERRUPTED)

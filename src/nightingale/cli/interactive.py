"""`nightingale say` without a text at a terminal: lines are spoken as they are typed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from nightingale.cli.console import note, print_error
from nightingale.errors import TextError

PROMPT = "> "


def speak_lines(speak: Callable[[str], None]) -> None:
    """Call `speak` with each line that is typed, until the end of the input (Ctrl-D).

    Ctrl-C stops a line that is being spoken; at the prompt it ends the command. A line that cannot be spoken is
    reported, and the next one can be typed.
    """
    with suppress(ImportError):
        import readline  # noqa: F401, gives `input` a history and editing keys
    note("Type a line to hear it; Ctrl-D ends.")
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            note("")
            return
        if not line.strip():
            continue
        try:
            speak(line)
        except TextError as error:
            print_error(error)
        except KeyboardInterrupt:
            note("stopped")

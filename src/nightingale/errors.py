"""The tree of errors.

    NightingaleError
    ├── ConfigError              an option, config or plan that cannot be right
    ├── ModelError
    │   ├── UnknownModel         no model of that name, no folder at that path
    │   ├── ModelMissing         known model, but its files are not on this machine
    │   └── CheckpointError      weights missing, extra, misshapen, truncated or not finite
    ├── TextError
    │   ├── EmptyText
    │   ├── TextTooLong
    │   ├── UnsupportedLanguage
    │   └── LanguagePackageMissing   the language needs an optional package
    ├── VoiceError
    │   ├── VoiceNotFound
    │   ├── VoiceExists          the name is taken
    │   └── BadReference         a reference clip that cannot become a voice
    ├── CapacityError
    │   ├── MemoryFull           no memory for the request, such as KV cache
    │   │   └── OutOfMemory      an allocation has failed
    │   └── QueueFull
    ├── EngineFault              the engine failed, and the request was not at fault
    ├── DeviceError              the requested device does not exist
    └── OutputError              the result could not be written

The command line maps `exit_code` to the process's status and prints the message without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final


class NightingaleError(Exception):
    """Base of every error a user, a file or a client can cause."""

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        got: str | None = None,
        allowed: str | None = None,
        fix: str | None = None,
        param: str | None = None,
    ) -> None:
        """Build the message from the parts that are given.

        Args:
            what: The problem.
            got: The value that was received.
            allowed: Values that would have been accepted.
            fix: A complete sentence that says what to do next.
            param: Name of the request parameter at fault, if one is.
        """
        self.what, self.got, self.allowed, self.fix, self.param = what, got, allowed, fix, param
        details = [f"got {got}"] if got is not None else []
        details += [f"allowed: {allowed}"] if allowed is not None else []
        message = f"{what}: {'; '.join(details)}" if details else what
        super().__init__(f"{message}. {fix}" if fix is not None else message)

    def __reduce__(self) -> tuple[Any, ...]:
        parts = {"got": self.got, "allowed": self.allowed, "fix": self.fix, "param": self.param}
        return partial(type(self), self.what, **parts), (), vars(self)


class ConfigError(NightingaleError):
    """An option or a parameter has a value that is not allowed."""

    exit_code = 2


class ModelError(NightingaleError):
    """A model cannot be used."""

    exit_code = 3


class UnknownModel(ModelError):
    """There is no model of that name."""

    exit_code = 2


class ModelMissing(ModelError):
    """The files of a model are not on this machine."""


class CheckpointError(ModelError):
    """A file of weights is damaged or does not fit its model."""

    exit_code = 5


class TextError(NightingaleError):
    """A text cannot be spoken."""

    exit_code = 2


class EmptyText(TextError):
    """The text has nothing to speak."""


class TextTooLong(TextError):
    """The text, or one segment of it, is longer than allowed."""


class UnsupportedLanguage(TextError):
    """The model does not speak the language."""


class LanguagePackageMissing(TextError):
    """A language needs a package that is not installed."""


class VoiceError(NightingaleError):
    """A voice cannot be used."""

    exit_code = 6


class VoiceNotFound(VoiceError):
    """There is no voice of that name."""


class VoiceExists(VoiceError):
    """The name of a new voice is taken."""


class BadReference(VoiceError):
    """A reference clip cannot be cloned."""


class CapacityError(NightingaleError):
    """The engine has no capacity for the request."""

    exit_code = 7


class MemoryFull(CapacityError):
    """The request needs more memory than there is."""


class OutOfMemory(MemoryFull):
    """An allocation has failed: the machine or the process has no memory left."""


class QueueFull(CapacityError):
    """Too many requests are waiting."""

    retry_after_s: float | None = None
    """An estimate of when the queue will have a place; None if there is none."""
    position: int | None = None
    """The position in the queue that the request would have got; None if there is none."""
    wait_s: float | None = None
    """An estimate of the wait at this position, in seconds; None if there is none."""


class DeviceError(NightingaleError):
    """The device cannot be used."""

    exit_code = 4


class OutputError(NightingaleError):
    """The audio cannot be written."""

    exit_code = 8


class EngineFault(NightingaleError):
    """The engine failed while it served the request."""

    exit_code = 9
    engine_ended = False
    """True if the engine has ended, so that another request would fail, too."""


def wrong_type(param: str, value: object, allowed: str, *, fix: str | None = None) -> ConfigError:
    """Return the error to raise for a parameter of a type that is not allowed."""
    shown = repr(value)
    got = f"{type(value).__name__} {shown if len(shown) <= 40 else f'{shown[:40]}…'}"
    return ConfigError(
        f"{param} has a wrong type",
        got=got,
        allowed=allowed,
        fix=fix or "Convert the value first.",
        param=param,
    )


OUT_OF_MEMORY: Final = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate memory",
    "cannot allocate memory",
    "unable to allocate",
    "attempting to allocate",
    "insufficient memory",
    "can't start new thread",
    "failed to map segment",
)
"""Words in the errors of libraries whose allocations have failed."""


def memory_full(error: BaseException) -> OutOfMemory | None:
    """Return the error to raise in place of a failed allocation's; None if `error` is about something else."""
    if isinstance(error, NightingaleError):
        return None
    message, _, _ = str(error).partition("\n")
    is_allocation = isinstance(error, MemoryError) or any(
        words in str(error).lower() for words in OUT_OF_MEMORY
    )
    if not is_allocation:
        return None
    full = OutOfMemory(
        "there is not enough memory",
        got=f"{type(error).__name__}: {message}",
        fix="Close other programs, raise the limit of the process, or choose a smaller model.",
    )
    full.__cause__ = error
    return full


@contextmanager
def raising_memory_full() -> Iterator[None]:
    """Raise OutOfMemory in place of the error of a failed allocation. Can be used as a decorator."""
    try:
        yield
    except Exception as error:
        if (full := memory_full(error)) is not None:
            raise full from error
        raise

"""Everything that can go wrong, as a tree.

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
    │   ├── VoiceExists          the name is somebody's already
    │   └── BadReference         a reference clip that cannot become a voice
    ├── CapacityError
    │   ├── MemoryFull           the utterance outgrew its cache
    │   └── QueueFull
    ├── EngineFault              something broke while speaking that no caller caused
    ├── DeviceError              the device asked for is not there
    └── OutputError              the result could not be written

A message has up to four parts: what went wrong, what was received, what is allowed, and what to do next.
The command line maps `exit_code` to the process's status and prints the message without a traceback.
"""

from __future__ import annotations


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
            what: What went wrong.
            got: What was received.
            allowed: What would have been accepted.
            fix: A complete sentence that says what to do next.
            param: Name of the request parameter at fault, if one is.
        """
        self.what, self.got, self.allowed, self.fix, self.param = what, got, allowed, fix, param
        details = [f"got {got}"] if got is not None else []
        details += [f"allowed: {allowed}"] if allowed is not None else []
        message = f"{what}: {'; '.join(details)}" if details else what
        super().__init__(f"{message}. {fix}" if fix is not None else message)


class ConfigError(NightingaleError):
    exit_code = 2


class ModelError(NightingaleError):
    exit_code = 3


class UnknownModel(ModelError):
    exit_code = 2


class ModelMissing(ModelError):
    exit_code = 3


class CheckpointError(ModelError):
    exit_code = 5


class TextError(NightingaleError):
    exit_code = 2


class EmptyText(TextError):
    pass


class TextTooLong(TextError):
    pass


class UnsupportedLanguage(TextError):
    pass


class LanguagePackageMissing(TextError):
    pass


class VoiceError(NightingaleError):
    exit_code = 6


class VoiceNotFound(VoiceError):
    pass


class VoiceExists(VoiceError):
    pass


class BadReference(VoiceError):
    pass


class CapacityError(NightingaleError):
    exit_code = 7


class MemoryFull(CapacityError):
    pass


class QueueFull(CapacityError):
    pass


class DeviceError(NightingaleError):
    exit_code = 4


class OutputError(NightingaleError):
    exit_code = 8


class EngineFault(NightingaleError):
    exit_code = 9

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

Every message has four parts: what went wrong, what we got, what is allowed, what to do.
The command line maps `exit_code` to the process's status and prints the message without a traceback.
"""

from __future__ import annotations


class NightingaleError(Exception):
    """Base of every error a user, a file or a client can cause."""

    exit_code = 1

    def __init__(self, what: str, *, got: str, allowed: str, fix: str, param: str | None = None) -> None:
        """param: the one argument that is at fault, by its name in requests, where that is known."""
        self.what, self.got, self.allowed, self.fix, self.param = what, got, allowed, fix, param
        super().__init__(f"{what}: got {got}; allowed: {allowed}. {fix}")


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

"""One FLAC file for each passage that was spoken: going on after a stop means to read these files.

A file's name is a digest of all that its audio depends on, and it appears when it is complete. So a process that
is killed loses at most the passage it was speaking, and a changed sentence, voice or setting never finds old audio.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nightingale.audio.encoders.recording import FILE_FORMATS, SndfileRecorder
from nightingale.errors import OutputError
from nightingale.files import remove_unfinished, whole_file
from nightingale.types import Samples

VERSION: Final = 1
"""Part of every key: a change of how passages are spoken makes old files useless."""
REPORT: Final = "report.jsonl"

_KEY_CHARS: Final = 32
_FILES: Final = "[0-9a-f]" * _KEY_CHARS + ".flac"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSentence:
    """The audio of a passage."""

    samples: Samples
    retries: int
    """The number of times that it was sampled again."""
    warnings: tuple[str, ...]
    """Parts of its text that are not spoken."""


class SentenceCache:
    """A folder of FLAC files."""

    def __init__(self, folder: Path, *, clean: bool = True) -> None:
        """Create the folder.

        clean: Remove unfinished files of a process that was killed; False if others are writing to the folder.
        """
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if clean:
                remove_unfinished(folder, _FILES)
        except OSError as error:
            raise OutputError(
                "the folder of sentences cannot be made",
                got=f"{folder}: {error.strerror or error}",
                allowed="a folder that can be written",
            ) from error

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.flac"

    def get(self, key: str) -> CachedSentence | None:
        """Return a passage; None if it was not spoken yet, or its file is damaged."""
        import soundfile

        try:
            with soundfile.SoundFile(self.path(key)) as file:
                samples = file.read(dtype="float32")
                facts = json.loads(file.comment or "{}")
            if len(samples) != facts["samples"]:
                return None
            return CachedSentence(
                samples=samples, retries=int(facts["retries"]), warnings=tuple(facts["warnings"])
            )
        except (OSError, RuntimeError, ValueError, TypeError, KeyError):
            return None

    def put(self, key: str, sentence: CachedSentence, rate_hz: int) -> None:
        """Write a passage; the file appears when it is complete."""
        facts = {
            "samples": len(sentence.samples),
            "retries": sentence.retries,
            "warnings": list(sentence.warnings),
        }
        with whole_file(self.path(key)) as file:
            recorder = SndfileRecorder(file, rate_hz, *FILE_FORMATS[".flac"], comment=json.dumps(facts))
            recorder.feed(sentence.samples)
            recorder.finish()

    def remove(self) -> None:
        """Remove the files of the cache, and the folder if nothing else is in it."""
        for path in (*self.folder.glob(_FILES), self.folder / REPORT):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()


def cache_key(**parts: Any) -> str:
    """Return the digest of all that a passage's audio depends on."""
    whole = json.dumps({"version": VERSION, **parts}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_CHARS]

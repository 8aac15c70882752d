"""A worker of a batch whose disk is full after some files of audio."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from nightingale.ray.batch_output import BatchOutput
from nightingale.ray.batch_worker import BatchWorker

MAX_FILES = 10


class FullDisk(BatchOutput):
    """Refuses further files as a full disk does."""

    def write(self, name: str, data: bytes) -> None:
        if name.startswith("audio/") and len(list(Path(self.where).rglob("*.flac"))) >= MAX_FILES:
            with self._errors(name):
                raise OSError(errno.ENOSPC, "No space left on device")
        super().write(name, data)


class FullDiskWorker(BatchWorker):
    """Writes to a small disk."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._out = FullDisk(options["out"])

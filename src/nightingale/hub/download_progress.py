"""The progress of a download of several files, in bytes, through the bars of the hub's client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadProgress:
    """The state of a download. Sizes of files that have not been started are approximate."""

    file: str
    done_bytes: int
    total_bytes: int
    new_bytes: int
    """Bytes that came by this download: without those of a file that an earlier one began."""


OnDownload = Callable[[DownloadProgress], None]


class DownloadMeter:
    """Adds up the bytes of the files of one model."""

    def __init__(self, sizes: Mapping[str, int], on_progress: OnDownload) -> None:
        """sizes: file -> its approximate size."""
        self._sizes, self._on_progress = dict(sizes), on_progress
        self._done: dict[str, int] = {}
        self._new = 0

    def bar(self, file: str) -> type:
        """Return a class like tqdm's for the hub's client, whose objects report instead of drawing."""
        meter = self

        class Bar:
            """A bar of one file. The client makes another one if it has to begin again."""

            def __init__(self, *_: Any, total: float | None = None, initial: float = 0, **_more: Any) -> None:
                self.n, self.total = initial, total
                self.format_dict: dict[str, Any] = {}
                meter.report(file, int(initial), total, 0)

            def update(self, count: float | None = 1) -> None:
                self.n += count or 0
                meter.report(file, int(self.n), self.total, int(count or 0))

            def update_transfer(self, count: float) -> None:
                """Take bytes of the network, which `update` counts too when they are written."""

            def __getattr__(self, _: str) -> Callable[..., None]:
                return lambda *_arguments, **_more: None

            def __enter__(self) -> Bar:
                return self

            def __exit__(self, *_: object) -> None:
                return None

        return Bar

    def report(self, file: str, done: int, total: float | None, new: int) -> None:
        """Note the bytes of a file that are here."""
        self._done[file] = done
        self._sizes[file] = max(int(total or self._sizes.get(file, 0)), done)
        self._new += new
        self._on_progress(
            DownloadProgress(
                file=file,
                done_bytes=sum(self._done.values()),
                total_bytes=sum(self._sizes.values()),
                new_bytes=self._new,
            )
        )

"""Downloads of models: consent to gigabytes, and their progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from nightingale.cli.console import format_clock, format_size, note, progress_bar, progress_line
from nightingale.errors import ModelMissing

if TYPE_CHECKING:
    from nightingale.hub.download_progress import DownloadProgress, OnDownload

SHOW_EVERY_S = 0.1
REPORT_EVERY_S = 1.0
"""Time between two events of --json."""


def prepare_model(
    asked: SimpleNamespace,
    options: dict[str, Any],
    *,
    timestamps: bool = False,
    without: Collection[str] = (),
    **controls: Any,
) -> str | None:
    """Check the arguments of a command, and download its model if that is not here. Return the profile.

    Args:
        asked: The arguments of the command.
        options: Those of the model.
        timestamps: Words are to be timed.
        without: Roles of files that are not needed.
        controls: Arguments of `TTS.say`.
    """
    from nightingale.backends.profiles import with_options
    from nightingale.engine.requests.early_checks import check_call

    model, profile = asked.model, with_options(asked.profile, {"stream": asked.stream})
    check_call(model, profile=profile, device=asked.device or "auto", timestamps=timestamps, **controls)
    if confirm_download(model, options, offline=asked.offline, yes=asked.yes, without=without):
        from nightingale.hub.find import locate

        with download_reports(model, as_json=asked.as_json, quiet=asked.quiet) as report:
            locate(model, without=without, on_download=report, **options)
    return profile


@contextmanager
def download_reports(model: str, *, as_json: bool, quiet: bool) -> Iterator[OnDownload]:
    """Return a function that shows the progress: in one line on a terminal, as JSON lines with `as_json`."""
    started_s = time.monotonic()
    shown_s = 0.0
    # Elsewhere than at a terminal only the size is told, before.
    with progress_line(f"downloading {model}", quiet=quiet or not sys.stderr.isatty()) as show:

        def report(progress: DownloadProgress) -> None:
            nonlocal shown_s
            now_s = time.monotonic()
            at_end = progress.done_bytes >= progress.total_bytes
            if now_s - shown_s < (REPORT_EVERY_S if as_json else SHOW_EVERY_S) and not at_end:
                return
            shown_s = now_s
            speed = progress.new_bytes / max(1e-3, now_s - started_s)
            left_bytes = progress.total_bytes - progress.done_bytes
            left_s = left_bytes / speed if speed else None
            done, total = progress.done_bytes, progress.total_bytes
            line = f"{progress_bar(done / max(1, total))} {format_size(done)} of {format_size(total)}"
            line += f", {format_size(round(speed))}/s" if speed else ""
            show(line + (f", {format_clock(left_s)} left" if left_s else ""))
            if as_json:
                event = {
                    "event": "download",
                    "model": model,
                    "file": progress.file,
                    "bytes": done,
                    "total_bytes": total,
                    "bytes_per_s": round(speed),
                    "seconds_left": None if left_s is None else round(left_s, 1),
                }
                print(json.dumps(event), flush=True)

        yield report


def size_of(model: str, missing_bytes: int) -> str:
    """Return in words how much is to be downloaded, and from where."""
    from nightingale.hub.cards import CARDS

    return f"about {format_size(missing_bytes)} to download from {CARDS[model].repo}"


def confirm_download(
    model: str | None,
    options: dict[str, Any],
    *,
    offline: bool,
    yes: bool,
    without: Collection[str] = (),
) -> bool:
    """Tell the size of a model that is not here, and ask whether to download it. Return whether there is one.

    without: roles of files that are not needed.

    Raises:
        ModelMissing: The answer is no, or there is no terminal to ask at and `yes` is False.
    """
    from nightingale.hub.cards import CARDS
    from nightingale.hub.find import bytes_to_download, is_offline

    # The engine itself reports options that no model has, and that a model is missing when offline.
    if (
        model is None
        or model not in CARDS
        or offline
        or is_offline()
        or not options.keys() <= {"kind", "t3", "s3gen"}
    ):
        return False
    missing_bytes = bytes_to_download(model, without=without, **options)
    if not missing_bytes:
        return False
    from nightingale.engine.load import check_backend

    check_backend(model)
    size = size_of(model, missing_bytes)
    if yes:
        note(f"{model}: {size}")
        return True
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(
            f"{model} is not on this machine: {size}. Download it? [y/N] ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return True
    raise ModelMissing(
        f"the model {model!r} is not on this machine",
        got=size,
        fix=f"Say --yes to download it, or run `nightingale models pull {model}`.",
    )

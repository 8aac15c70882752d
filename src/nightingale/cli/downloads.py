"""Consent to a download of gigabytes."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from nightingale.cli.console import format_size, note
from nightingale.errors import ModelMissing


def confirm_download(
    model: str | None,
    options: dict[str, Any],
    *,
    offline: bool,
    yes: bool,
    without: Collection[str] = (),
) -> None:
    """Tell the size of a model that is not here, and ask whether to download it.

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
        return
    missing_bytes = bytes_to_download(model, without=without, **options)
    if not missing_bytes:
        return
    from nightingale.engine.load import check_backend

    check_backend(model)
    size = f"about {format_size(missing_bytes)} to download from {CARDS[model].repo}"
    if yes:
        note(f"{model}: {size}")
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(
            f"{model} is not on this machine: {size}. Download it? [y/N] ",
            end="",
            file=sys.stderr,
            flush=True,
        )
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return
    raise ModelMissing(
        f"the model {model!r} is not on this machine",
        got=size,
        fix=f"Say --yes to download it, or run `nightingale models pull {model}`.",
    )

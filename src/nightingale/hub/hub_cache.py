"""Single files of the hub: looking them up in its cache, downloading them and verifying their digests.

Only downloading uses `huggingface_hub`, an optional package: files that are here are found without it.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Final

from nightingale.errors import CheckpointError, ModelMissing
from nightingale.hub.cards import SHA256, Card
from nightingale.hub.download_progress import DownloadMeter
from nightingale.install import install_command

CONNECT_S: Final = 5.0
"""Longest wait for a connection to the hub before a download."""


def cache_root() -> Path:
    """Return the folder of the hub cache, as HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME say."""
    environment = os.environ
    user_cache = environment.get("XDG_CACHE_HOME", "~/.cache")
    home = environment.get("HF_HOME", os.path.join(user_cache, "huggingface"))
    # HUGGINGFACE_HUB_CACHE is the former name, which the hub's client still reads.
    old = environment.get("HUGGINGFACE_HUB_CACHE", os.path.join(home, "hub"))
    root = environment.get("HF_HUB_CACHE", old)
    return Path(os.path.expandvars(os.path.expanduser(root)))


def revisions_in_cache(card: Card) -> list[str]:
    """Return the commits of this card's repository that the cache holds files of."""
    snapshots = _cached_repository(card) / "snapshots"
    return sorted(folder.name for folder in snapshots.iterdir()) if snapshots.is_dir() else []


def in_cache(card: Card, name: str) -> Path | None:
    """Return the cached file of the card's revision, or None."""
    repository = _cached_repository(card)
    pinned = [r for r in revisions_in_cache(card) if r.startswith(card.revision_prefix)]
    branch = repository / "refs" / card.revision  # contains a commit
    named = branch.read_text(encoding="utf-8") if branch.is_file() else card.revision
    paths = (repository / "snapshots" / revision / name for revision in [*pinned, named])
    return next((path for path in paths if path.is_file()), None)


def _cached_repository(card: Card) -> Path:
    return cache_root() / f"models--{card.repo.replace('/', '--')}"


def download(card: Card, names: tuple[str, ...], meter: DownloadMeter | None = None) -> Path:
    """Download the first of `names` that the repository has. The hub client writes its cache atomically.

    meter: Is told the progress; without one the client shows its own bars at a terminal.
    """
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
    except ModuleNotFoundError as error:
        raise ModelMissing(
            f"the files of {card.name!r} cannot be downloaded",
            got=f"no package {error.name}",
            allowed=f"the package huggingface_hub, or a folder with the files of {card.repo}",
            fix=f"Install the hub's client: {install_command('hub')}.",
        ) from error

    unreachable = _unreachable()
    reason = unreachable or "no such file in the repository"
    for name in () if unreachable else names:
        options: dict[str, Any] = {"revision": card.revision, "cache_dir": cache_root()}
        # Old clients have no such parameter and show their own bars.
        if meter is not None and "tqdm_class" in signature(hf_hub_download).parameters:
            options["tqdm_class"] = meter.bar(names[0])
        try:
            with _quiet_client():
                return Path(hf_hub_download(card.repo, name, **options))
        except (OSError, ValueError, EntryNotFoundError) as error:
            # An EntryNotFoundError says that there is no such file, unless it is a LocalEntryNotFoundError.
            # Else there is no network, no access, no such revision, or no space on the disk.
            if isinstance(error, LocalEntryNotFoundError) or not isinstance(error, EntryNotFoundError):
                reason = str(error).strip().split("\n")[0] or type(error).__name__
                break
    raise ModelMissing(
        f"{names[0]} of {card.name!r} could not be downloaded",
        got=reason,
        allowed=f"access to {card.repo} at revision {card.revision} and free space in {cache_root()}",
        fix=f"Check network and disk, then run `nightingale models pull {card.name}`, or use a folder.",
    )


@contextmanager
def _quiet_client() -> Iterator[None]:
    """Keep the client from printing a line for each attempt."""
    client = logging.getLogger("huggingface_hub")
    level = client.level
    client.setLevel(logging.ERROR)
    try:
        yield
    finally:
        client.setLevel(level)


def _unreachable() -> str | None:
    """Return why the hub, or the proxy to it, cannot be reached; None if it can.

    The hub's client would try again for half a minute.
    """
    import socket  # late, with what the two others import: only a download needs them
    from urllib.parse import urlsplit
    from urllib.request import getproxies, proxy_bypass

    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    if (proxy := getproxies().get(address.scheme)) and not proxy_bypass(address.hostname or ""):
        address = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), timeout=CONNECT_S).close()
    except OSError as error:
        return f"no connection to {address.hostname}: {error.strerror or error}"
    return None


def verify(card: Card, path: Path) -> bool:
    """Return whether the file's digest is known; raise `CheckpointError` if it is known and differs."""
    first, last = SHA256.get((card.repo, path.name), ("", ""))
    if not first:
        return False
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not (digest.startswith(first) and digest.endswith(last)):
        raise CheckpointError(
            f"{path.name} of {card.name!r} is not the official file",
            got=f"sha256 {digest}",
            allowed=f"a digest {first}…{last}",
            fix=f"Delete {path} and run `nightingale models pull {card.name}` again.",
        )
    return True

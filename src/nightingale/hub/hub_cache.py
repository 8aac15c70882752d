"""Single files of the hub: looking them up in its cache, downloading them and verifying their digests.

This is the only module that uses `huggingface_hub`. It imports it late: a local folder must not need it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from nightingale.errors import CheckpointError, ModelMissing
from nightingale.hub.cards import SHA256, Card


def cache_root(cache_dir: Path | None = None) -> Path:
    """Return the folder of the hub cache, as HF_HOME and HF_HUB_CACHE say."""
    from huggingface_hub import constants

    return cache_dir or Path(constants.HF_HUB_CACHE)


def is_offline(requested: bool = False) -> bool:
    """Return whether the caller or the environment (HF_HUB_OFFLINE) asks to stay offline."""
    return requested or os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}


def revisions_in_cache(card: Card, cache_dir: Path | None = None) -> list[str]:
    """Return the commits of this card's repository that the cache holds files of."""
    snapshots = cache_root(cache_dir) / f"models--{card.repo.replace('/', '--')}" / "snapshots"
    return sorted(folder.name for folder in snapshots.iterdir()) if snapshots.is_dir() else []


def in_cache(card: Card, name: str, cache_dir: Path | None = None) -> Path | None:
    """Return the cached file of the card's revision, or None."""
    from huggingface_hub import try_to_load_from_cache

    pinned = [r for r in revisions_in_cache(card, cache_dir) if r.startswith(card.revision_prefix)]
    for revision in [*pinned, card.revision]:
        found = try_to_load_from_cache(card.repo, name, cache_dir=cache_root(cache_dir), revision=revision)
        if isinstance(found, str):
            return Path(found)
    return None


def download(card: Card, names: tuple[str, ...], cache_dir: Path | None = None) -> Path:
    """Download the first of `names` that the repository has. The hub client writes its cache atomically."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    reason = "no such file in the repository"
    for name in names:
        try:
            return Path(
                str(hf_hub_download(card.repo, name, revision=card.revision, cache_dir=cache_root(cache_dir)))
            )
        except LocalEntryNotFoundError as error:  # the hub could not be reached
            reason = _first_line(error)
            break
        except EntryNotFoundError:
            continue
        except (OSError, ValueError) as error:  # no network, no access, no such revision, disk full
            reason = _first_line(error)
            break
    raise ModelMissing(
        f"{names[0]} of {card.name!r} could not be downloaded",
        got=reason,
        allowed=f"access to {card.repo} at revision {card.revision} and room in {cache_root(cache_dir)}",
        fix=f"Check network and disk, then run `nightingale models pull {card.name}`, or use a folder.",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def verify(card: Card, path: Path) -> bool:
    """Return whether the file's digest is known; raise `CheckpointError` if it is known and differs."""
    known = SHA256.get((card.repo, path.name))
    if known is None:
        return False
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    first, last = known
    if not (digest.startswith(first) and digest.endswith(last)):
        raise CheckpointError(
            f"{path.name} of {card.name!r} is not the official file",
            got=f"sha256 {digest}",
            allowed=f"a digest {first}…{last}",
            fix=f"Delete {path} and run `nightingale models pull {card.name}` again.",
        )
    return True

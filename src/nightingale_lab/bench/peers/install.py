"""Make a peer's environment on first use, in the user's cache folder."""

from __future__ import annotations

import io
import tarfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

from nightingale.errors import ConfigError, EngineFault
from nightingale.files import write_whole
from nightingale_lab.bench.peers.peer_list import PEERS, DownloadedArchive, Peer
from nightingale_lab.environments import make

TIMEOUT_S = 300


def peer_named(name_and_size: str) -> tuple[Peer, str]:
    """Return a peer and its size from `kokoro`, `upstream` or `upstream:turbo`. Most peers have no sizes.

    Raises:
        ConfigError: there is no such peer, or no such size of it.
    """
    name, _, size = name_and_size.partition(":")
    if name not in PEERS or (size and size not in PEERS[name].sizes):
        sized = [f"{peer.name}:{size}" for peer in PEERS.values() for size in peer.sizes]
        raise ConfigError(
            "no peer of that name", got=repr(name_and_size), allowed=", ".join([*PEERS, *sized])
        )
    return PEERS[name], size or next(iter(PEERS[name].sizes), "")


def homes() -> Path:
    """Return the folder of the peers' environments."""
    from platformdirs import user_cache_path

    return user_cache_path("nightingale") / "peers"


def install(peer: Peer, home: Path, say: Callable[[str], object] = lambda _: None) -> Path:
    """Return the Python of the peer's environment. The environment and its files are made if they are missing."""
    python = make(peer.environment, home, say=say)
    for archive in peer.downloads:
        if not all((home / "share" / target).is_file() for target in archive.members.values()):
            say(f"fetching {archive.url}")
            download(archive, home / "share")
    return python


def download(archive: DownloadedArchive, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    try:
        with urllib.request.urlopen(archive.url, timeout=TIMEOUT_S) as answer:
            data = answer.read()
        with tarfile.open(fileobj=io.BytesIO(data)) as opened:
            for member, target in archive.members.items():
                source = opened.extractfile(member)
                assert source is not None
                write_whole(folder / target, source.read())
    except (OSError, KeyError, tarfile.TarError) as error:
        raise EngineFault(
            f"{archive.url} could not be fetched",
            got=f"{type(error).__name__}: {error}",
            fix="Check the network, or leave this peer out.",
        ) from error

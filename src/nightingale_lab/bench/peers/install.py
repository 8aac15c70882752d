"""Makes a peer's environment on first use, in the user's cache folder."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import urllib.request
import venv
from collections.abc import Callable
from pathlib import Path

from nightingale_lab.bench.peers.table import PEERS, Fetched, Peer
from nightingale.errors import ConfigError, EngineFault
from nightingale.files import write_whole

TIMEOUT_S = 300


def peer_named(spelled: str) -> tuple[Peer, str]:
    """`kokoro`, `upstream` or `upstream:turbo`: a peer, and of which size its random weights are, if any."""
    name, _, size = spelled.partition(":")
    if name not in PEERS or (size and size not in PEERS[name].sizes):
        sized = [f"{peer.name}:{size}" for peer in PEERS.values() for size in peer.sizes]
        raise ConfigError(
            "no peer of that name",
            got=repr(spelled),
            allowed=", ".join([*PEERS, *sized]),
            fix="Choose from these, with commas.",
        )
    return PEERS[name], size or next(iter(PEERS[name].sizes), "")


def homes() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("nightingale") / "peers"


def recipe(peer: Peer) -> str:
    """Changes when the environment must be made anew."""
    made_of = (peer.packages, peer.bare, peer.fetched, peer.removed)
    return hashlib.sha256(repr(made_of).encode()).hexdigest()


def install(peer: Peer, home: Path, say: Callable[[str], object] = lambda _: None) -> Path:
    """The environment's Python. What is there already is not made again."""
    python, done = home / "bin" / "python", home / ".installed"
    if done.is_file() and done.read_text() == recipe(peer):
        return python
    say(f"making an environment for {peer.name} in {home} …")
    venv.create(home, with_pip=True, clear=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    _run([*pip, *peer.packages], peer)
    if peer.bare:
        _run([*pip, "--no-deps", *peer.bare], peer)
    for file in peer.fetched:
        (home / "share").mkdir(exist_ok=True)
        write_whole(home / "share" / file.target, fetch(file))
    for pattern in peer.removed:
        for path in home.glob(pattern):
            path.unlink()
    done.write_text(recipe(peer))
    return python


def fetch(file: Fetched) -> bytes:
    try:
        with urllib.request.urlopen(file.url, timeout=TIMEOUT_S) as answer:
            archive = answer.read()
        with tarfile.open(fileobj=io.BytesIO(archive)) as held:
            member = held.extractfile(file.member)
            assert member is not None
            return member.read()
    except (OSError, KeyError, tarfile.TarError) as error:
        raise EngineFault(
            "a file of a peer could not be fetched",
            got=f"{type(error).__name__}: {error}",
            allowed=file.url,
            fix="Check the network, or leave this peer out.",
        ) from error


def _run(command: list[str], peer: Peer) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise EngineFault(
            f"the environment of {peer.name} could not be made",
            got=done.stderr.strip()[-400:],
            allowed="packages from PyPI",
            fix="Check the network, or leave this peer out.",
        )

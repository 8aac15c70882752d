"""Peers: their environments and their processes, without the network and without their packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nightingale.bench.peers import client, install
from nightingale.bench.peers.table import PEERS, Peer
from nightingale.bench.peers.worker import SPEAKERS
from nightingale.bench.speed.load import crowd
from nightingale.bench.speed.request import take
from nightingale.errors import ConfigError, EngineFault

PARROT = Peer(name="parrot", what="repeats", packages=())
WORKER = """
import json, sys, time
print(json.dumps({"ready": 3.0}), flush=True)
for line in sys.stdin:
    text = json.loads(line)["text"]
    if text == "die":
        sys.exit(3)
    for word in text.split():
        time.sleep(0.01)
        print(json.dumps({"seconds": len(word) / 10}), flush=True)
    print(json.dumps({"end": True}), flush=True)
"""


@pytest.fixture
def parrot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> client.PeerProcess:
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(client, "WORKER", worker)
    return client.PeerProcess(PARROT, tmp_path, Path(sys.executable), threads=1)


def test_a_peer_is_measured_like_everybody_else(parrot: client.PeerProcess) -> None:
    with parrot:
        assert parrot.load_ms == 3.0
        took = take(parrot.speaks, "hello there you", 1)
        assert took.audio_seconds == pytest.approx(1.3)
        assert len(took.gaps_ms) == 2
        assert took.total_ms - took.ttfa_ms >= 20


def test_requests_of_a_crowd_do_not_mix(parrot: client.PeerProcess) -> None:
    with parrot:
        found = crowd(parrot.speaks, ["a b c", "dddddddddd"], concurrency=3, requests=6)
    assert sorted(round(one.audio_seconds, 1) for one in found.took) == [0.3, 0.3, 0.3, 1.0, 1.0, 1.0]


def test_a_peer_that_dies_is_a_typed_error(parrot: client.PeerProcess) -> None:
    with pytest.raises(EngineFault, match="exit code 3"), parrot:
        take(parrot.speaks, "die", 1)


def test_an_unknown_peer_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(ConfigError, match="hibari, kokoro, espeak-ng"):
        install.peer_named("festival")


def test_an_environment_is_made_once_and_again_when_its_recipe_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(
        install.venv, "create", lambda home, **_: (made.append(home), home.mkdir(exist_ok=True))
    )
    monkeypatch.setattr(install, "_run", lambda *_: None)
    for _ in range(2):
        install.install(PARROT, tmp_path / "home")
    assert len(made) == 1
    install.install(Peer(name="parrot", what="repeats", packages=("seed==2",)), tmp_path / "home")
    assert len(made) == 2


def test_pip_that_fails_says_what_it_said_and_leaves_nothing_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(home: Path, **_: object) -> None:
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").write_text("#!/bin/sh\necho no such package >&2; exit 1\n")
        (home / "bin" / "python").chmod(0o755)

    monkeypatch.setattr(install.venv, "create", broken)
    with pytest.raises(EngineFault, match="no such package"):
        install.install(Peer(name="parrot", what="", packages=("x",)), tmp_path / "home")
    assert not (tmp_path / "home" / ".installed").exists()


def test_every_peer_has_a_speaker_and_exact_versions() -> None:
    assert SPEAKERS.keys() == PEERS.keys()
    for peer in PEERS.values():
        assert all("==" in package for package in (*peer.packages, *peer.bare)), peer.name

"""Peers: their environments and their processes, without the network and without their packages."""

from __future__ import annotations

import io
import sys
import tarfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nightingale.cli.commands import app
from nightingale.decoding.decoding import token_budget
from nightingale.engine.load import load_noise
from nightingale.errors import ConfigError, EngineFault
from nightingale.hub.cards import CARDS
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.text.frontend import open_frontend
from nightingale_lab import environments
from nightingale_lab.bench.peers import client, install, measure_peers, worker
from nightingale_lab.bench.peers.peer_list import PEERS, DownloadedArchive, Peer
from nightingale_lab.bench.speed.bench_run import BenchPlan, new_result
from nightingale_lab.bench.speed.load import run_load
from nightingale_lab.bench.speed.request import time_request
from nightingale_lab.bench.store import read_lines
from nightingale_lab.cli.bench import parse_peers
from nightingale_lab.environments import Environment
from nightingale_lab.upstream import families

PARROT = Peer(name="parrot", what="repeats", environment=Environment(packages=()))
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
    program = tmp_path / "worker.py"
    program.write_text(WORKER)
    monkeypatch.setattr(client, "WORKER", program)
    return client.PeerProcess(PARROT, tmp_path, Path(sys.executable), threads=1)


def test_a_peer_is_timed_from_outside(parrot: client.PeerProcess) -> None:
    with parrot:
        assert parrot.load_ms == 3.0
        took = time_request(parrot.synthesize, "hello there you", 1)
        assert took.audio_seconds == pytest.approx(1.3)
        assert len(took.gaps_ms) == 2
        assert took.total_ms - took.ttfa_ms >= 20


def test_concurrent_requests_do_not_mix(parrot: client.PeerProcess) -> None:
    with parrot:
        found = run_load(parrot.synthesize, ["a b c", "dddddddddd"], concurrency=3, requests=6)
    assert sorted(round(one.audio_seconds, 1) for one in found.times) == [0.3, 0.3, 0.3, 1.0, 1.0, 1.0]


def test_a_peer_that_dies_is_a_typed_error(parrot: client.PeerProcess) -> None:
    with pytest.raises(EngineFault, match="exit code 3"), parrot:
        time_request(parrot.synthesize, "die", 1)


def test_an_unknown_peer_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(ConfigError, match="hibari, kokoro, espeak-ng, piper"):
        install.peer_named("festival")


def test_an_environment_is_made_once_and_again_when_its_recipe_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    monkeypatch.setattr(
        environments.venv, "create", lambda home, **_: (made.append(home), home.mkdir(exist_ok=True))
    )
    monkeypatch.setattr(environments, "pip", lambda *_: None)
    for _ in range(2):
        install.install(PARROT, tmp_path / "home")
    assert len(made) == 1
    install.install(replace(PARROT, environment=Environment(packages=("seed==2",))), tmp_path / "home")
    assert len(made) == 2


def test_only_an_archive_with_a_missing_file_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "voices.tar"
    with tarfile.open(archive, "w") as made:
        for name in ("a.bin", "b.bin"):
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(name)
            made.addfile(member, io.BytesIO(name.encode()))
    monkeypatch.setattr(install, "make", lambda *_, **__: Path("python"))
    members = {"package/a.bin": "a.bin", "package/b.bin": "b.bin"}
    peer = replace(PARROT, downloads=(DownloadedArchive(url=archive.as_uri(), members=members),))
    home = tmp_path / "home"
    home.mkdir()
    fetched: list[str] = []
    for _ in range(2):
        install.install(peer, home, fetched.append)
    assert (home / "share" / "b.bin").read_bytes() == b"b.bin"
    assert len(fetched) == 1
    (home / "share" / "a.bin").unlink()
    install.install(peer, home, fetched.append)
    assert (home / "share" / "a.bin").read_bytes() == b"a.bin"
    assert len(fetched) == 2


def test_pip_that_fails_says_what_it_said_and_leaves_nothing_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(home: Path, **_: object) -> None:
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").write_text("#!/bin/sh\necho no such package >&2; exit 1\n")
        (home / "bin" / "python").chmod(0o755)

    monkeypatch.setattr(environments.venv, "create", broken)
    with pytest.raises(EngineFault, match="no such package"):
        install.install(replace(PARROT, environment=Environment(packages=("x",))), tmp_path / "home")
    assert not (tmp_path / "home" / ".installed").exists()


def test_upstream_has_sizes_and_is_not_one_of_all() -> None:
    assert install.peer_named("upstream") == (PEERS["upstream"], "nano")
    assert install.peer_named("upstream:multilingual") == (PEERS["upstream"], "multilingual")
    assert install.peer_named("hibari") == (PEERS["hibari"], "")
    assert parse_peers("all, upstream:turbo") == [
        *((PEERS[name], "") for name in ("hibari", "kokoro", "espeak-ng", "piper")),
        (PEERS["upstream"], "turbo"),
    ]
    for wrong in ("upstream:huge", "hibari:nano"):
        with pytest.raises(ConfigError, match="upstream:nano"):
            install.peer_named(wrong)


def test_sizes_of_upstream_are_those_we_know_and_have_the_files_our_loader_looks_for() -> None:
    assert PEERS["upstream"].sizes == tuple(families.FAMILIES)
    for size, family in families.FAMILIES.items():
        card = CARDS[size]
        assert family.t3_file in card.file("t3").names
        assert family.s3gen_file in card.file("s3gen").names
        assert family.voice_encoder_file in card.file("voice_encoder").names
        assert families.CONDS_FILE in card.file("conds").names
        others = {file.role: file for file in card.files if file.needed}
        for role in others.keys() - {"t3", "s3gen", "voice_encoder"}:
            assert set(others[role].names) <= measure_peers.EMPTY_TOKENIZERS.keys()


def test_both_sides_give_a_text_as_many_tokens() -> None:
    defaults = replace(MODEL_DEFAULTS["nano"], tokens_per_text_id=families.TOKENS_PER_TEXT_ID)
    for text_ids in (1, 13, 52, 270):
        assert families.tokens_for(text_ids) == token_budget(text_ids, defaults)


@pytest.mark.parametrize("size", ["nano", "english", "multilingual"])
def test_our_loader_opens_the_empty_tokenizers(size: str, tmp_path: Path) -> None:
    for name, text in measure_peers.EMPTY_TOKENIZERS.items():
        (tmp_path / name).write_text(text)
    assert open_frontend(size, tmp_path).tokenizer is not None


def test_we_are_measured_after_upstream_over_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "worker.py"
    program.write_text(WORKER.replace("import json", "import pathlib\nimport json", 1).replace(
        'print(json.dumps({"ready": 3.0}), flush=True)',
        'pathlib.Path(sys.argv[5], sys.argv[4]).touch()\nprint(json.dumps({"ready": 3.0}), flush=True)',
    ))  # fmt: skip
    monkeypatch.setattr(client, "WORKER", program)
    seen: list[list[str]] = []

    def opened(folder: Path, size: str) -> Any:
        seen.append([size, *(path.name for path in folder.iterdir())])
        return load_noise()

    monkeypatch.setattr(measure_peers, "same_weights", opened)
    result = new_result(model="wren")
    settings = measure_peers.PeerSettings(threads=1, upstream_python=Path(sys.executable), profiles=["exact"])
    plan = BenchPlan(lengths=["word"], levels=[], rounds=1)
    told: list[str] = []

    def bar(who: str) -> Any:
        told.append(who)
        return nullcontext(lambda: None)

    measure_peers.measure_peers(result, plan, [install.peer_named("upstream:turbo")], settings, bar)
    assert seen == [["turbo", "turbo"]]
    assert told == [row["who"] for row in result["lengths"]] == ["upstream turbo", "ours turbo exact"]
    assert [peer["who"] for peer in result["peers"]] == told


def test_what_was_measured_before_a_peer_failed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise EngineFault("no network")

    monkeypatch.setattr(measure_peers, "install", broken)
    words = ["bench", "-m", "noise", "--text", "word", "--concurrency", "", "--rounds", "1", "--no-cold"]
    done = CliRunner().invoke(app, [*words, "--peer", "hibari", "--results", str(tmp_path)])
    assert done.exit_code == EngineFault.exit_code
    (line,) = read_lines(tmp_path, "bench")
    assert line["complete"] is False
    assert [row["who"] for row in line["lengths"]] == ["balanced"]


def test_every_peer_has_a_worker_and_exact_versions() -> None:
    assert worker.PEERS.keys() == PEERS.keys()
    for peer in PEERS.values():
        packages = (*peer.environment.packages, *peer.environment.without_dependencies)
        assert all("==" in package for package in packages), peer.name

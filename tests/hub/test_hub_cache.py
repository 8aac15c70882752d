"""The hub's cache is found without its client, at the place where the client has it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import try_to_load_from_cache

from nightingale.errors import ModelMissing
from nightingale.hub import hub_cache
from nightingale.hub.cards import TURBO
from nightingale.install import install_command

ENVIRONMENTS: list[dict[str, str]] = [
    {},
    {"XDG_CACHE_HOME": "/data/cache"},
    {"HF_HOME": "~/hf"},
    {"HF_HOME": "$BASE/hf", "BASE": "/base", "XDG_CACHE_HOME": "/data/cache"},
    {"HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/hf"},
    {"HF_HUB_CACHE": "~/hub", "HUGGINGFACE_HUB_CACHE": "/old", "HF_HOME": "/hf"},
]


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=" ".join)
def test_the_cache_is_where_the_client_has_it(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    client = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert str(hub_cache.cache_root()) == client.stdout.strip()


@pytest.mark.parametrize("branch", [True, False])
@pytest.mark.parametrize("name", ["vocab.json", "absent.json"])
def test_a_cached_file_is_the_one_the_client_finds(
    branch: bool, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / f"models--{TURBO.repo.replace('/', '--')}"
    commit = "ab" * 20
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "vocab.json").write_text("{}")
    (repository / "refs").mkdir()
    if branch:
        (repository / "refs" / TURBO.revision).write_text(commit)
    theirs = try_to_load_from_cache(TURBO.repo, name, cache_dir=tmp_path, revision=TURBO.revision)
    found = hub_cache.in_cache(TURBO, name)
    assert (str(found) if found else None) == theirs
    assert (found is not None) == (branch and name == "vocab.json")


def test_a_download_without_the_client_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelMissing, match=re.escape(install_command("hub"))):
        hub_cache.download(TURBO, ("vocab.json",))

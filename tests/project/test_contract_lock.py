"""The versions of the clients that `make contract` tests are locked, and renewed on purpose."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "contract"


def lines(name: str) -> list[str]:
    text = (FOLDER / name).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("name", "clients"),
    [
        ("clients", {"elevenlabs", "openai", "pipecat-ai", "schemathesis", "wyoming"}),
        ("home_assistant", {"homeassistant", "wyoming"}),
    ],
)
def test_every_client_has_one_exact_version(name: str, clients: set[str]) -> None:
    locked = lines(f"{name}.lock")
    for line in locked:
        assert re.fullmatch(r"[a-z0-9-]+==[a-z0-9.!]+", line), f"not an exact version of a package: {line}"
    names = [line.partition("==")[0] for line in locked]
    assert len(names) == len(set(names))
    asked = {re.split(r"[\[><=]", line)[0] for line in lines(f"{name}.in")}
    assert clients <= asked <= set(names)


def test_make_contract_installs_the_locked_versions() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^(contract(?:-lock)?):.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE))
    for name in ("clients", "home_assistant"):
        assert f"-c $(CONTRACT)/{name}.lock -r $(CONTRACT)/{name}.in" in recipes["contract"]
        assert f"tools/lock_versions.py > $(CONTRACT)/{name}.lock" in recipes["contract-lock"]
    assert ".lock -r" not in recipes["contract-lock"], "the newest versions are installed there"

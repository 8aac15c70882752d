"""The versions of the clients that `make contract` tests are locked, and renewed on purpose."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "contract"


def lines(name: str) -> list[str]:
    text = (FOLDER / name).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_every_client_has_one_exact_version() -> None:
    locked = lines("requirements.lock")
    for line in locked:
        assert re.fullmatch(r"[a-z0-9-]+==[a-z0-9.!]+", line), f"not an exact version of a package: {line}"
    names = [line.partition("==")[0] for line in locked]
    assert len(names) == len(set(names))
    asked = {re.split(r"[\[><=]", line)[0] for line in lines("requirements.in")}
    assert {"elevenlabs", "openai", "schemathesis", "wyoming"} <= asked <= set(names)


def test_make_contract_installs_the_locked_versions() -> None:
    makefile = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^(contract(?:-lock)?):.*\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE))
    assert "-c $(CONTRACT).lock" in recipes["contract"]
    assert "-c $(CONTRACT).lock" not in recipes["contract-lock"], "the newest versions are installed there"
    assert "tools/lock_versions.py" in recipes["contract-lock"]

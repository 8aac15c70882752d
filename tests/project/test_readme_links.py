"""README as the page of a package index: its links lead to the repository, if its address is known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).parents[2]
ADDRESS = "https://example.org/owner/name"
VARIABLES = ("NIGHTINGALE_REPOSITORY", "GITHUB_SERVER_URL", "GITHUB_REPOSITORY")


def metadata(monkeypatch: pytest.MonkeyPatch, **variables: str) -> ProjectMetadata:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return ProjectMetadata(str(ROOT), PluginManager())


@pytest.mark.parametrize(
    "variables",
    [
        {"NIGHTINGALE_REPOSITORY": ADDRESS + "/"},
        {"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "owner/name"},
    ],
)
def test_every_link_leads_to_a_file_of_the_repository(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    core = metadata(monkeypatch, **variables).core
    targets = re.findall(r"\]\(([^)]+)\)", core.readme)
    assert len(targets) > 40
    for target in targets:
        assert target.startswith(("http", "#")), target
        if target.startswith(ADDRESS):
            kind, path = re.fullmatch(rf"{ADDRESS}/(raw|blob)/HEAD/([^#]+).*", target).groups()  # type: ignore[union-attr]
            assert (ROOT / path).exists(), path
            assert (kind == "raw") == (path.endswith((".svg", ".png"))), path
    assert core.urls["Repository"] == ADDRESS


def test_readme_is_taken_as_it_is_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    core = metadata(monkeypatch).core
    assert core.readme == (ROOT / "README.md").read_text(encoding="utf-8")
    assert not core.urls

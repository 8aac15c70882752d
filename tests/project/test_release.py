"""One version everywhere: both distributions, the changelog, the citation, and the security policy."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from project.source_tree import ROOT, SRC, load_tool

import nightingale
import nightingale_lab

VERSION = nightingale.__version__


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project(name: str) -> Any:
    return tomllib.loads(read(name))["project"]


def test_both_distributions_have_one_version_and_ask_for_each_other() -> None:
    assert nightingale_lab.__version__ == VERSION
    (lab,) = project("pyproject.toml")["optional-dependencies"]["lab"]
    needed = [Requirement(text) for text in project("src/nightingale_lab/pyproject.toml")["dependencies"]]
    (engine,) = [one for one in needed if one.name == "nightingale-tts"]
    newer = Version(VERSION)
    following = f"{newer.major}.{newer.minor + 1}"
    for requirement in (Requirement(lab), engine):
        assert VERSION in requirement.specifier
        assert following not in requirement.specifier


def test_both_distributions_have_the_same_licence() -> None:
    assert (SRC / "nightingale_lab" / "LICENSE").read_text(encoding="utf-8") == read("LICENSE")


def test_the_changelog_has_an_unreleased_section_and_one_for_this_version_with_its_date() -> None:
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", read("CHANGELOG.md"), re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == VERSION
    assert headings[1][1] == str(yaml.safe_load(read("CITATION.cff"))["date-released"])


def test_the_citation_file_is_complete() -> None:
    """The required keys of https://citation-file-format.github.io, version 1.2.0, and those we state."""
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["type"] == "software"
    assert citation["version"] == VERSION
    assert citation["license"] == project("pyproject.toml")["license"]
    assert citation["message"]
    assert citation["title"].startswith("Nightingale")
    assert all(author.keys() == {"name"} for author in citation["authors"])
    known = {"abstract", "authors", "cff-version", "date-released", "keywords", "license", "message", "title"}
    assert citation.keys() == known | {"type", "version"}


def test_the_security_policy_supports_this_version() -> None:
    assert f"| {VERSION.rpartition('.')[0]}.x | yes |" in read("SECURITY.md")


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, []),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, ["b"]),
        ({"a": 1}, {"b": 1}, ["a", "b"]),
    ],
)
def test_wheels_that_differ_are_found(
    one: dict[str, int], other: dict[str, int], expected: list[str]
) -> None:
    assert load_tool("release_check").differences(one, other) == expected


def test_the_supported_versions_of_python_are_read() -> None:
    assert load_tool("release_check").supported_versions() == ["3.11", "3.12", "3.13"]

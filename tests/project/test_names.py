"""Rules for names and prose: unique names, sentences as docstrings, the field's words (docs/glossary.md)."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

import pytest
from project.source_tree import ROOT, SRC, docstrings, identifiers, parse, python_files, relative, words_of

SAME_INTERFACE = {
    "__init__", "__main__",
    "config",  # the sizes of a network
    "backend", "capabilities", "decoder", "encoders", "opening", "renderer", "runner",  # of a backend
    "client", "install", "worker",  # of judges and peers, which run in environments of their own
}  # fmt: skip
"""Module names that several packages may use, because each implements the same interface."""

FRAGMENT = re.compile(r'^\s*[rR]?"""(Of|As|In|By|What|Whether|Who|Whose|How|Where|Which|Why|That|So|Or|Not) ')
"""A docstring whose first words make it a fragment and not a sentence."""

# Words of the project's former private vocabulary. docs/glossary.md has the terms that replaced them.
BANNED_ANYWHERE = {
    "studio", "studios", "draws", "guest", "guests", "crew", "crews", "sleeper", "sleepers", "overhear",
    "overheard", "overhears", "roster", "habit", "habits", "arena", "arenas", "workshop", "foregone",
    "summon", "summoned", "thought", "thoughts", "whoever", "nobody", "somebody", "everybody",
}  # fmt: skip
BANNED_IN_IDENTIFIERS = BANNED_ANYWHERE | {
    "company", "crowd", "door", "guess", "guesses", "guessed", "guesser", "halves", "heard", "hear", "house",
    "room", "wish", "wishes",
}  # fmt: skip
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "AGENTS.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def duplicates(names: dict[str, list[str]]) -> dict[str, list[str]]:
    return {name: sorted(places) for name, places in sorted(names.items()) if len(places) > 1}


def test_no_two_public_classes_have_the_same_name() -> None:
    places = defaultdict(list)
    for path in python_files():
        if path.is_relative_to(SRC):
            for node in parse(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].append(relative(path))
    assert not duplicates(places)


@pytest.mark.parametrize("distribution", ["nightingale", "nightingale_lab"])
def test_no_two_modules_of_a_distribution_have_the_same_name(distribution: str) -> None:
    """The lab names modules after what they train or compare: its train/flow.py trains the flow."""
    places = defaultdict(list)
    for path in python_files():
        if path.is_relative_to(SRC / distribution) and path.stem not in SAME_INTERFACE:
            places[path.stem].append(relative(path))
    assert not duplicates(places)


def test_no_docstring_begins_as_a_fragment() -> None:
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in python_files()
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if FRAGMENT.match(line)
    ]
    assert not found, "\n".join(found)


def test_first_paragraphs_of_docstrings_end_like_sentences() -> None:
    found = [
        f"{relative(path)}:{line}: {text.splitlines()[0]}"
        for path in python_files()
        for line, text in docstrings(parse(path))
        # An attribute may be documented by its shape alone: (rows, heads).
        if not re.search(r"[.!?:)`]\s*(\n\s*\n|$)", text.rstrip())
    ]
    assert not found, "\n".join(found)


def test_identifiers_avoid_the_former_private_vocabulary() -> None:
    found = [
        f"{relative(path)}:{line}: {name}"
        for path in python_files()
        for line, name in [(1, path.stem), *identifiers(parse(path))]
        if BANNED_IN_IDENTIFIERS.intersection(words_of(name))
    ]
    assert not found, "\n".join(found)


def test_docstrings_avoid_the_former_private_vocabulary() -> None:
    found = [
        f"{relative(path)}:{line}: {', '.join(sorted(banned))}"
        for path in python_files()
        for line, text in docstrings(parse(path))
        if (banned := BANNED_ANYWHERE.intersection(re.findall(r"[a-z]+", text.lower())))
    ]
    assert not found, "\n".join(found)


def test_pages_avoid_the_former_private_vocabulary() -> None:
    found = [
        f"{page.relative_to(ROOT)}:{number}: {', '.join(sorted(banned))}"
        for page in PAGES
        for number, line in enumerate(page.read_text().splitlines(), start=1)
        if (banned := BANNED_ANYWHERE.intersection(re.findall(r"[a-z]+", line.lower())))
    ]
    assert not found, "\n".join(found)


def test_a_fragment_is_found() -> None:
    assert FRAGMENT.match('    """Of weights, as this machine reads them."""')
    assert not FRAGMENT.match('    """Offer the next token of each row."""')


def test_a_banned_word_is_found_inside_an_identifier() -> None:
    tree = ast.parse("class HostDraws:\n    def refill(self, guest_list): self.crew = 1\n")
    found = [name for _, name in identifiers(tree) if BANNED_IN_IDENTIFIERS.intersection(words_of(name))]
    assert found == ["HostDraws", "guest_list", "crew"]

"""Books are divided into chapters and paragraphs: `nightingale book --list`, and the text that reaches the engine."""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from cpu_time import cpu_seconds
from sample_books import METADATA, write_epub
from typer.testing import CliRunner, Result

from nightingale.book.passages import passages_of
from nightingale.book.reading import read_book
from nightingale.cli.commands import app
from nightingale.errors import NightingaleError


def listed(name: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["book", name, "--list", "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def titles(name: str) -> list[str]:
    return [chapter["title"] for chapter in listed(name)["chapters"]]


def spoken(name: str) -> list[str]:
    """Return the text of each chapter as it is spoken."""
    book = read_book(Path(name))
    return [" ".join(one.text for one in passages_of(chapter)) for chapter in book.chapters]


def spoken_html(body: str) -> str:
    Path("page.html").write_text(f"<html><body>{body}</body></html>")
    return " ".join(spoken("page.html"))


@pytest.mark.parametrize("version", [2, 3])
def test_an_epub_has_the_chapters_of_its_table_of_contents(version: int) -> None:
    documents = {
        "front": "<p>For my mother.</p>",
        "one": "<h1>One</h1><p>It began.</p>",
        "one-b": "<p>It went on, in a second file.</p>",
        "two": "<h1 id='a'>Two</h1><p>Noon.</p><h2 id='b'>Three</h2><p>Night.</p>",
    }
    toc = [("Chapter 1", "one.xhtml"), ("Chapter <b>2</b>" if version == 3 else "Chapter 2", "two.xhtml#a")]
    write_epub(Path("sea.epub"), documents, toc=[*toc, ("Chapter 3", "two.xhtml#b")], version=version)
    assert titles("sea.epub") == ["The Sea & the Storm", "Chapter 1", "Chapter 2", "Chapter 3"]
    assert spoken("sea.epub") == [
        "For my mother.", "One. It began. It went on, in a second file.", "Two. Noon.", "Three. Night.",
    ]  # fmt: skip
    assert (listed("sea.epub")["title"], listed("sea.epub")["author"]) == (
        "The Sea & the Storm",
        "Ann Author",
    )


def test_the_spine_and_not_the_archive_gives_the_order() -> None:
    documents = {"b": "<h1>Last</h1><p>End.</p>", "a": "<h1>First</h1><p>Start.</p>"}
    write_epub(Path("sea.epub"), documents, spine=["a", "b"], toc=[])
    assert titles("sea.epub") == ["First", "Last"]


def test_documents_outside_the_reading_order_and_the_navigation_are_left_out() -> None:
    path = write_epub(Path("sea.epub"), {"one": "<h1>One</h1><p>Text.</p>", "nav2": "<p>Hidden.</p>"})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    opf = members["OPS/book.opf"].decode()
    opf = opf.replace('<itemref idref="nav2"/>', '<itemref idref="nav2" linear="no"/><itemref idref="nav"/>')
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**members, "OPS/book.opf": opf.encode()}.items():
            archive.writestr(name, data)
    assert spoken("sea.epub") == ["One. Text."]


NOTES = [
    (
        '<p>Here<a epub:type="noteref" href="#n1">1</a>.</p><aside epub:type="footnote" id="n1">Gone.</aside>',
        "Here.",
    ),
    ('<p>Here<sup><a href="#n1">1</a></sup>.</p><p id="n1">1. Gone.</p>', "Here."),
    ('<p>Here.<a href="#n1">[12]</a> Then.</p><p><a id="n1" href="#r1">[12]</a> Gone.</p>', "Here. Then."),
    ('<p>Here<a class="fnref" href="#n1">1</a>.</p><div class="footnotes"><p>Gone.</p></div>', "Here."),
    (
        '<p>Here<a role="doc-noteref" href="#n1">*</a>.</p><section role="doc-endnotes">Gone.</section>',
        "Here.",
    ),
    ("<p>A word<sup>3</sup> stays.</p>", "A word stays."),
    ("<p><sup>12</sup>And it came to pass. <sup>13</sup>So it was.</p>", "And it came to pass. So it was."),
    ("<p>The end.<sup>4</sup></p>", "The end."),
    ("<p>Each 10<sup>3</sup> and 5 m<sup>2</sup>, the 4<sup>th</sup>.</p>", "Each 10³ and 5 m², the 4th."),
    ('<p>See page <a href="#p12">12</a> there.</p>', "See page 12 there."),
    ('<p>One <span epub:type="pagebreak" id="p2">2</span>page.</p>', "One page."),
    ('<p>One <span class="pagenum">[Pg 12]</span>page.</p>', "One page."),
    ('<p>One <span epub:type="pagebreak" title="3"/>page.</p>', "One page."),
    ('<div class="pagenumber-chapter"><p>This stays.</p></div>', "This stays."),
    ("<p>Bell\x07s\x00.</p>", "Bells."),
    ("<p>So&shy;ft &nbsp; spa&#8203;ces &amp; signs.</p>", "Soft spaces & signs."),
    ("<nav>Gone.</nav><script>gone()</script><style>p {}</style><p hidden>Gone.</p><p>Here.</p>", "Here."),
    ("<p>One.<p>Two, not closed.<ul><li>Three<li>Four</ul>", "One. Two, not closed. Three Four"),
    ("<p>Broken<sup>1<p>Goes on.</p><div>And on.", "Broken1 Goes on. And on."),
    ("<h1>Not closed<p>It goes on", "Not closed. It goes on"),
    ("<h1><div>Chapter 1</div><div>Rain</div></h1><p>It goes on", "Chapter 1. Rain. It goes on"),
    ("<table><tr><td>Salt</td><td>two</td></tr></table>", "Salt, two"),
    ("<h1>Chapter 1<br/>The Storm</h1><p>Rain.</p>", "Chapter 1. The Storm. Rain."),
    ('<h1><img src="x.png" alt="Chapter One"/></h1><p>Rain.</p>', "Chapter One. Rain."),
    ("<p>A <ruby>漢<rt>kan</rt></ruby> b.</p>", "A 漢 b."),
    ("<p>One.</p><p>* * *</p><hr/><p>Two.</p>", "One. Two."),
]


def test_notes_page_numbers_and_broken_markup() -> None:
    assert [spoken_html(body) for body, _ in NOTES] == [text for _, text in NOTES]


def test_notes_in_another_document_are_not_read() -> None:
    documents = {
        "one": '<h1>One</h1><p>Here<a class="noteref" href="notes.xhtml#n1">1</a>.</p>',
        "notes": '<h1>Notes</h1><p id="n1">Gone.</p><p id="other">Stays.</p>',
    }
    write_epub(Path("sea.epub"), documents)
    assert spoken("sea.epub") == ["One. Here.", "Notes. Stays."]


def test_a_table_of_contents_with_one_entry_is_not_trusted() -> None:
    documents = {name: f"<h2>{name}</h2><p>Text.</p>" for name in ("Ay", "Bee", "Cee")}
    write_epub(Path("sea.epub"), documents, toc=[("Everything", "Ay.xhtml")])
    assert titles("sea.epub") == ["Ay", "Bee", "Cee"]


def test_parts_and_chapters_at_the_same_place_are_one_chapter() -> None:
    picture = "<img src='x.png'/>"
    documents = {"cover": picture, "one": "<h1>One</h1><p>Text.</p>", "two": "<h1>IV</h1>", "pic": picture}
    toc = [("Cover", "cover.xhtml"), ("Part I", "one.xhtml"), ("Chapter 1", "one.xhtml")]
    write_epub(Path("sea.epub"), documents, toc=[*toc, ("Alone", "two.xhtml"), ("Plate", "pic.xhtml")])
    # A heading alone is a chapter, and a picture alone is not.
    assert titles("sea.epub") == ["Part I: Chapter 1", "Alone"]
    assert spoken("sea.epub")[1] == "4."


TEXTS = {
    "storm.txt": (
        "The Storm\n\nCHAPTER I.\nThe Sea\n\nIt was\ncalm.[3]\n\n12\n\n* * *\n\n_Night_ fell.\n\nChapter Two\n\nRain.",
        ["storm", "CHAPTER I. The Sea", "Chapter Two"],
        ["The Storm", "CHAPTER I. The Sea. It was calm. Night fell.", "Chapter Two. Rain."],
    ),
    "listed.txt": (
        "Contents\n\nChapter 1\n\nChapter 2\n\nChapter 1\n\nOne.\n\nChapter 2\n\nTwo.\n\nThe End",
        ["listed", "Chapter 1", "Chapter 2", "The End"],
        ["Contents", "Chapter 1. One.", "Chapter 2. Two.", "The End."],
    ),
    "lines.txt": ("First line.\nSecond line.\n", ["lines"], ["First line. Second line."]),
    "gutenberg.txt": (
        "Title: The Lamp\nAuthor: A. Keeper\n\n*** START OF THE PROJECT GUTENBERG EBOOK ***\n\nLight.\n\n"
        "*** END OF THE PROJECT GUTENBERG EBOOK ***\n\nLicence.",
        ["The Lamp"],
        ["Light."],
    ),
    "windows.txt": ("“Caf\u00e9,” he said.".encode("cp1252"), ["windows"], ["“Café,” he said."]),
    "wide.txt": ("\ufeffHello.".encode("utf-16-le"), ["wide"], ["Hello."]),
    "guide.md": (
        "---\ntitle: Guide\nauthor: Bo\n---\nHello.\n\n# One #\nText with *emphasis*, `code`, a [link](http://x.y)"
        " and a note[^1].\n\n```sh\nrm -rf x\n```\n\n> Quoted\n> text.\n\n- First\n- Second\n\nTwo\n===\n\n---\n"
        "![A picture](x.png)\n\n**Bold** end.\n\n[^1]: Gone.\n",
        ["Guide", "One", "Two"],
        [
            "Hello.",
            "One. Text with emphasis, code, a link and a note. Quoted text. First Second",
            "Two. Bold end.",
        ],
    ),
    "parts.md": (
        "# Story\n\n## Part\n\n### A\n\nOne.\n\n### B\n\nTwo.\n",
        ["Story", "Part", "A", "B"],
        ["Story.", "Part.", "A. One.", "B. Two."],
    ),
    "page.html": (
        "<html><head><title>Page</title></head><body><h1>Page</h1><p>Hi.</p><h2>A</h2><p>1.</p><h2>B</h2><p>2.</p>",
        ["Page", "A", "B"],
        ["Page. Hi.", "A. 1.", "B. 2."],
    ),
}


def test_text_markdown_and_html_have_chapters() -> None:
    for name, (contents, _, _) in TEXTS.items():
        Path(name).write_bytes(contents.encode() if isinstance(contents, str) else contents)
    assert {name: titles(name) for name in TEXTS} == {name: known for name, (_, known, _) in TEXTS.items()}
    assert {name: spoken(name) for name in TEXTS} == {name: known for name, (_, _, known) in TEXTS.items()}
    assert listed("gutenberg.txt")["author"] == "A. Keeper"
    assert (listed("guide.md")["title"], listed("guide.md")["author"]) == ("Guide", "Bo")


def refused(name: str) -> str:
    result: Result = CliRunner().invoke(app, ["book", name, "--list"])
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    return result.stderr


def test_books_that_cannot_be_read_are_refused() -> None:
    text = {"one": "<h1>One</h1><p>Text.</p>"}
    locked = (
        b'<encryption><EncryptedData><EncryptionMethod Algorithm="urn:aes256"/></EncryptedData></encryption>'
    )
    Path("garbage.epub").write_bytes(b"not a zip")
    write_epub(Path("cut.epub"), text)
    Path("cut.epub").write_bytes(Path("cut.epub").read_bytes()[:-200])
    write_epub(Path("opf.epub"), text, without=["OPS/book.opf"])
    write_epub(Path("spine.epub"), text, spine=[], toc=[])
    write_epub(Path("empty.epub"), {"one": "<img src='scan.png'/>"})
    write_epub(Path("locked.epub"), text, more={"META-INF/encryption.xml": locked})
    write_epub(Path("bomb.epub"), {"one": "<p>" + " " * (17 * 2**20) + "x</p>"})
    Path("none.txt").write_text(" \n* * *\n")
    Path("book.pdf").write_bytes(b"%PDF")
    said = {
        "garbage.epub": "not a zip archive",
        "cut.epub": "not a zip archive",
        "opf.epub": "no package document",
        "spine.epub": "neither a spine nor a table of contents",
        "empty.epub": "the book has no text",
        "locked.epub": "protected against copying",
        "bomb.epub": "the book has no text",
        "none.txt": "the book has no text",
        "book.pdf": "not a kind of book",
        "missing.epub": "no such file",
    }
    for name, message in said.items():
        told = refused(name)
        assert message in told, told
        assert told.count("fix:") == 1, told


def test_damage_that_can_be_repaired_is_told() -> None:
    text = {"one": "<h1>One</h1><p>Text.</p>", "two": "<h1>Two</h1><p>More.</p>"}
    write_epub(Path("gap.epub"), text, without=["OPS/two.xhtml"])
    write_epub(Path("order.epub"), text, spine=[])
    write_epub(Path("container.epub"), text, without=["META-INF/container.xml"])
    said = {
        name: CliRunner().invoke(app, ["book", f"{name}.epub", "--list"])
        for name in ("gap", "order", "container")
    }
    assert "OPS/two.xhtml is missing" in said["gap"].stderr
    assert "no spine" in said["order"].stderr
    assert [len(result.stdout.splitlines()) for result in said.values()] == [1, 2, 2]


def test_damaged_books_are_read_or_refused_and_never_crash() -> None:
    random = Random(1)
    document = "<h1 id='a'>One</h1><p>Text<sup><a href='#n'>1</a></sup> here.</p><p id='n'>Note.</p>"
    write_epub(Path("whole.epub"), {"one": document, "two": "<h1>Two</h1><p>More.</p>"})
    whole = Path("whole.epub").read_bytes()
    with zipfile.ZipFile("whole.epub") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    marks = [b"<", b">", b"<!", b"<![", b"<!--", b"]]>", b"&#xD800;", b"</", b"<a ", b'"', b"<?", b"\0"]
    outcomes = Counter[str]()
    for number in range(300):
        if number % 2:  # damage to the archive
            data = bytearray(whole)
            for _ in range(random.randint(1, 10)):
                data[random.randrange(len(data))] = random.randrange(256)
            Path("damaged.epub").write_bytes(data)
        else:  # damage to the documents in it
            with zipfile.ZipFile("damaged.epub", "w") as archive:
                for name, contents in members.items():
                    at = random.randrange(len(contents))
                    cut = contents[at + random.randrange(20) :]
                    archive.writestr(name, contents[:at] + random.choice(marks) + cut)
        try:
            outcomes["read"] += len(spoken("damaged.epub")) > 0
        except NightingaleError:
            outcomes["refused"] += 1
    assert outcomes.total() == 300
    assert min(outcomes.values()) > 20


def test_a_document_that_opens_tags_without_end_is_read() -> None:
    body = "<p>First.</p>" + "<b>" * 100_000 + "<p>Last."
    assert cpu_seconds(lambda: spoken_html(body)) < 20
    assert spoken_html(body) == "First. Last."


def test_a_book_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_TEXT_BYTES", "MAX_IMAGE_BYTES"):
        monkeypatch.setattr(f"nightingale.book.epub_archive.{name}", 2**20)
    page = "<p>" + " " * 2**19 + "x</p>"
    write_epub(Path("big.epub"), {f"c{number}": page for number in range(6)})
    assert Path("big.epub").stat().st_size < 2**15
    assert "bytes of text" in refused("big.epub")


def test_entries_that_point_nowhere_are_found_by_their_titles() -> None:
    body = "<h1>Book</h1><p>Start.</p><h2>One</h2><p>Text.</p><h2>Two</h2><p>More.</p>"
    toc = [
        ("Book", "all.xhtml"),
        ("ONE", "all.xhtml#gone1"),
        ("Two", "all.xhtml#gone2"),
        ("?", "all.xhtml#gone3"),
    ]
    write_epub(Path("sea.epub"), {"all": body}, toc=[*toc, ("Lost", "lost.xhtml")])
    assert titles("sea.epub") == ["Book", "ONE", "Two"]


def test_entities_of_a_document_are_not_expanded() -> None:
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>'
    metadata = f"{METADATA}<dc:publisher>&b;</dc:publisher>"
    write_epub(Path("sea.epub"), {"one": "<h1>One</h1><p>&b; text.</p>"}, metadata=metadata)
    with zipfile.ZipFile("sea.epub") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for name in ("OPS/book.opf", "OPS/one.xhtml"):
        members[name] = members[name].replace(b"?>", b"?>" + laughs.encode(), 1)
    with zipfile.ZipFile("sea.epub", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    assert "haha" not in " ".join(spoken("sea.epub"))
    assert "haha" not in read_book(Path("sea.epub")).publisher


def test_a_book_may_have_more_than_255_chapters() -> None:
    write_epub(Path("sea.epub"), {f"c{number}": f"<h1>{number}</h1>" for number in range(300)})
    assert len(titles("sea.epub")) == 300

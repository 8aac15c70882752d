"""The package document of an EPUB and its table of contents: OPF, EPUB 3 navigation and EPUB 2 NCX."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final, NamedTuple

from nightingale.book.document import plain
from nightingale.book.epub_archive import resolve

MAX_TOC_DEPTH: Final = 2
"""Parts and chapters; the sections of a chapter do not become chapters."""


class Tag(NamedTuple):
    """A start tag, or an end tag with a slash before its name, and the text up to the next tag."""

    name: str
    attributes: dict[str, str]
    text: str


class TocEntry(NamedTuple):
    """One line of the table of contents."""

    title: str
    document: str
    fragment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestItem:
    """A file of the book."""

    path: str
    media_type: str
    properties: frozenset[str]


@dataclass(slots=True, kw_only=True)
class Package:
    """The contents of the OPF file. Lists are in its order."""

    metadata: dict[str, list[str]] = field(default_factory=dict)
    """Names of Dublin Core, such as title and creator."""
    items: dict[str, ManifestItem] = field(default_factory=dict)
    """Files by their ids."""
    spine: list[str] = field(default_factory=list)
    """Ids of the documents in reading order, without those that the reading order leaves out."""
    ncx: str = ""
    """The id of the EPUB 2 table of contents."""
    cover: str = ""
    """The id of the cover image, as EPUB 2 names it."""

    def first(self, name: str) -> str:
        """Return the first value of a kind of metadata; empty if there is none."""
        return next(iter(self.metadata.get(name, [])), "")

    def cover_path(self) -> str | None:
        """Return the member that is the cover image."""
        images = {key: item for key, item in self.items.items() if item.media_type.startswith("image/")}
        marked = [item for item in images.values() if "cover-image" in item.properties]
        named = [item for key, item in images.items() if self.cover in (key, item.path) and self.cover]
        likely = [item for key, item in images.items() if "cover" in f"{key} {item.path}".lower()]
        return next((item.path for item in (*marked, *named, *likely)), None)


class _TagReader(HTMLParser):
    """A list of tags with the text after each. It expands no entities of a document."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[Tag] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(Tag(tag.rpartition(":")[2], {name: value or "" for name, value in attrs}, ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(Tag(f"/{tag.rpartition(':')[2]}", {}, ""))

    def handle_data(self, data: str) -> None:
        if self.tags:
            last = self.tags[-1]
            self.tags[-1] = last._replace(text=last.text + data)


def read_tags(text: str) -> list[Tag]:
    """Return the tags of an XML or HTML document, as far as it can be read."""
    reader = _TagReader()
    try:
        reader.feed(text)
        reader.close()
    except AssertionError:  # how the parser reports a declaration that it cannot read
        pass
    return reader.tags


def read_package(text: str, path: str) -> Package:
    """Return the contents of an OPF file whose path in the archive is `path`."""
    package = Package()
    section = ""
    for tag in read_tags(text):
        values = tag.attributes
        if tag.name in ("metadata", "manifest", "spine", "guide"):
            section = tag.name
        if section == "metadata":
            if tag.name == "meta" and values.get("name", "").lower() == "cover":
                package.cover = values.get("content", "")
            elif tag.name not in ("metadata", "meta") and not tag.name.startswith("/") and tag.text.strip():
                package.metadata.setdefault(tag.name, []).append(plain(tag.text))
        elif tag.name == "item" and section == "manifest":
            package.items[values.get("id", "")] = ManifestItem(
                path=resolve(path, values.get("href", ""))[0],
                media_type=values.get("media-type", "").lower(),
                properties=frozenset(values.get("properties", "").split()),
            )
        elif tag.name == "spine":
            package.ncx = values.get("toc", "")
        elif tag.name == "itemref" and values.get("linear", "yes").lower() != "no":
            package.spine.append(values.get("idref", ""))
    return package


def read_ncx(text: str, path: str) -> list[TocEntry]:
    """Return the entries of an EPUB 2 table of contents."""
    entries: list[TocEntry] = []
    depth, title = 0, ""
    for tag in read_tags(text):
        if tag.name == "navpoint":
            depth, title = depth + 1, ""
        elif tag.name == "/navpoint":
            depth -= 1
        elif tag.name == "text" and not title:
            title = " ".join(tag.text.split())
        elif tag.name == "content" and 0 < depth <= MAX_TOC_DEPTH:
            entries.append(TocEntry(title, *resolve(path, tag.attributes.get("src", ""))))
    return entries


def read_nav(text: str, path: str) -> list[TocEntry]:
    """Return the entries of an EPUB 3 table of contents."""
    tags = read_tags(text)
    navs = [tag for tag in tags if tag.name == "nav"]
    chosen = next((tag for tag in navs if "toc" in tag.attributes.get("epub:type", "").split()), None)
    chosen = chosen or next(iter(navs), None)
    entries: list[TocEntry] = []
    depth = 0
    inside = iter(_inside(tags, chosen))
    for tag in inside:
        depth += {"ol": 1, "/ol": -1}.get(tag.name, 0)
        if tag.name == "a" and 0 < depth <= MAX_TOC_DEPTH:
            title = tag.text
            for part in inside:
                if part.name == "/a":
                    break
                title += part.text
            target = resolve(path, tag.attributes.get("href", ""))
            entries.append(TocEntry(" ".join(title.split()), *target))
    return entries


def _inside(tags: list[Tag], element: Tag | None) -> Iterator[Tag]:
    """Yield the tags inside an element that cannot contain another of its kind."""
    found = False
    for tag in tags:
        found = found or tag is element
        if found and element is not None and tag.name == f"/{element.name}":
            return
        if found:
            yield tag

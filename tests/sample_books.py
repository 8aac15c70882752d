"""Small books for tests: an EPUB from documents, and a cover."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OPS/book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>"""
METADATA = (
    "<dc:title>The Sea &amp; the Storm</dc:title><dc:creator>Ann Author</dc:creator>"
    "<dc:language>en</dc:language>"
)
Toc = Sequence[tuple[str, str]]
"""(title, target), in order."""


def page(body: str) -> str:
    return (
        '<?xml version="1.0" encoding="utf-8"?><!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" '
        f'xmlns:epub="http://www.idpf.org/2007/ops"><head><title>x</title></head><body>{body}</body></html>'
    )


def nav_page(toc: Toc) -> str:
    items = "".join(f'<li><a href="{target}">{title}</a></li>' for title, target in toc)
    return page(
        f'<nav epub:type="toc"><h1>Contents</h1><ol>{items}</ol></nav><nav epub:type="page-list"><ol/></nav>'
    )


def ncx(toc: Toc) -> str:
    points = "".join(
        f"<navPoint><navLabel><text>{title}</text></navLabel><content src='{target}'/></navPoint>"
        for title, target in toc
    )
    head = "<docTitle><text>The Sea</text></docTitle>"
    return f'<?xml version="1.0"?><ncx xmlns="http://www.daisy.org/z3986/2005/ncx/">{head}<navMap>{points}</navMap></ncx>'


def write_epub(
    path: Path,
    documents: Mapping[str, str],
    *,
    toc: Toc | None = None,
    version: int = 3,
    spine: Sequence[str] | None = None,
    metadata: str = METADATA,
    cover: bytes | None = None,
    more: Mapping[str, bytes] | None = None,
    without: Sequence[str] = (),
) -> Path:
    """Write an EPUB.

    Args:
        path: The file.
        documents: Names of documents and the contents of their bodies.
        toc: The table of contents; by default each document, named after itself. Empty for none.
        version: 3 for a navigation document, 2 for an NCX.
        spine: Names of the documents in reading order; by default all.
        metadata: The elements of Dublin Core.
        cover: A PNG image.
        more: Other members of the archive.
        without: Members that are listed, but missing.
    """
    toc = [(name, f"{name}.xhtml") for name in documents] if toc is None else toc
    items = [
        f'<item id="{name}" href="{name}.xhtml" media-type="application/xhtml+xml"/>' for name in documents
    ]
    members = {"META-INF/container.xml": CONTAINER.encode()}
    members |= {f"OPS/{name}.xhtml": page(body).encode() for name, body in documents.items()}
    if toc and version == 3:
        items.append('<item id="nav" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>')
        members["OPS/nav.xhtml"] = nav_page(toc).encode()
    elif toc:
        items.append('<item id="ncx" href="toc.ncx" media-type="application/x-dtbncx+xml"/>')
        members["OPS/toc.ncx"] = ncx(toc).encode()
    if cover is not None:
        items.append('<item id="pic" href="front.png" media-type="image/png" properties="cover-image"/>')
        members["OPS/front.png"] = cover
    order = list(documents) if spine is None else spine
    refs = "".join(f'<itemref idref="{name}"/>' for name in order)
    members["OPS/book.opf"] = (
        f'<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="{version}.0">'
        f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">{metadata}</metadata>'
        f'<manifest>{"".join(items)}</manifest><spine toc="ncx">{refs}</spine></package>'
    ).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip")
        for name, data in {**members, **(more or {})}.items():
            if name not in without:
                archive.writestr(name, data)
    return path


def png(size: int = 8) -> bytes:
    """Return a square image."""
    import av
    import numpy as np

    buffer = io.BytesIO()
    with av.open(buffer, "w", format="image2pipe") as container:
        stream = container.add_stream("png", rate=1)
        stream.width = stream.height = size
        stream.pix_fmt = "rgb24"
        frame = av.VideoFrame.from_ndarray(np.full((size, size, 3), 200, np.uint8), format="rgb24")
        for packet in (*stream.encode(frame), *stream.encode()):
            container.mux(packet)
    return buffer.getvalue()


def long_text(chars: int) -> str:
    """Return paragraphs of sentences that all differ."""
    line = "the old keeper wrote into his book that the sea was calm and the lamp was lit"
    words = line.split()
    sentences = []
    length = at = 0
    while length < chars:
        shift = at % len(words)
        body = " ".join(words[shift:] + words[:shift] + words[: at % 11])
        sentences.append(f"On day {at} {body}.")
        length += len(sentences[-1]) + 1
        at += 1
    return "\n".join(f"<p>{' '.join(sentences[i : i + 5])}</p>" for i in range(0, len(sentences), 5))

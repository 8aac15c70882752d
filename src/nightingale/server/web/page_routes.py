"""Routes that the page needs besides the public API: the text of a file, and audio in another format.

They are not in /openapi.json. Both take an upload, so they wait for their turn as the uploads of clips do.
"""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import numpy as np
from fastapi import APIRouter, File, Request, UploadFile
from pydantic import BaseModel
from starlette.responses import Response

from nightingale.audio.encoders.recording import FILE_FORMATS, check_output, save
from nightingale.book.reading import read_book_bytes
from nightingale.clocks import CLOCKS
from nightingale.errors import BadReference, CapacityError, ConfigError, OutputError
from nightingale.server.service.speech_service import Service
from nightingale.types import AudioChunk

router = APIRouter(include_in_schema=False)
log = logging.getLogger("nightingale.server")

MAX_TEXT_BYTES: Final = 8 << 20
"""All text of a file, with its markup: parsing takes time that other requests need. The Bible has 4 MB."""
RAW: Final = (".pcm", ".raw")
"""Formats without a header, which players cannot open."""


class ChapterText(BaseModel):
    title: str
    text: str
    """Its paragraphs, with an empty line between them."""


class BookText(BaseModel):
    """The text of a file."""

    title: str
    author: str
    chapters: list[ChapterText]


@router.post("/v1/books/text")
async def read_text(
    service: Service, file: Annotated[UploadFile, File(description="EPUB, text, Markdown or HTML.")]
) -> BookText:
    """Return the text of a file by chapters."""
    return await service.process_upload(_read, await file.read(), file.filename or "")


@router.get("/v1/audio/encode")
async def list_formats() -> list[str]:
    """List the formats in which audio can be encoded."""
    return [suffix[1:] for suffix in FILE_FORMATS if suffix not in RAW and _can_write(suffix)]


@router.post("/v1/audio/encode", response_class=Response)
async def encode(request: Request, service: Service, response_format: str) -> Response:
    """Return the body, 16-bit samples at 24 kHz, as a file of one of these formats."""
    return Response(await service.process_upload(_encode, await request.body(), response_format))


def _read(data: bytes, name: str) -> BookText:
    book = read_book_bytes(data, name, max_text_bytes=MAX_TEXT_BYTES)
    chapters = [
        ChapterText(title=chapter.title, text="\n\n".join(one.text for one in chapter.paragraphs if one.text))
        for chapter in book.chapters
    ]
    return BookText(title=book.title, author=book.author, chapters=chapters)


def _encode(pcm: bytes, name: str) -> bytes:
    if not name.isalnum() or not _can_write(f".{name}"):
        raise ConfigError("no such format", got=repr(name[:20]), param="response_format")
    if not pcm or len(pcm) % 2:
        raise BadReference("these are no 16-bit samples", got=f"{len(pcm)} bytes")
    samples = np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32767)
    try:
        with TemporaryDirectory() as folder:  # encoders return to the header, to write the length
            path = Path(folder) / f"speech.{name}"
            save(path, AudioChunk(samples=samples, sample_rate_hz=CLOCKS.sample_rate_hz))
            return path.read_bytes()
    except (OutputError, OSError) as error:
        log.error("audio cannot be encoded", extra={"error": str(error)})
        raise CapacityError(
            "the server cannot encode audio now", fix="Ask its operator: the server's log has the cause."
        ) from error


def _can_write(suffix: str) -> bool:
    try:
        check_output(Path(f"speech{suffix}"))
    except ConfigError:
        return False
    return True

"""Mutation of bytes for fuzzing, and a corpus that grows with the lines of code that its inputs reach."""

from __future__ import annotations

import io
import random
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

MAX_BYTES = 200_000
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
"""Numbers at which programs make mistakes."""
TOKENS = (
    b"null", b"NaN", b"1e999", b"-1", b"[[[[[[[[", b'{"', b"\x00", b"\xff\xff\xff\xff", b"<!ENTITY a 'b'>",
    b"<![CDATA[",
    b"&#x110000;", b"&lt;", b"../../", b"%2e%2e/", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"</speak>", b"<speak>",
    b"[pause:99999s]", b"[pause:", b"9" * 400, b"\n\n", b"\r", b"a" * 3000, b"\xe2\x80\xae", b"\xcc\x81" * 50,
    b"RIFF", b"data", b"fmt ", b"fLaC", b"OggS", b"PK\x03\x04", b"PK\x01\x02", b"true", b'"', b"'", b"[words]", b"=",
)  # fmt: skip


def mutate(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Return the data with a few random changes."""
    made = bytearray(data)
    for _ in range(1 << rng.randrange(5)):
        at = rng.randrange(len(made) + 1)
        size = 1 << rng.randrange(8)
        match rng.randrange(8):
            case 0 if made:
                made[at - 1] ^= 1 << rng.randrange(8)
            case 1 if made:
                made[at - 1] = rng.randrange(256)
            case 2:
                del made[at : at + size]
            case 3:
                made[at:at] = rng.choice(TOKENS)
            case 4:
                made[at:at] = made[at : at + size] * rng.randrange(1, 4)
            case 5:
                form = rng.choice(("<H", ">H", "<I", ">I", "<Q", ">Q"))
                number = rng.choice(NUMBERS) % (1 << 8 * struct.calcsize(form))
                made[at : at + struct.calcsize(form)] = struct.pack(form, number)
            case 6 if others:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                made[at : at + size] = other[start : start + size]
            case 7 if rng.random() < 0.2:
                del made[at:]
    return bytes(made[:MAX_BYTES])


def mutate_zip(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Change one member of a zip archive and write the archive anew; now and then, change the archive itself."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:  # an archive that is damaged already
        members = []
    if not members or rng.random() < 0.2:
        return mutate(rng, data, others)
    at = rng.randrange(len(members))
    name, contents = members[at]
    if rng.random() < 0.05:
        members[at] = (rng.choice(("", "a/../b", "/x", name.upper(), "\x00")), contents)
    else:
        members[at] = (name, mutate(rng, contents, [one for _, one in members]))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for member, contents in members:
            archive.writestr(zipfile.ZipInfo(member or "x"), contents)
    return made.getvalue()


def mutate_safetensors(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """Change the header of a safetensors file and correct its length; now and then, change any byte."""
    if len(data) < 8 or rng.random() < 0.3:
        return mutate(rng, data, others)
    size = int.from_bytes(data[:8], "little")
    header = mutate(rng, data[8 : 8 + size], [data[8 : 8 + size]])
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


Mutator = Callable[[random.Random, bytes, list[bytes]], bytes]


@dataclass
class LineTracer:
    """Notes the lines of `nightingale` that run, in this thread and in those that start while it is installed."""

    lines: set[tuple[str, int]] = field(default_factory=set)

    def trace_calls(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        return self._trace_lines if "/nightingale/" in frame.f_code.co_filename else None

    def _trace_lines(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename, frame.f_lineno))
        return self._trace_lines


@dataclass
class FuzzCorpus:
    """Inputs that reached lines of `nightingale` that no input before them had reached."""

    inputs: list[bytes]
    tracer: LineTracer

    def run(self, act: Callable[[bytes], None], data: bytes) -> None:
        """Call `act`; keep the input if it reached new lines."""
        before = len(self.tracer.lines)
        sys.settrace(self.tracer.trace_calls)
        try:
            act(data)
        finally:
            sys.settrace(None)
            if len(self.tracer.lines) > before:
                self.inputs.append(data)

"""Inputs that the fuzzer found, or that it would need too long to find: each must be refused, with little memory."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from nightingale.audio.read import read_audio
from nightingale.book.reading import read_book
from nightingale.errors import NightingaleError
from nightingale.models.checkpoint import read_tensors
from nightingale.text.ssml import parse_ssml
from nightingale.voices.voice import Voice

MAX_BYTES = 50e6
"""Memory that a refusal may take."""


def torch_file(description: bytes, storage: bytes = bytes(4)) -> bytes:
    """Return a file as `torch.save` writes it, with this pickle and one storage."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", description)
        archive.writestr("x/data/0", storage)
    return file.getvalue()


def described(shape: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """Return the pickle of a tensor, by hand: the classes are torch's, and torch would refuse to write it."""
    ints = b"".join(b"J" + struct.pack("<i", one) for one in shape) + b"t"
    steps = b"".join(b"J" + struct.pack("<i", one) for one in stride) + b"t"
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQ"
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00(" + ints + b"(" + steps + b"tR."
    )


def wav(data_bytes: int, channels: int = 1, rate_hz: int = 24_000) -> bytes:
    """Return a WAV whose header claims so many bytes, and that has a hundred."""
    form = struct.pack("<HHIIHH", 1, channels, rate_hz, 48_000, 2 * channels % 65_536, 16)
    head = (
        b"RIFF"
        + struct.pack("<I", min(data_bytes + 36, 2**32 - 1))
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
    )
    return head + b"data" + struct.pack("<I", data_bytes) + bytes(100)


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text)) + text + data


def epub(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, contents in members.items():
            archive.writestr(name.replace("__", "/").replace("_xml", ".xml"), contents)
    return file.getvalue()


ENTITIES = (
    b"<!DOCTYPE x ["
    + b"".join(b'<!ENTITY e%d "%s">' % (n + 1, b"&e%d;" % n * 10) for n in range(9))
    + b"]><container>&e9;</container>"
)
HUGE = [{"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}]
INPUTS: dict[str, tuple[str, bytes]] = {
    "conds.pt: a memo of four billion entries": (".pt", torch_file(b"\x80\x02K\x00r\xff\xff\xff\xff.")),
    "conds.pt: a memo of gigabytes": (".pt", torch_file(b"\x80\x02K\x00r\xff\xff\xff\x1f.")),
    "conds.pt: a tensor larger than its storage": (".pt", torch_file(described((1 << 30,), (0,)))),
    "conds.pt: an archive that unpacks to much": (".pt", torch_file(described((1,), (1,)), bytes(100 << 20))),
    "conds.pt: another class": (".pt", torch_file(pickle.dumps(print))),
    "safetensors: a header of a terabyte": (".safetensors", struct.pack("<Q", 1 << 40) + b"{}"),
    "safetensors: a tensor of terabytes": (".safetensors", safetensors({"a": HUGE[0]})),
    "safetensors: a header of brackets": (".safetensors", safetensors(b"[" * 100_000)),
    "voice: offsets beyond the end": (
        ".voice", safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"1234"),
    ),
    "WAV: four gigabytes are claimed": (".wav", wav(0x7FFFEFFF)),
    "WAV: 65,535 channels": (".wav", wav(100, channels=65_535)),
    "WAV: four gigahertz": (".wav", wav(100, rate_hz=2**32 - 1)),
    "EPUB: entities in entities": (".epub", epub(META_INF__container_xml=ENTITIES)),
    "EPUB: a document that unpacks to a gigabyte": (".epub", epub(META_INF__container_xml=bytes(200 << 20))),
    "SSML: entities in entities": (".ssml", b"<speak>" + ENTITIES + b"</speak>"),
    "SSML: a hundred thousand levels": (".ssml", b"<speak>" + b"<p>" * 100_000),
}  # fmt: skip
READERS: dict[str, Callable[[Path], object]] = {
    ".pt": lambda path: Voice.from_conds_pt(path, family="wren"),
    ".safetensors": read_tensors,
    ".voice": Voice.load,
    ".wav": read_audio,
    ".epub": read_book,
    ".ssml": lambda path: parse_ssml(path.read_text(), "en"),
}


@pytest.mark.parametrize(("suffix", "data"), INPUTS.values(), ids=INPUTS)
def test_input_is_refused_with_little_memory(tmp_path: Path, suffix: str, data: bytes) -> None:
    path = tmp_path / f"input{suffix}"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(NightingaleError):
            READERS[suffix](path)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < MAX_BYTES

"""T3 rounded to eight bits, kept on disk: made once for a set of weights, checked each time it is opened.

A packed T3 is a folder: the weights, a list of where in their file each of them lies, the graph where ONNX
Runtime shall read it, and a seal with the digests of all, written last. The folder's name is a digest of
everything that it was made of, so other weights or another version of this code make another folder. It
appears under its name whole or not at all; a damaged one is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.onnx.graph import StepGraph
from nightingale.backends.shared.tensor_file import ALIGNMENT, Place, Source
from nightingale.errors import OutputError
from nightingale.models.chatterbox.build import UNUSED_BY_T3
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import load
from nightingale.models.layers.mapped_weights import release_pages

FORMAT = 6
"""Counts the changes to what a packed T3 holds; a folder of another format is never opened."""
GRAPH, WEIGHTS, PLACES, SEAL = "graph.onnx", "weights.bin", "places.json", "seal.json"
BACKBONE = "tfmr."
PARTS = 3
"""Weights of one product, at most: of queries, keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    folder: Path
    fresh: bool
    """Made just now; otherwise it was there."""

    @property
    def graph(self) -> Path:
        return self.folder / GRAPH

    @property
    def bytes(self) -> int:
        """What one step must read."""
        return (self.folder / WEIGHTS).stat().st_size

    def weights(self) -> dict[str, NDArray[Any]]:
        """By their names; read into memory at once, in pages as large as the system has."""
        places = json.loads((self.folder / PLACES).read_text(encoding="utf-8"))
        # numpy asks for large pages by itself.
        whole: NDArray[np.uint8] = np.empty(self.bytes + ALIGNMENT, np.uint8)
        memory = whole[-whole.ctypes.data % ALIGNMENT :][: self.bytes]
        with (self.folder / WEIGHTS).open("rb", buffering=0) as file:
            view, filled = memory.data, 0
            while filled < len(view) and (more := file.readinto(view[filled:])):
                filled += more
        return {
            name: np.ndarray(place["shape"], place["kind"], memory.data, place["offset"])
            for name, place in places.items()
        }


class Form(Protocol):
    """Of weights on disk: for whom they are."""

    @property
    def name(self) -> str: ...

    def write(self, config: T3Config, source: Source, file: BinaryIO) -> Written: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    places: Mapping[str, Place]
    """Of weights in their file."""
    beside: Mapping[str, bytes]
    """Other files, by their names."""


class ForOnnx:
    """A graph for ONNX Runtime, and weights as its products read them."""

    name = "onnx"

    def write(self, config: T3Config, source: Source, file: BinaryIO) -> Written:
        writer = StepGraph(config, source, rounded=True, file=file, file_name=WEIGHTS)
        graph = writer.write()
        return Written(places=writer.places, beside={GRAPH: graph})


FOR_ONNX = ForOnnx()


def pack(
    config: T3Config,
    tensors: Mapping[str, Tensor],
    *,
    home: Path,
    source: str,
    mapped: bool = False,
    form: Form = FOR_ONNX,
) -> Packed:
    """The packed form of T3's weights, from `home` if it is there and whole, else made now.

    tensors: as T3 names them, read one at a time. source: a digest of them (`digest_of_file`,
    `digest_of_tensors`). mapped: from a file, whose pages are let go as they are packed.
    """
    key = hashlib.sha256(f"{FORMAT} {form.name} {source} {config!r}".encode()).hexdigest()[:32]
    folder = home / key
    if intact(folder):
        return Packed(folder=folder, fresh=False)
    try:
        home.mkdir(parents=True, exist_ok=True)
        part = home / f".{key}.{token_hex(4)}.part"
        part.mkdir()
        try:
            _write(part, config, _read_once(tensors) if mapped else tensors.__getitem__, form)
            if folder.exists() and not intact(folder):
                shutil.rmtree(folder)
            try:
                part.rename(folder)
            except OSError:
                # Another process was faster; what it made is as good.
                if not intact(folder):
                    raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            "the rounded weights could not be kept",
            got=f"{error.strerror or error} in {home}",
            allowed="a writable folder with room for a quarter of the weights",
            fix="Make room, choose another folder, or use a plan without int8.",
        ) from error
    return Packed(folder=folder, fresh=True)


def _read_once(tensors: Mapping[str, Tensor]) -> Source:
    """Whoever asks for a weight has done with those before it, but for those of the same product."""
    recent: deque[Tensor] = deque()

    def read(name: str) -> Tensor:
        if len(recent) == PARTS:
            release_pages(recent.popleft())
        recent.append(tensors[name])
        return recent[-1]

    return read


def _write(folder: Path, config: T3Config, source: Source, form: Form) -> None:
    with (folder / WEIGHTS).open("xb") as file, torch.inference_mode():
        written = form.write(config, source, file)
        file.flush()
        os.fsync(file.fileno())
    places = json.dumps({name: asdict(place) for name, place in written.places.items()})
    beside = {PLACES: places.encode(), **written.beside}
    for name, data in beside.items():
        (folder / name).write_bytes(data)
    seal = {name: _digest(folder / name) for name in (WEIGHTS, *beside)}
    (folder / SEAL).write_text(json.dumps(seal), encoding="utf-8")


def intact(folder: Path) -> bool:
    """Whether every byte of it is what was written."""
    try:
        seal = json.loads((folder / SEAL).read_text(encoding="utf-8"))
        return bool(seal) and all(_digest(folder / name) == digest for name, digest in seal.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Of names, shapes and bytes. Reads everything: for weights from a file ask `digest_of_file`."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data if value.numel() else b"")
    return digest.hexdigest()


def digest_of_file(path: Path, *, home: Path) -> str:
    """Of its content. Remembered in `home` while the file's size and time of change stay the same."""
    path = path.resolve()
    facts = path.stat()
    note = home / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.known.json"
    state = [facts.st_size, facts.st_mtime_ns]
    try:
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["state"] == state and isinstance(known["digest"], str):
            return str(known["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # no note, or a damaged one: read the file
    digest = _digest(path)
    try:
        home.mkdir(parents=True, exist_ok=True)
        part = note.with_name(f".{note.name}.{token_hex(4)}.part")
        part.write_text(json.dumps({"state": state, "digest": digest}), encoding="utf-8")
        part.replace(note)
    except OSError:
        pass  # then it is read again next time
    return digest


def _digest(path: Path) -> str:
    # Read, not mapped: pages of a mapped file would count as this process's memory.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def without_backbone(config: T3Config, tensors: Mapping[str, Tensor], *, source: Path) -> T3:
    """T3 as a packed runner needs it: embeddings, conditioning and head; the layers' weights are not read.

    Only `CpuRunner` can step it: its backbone is on the meta device, except for the table of positions that
    GPT-2 adds to its inputs.
    """

    def packed(name: str) -> bool:
        return name.startswith(BACKBONE) and name != f"{BACKBONE}wpe.weight"

    t3 = load(lambda: T3(config), tensors, source=source, unused=UNUSED_BY_T3, unread=packed)
    for weight in t3.parameters():
        # It was read to be checked. Of tables a few rows will be asked for, of the head none.
        release_pages(weight)
    return t3

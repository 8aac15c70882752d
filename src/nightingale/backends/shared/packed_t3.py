"""T3 quantized to int8 or int4 on disk: written once for a set of weights, verified each time it is opened.

    <cache_dir>/<digest>/weights.bin      the tensors
                         index.json       where in it each tensor lies: data type, shape, offset
                         graph.onnx       only for ONNX Runtime
                         checksums.json   of all the files above, written last

The folder's name is a digest of everything that its content depends on, so other weights or another version
of this code use another folder. A folder whose files do not match their checksums is written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.base import ModelSource
from nightingale.errors import OutputError
from nightingale.files import write_whole
from nightingale.models.chatterbox.t3.config import UNUSED_BY_T3, T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import load, read_tensors
from nightingale.models.layers.weight_layout import release_pages
from nightingale.voices.home import cache_folder

FORMAT_VERSION: Final = 8
"""Increase it with every change to what a folder holds."""
WEIGHTS, INDEX, CHECKSUMS = "weights.bin", "index.json", "checksums.json"
ALIGNMENT: Final = 4096
TENSORS_PER_PRODUCT: Final = 3
"""The most tensors that are quantized together: queries, keys and values."""

TensorSource = Callable[[str], Tensor]
"""Returns a weight of T3 by its name."""


class TensorFileWriter:
    """Writes tensors at page boundaries, so that the file can be memory-mapped."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.index: dict[str, tuple[str, tuple[int, ...], int]] = {}
        """The data type, the shape and the offset of each tensor."""

    def write(self, name: str, value: NDArray[Any]) -> int:
        """Write a tensor and return its offset."""
        self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
        offset = self._file.tell()
        self.index[name] = value.dtype.name, value.shape, offset
        self._file.write(value.data)
        return offset


class WeightFormat(Protocol):
    """A layout of quantized weights."""

    name: str

    def write(self, config: T3Config, source: TensorSource, file: TensorFileWriter) -> Mapping[str, bytes]:
        """Write tensors to `file`; return the content of further files by name."""


def load_packed(folder: Path) -> dict[str, NDArray[Any]]:
    """Read all tensors of a packed folder into memory, by name."""
    # Read, not mapped: numpy asks for huge pages in large arrays.
    size = (folder / WEIGHTS).stat().st_size
    whole: NDArray[np.uint8] = np.empty(size + ALIGNMENT, np.uint8)
    memory = whole[-whole.ctypes.data % ALIGNMENT :][:size].data
    with (folder / WEIGHTS).open("rb") as file:
        file.readinto(memory)
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    return {name: np.ndarray(shape, dtype, memory, offset) for name, (dtype, shape, offset) in index.items()}


def pack(
    config: T3Config,
    tensors: Mapping[str, Tensor],
    weight_format: WeightFormat,
    *,
    cache_dir: Path,
    source: str,
    mapped: bool = False,
) -> Path:
    """Return a folder in `cache_dir` with T3's weights in a format; write it if no intact one is there.

    `source` is a digest of the tensors. `mapped`: they are mapped from a file, whose pages are released.
    Raises OutputError if the folder could not be written.
    """
    content = f"{FORMAT_VERSION} {weight_format.name} {source} {config!r}"
    folder = cache_dir / hashlib.sha256(content.encode()).hexdigest()[:32]
    if is_intact(folder):
        return folder
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=cache_dir) as temporary:
            # A folder inside, because the temporary one is private to this user.
            part = Path(temporary) / folder.name
            part.mkdir()
            _write(part, config, _read_and_release(tensors) if mapped else tensors.__getitem__, weight_format)
            if folder.exists() and not is_intact(folder):
                shutil.rmtree(folder)
            part.rename(folder)
    except OSError as error:
        # Another process may have been faster; its folder has the same content.
        if is_intact(folder):
            return folder
        raise OutputError(
            "the quantized weights could not be written",
            got=f"{error.strerror or error} in {cache_dir}",
            allowed="a writable folder with room for a quarter of the weights",
            fix="Free disk space, choose another folder, or use a profile without int8.",
        ) from error
    return folder


def _read_and_release(tensors: Mapping[str, Tensor]) -> TensorSource:
    """Read tensors in order; release the pages of all but the latest, which one product may still need."""
    recent: list[Tensor] = []

    def read(name: str) -> Tensor:
        recent.append(tensors[name])
        if len(recent) > TENSORS_PER_PRODUCT:
            release_pages(recent.pop(0))
        return recent[-1]

    return read


def _write(folder: Path, config: T3Config, source: TensorSource, weight_format: WeightFormat) -> None:
    with (folder / WEIGHTS).open("xb") as file, torch.inference_mode():
        writer = TensorFileWriter(file)
        extra = weight_format.write(config, source, writer)
        file.flush()
        os.fsync(file.fileno())
    files = {INDEX: json.dumps(writer.index).encode(), **extra}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    checksums = {name: _digest(folder / name) for name in (WEIGHTS, *files)}
    (folder / CHECKSUMS).write_text(json.dumps(checksums), encoding="utf-8")


def is_intact(folder: Path) -> bool:
    """Return True if every file of a packed folder matches its checksum."""
    try:
        checksums = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))
        return bool(checksums) and all(_digest(folder / name) == known for name, known in checksums.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of names, shapes and values. It reads everything; `digest_of_file` remembers."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data if value.numel() else b"")
    return digest.hexdigest()


def digest_of_file(path: Path, *, cache_dir: Path) -> str:
    """Return a digest of a file, remembered in `cache_dir` until its size or time of change differs."""
    stat = path.stat()
    note = cache_dir / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.known.json"
    state = [stat.st_size, stat.st_mtime_ns]
    with suppress(OSError, ValueError, TypeError):  # no note, or a damaged one
        *known_state, known_digest = json.loads(note.read_text(encoding="utf-8"))
        if known_state == state:
            return str(known_digest)
    digest = _digest(path)
    with suppress(OSError, OutputError):  # then the file is read again next time
        cache_dir.mkdir(parents=True, exist_ok=True)
        write_whole(note, json.dumps([*state, digest]).encode())
    return digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_packed(
    source: ModelSource, weight_format: WeightFormat, load_t3: Callable[[], T3]
) -> tuple[T3, Path]:
    """Return a T3 that embeds prompts, and the folder of its packed weights.

    Weights in a plain file are quantized from there; otherwise `load_t3` loads all of them in float32.
    """
    cache_dir, config = cache_folder().parent / "int8", source.info.preset.t3
    if "t3" in source.files and not source.packed:
        path = source.files["t3"]
        tensors, digest = read_tensors(path), digest_of_file(path, cache_dir=cache_dir)
        t3 = source.shared("t3-embeddings", lambda: without_backbone(config, tensors, source=path))
        return t3, pack(config, tensors, weight_format, cache_dir=cache_dir, source=digest, mapped=True)
    t3 = load_t3()
    weights = t3.state_dict()
    return t3, pack(config, weights, weight_format, cache_dir=cache_dir, source=digest_of_tensors(weights))


def without_backbone(config: T3Config, tensors: Mapping[str, Tensor], *, source: Path) -> T3:
    """Return T3 with its layers on the meta device, because packed weights replace them."""
    packed = {name for name in tensors if name.startswith("tfmr.")} - {"tfmr.wpe.weight"}
    t3 = load(partial(T3, config), tensors, source=source, unused=UNUSED_BY_T3, unread=packed.__contains__)
    for weight in t3.parameters():
        release_pages(weight)  # read to be checked; only a few rows of the tables are needed again
    return t3

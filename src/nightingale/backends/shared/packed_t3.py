"""T3 quantized to int8 on disk: written once for a set of weights, verified each time it is opened.

    <cache_dir>/<digest>/weights.bin      the tensors
                         index.json       where in it each tensor lies
                         graph.onnx       only for ONNX Runtime
                         checksums.json   of all the files above, written last

The digest in the folder's name is taken over everything that the content depends on, so other weights or
another version of this code use another folder. A folder appears complete or not at all; one whose files do
not match their checksums is written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.base import ModelSource
from nightingale.backends.shared.tensor_file import ALIGNMENT, TensorLocation, TensorSource
from nightingale.errors import OutputError
from nightingale.files import write_whole
from nightingale.models.chatterbox.build import UNUSED_BY_T3
from nightingale.models.chatterbox.t3.config import T3Config
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import load, read_tensors
from nightingale.models.layers.weight_layout import release_pages
from nightingale.voices.home import cache_folder

FORMAT_VERSION: Final = 7
"""Increase it with every change to what a folder holds."""
WEIGHTS, INDEX, CHECKSUMS = "weights.bin", "index.json", "checksums.json"
BACKBONE: Final = "tfmr."
TENSORS_PER_PRODUCT: Final = 3
"""The most tensors that are quantized together: queries, keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """A folder that `pack` has written or verified."""

    folder: Path
    fresh: bool
    """True if it was written just now."""

    @property
    def bytes(self) -> int:
        """The bytes that one step must read."""
        return (self.folder / WEIGHTS).stat().st_size

    def load(self) -> dict[str, NDArray[Any]]:
        """Read all tensors into memory, by name."""
        index = json.loads((self.folder / INDEX).read_text(encoding="utf-8"))
        # Read, not mapped: numpy asks for huge pages in large arrays.
        whole: NDArray[np.uint8] = np.empty(self.bytes + ALIGNMENT, np.uint8)
        memory = whole[-whole.ctypes.data % ALIGNMENT :][: self.bytes]
        with (self.folder / WEIGHTS).open("rb", buffering=0) as file:
            view, filled = memory.data, 0
            while filled < len(view) and (count := file.readinto(view[filled:])):
                filled += count
        locations = {name: TensorLocation(*entry) for name, entry in index.items()}
        return {
            name: np.ndarray(at.shape, at.dtype, memory.data, at.offset) for name, at in locations.items()
        }


class WeightFormat(Protocol):
    """A layout of quantized weights."""

    @property
    def name(self) -> str: ...

    def write(
        self, config: T3Config, source: TensorSource, file: BinaryIO
    ) -> tuple[Mapping[str, TensorLocation], Mapping[str, bytes]]:
        """Write tensors to `file`; return their index, and the content of further files by name."""


def pack(
    config: T3Config,
    tensors: Mapping[str, Tensor],
    weight_format: WeightFormat,
    *,
    cache_dir: Path,
    source: str,
    mapped: bool = False,
) -> PackedWeights:
    """Return T3's weights in a format, from `cache_dir` if an intact folder is there.

    Args:
        config: Of the T3.
        tensors: By T3's names; read one at a time.
        weight_format: How to quantize and arrange them.
        cache_dir: Where folders are kept.
        source: A digest of the tensors (`digest_of_file`, `digest_of_tensors`).
        mapped: The tensors are mapped from a file, whose pages are released as they are packed.

    Raises:
        OutputError: The folder could not be written.
    """
    content = f"{FORMAT_VERSION} {weight_format.name} {source} {config!r}"
    folder = cache_dir / hashlib.sha256(content.encode()).hexdigest()[:32]
    if is_intact(folder):
        return PackedWeights(folder=folder, fresh=False)
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=cache_dir) as temporary:
            # A folder inside, because the temporary one is private to this user.
            part = Path(temporary) / folder.name
            part.mkdir()
            _write(part, config, _read_and_release(tensors) if mapped else tensors.__getitem__, weight_format)
            if folder.exists() and not is_intact(folder):
                shutil.rmtree(folder)
            try:
                part.rename(folder)
            except OSError:
                # Another process may have been faster; its folder has the same content.
                if not is_intact(folder):
                    raise
    except OSError as error:
        raise OutputError(
            "the quantized weights could not be written",
            got=f"{error.strerror or error} in {cache_dir}",
            allowed="a writable folder with room for a quarter of the weights",
            fix="Free disk space, choose another folder, or use a profile without int8.",
        ) from error
    return PackedWeights(folder=folder, fresh=True)


def _read_and_release(tensors: Mapping[str, Tensor]) -> TensorSource:
    """Read tensors in order; release the pages of all but the latest, which one product may still need."""
    recent: deque[Tensor] = deque()

    def read(name: str) -> Tensor:
        if len(recent) == TENSORS_PER_PRODUCT:
            release_pages(recent.popleft())
        recent.append(tensors[name])
        return recent[-1]

    return read


def _write(folder: Path, config: T3Config, source: TensorSource, weight_format: WeightFormat) -> None:
    with (folder / WEIGHTS).open("xb") as file, torch.inference_mode():
        index, extra = weight_format.write(config, source, file)
        file.flush()
        os.fsync(file.fileno())
    files = {INDEX: json.dumps(index).encode(), **extra}
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
    path = path.resolve()
    stat = path.stat()
    note = cache_dir / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.known.json"
    state = [stat.st_size, stat.st_mtime_ns]
    with suppress(OSError, ValueError, KeyError, TypeError):  # no note, or a damaged one
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["state"] == state and isinstance(known["digest"], str):
            return str(known["digest"])
    digest = _digest(path)
    with suppress(OSError, OutputError):  # then the file is read again next time
        cache_dir.mkdir(parents=True, exist_ok=True)
        write_whole(note, json.dumps({"state": state, "digest": digest}).encode())
    return digest


def _digest(path: Path) -> str:
    # Read, not mapped: pages of a mapped file would count as memory of this process.
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_packed(
    source: ModelSource, weight_format: WeightFormat, load_t3: Callable[[], T3]
) -> tuple[T3, PackedWeights]:
    """Return a T3 that embeds prompts, and its weights in a format; `load_t3` returns all weights in float32.

    Where the weights are a plain file, they are quantized from there and the layers of T3 are not loaded.
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
    """Return T3's embeddings, conditioning and head; the weights of its layers are not read.

    The backbone is on the meta device, except for GPT-2's table of positions. Only a runner with packed
    weights can run it.
    """

    def is_packed(name: str) -> bool:
        return name.startswith(BACKBONE) and name != f"{BACKBONE}wpe.weight"

    t3 = load(lambda: T3(config), tensors, source=source, unused=UNUSED_BY_T3, unread=is_packed)
    for weight in t3.parameters():
        # Read to be checked; a few rows of the tables will be needed again, and nothing of the head.
        release_pages(weight)
    return t3

"""Transfer of results from a machine that returns only a few files of limited size.

Networks are split into volumes by tensors, so a volume is an ordinary safetensors file: `t3::tfmr.…` is a tensor
of t3. Every volume lists the files and their numbers of tensors, so that a missing volume is detected.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from nightingale.errors import CheckpointError

VOLUME_BYTES = 31 * 2**19
"""15.5 MiB."""
TOTAL_BYTES = 127 * 2**19
"""63.5 MiB."""
LOGS = "log"
LOG_BYTES = 24_000
"""Only the end of a longer log is sent."""
SEPARATOR = "::"


def pack(
    files: Sequence[Path],
    logs: Sequence[Path],
    folder: Path,
    *,
    as_float16: frozenset[str] = frozenset(),
    volume_bytes: int = VOLUME_BYTES,
    total_bytes: int = TOTAL_BYTES,
) -> list[str]:
    """Write the logs and as many of the files as fit, in order; return the names of those that were written.

    files: safetensors, named by their stems. as_float16: names whose float32 tensors are sent as float16.
    """
    tensors: dict[str, Tensor] = {}
    for log in logs:
        text = np.frombuffer(log.read_bytes()[-LOG_BYTES:], dtype=np.uint8)
        if len(text):
            tensors[f"{LOGS}{SEPARATOR}{log.name}"] = torch.from_numpy(text.copy())
    sent: dict[str, dict[str, object]] = {}
    free_bytes = total_bytes - sum(_size(t) for t in tensors.values())
    for path in files:
        name, loaded = path.stem, load_file(path)
        if name in as_float16:
            loaded = {k: t.half() if t.dtype == torch.float32 else t for k, t in loaded.items()}
        size = sum(_size(t) + 200 for t in loaded.values())  # with its entry in the header
        if size > free_bytes:
            continue
        free_bytes -= size
        with safe_open(path, framework="pt") as opened:
            sent[name] = {"tensors": len(loaded), "metadata": opened.metadata() or {}}
        tensors |= {f"{name}{SEPARATOR}{key}": t for key, t in loaded.items()}
    folder.mkdir(parents=True, exist_ok=True)
    volumes = _spread(tensors, volume_bytes)
    for number, volume in enumerate(volumes):
        partial = folder / "volume.partial"
        save_file(volume, partial, metadata={"sent": json.dumps(sent)})
        partial.replace(folder / f"volume{number}.safetensors")
    for old in folder.glob("volume*.safetensors"):
        if int(old.stem.removeprefix("volume")) >= len(volumes):
            old.unlink()
    return list(sent)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _spread(tensors: Mapping[str, Tensor], volume_bytes: int) -> list[dict[str, Tensor]]:
    """Assign the largest tensors first, each to the first volume that it fits into."""
    volumes: list[dict[str, Tensor]] = []
    filled: list[int] = []
    for name in sorted(tensors, key=lambda n: -_size(tensors[n])):
        size = _size(tensors[name]) + 200
        place = next((i for i, used in enumerate(filled) if used + size <= volume_bytes), len(filled))
        if place == len(filled):
            volumes.append({})
            filled.append(0)
        volumes[place][name] = tensors[name].contiguous()
        filled[place] += size
    return volumes


def unpack(folders: Sequence[Path], out: Path) -> dict[str, int]:
    """Write the files of all deliveries, later ones over earlier ones; return the size of each."""
    sizes: dict[str, int] = {}
    for folder in folders:
        tensors: dict[str, Tensor] = {}
        contents: set[str] = set()
        for volume in sorted(folder.glob("volume*.safetensors")):
            tensors |= load_file(volume)
            with safe_open(volume, framework="pt") as opened:
                contents.add((opened.metadata() or {}).get("sent", ""))
        if len(contents) != 1:
            raise _broken(folder, f"{len(contents)} different deliveries")
        for name, entry in json.loads(contents.pop()).items():
            prefix = name + SEPARATOR
            own = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            if len(own) != entry["tensors"]:
                raise _broken(folder, f"{len(own)} of {entry['tensors']} tensors of {name}")
            sizes[name] = sum(map(_size, own.values()))
            out.mkdir(parents=True, exist_ok=True)
            save_file(own, out / f"{name}.safetensors", metadata=entry["metadata"])
        for key, text in tensors.items():
            if key.startswith(LOGS + SEPARATOR):
                (out / "logs").mkdir(parents=True, exist_ok=True)
                (out / "logs" / key.partition(SEPARATOR)[2]).write_bytes(text.numpy().tobytes())
    return sizes


def _broken(folder: Path, got: str) -> CheckpointError:
    return CheckpointError(
        "the delivery is not complete",
        got=f"{got} in {folder}",
        allowed="all volumes of one delivery",
        fix="Fetch the missing volumes, or leave this folder out.",
    )

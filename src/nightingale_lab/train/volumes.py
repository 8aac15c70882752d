"""Results on their way off a machine that gives back only a few files of limited size.

Networks are split between volumes by tensors, so a volume is an ordinary safetensors file: `t3::tfmr.…` is a
tensor of t3. Every volume names what was sent and how many tensors that has, so that a set which is not
complete is found out.
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
TOTAL_BYTES = 62 * 2**20
LOGS = "log"
BETWEEN = "::"


def pack(
    files: Sequence[Path],
    logs: Sequence[Path],
    folder: Path,
    *,
    halved: frozenset[str] = frozenset(),
    volume_bytes: int = VOLUME_BYTES,
    total_bytes: int = TOTAL_BYTES,
) -> list[str]:
    """Write as many of the files as fit, in order; names of those that were sent. Logs always travel.

    files: safetensors, named by their stems. halved: names whose float32 tensors travel as float16.
    """
    tensors: dict[str, Tensor] = {}
    for log in logs:
        text = np.frombuffer(log.read_bytes(), dtype=np.uint8)
        if len(text):
            tensors[f"{LOGS}{BETWEEN}{log.name}"] = torch.from_numpy(text.copy())
    sent: dict[str, dict[str, object]] = {}
    room = total_bytes - sum(_size(t) for t in tensors.values())
    for path in files:
        name, held = path.stem, load_file(path)
        if name in halved:
            held = {k: t.half() if t.dtype == torch.float32 else t for k, t in held.items()}
        size = sum(_size(t) + 200 for t in held.values())  # and its line in the header
        if size > room:
            continue
        room -= size
        with safe_open(path, framework="pt") as opened:
            sent[name] = {"tensors": len(held), "metadata": opened.metadata() or {}}
        tensors |= {f"{name}{BETWEEN}{key}": t for key, t in held.items()}
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
    """Largest first, each into the first volume with room for it."""
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
    """The files of all deliveries, a later one replacing an earlier one's; name -> bytes."""
    sizes: dict[str, int] = {}
    for folder in folders:
        tensors: dict[str, Tensor] = {}
        told: set[str] = set()
        for volume in sorted(folder.glob("volume*.safetensors")):
            tensors |= load_file(volume)
            with safe_open(volume, framework="pt") as opened:
                told.add((opened.metadata() or {}).get("sent", ""))
        if len(told) != 1:
            raise _broken(folder, f"{len(told)} different deliveries")
        for name, facts in json.loads(told.pop()).items():
            prefix = name + BETWEEN
            mine = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            if len(mine) != facts["tensors"]:
                raise _broken(folder, f"{len(mine)} of {facts['tensors']} tensors of {name}")
            sizes[name] = sum(map(_size, mine.values()))
            out.mkdir(parents=True, exist_ok=True)
            save_file(mine, out / f"{name}.safetensors", metadata=facts["metadata"])
        for key, text in tensors.items():
            if key.startswith(LOGS + BETWEEN):
                (out / "logs").mkdir(parents=True, exist_ok=True)
                (out / "logs" / key.partition(BETWEEN)[2]).write_bytes(text.numpy().tobytes())
    return sizes


def _broken(folder: Path, got: str) -> CheckpointError:
    return CheckpointError(
        "the delivery is not complete",
        got=f"{got} in {folder}",
        allowed="all volumes of one delivery",
        fix="Fetch the missing volumes, or leave this folder out.",
    )

"""Describe the devices PyTorch has, and set the thread count of single threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from nightingale.backends.base import Machine
from nightingale.errors import DeviceError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_SETTING_THREADS = threading.Lock()


def describe(device: str) -> Machine:
    """Describe a device; raise DeviceError if this build of PyTorch cannot use it."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
        torch.empty(1, device=found).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise DeviceError(
            "the device cannot be used",
            got=f"{device!r} ({str(error).splitlines()[0]})",
            allowed="auto, cpu, or a device this build of PyTorch has",
            fix="See `nightingale doctor`.",
        ) from error
    if found.type != "cuda":
        instructions = torch.backends.cpu.get_cpu_capability()
        return Machine(device=str(found), name=found.type, instructions=instructions, problem=_missing_gpu())
    card = torch.cuda.get_device_properties(found)
    architecture = f"sm_{card.major}{card.minor}"
    known = architecture in torch.cuda.get_arch_list()
    return Machine(
        device=str(found),
        name=card.name,
        instructions=architecture,
        problem=None if known else f"this build of PyTorch does not support {architecture}",
        free_bytes=torch.cuda.mem_get_info(found)[0],
    )


def _missing_gpu() -> str | None:
    """Explain a CUDA build that finds no device; a build without CUDA misses nothing."""
    if torch.version.cuda is None or torch.cuda.is_available():
        return None
    return f"PyTorch is built for CUDA {torch.version.cuda} but finds no device: no GPU, or too old a driver"


def use_threads(count: int) -> None:
    """Set PyTorch's thread count for the calling thread only."""
    # PyTorch also stores the number for threads to come. A new thread still knows the old number and puts it
    # back. One at a time: another caller would find, and restore, the first caller's number.
    with _SETTING_THREADS, ThreadPoolExecutor(max_workers=1) as helper:
        others = helper.submit(torch.get_num_threads).result()
        torch.get_num_threads()  # a thread's first call takes the number for threads to come
        torch.set_num_threads(count)
        helper.submit(torch.set_num_threads, others).result()

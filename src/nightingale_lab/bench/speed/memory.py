"""Memory of this process: resident on the host, and allocated on a GPU if it has used one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

STATM = Path("/proc/self/statm")


def peak_memory_mb() -> float | None:
    """Return the peak resident memory of this process on the host, where the system reports it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1e6 if sys.platform == "darwin" else 1e3), 1)


def gpu_peak_mb() -> float | None:
    """Return the peak memory of this process on the GPU; None if it has not used one."""
    torch = sys.modules.get("torch")
    return round(torch.cuda.max_memory_allocated() / 1e6, 1) if torch and torch.cuda.is_available() else None


def memory_now_mb() -> dict[str, float]:
    """Return the memory in use now: `gpu_memory_mb` where a GPU is used, else `memory_mb`, resident."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_available() and torch.cuda.is_initialized():
        return {"gpu_memory_mb": round(torch.cuda.memory_allocated() / 1e6, 1)}
    if STATM.is_file():
        pages = int(STATM.read_text(encoding="ascii").split()[1])
        return {"memory_mb": round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)}
    peak = peak_memory_mb()
    return {} if peak is None else {"memory_mb": peak}

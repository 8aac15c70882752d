"""Unloading a model returns its memory to the system.

Every measurement has a process of its own: in that of the test run, memory of other tests would count too.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

TENSORS = """
import torch
from nightingale.server.service.model_loading import release_memory, resident_bytes
before = resident_bytes()
tensors = [torch.ones(1 << 20) for _ in range(50)]
taken = resident_bytes() - before
del tensors
release_memory()
print(taken, resident_bytes() - before)
"""


def measure(script: str) -> list[int]:
    """Run the script in a new process and return the numbers that it prints."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [int(number) for number in done.stdout.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_freed_tensors_are_returned_to_the_system() -> None:
    """PyTorch's allocator on ARM keeps them, whatever the C library is told."""
    pytest.importorskip("torch")
    taken, left = measure(TENSORS)
    assert taken > 150e6
    assert left < 0.05 * taken


THREADS = """
import ctypes, threading
from nightingale.server.service.model_loading import release_memory, resident_bytes, share_heap
share_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

def allocate():
    blocks = [libc.malloc(100_000) for _ in range(100)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    together.wait()
    for block in blocks:
        libc.free(block)

libc.free(libc.malloc(30_000_000))  # from now on glibc keeps up to 60 MB at the end of each heap
before, together = resident_bytes(), threading.Barrier(4)
threads = [threading.Thread(target=allocate) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
release_memory()
print(resident_bytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no such heaps")
def test_memory_that_threads_have_freed_is_returned_to_the_system() -> None:
    """glibc would keep these 40 MB in the heaps of the threads."""
    (left,) = measure(THREADS)
    assert left < 4e6

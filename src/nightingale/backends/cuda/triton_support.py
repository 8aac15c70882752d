"""Choice between Triton kernels and library calls, and the fallback where Triton cannot be used.

Nothing here imports Triton: it may be missing, or its compiler may fail on this machine.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch

from nightingale.errors import ConfigError

log = logging.getLogger(__name__)
Loaded = TypeVar("Loaded")
Result = TypeVar("Result")
KernelChoice = Literal["auto", "library", "triton"]
"""Library calls of torch, or our Triton kernels. auto: the kernels on a GPU, if they can be used."""


_COMPILES_ONLY: ContextVar[bool] = ContextVar("_COMPILES_ONLY", default=False)


class CompilerPool(ThreadPoolExecutor):
    """Threads that compile kernels and build their launchers.

    A launcher is a C function of its own for each signature, which Triton would build at the first launch: a fifth
    of a second of the C compiler for each kernel, one after the other.
    """

    def submit(self, compile_kernel: Callable[[], Any], /) -> Future[Any]:  # type: ignore[override]
        from triton.runtime.driver import driver

        def compile_with_launcher() -> Any:
            kernel = compile_kernel()
            driver.active.launcher_cls(kernel.src, kernel.metadata)  # for the cache on disk
            return kernel

        return super().submit(compile_with_launcher)


@contextmanager
def compiling_ahead() -> Iterator[bool]:
    """Compile the kernels of all launches within, at the same time on all cores, and launch none of them.

    Whatever they would have computed is undefined. It yields False where Triton cannot compile so.
    """
    import triton

    mode = getattr(triton, "AsyncCompileMode", None)
    if mode is None or triton.knobs.runtime.interpret:
        yield False
        return
    with CompilerPool(os.cpu_count()) as pool, mode(pool):
        token = _COMPILES_ONLY.set(True)
        try:
            yield True
        finally:
            _COMPILES_ONLY.reset(token)


def empty_output(shape: int | tuple[int, ...], **options: Any) -> torch.Tensor:
    """Return memory for a kernel's result that is used as an index: zeros where kernels are only compiled."""
    return (torch.zeros if _COMPILES_ONLY.get() else torch.empty)(shape, **options)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Launch a Triton kernel, or only compile it: `compiling_ahead`."""
    if _COMPILES_ONLY.get():
        kernel.warmup(*arguments, grid=grid, **options)
    else:
        kernel[grid](*arguments, **options)


class Tuning(NamedTuple):
    """Launch parameters of T3's matrix-vector kernel. benchmarks/gpu.py times several (--tunings)."""

    block_out: int = 8
    block_in: int = 256
    """With 8 values per thread a warp loads 256 at once; then no sum crosses warps."""
    warps: int = 4
    pdl: bool = False
    """Programmatic dependent launch: the next kernel starts, and loads its weights, while this one ends."""
    prefetch: bool = False
    """With PDL, all weights of a program are fetched to L2 meanwhile, and not its first block alone."""


def supports_pdl(device: torch.device) -> bool:
    """Return whether the GPU has programmatic dependent launch: Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def pdl_options(device: torch.device) -> dict[str, bool]:
    """Return the options of a kernel that uses programmatic dependent launch where there is one."""
    return {"PDL": True, "launch_pdl": True} if supports_pdl(device) else {"PDL": False}


class TritonKernels(Generic[Loaded]):
    """The Triton kernels of one part of the model, as `load` returns them.

    `loaded` is None where library calls are used: by choice, or because the kernels fail, which is logged. If
    the choice is "triton", a failure raises ConfigError. default: whether "auto" means the kernels here.
    """

    def __init__(self, choice: KernelChoice, load: Callable[[], Loaded], *, part: str, default: bool) -> None:
        self._choice, self._part = choice, part
        self.loaded: Loaded | None = None
        if choice == "library" or (choice == "auto" and not default):
            return
        try:
            self.loaded = load()
        except Exception as error:  # an import or a compiler may fail in many ways
            if choice == "triton":
                raise ConfigError(
                    f"the kernels of {part} need Triton",
                    got=f"{type(error).__name__}: {error}",
                    fix="Install Triton and a C compiler, or use library calls.",
                ) from error
            self.drop(error)

    @property
    def name(self) -> str:
        return "library" if self.loaded is None else "triton"

    def retry(self, capture: Callable[[], Result]) -> Result:
        """Return `capture()`; if the kernels make it fail, drop them for good and call it again."""
        try:
            return capture()
        except Exception as error:  # a compiler fails before anything is captured
            if self._choice != "auto" or self.loaded is None:
                raise
            self.drop(error)
            return capture()

    def drop(self, error: Exception) -> None:
        """Use library calls from now on."""
        log.warning("%s runs by library calls, more slowly: %s", self._part, error)
        self.loaded = None

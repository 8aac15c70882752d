"""From LLVM IR to callable machine code: optimization, an object-file cache on disk, and loading.

    module = compile_cached(lambda: emit_t3_step(target, …), target, name="t3")
    run = module.function("run", 2)

Compiling takes about a second. The object file is kept under a digest of everything that it depends on:
LLVM's version, the target, and the source of every module that emits code.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from llvmlite import binding, ir

from nightingale.backends.cpu.kernels.target import Target
from nightingale.backends.shared import quantize
from nightingale.errors import OutputError
from nightingale.files import write_whole
from nightingale.voices.home import cache_folder

DIGEST_BYTES: Final = 32
YIELD_SYMBOL: Final = "nightingale_yield"
"""The symbol under which machine code calls the operating system's function that yields the core."""


def compile_module(module: ir.Module, target: Target) -> tuple[Any, Any]:
    """Optimize a module; return LLVM's module and the target machine that emits code for it."""
    machine = _target_machine(target)
    parsed = binding.parse_assembly(str(module))
    parsed.triple = target.triple
    parsed.verify()
    tuning = binding.create_pipeline_tuning_options(speed_level=2)
    # Kernels are emitted vectorized and unrolled.
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
    passes = binding.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(parsed, passes)
    return parsed, machine


def compile_cached(emit: Callable[[], ir.Module], target: Target, *, name: str) -> CompiledModule:
    """Return a module as machine code; it is emitted only if the cache folder has no intact file of it.

    `name` distinguishes it from other modules that the same sources emit.
    """
    path = cache_folder().parent / "code" / f"{_cache_key(target, name)}.object"
    with suppress(OSError):
        content = path.read_bytes()
        digest, compiled = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(compiled).digest() == digest:
            return CompiledModule(compiled, target)
    module, machine = compile_module(emit(), target)
    compiled = machine.emit_object(module)
    with suppress(OSError, OutputError):  # then the next start compiles again
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, hashlib.sha256(compiled).digest() + compiled)
    return CompiledModule(compiled, target)


def _cache_key(target: Target, name: str) -> str:
    digest = hashlib.sha256(f"{binding.llvm_version_info} {target!r} {name}".encode())
    for source in (Path(quantize.__file__), *sorted(Path(__file__).parent.glob("*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


class CompiledModule:
    """Machine code in memory, kept for as long as one of its functions is referenced."""

    def __init__(self, compiled: bytes, target: Target) -> None:
        if sys.platform == "win32":
            yield_core: Any = ctypes.windll.kernel32.SwitchToThread
        else:
            yield_core = ctypes.CDLL(None).sched_yield
        binding.add_symbol(YIELD_SYMBOL, ctypes.cast(yield_core, ctypes.c_void_p).value)
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target_machine(target))
        self._engine.add_object_file(binding.ObjectFileRef.from_data(compiled))
        self._engine.finalize_object()

    def function(self, name: str, arg_count: int) -> Callable[..., None]:
        """Return a function of so many addresses or integers; it releases the GIL while it runs."""
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arg_count)
        function: Any = prototype(self._engine.get_function_address(name))
        function.module = self
        return cast("Callable[..., None]", function)


def _target_machine(target: Target) -> Any:
    return binding.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, codemodel="jitdefault"
    )

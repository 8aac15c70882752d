"""The thread pool of the kernels, the cache of compiled code, and compilation for other processors."""

from __future__ import annotations

import gc
import shutil
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from llvmlite import binding, ir

from nightingale.backends.cpu.kernels.jit import CompiledModule, compile_cached, compile_module
from nightingale.backends.cpu.kernels.llvm_builder import WORDS, Function
from nightingale.backends.cpu.kernels.t3_operations import emit_t3_step
from nightingale.backends.cpu.kernels.target import AVX512, AVX_VNNI, detect_target
from nightingale.backends.cpu.kernels.thread_pool import JobField, ThreadPool, address_of

TARGET = detect_target()
if isinstance(TARGET, str):
    pytest.skip(TARGET, allow_module_level=True)

HEAD_DIM = 64
X86 = {
    "zmm": replace(AVX512, triple="x86_64-unknown-linux-gnu", cpu="sapphirerapids"),
    "ymm": replace(AVX_VNNI, triple="x86_64-unknown-linux-gnu", cpu="alderlake"),
}
"""Targets by the names of their registers."""


@pytest.mark.parametrize("register", X86)
@pytest.mark.parametrize(("rotary", "bits"), [(True, 8), (False, 8), (False, 4)])
def test_other_processors_get_code_with_their_instructions(register: str, rotary: bool, bits: int) -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = X86[register]
    try:
        binding.Target.from_triple(target.triple)
    except RuntimeError:
        pytest.skip("this LLVM has no x86 backend")
    module, machine = compile_module(
        emit_t3_step(target, head_dim=HEAD_DIM, rotary=rotary, bits=bits), target
    )
    assembly = machine.emit_assembly(module)
    assert any("vpdpbusd" in line and register in line for line in assembly.splitlines())
    assert "prefetcht0" in assembly


def test_code_is_compiled_once_and_again_if_the_file_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emitted: list[int] = []
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path))
    folder = tmp_path / "cache" / "code"

    def emit() -> ir.Module:
        emitted.append(1)
        module = ir.Module("one")
        f = Function(module, "one", {"x": WORDS})
        f.params[0][0] = f.const(7)
        f.ret()
        return module

    def answer() -> int:
        x = np.zeros(1, np.int64)
        compile_cached(emit, TARGET, name="one").function("one", 1)(address_of(x))
        return int(x[0])

    assert [answer(), answer()] == [7, 7]
    assert len(emitted) == 1
    (kept,) = folder.iterdir()
    good = kept.read_bytes()
    for bad in (good[:-1], good[:40] + bytes([good[40] ^ 1]) + good[41:], b""):
        kept.write_bytes(bad)
        assert answer() == 7
        assert kept.read_bytes() == good
    assert len(emitted) == 4
    compile_cached(emit, TARGET, name="two")
    assert len(emitted) == 5, "another name is another file"
    shutil.rmtree(folder)
    folder.write_text("not a folder, so nothing is kept")
    assert [answer(), answer()] == [7, 7]
    assert len(emitted) == 7


@pytest.fixture(scope="module")
def t3_module() -> CompiledModule:
    emit = partial(emit_t3_step, TARGET, head_dim=HEAD_DIM, rotary=True)
    return compile_cached(emit, TARGET, name="t3")


def barriers_only(module: CompiledModule, threads: int) -> ThreadPool:
    """Return a pool with operations of an unknown opcode: the threads only pass the barriers."""
    pool = ThreadPool(module, threads, max_ops=5)
    pool.set_operations(*[(-1, {})] * 5)
    return pool


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_pass_every_barrier_whether_spinning_or_parked(
    t3_module: CompiledModule, threads: int
) -> None:
    pool = barriers_only(t3_module, threads)
    for run in range(300):
        if run % 100 == 0:
            time.sleep(0.02)  # the workers park
        pool.run()
    assert pool.job[JobField.PHASE] == 300 * 5
    assert not pool._claims.any(), "ready for the next run"


def test_threads_end_with_their_pool(t3_module: CompiledModule) -> None:
    before = set(threading.enumerate())
    pool = barriers_only(t3_module, 3)
    pool.run()
    workers = set(threading.enumerate()) - before
    assert len(workers) == 2
    del pool
    gc.collect()
    for thread in workers:
        # A thread yields while it spins before it parks: beside busy processes that takes seconds.
        thread.join(120)
        assert not thread.is_alive()


def test_scratch_memory_grows_and_never_shrinks(t3_module: CompiledModule) -> None:
    pool, sizes = barriers_only(t3_module, 2), []
    for wanted in (100, 9000, 100):
        pool.reserve_scratch(wanted)
        sizes.append(int(pool.job[JobField.SCRATCH_BYTES]))
        assert sizes[-1] >= wanted
    assert sizes[0] < sizes[1] == sizes[2]

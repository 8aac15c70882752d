"""The instruction sets that kernels are emitted for, and the choice of one for this machine.

Every target has an instruction that multiplies groups of four int8 numbers and adds the four products to an
int32 lane: SDOT on ARM (int8 × int8), VPDPBUSD on x86 (uint8 × int8). Everything else of a kernel is the same
on all of them.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Final

from llvmlite import binding, ir

from nightingale.backends.cpu.kernels.llvm_builder import F32, I8, I32, Function, Pointer, Value
from nightingale.backends.cpu.kernels.vector_math import ROUNDING, ROUNDING_BITS

TILE_OUTPUTS: Final = 16
"""Outputs of a tile of weights, on every target."""
DOT_INPUTS: Final = 4
"""Inputs that the dot-product instruction sums for one output."""
BYTE_OPERANDS_SINCE: Final = (22, 0, 0)
"""The version of LLVM since which VPDPBUSD takes vectors of bytes; earlier ones take them as int32."""


class Isa(StrEnum):
    NEON = "neon"
    AVX512 = "avx512"
    AVX_VNNI = "avxvnni"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    isa: Isa
    lanes: int
    """int32 sums of one dot-product instruction."""
    signed_weights: bool
    """True: the instruction takes int8 weights. False: they are stored as uint8, plus ZERO_POINT."""
    prefetch_bytes: int
    """Distance at which weights are prefetched. 0: the hardware does it by itself."""
    spins_per_ms: int
    """Iterations of a loop of one load and one `pause` in a millisecond."""
    attention_tiles: int = 1
    """Groups of 16 keys, or of 16 channels, that are computed at once for four queries of the flow's attention."""
    conv_columns: int = 16
    """Columns of a convolution that are computed at once, for four outputs."""
    triple: str = ""
    cpu: str = ""
    features: str = ""

    def gemm_tiles(self, rows: int) -> int:
        """Return how many tiles are computed at once: as many as there are registers for their sums."""
        return {Isa.AVX512: 4, Isa.AVX_VNNI: max(1, 4 // rows), Isa.NEON: 1}[self.isa]

    @property
    def interleaves_weights(self) -> bool:
        """Return whether weights of attention are packed from int32 to int8 within parts of 128 bits."""
        return self.isa == Isa.AVX512

    def emit_dot(self, f: Function, sums: Value, weights: Value, inputs: Value) -> Value:
        """Return sums (lanes) plus the dot products of weights and inputs, both (lanes × DOT_INPUTS).

        On x86, bytes of `weights` are unsigned.
        """
        if self.isa == Isa.NEON:
            return f.intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", sums.ir_type, [sums, weights, inputs])
        operands = [weights, inputs]
        if binding.llvm_version_info < BYTE_OPERANDS_SINCE:
            operands = [value.bitcast(sums.ir_type) for value in operands]
        bits = 8 * DOT_INPUTS * self.lanes
        return f.intrinsic(f"llvm.x86.avx512.vpdpbusd.{bits}", sums.ir_type, [sums, *operands])

    def emit_sums(self, f: Function, correction: Value) -> Value:
        """Return the start of sums (lanes) whose end `emit_sums_as_float` reads.

        correction: of sums whose weights are stored with ZERO_POINT added; signed weights need none.
        """
        if self.isa == Isa.NEON:
            return f.zeros(I32, self.lanes) + ROUNDING_BITS
        return f.splat(correction, self.lanes)

    def emit_sums_as_float(self, sums: Value) -> Value:
        """Return sums below 2**22 as float32, exactly. ARM's conversion takes as long as four additions."""
        if self.isa == Isa.NEON:
            return sums.bitcast(ir.VectorType(F32, self.lanes)) - ROUNDING
        return sums.cast(F32)

    def emit_pause(self, f: Function) -> None:
        """Tell the core that it spins, so that the other hardware thread may run."""
        if self.isa == Isa.NEON:
            f.intrinsic("llvm.aarch64.hint", ir.VoidType(), [f.const(1, I32)])
        else:
            f.intrinsic("llvm.x86.sse2.pause", ir.VoidType(), [])

    def emit_broadcasts(self, f: Function, source: Pointer) -> Iterator[Value]:
        """Load 16 bytes as four groups of DOT_INPUTS; yield each group, repeated in every lane."""
        # ARM: one load and four shuffles. x86: four loads that broadcast.
        whole = source.load_vector(0, 16).bitcast(ir.VectorType(I32, 4)) if self.isa == Isa.NEON else None
        for group in range(4):
            if whole is not None:
                broadcast = whole.shuffle([group] * self.lanes)
            else:
                broadcast = f.splat(source.cast(I32)[group], self.lanes)
            yield broadcast.bitcast(ir.VectorType(I8, self.lanes * DOT_INPUTS))


NEON: Final = Target(
    isa=Isa.NEON, lanes=4, signed_weights=True, prefetch_bytes=0, spins_per_ms=100_000, features="+dotprod"
)
AVX512: Final = Target(
    isa=Isa.AVX512,
    lanes=16,
    signed_weights=False,
    prefetch_bytes=1024,
    spins_per_ms=20_000,
    # A dot product waits five cycles for the sum that it adds to, and two of them start in a cycle.
    attention_tiles=4,
    conv_columns=48,
)
AVX_VNNI: Final = replace(AVX512, isa=Isa.AVX_VNNI, lanes=8, attention_tiles=1, conv_columns=16)


def detect_target() -> Target | str:
    """Return the target of this machine, or the reason why there is none."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    features = binding.get_host_cpu_features()
    target = select_target(platform.machine().lower(), dict(features), has_dotprod=has_dotprod())
    if isinstance(target, str):
        return target
    flags = ",".join(filter(None, (features.flatten(), target.features)))
    triple, cpu = binding.get_process_triple(), binding.get_host_cpu_name()
    return replace(target, triple=triple, cpu=cpu, features=flags)


@cache
def host_target() -> Target:
    """Return the target of this machine; raise RuntimeError if there is none."""
    if isinstance(target := detect_target(), str):
        raise RuntimeError(target)
    return target


def select_target(machine: str, features: Mapping[str, bool], *, has_dotprod: bool) -> Target | str:
    """Return the target of a machine; LLVM does not report whether an ARM processor `has_dotprod`."""
    if machine in ("aarch64", "arm64"):
        return NEON if has_dotprod else "this processor has no int8 dot-product instruction (ARM's dotprod)"
    if machine not in ("x86_64", "amd64"):
        return f"there are no kernels for processors of type {machine!r}"
    if all(features.get(name) for name in ("avx512vnni", "avx512bw", "avx512vl")):
        return AVX512
    if all(features.get(name) for name in ("avxvnni", "f16c")):
        return AVX_VNNI
    return "this processor has no int8 dot-product instruction (x86's VNNI)"


def has_dotprod() -> bool:
    """Return whether an ARM processor has the dot-product instructions."""
    if sys.platform == "darwin":
        return True  # every Apple silicon has them
    try:
        return " asimddp" in Path("/proc/cpuinfo").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False

"""What the processor can do for us: which instruction sums products of bytes, and machine code for it."""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, cast

from llvmlite import binding, ir

from nightingale.backends.cpu.llvm_builder import I8, I32, Function, Value, vector_of

OUTPUTS: Final = 16
"""Of a tile: what a product computes side by side, on every machine."""
TOGETHER: Final = 4
"""Inputs that one instruction sums for an output."""
BYTES_AS_BYTES: Final = (22, 0, 0)
"""The version of LLVM since which that instruction takes bytes on x86; before, four as one number."""
DIGEST_BYTES: Final = 32
YIELD: Final = "nightingale_yield"
"""Lets somebody else run; named so in the machine code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    lanes: int
    """Outputs that one instruction serves."""
    signed: bool
    """Whether it takes weights with a sign. Otherwise weights are stored with ZERO added."""
    prefetch: int
    """Bytes that weights are asked for in advance. 0: the machine does it by itself."""
    looks_a_ms: int
    """How often one can look whether something has changed, and breathe between."""
    triple: str = ""
    cpu: str = ""
    features: str = ""

    def tiles(self, rows: int) -> int:
        """That are computed side by side: as many as there are registers for sums."""
        return {"avx512": 4, "avxvnni": max(1, 4 // rows), "neon": 1}[self.name]

    def dot(self, f: Function, sums: Value, weights: Value, inputs: Value) -> Value:
        """sums (lanes) + weights (lanes × TOGETHER bytes) times the same inputs for each lane, likewise."""
        if self.name == "neon":
            return f.intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", sums.kind, [sums, weights, inputs])
        given = [weights, inputs]
        if binding.llvm_version_info < BYTES_AS_BYTES:
            given = [value.as_bits(sums.kind) for value in given]
        bits = 8 * TOGETHER * self.lanes
        return f.intrinsic(f"llvm.x86.avx512.vpdpbusd.{bits}", sums.kind, [sums, *given])

    def breathe(self, f: Function) -> None:
        """Between two looks at the same place: the other thread of this core may go first."""
        if self.name == "neon":
            f.intrinsic("llvm.aarch64.hint", ir.VoidType(), [f.number(1, I32)])
        else:
            f.intrinsic("llvm.x86.sse2.pause", ir.VoidType(), [])

    def spread(self, f: Function, bytes_16: Value | None, at: Any, group: int) -> Value:
        """TOGETHER inputs, the same for each lane. at: where they lie; bytes_16: the same, loaded."""
        lanes = self.lanes
        if bytes_16 is not None:
            four = bytes_16.as_bits(vector_of(I32, 4)).pick([group] * lanes)
        else:
            four = f.spread(at[group], lanes)
        return four.as_bits(vector_of(I8, lanes * TOGETHER))


def of_this_machine() -> Target | str:
    """Or why there is none, in words."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    facts: dict[str, Any] = {
        "triple": binding.get_process_triple(),
        "cpu": binding.get_host_cpu_name(),
        "features": binding.get_host_cpu_features().flatten(),
    }
    return chosen(platform.machine().lower(), dict(binding.get_host_cpu_features()), facts, has_dot_product())


def chosen(machine: str, found: dict[str, bool], facts: dict[str, Any], dot_product: bool) -> Target | str:
    if machine in ("aarch64", "arm64"):
        if not dot_product:
            return "this processor has no instruction for products of bytes (ARM's dotprod)"
        features = ",".join(filter(None, (facts["features"], "+dotprod")))
        return Target(
            name="neon",
            lanes=4,
            signed=True,
            prefetch=0,
            looks_a_ms=100_000,
            **{**facts, "features": features},
        )
    if machine in ("x86_64", "amd64"):
        if found.get("avx512vnni") and found.get("avx512bw") and found.get("avx512vl"):
            return Target(name="avx512", lanes=16, signed=False, prefetch=1024, looks_a_ms=20_000, **facts)
        if found.get("avxvnni") and found.get("f16c"):
            return Target(name="avxvnni", lanes=8, signed=False, prefetch=1024, looks_a_ms=20_000, **facts)
        return "this processor has no instruction for products of bytes (x86's VNNI)"
    return f"no machine code is written for processors of the kind {machine!r}"


def has_dot_product() -> bool:
    """On ARM, where LLVM does not say."""
    if sys.platform == "darwin":
        return True  # every Apple silicon has it
    try:
        return " asimddp" in Path("/proc/cpuinfo").read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return False


def machine_of(target: Target) -> Any:
    """What writes code for it."""
    return binding.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=3, codemodel="jitdefault"
    )


def compiled(module: ir.Module, target: Target) -> tuple[Any, Any]:
    """LLVM's module, made quick, and what writes it for that machine."""
    machine = machine_of(target)
    parsed = binding.parse_assembly(str(module))
    parsed.triple = target.triple
    parsed.verify()
    tuning = binding.create_pipeline_tuning_options(speed_level=2)
    # Loops are written as they shall be.
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
    passes = binding.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(parsed, passes)
    return parsed, machine


def machine_code(write: Callable[[], ir.Module], target: Target, *, name: str, home: Path | None) -> bytes:
    """An object file of what `write` writes, from `home` if it is there and whole; else made now, which takes
    a second, and kept there. name: tells what it is from whatever else this version of the code may write."""
    place = None if home is None else home / f"{_key(target, name)}.object"
    if place is not None and (known := _whole(place)) is not None:
        return known
    module, machine = compiled(write(), target)
    made: bytes = machine.emit_object(module)
    if place is not None:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            part = place.with_name(f".{place.name}.{token_hex(4)}.part")
            part.write_bytes(hashlib.sha256(made).digest() + made)
            part.replace(place)
        except OSError:
            pass  # then it is made again next time
    return made


def _whole(place: Path) -> bytes | None:
    try:
        kept = place.read_bytes()
    except OSError:
        return None
    digest, made = kept[:DIGEST_BYTES], kept[DIGEST_BYTES:]
    return made if hashlib.sha256(made).digest() == digest else None


def _key(target: Target, name: str) -> str:
    """Of everything that machine code is made of: LLVM, the processor, and the Python that writes it."""
    digest = hashlib.sha256(f"{binding.llvm_version_info} {target!r} {name}".encode())
    here = Path(__file__).parent
    for source in (here.parent / "rounding.py", *sorted(here.glob("*.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


class Code:
    """Machine code in memory, as long as anybody has a function of it."""

    def __init__(self, made: bytes, target: Target) -> None:
        """made: by `machine_code`."""
        binding.add_symbol(YIELD, _address_of_yield())
        self._engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine_of(target))
        self._engine.add_object_file(binding.ObjectFileRef.from_data(made))
        self._engine.finalize_object()

    def function(self, name: str, arguments: int) -> Callable[..., None]:
        """One that takes so many addresses or whole numbers. Python's lock is free while it runs."""
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)
        function: Any = kind(self._engine.get_function_address(name))
        function.code = self
        return cast("Callable[..., None]", function)


@cache
def _address_of_yield() -> int:
    if sys.platform == "win32":
        function: Any = ctypes.windll.kernel32.SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)

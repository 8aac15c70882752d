"""Loops over numbers and vectors, written in Python and compiled by LLVM.

    sums = Function(module, "sums", {"x": F32, "count": I64})    # x: where floats lie
    total = sums.variable(sums.zeros(F32, 16))
    with sums.loop(sums["count"], step=16) as i:
        total.value += sums.array("x").vector(i, 16)
    sums.array("x")[0] = total.value.sum()
    sums.end()

The Python runs once, while the function is written: a Python `for` unrolls, a `loop` loops. Vectors may be
wider than the machine's; LLVM cuts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

Kind = Any
"""Of LLVM's, which has no types of its own."""
I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
ADDRESS = ir.PointerType()
BYTES = {I8: 1, I32: 4, I64: 8, F16: 2, F32: 4}


def vector_of(kind: Kind, lanes: int) -> Kind:
    return ir.VectorType(kind, lanes)


class Value:
    """A number or a vector; arithmetic with it is written, not done. Python's numbers take its kind."""

    __slots__ = ("function", "raw")

    def __init__(self, function: Function, raw: Any) -> None:
        self.function, self.raw = function, raw

    @property
    def kind(self) -> Kind:
        return self.raw.type

    @property
    def lanes(self) -> int:
        """0: a number."""
        return self.kind.count if isinstance(self.kind, ir.VectorType) else 0

    @property
    def element(self) -> Kind:
        return self.kind.element if self.lanes else self.kind

    @property
    def floats(self) -> bool:
        return self.element in (F16, F32)

    def like(self, other: Value | float) -> Value:
        """Another value or Python's number, with as many lanes as this one has."""
        if isinstance(other, Value):
            return self.function.spread(other, self.lanes) if self.lanes and not other.lanes else other
        number = ir.Constant(self.element, float(other) if self.floats else int(other))
        whole = ir.Constant(self.kind, [number] * self.lanes) if self.lanes else number
        return Value(self.function, whole)

    def _with(self, other: Value | float, whole: str, broken: str) -> Value:
        if isinstance(other, Value) and other.lanes and not self.lanes:
            return other.like(self)._with(other, whole, broken)
        act = getattr(self.function.builder, broken if self.floats else whole)
        return Value(self.function, act(self.raw, self.like(other).raw))

    def __add__(self, other: Value | float) -> Value:
        return self._with(other, "add", "fadd")

    def __sub__(self, other: Value | float) -> Value:
        return self._with(other, "sub", "fsub")

    def __mul__(self, other: Value | float) -> Value:
        return self._with(other, "mul", "fmul")

    def __truediv__(self, other: Value | float) -> Value:
        return self._with(other, "", "fdiv")

    def __floordiv__(self, other: Value | float) -> Value:
        """Of whole numbers that are not negative."""
        return self._with(other, "udiv", "")

    def __mod__(self, other: Value | float) -> Value:
        return self._with(other, "urem", "")

    def bits_and(self, other: int) -> Value:
        return self._with(other, "and_", "")

    def __rsub__(self, other: float) -> Value:
        return self.like(other) - self

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Value:
        return 0.0 - self if self.floats else 0 - self

    def compare(self, sign: str, other: Value | float) -> Value:
        builder = self.function.builder
        act = builder.fcmp_ordered if self.floats else builder.icmp_signed
        return Value(self.function, act(sign, self.raw, self.like(other).raw))

    def __lt__(self, other: Value | float) -> Value:
        return self.compare("<", other)

    def __gt__(self, other: Value | float) -> Value:
        return self.compare(">", other)

    def __ge__(self, other: Value | float) -> Value:
        return self.compare(">=", other)

    def equals(self, other: Value | float) -> Value:
        return self.compare("==", other)

    def choose(self, yes: Value, no: Value | float) -> Value:
        """Of a comparison."""
        return Value(self.function, self.function.builder.select(self.raw, yes.raw, yes.like(no).raw))

    def to(self, kind: Kind) -> Value:
        """The same numbers in another kind; signed, where that matters."""
        builder, target = self.function.builder, vector_of(kind, self.lanes) if self.lanes else kind
        if kind == self.element:
            return self
        if self.floats and kind in (F16, F32):
            act = builder.fpext if BYTES[kind] > BYTES[self.element] else builder.fptrunc
        elif self.floats:
            act = builder.fptosi
        elif kind in (F16, F32):
            act = builder.sitofp
        else:
            act = builder.sext if kind.width > self.element.width else builder.trunc
        return Value(self.function, act(self.raw, target))

    def as_bits(self, kind: Kind) -> Value:
        return Value(self.function, self.function.builder.bitcast(self.raw, kind))

    def lane(self, number: int | Value) -> Value:
        at = number.raw if isinstance(number, Value) else ir.Constant(I32, number)
        return Value(self.function, self.function.builder.extract_element(self.raw, at))

    def pick(self, lanes: Sequence[int]) -> Value:
        """A vector of some of its lanes."""
        mask = ir.Constant(vector_of(I32, len(lanes)), list(lanes))
        nothing = ir.Constant(self.kind, ir.Undefined)
        return Value(self.function, self.function.builder.shuffle_vector(self.raw, nothing, mask))

    def _intrinsic(self, name: str, *others: Value | float) -> Value:
        given = [self, *(self.like(other) for other in others)]
        return self.function.intrinsic(f"llvm.{name}.{_suffix(self.kind)}", self.kind, given)

    def fma(self, factor: Value | float, added: Value | float) -> Value:
        return self._intrinsic("fma", factor, added)

    def abs(self) -> Value:
        return self._intrinsic("fabs")

    def sqrt(self) -> Value:
        return self._intrinsic("sqrt")

    def rounded(self) -> Value:
        """To the nearest whole number, halves to the even one."""
        return self._intrinsic("roundeven")

    def least(self, other: Value | float) -> Value:
        return self._intrinsic("minnum", other)

    def most(self, other: Value | float) -> Value:
        return self._intrinsic("maxnum", other)

    def _reduced(self, name: str, *before: Value) -> Value:
        name = f"llvm.vector.reduce.{name}.{_suffix(self.kind)}"
        # In any order: one after another would take sixteen steps.
        loosely = ("reassoc",) if self.floats else ()
        return self.function.intrinsic(name, self.element, [*before, self], fastmath=loosely)

    def sum(self) -> Value:
        if self.floats:
            return self._reduced("fadd", Value(self.function, ir.Constant(F32, -0.0)))
        return self._reduced("add")

    def largest(self) -> Value:
        return self._reduced("fmax")


def _suffix(kind: Kind) -> str:
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{_suffix(kind.element)}"
    return {F16: "f16", F32: "f32"}[kind] if kind in (F16, F32) else f"i{kind.width}"


class Variable:
    """A value that changes."""

    def __init__(self, function: Function, first: Value) -> None:
        self._function, self._kind = function, first.kind
        # Where the function begins, or every turn of a loop would take more of the stack.
        self._place = function.opening.alloca(first.kind)
        self.value = first

    @property
    def value(self) -> Value:
        return Value(self._function, self._function.builder.load(self._place, typ=self._kind))

    @value.setter
    def value(self, value: Value) -> None:
        self._function.builder.store(value.raw, self._place)


class Array:
    """Numbers of one kind in memory."""

    def __init__(self, function: Function, address: Any, element: Kind) -> None:
        self.function, self.address, self.element = function, address, element

    def begin(self, index: Value | int) -> Array:
        """What lies there from this number on."""
        return Array(self.function, self._at(index), self.element)

    def vector(self, index: Value | int, lanes: int) -> Value:
        return self._load(index, vector_of(self.element, lanes))

    def __getitem__(self, index: Value | int) -> Value:
        return self._load(index, self.element)

    def __setitem__(self, index: Value | int, value: Value) -> None:
        """A vector is written over as many numbers."""
        self.function.builder.store(value.raw, self._at(index), align=BYTES[self.element])

    def prefetch(self, index: Value | int) -> None:
        facts = [Value(self.function, ir.Constant(I32, fact)) for fact in (0, 3, 1)]  # read, keep, data
        at = Value(self.function, self._at(index))
        self.function.intrinsic("llvm.prefetch.p0", ir.VoidType(), [at, *facts])

    def add_at_once(self, index: Value | int, value: int) -> Value:
        """What was there, before this was added to it; nobody comes between."""
        number = ir.Constant(self.element, value)
        return Value(
            self.function, self.function.builder.atomic_rmw("add", self._at(index), number, "acq_rel")
        )

    def seen(self, index: Value | int) -> Value:
        """What others have written, and with it all that they wrote before."""
        builder, align = self.function.builder, BYTES[self.element]
        return Value(self.function, builder.load_atomic(self._at(index), "acquire", align, typ=self.element))

    def show(self, index: Value | int, value: Value) -> None:
        """Write what others see, and with it all that was written before."""
        self.function.builder.atomic_rmw("xchg", self._at(index), value.raw, "release")

    def _at(self, index: Value | int) -> Any:
        raw = index.raw if isinstance(index, Value) else ir.Constant(I64, int(index))
        return self.function.builder.gep(self.address, [raw], source_etype=self.element)

    def _load(self, index: Value | int, kind: Kind) -> Value:
        raw = self.function.builder.load(self._at(index), align=BYTES[self.element], typ=kind)
        return Value(self.function, raw)


class Function:
    """A function without a result, while it is written."""

    def __init__(
        self, module: ir.Module, name: str, arguments: Mapping[str, Kind], *, arrays: Sequence[str] = ()
    ) -> None:
        """arguments: I64 for a whole number; any other kind for an array of it. arrays: those of I64."""
        self.module = module
        self._elements = {key: kind for key, kind in arguments.items() if kind != I64 or key in arrays}
        kinds = [ADDRESS if key in self._elements else I64 for key in arguments]
        self.raw = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
        self._arguments = dict(zip(arguments, self.raw.args, strict=True))
        first, self._body = self.raw.append_basic_block(), self.raw.append_basic_block()
        self.opening, self.builder = ir.IRBuilder(first), ir.IRBuilder(self._body)

    def end(self) -> None:
        self.builder.ret_void()
        self.opening.branch(self._body)

    def __getitem__(self, name: str) -> Value:
        return Value(self, self._arguments[name])

    def array(self, name: str) -> Array:
        return Array(self, self._arguments[name], self._elements[name])

    def array_at(self, address: Value, element: Kind) -> Array:
        """address: as a whole number."""
        return Array(self, self.builder.inttoptr(address.raw, ADDRESS), element)

    def local(self, element: Kind, count: int) -> Array:
        """KVBudget on the stack."""
        room = self.opening.alloca(ir.ArrayType(element, count))
        return Array(self, self.opening.inttoptr(self.opening.ptrtoint(room, I64), ADDRESS), element)

    def number(self, value: float, kind: Kind = I64) -> Value:
        return Value(self, ir.Constant(kind, value))

    def zeros(self, kind: Kind, lanes: int) -> Value:
        zero = ir.Constant(kind, 0.0 if kind in (F16, F32) else 0)
        return Value(self, ir.Constant(vector_of(kind, lanes), [zero] * lanes))

    def counting(self, lanes: int) -> Value:
        """0, 1, 2 …"""
        return Value(self, ir.Constant(vector_of(I64, lanes), list(range(lanes))))

    def variable(self, first: Value) -> Variable:
        return Variable(self, first)

    def spread(self, number: Value, lanes: int) -> Value:
        """A vector of one number."""
        nothing = ir.Constant(vector_of(number.kind, lanes), ir.Undefined)
        one = self.builder.insert_element(nothing, number.raw, ir.Constant(I32, 0))
        return Value(self, one).pick([0] * lanes)

    @contextmanager
    def loop(self, end: Value | int, *, start: Value | int = 0, step: int = 1) -> Iterator[Value]:
        first, last = (n if isinstance(n, Value) else self.number(n) for n in (start, end))
        number = self.variable(first)
        with self.forever():
            self.leave_if(number.value >= last)
            yield number.value
            number.value += step

    @contextmanager
    def forever(self) -> Iterator[None]:
        """Until `leave_if`."""
        inside, outside = self.raw.append_basic_block(), self.raw.append_basic_block()
        self.builder.branch(inside)
        self.builder.position_at_end(inside)
        outer, self._outside = getattr(self, "_outside", None), outside
        yield
        self._outside = outer
        self.builder.branch(inside)
        self.builder.position_at_end(outside)

    def leave_if(self, condition: Value) -> None:
        """The innermost loop."""
        on = self.raw.append_basic_block()
        self.builder.cbranch(condition.raw, self._outside, on)
        self.builder.position_at_end(on)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.builder.if_then(condition.raw):
            yield

    @contextmanager
    def either(self, condition: Value) -> Iterator[Any]:
        """Two contexts: for when it holds, and for when not."""
        with self.builder.if_else(condition.raw) as both:
            yield both

    def call(self, function: Function, *given: Value | Array) -> None:
        self.builder.call(function.raw, [g.address if isinstance(g, Array) else g.raw for g in given])

    def intrinsic(
        self, name: str, result: Kind, given: Sequence[Value], *, fastmath: tuple[str, ...] = ()
    ) -> Value:
        """An instruction that LLVM has by name."""
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(result, [g.kind for g in given]), name)
        return Value(self, self.builder.call(known, [g.raw for g in given], fastmath=fastmath))

"""A typed layer over llvmlite's IR builder: Python operators for values, `with` blocks for control flow.

Read this before any other file of this package; every kernel is written with these four classes.

    f = Function(module, "sum", {"x": F32, "count": I64})   # void sum(float *x, int64_t count)
    x, count = f.params
    total = f.variable(f.zeros(F32, 16))                    # a vector of sixteen floats
    with f.loop(count, step=16) as i:                       # for (i = 0; i < count; i += 16)
        total.value += x.load_vector(i, 16)
    x[0] = total.value.reduce_sum()
    f.ret()

The Python code runs once, while the function is emitted: a Python `for` unrolls, `f.loop` loops at run time.
Vectors may be wider than the machine's registers; LLVM splits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, TypeAlias

from llvmlite import ir

IRType: TypeAlias = Any
"""A type of LLVM; llvmlite has no annotations."""
Operand: TypeAlias = "Value | float"
Index: TypeAlias = "Value | int"
I8, I32, I64 = (ir.IntType(bits) for bits in (8, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
FLOATS: Final = (F16, F32)
ADDRESS: Final = ir.PointerType()
SIZES: Final = {I8: 1, I32: 4, I64: 8, F16: 2, F32: 4}
"""Bytes of each element type."""
NO_NAN: Final = ("nnan", "nsz")
"""Flags of a maximum, whose result for NaN is undefined: x86 needs three instructions for a defined one, and a
maximum across sixteen lanes sixteen steps of these."""
WORDS: Final = "words"
"""Declares a parameter that points to 64-bit integers; I64 declares an integer."""


def _binary(int_op: str, float_op: str) -> Callable[[Value, Operand], Value]:
    """Return a method that emits one of two instructions; a scalar operand is splat to a vector's lanes."""

    def emit(self: Value, other: Operand) -> Value:
        left = other.splat(self) if isinstance(other, Value) and other.lanes and not self.lanes else self
        instruction = getattr(self.function.builder, float_op if self.is_float else int_op)
        return self.wrap(instruction(left.raw, left.splat(other).raw))

    return emit


def _comparison(predicate: str) -> Callable[[Value, Operand], Value]:
    def emit(self: Value, other: Operand) -> Value:
        compare = getattr(self.function.builder, "fcmp_ordered" if self.is_float else "icmp_signed")
        return self.wrap(compare(predicate, self.raw, self.splat(other).raw))

    return emit


def _intrinsic(
    float_name: str, int_name: str = "", *, fastmath: tuple[str, ...] = ()
) -> Callable[..., Value]:
    """Return a method that calls a function of LLVM, whose operands and result have the same type."""

    def emit(self: Value, *others: Operand) -> Value:
        operands = [self, *(self.splat(other) for other in others)]
        name = f"llvm.{float_name if self.is_float else int_name}.{self.type_suffix()}"
        flags = fastmath if self.is_float else ()
        return self.function.intrinsic(name, self.ir_type, operands, fastmath=flags)

    return emit


class Value:
    """A scalar or a vector of the emitted function; an operator emits an instruction.

    Python numbers are converted to the type of the `Value` on the other side.
    """

    def __init__(self, function: Function, raw: Any) -> None:
        self.function, self.raw, self.ir_type = function, raw, raw.type
        is_vector = isinstance(raw.type, ir.VectorType)
        self.lanes: int = raw.type.count if is_vector else 0
        """0 for a scalar."""
        self.element_type: IRType = raw.type.element if is_vector else raw.type
        self.is_float = self.element_type in FLOATS

    def wrap(self, raw: Any) -> Value:
        return Value(self.function, raw)

    def type_suffix(self) -> str:
        """Return the type's name at the end of the name of an intrinsic: f32, v16i8."""
        return (f"v{self.lanes}" if self.lanes else "") + str(self.element_type.intrinsic_name)

    def splat(self, other: Operand) -> Value:
        """Convert a number or a scalar to a value with as many lanes as this one has."""
        if isinstance(other, Value):
            return self.function.splat(other, self.lanes) if self.lanes and not other.lanes else other
        number = ir.Constant(self.element_type, float(other) if self.is_float else int(other))
        return self.wrap(ir.Constant(self.ir_type, [number] * self.lanes) if self.lanes else number)

    __add__ = __radd__ = _binary("add", "fadd")
    __sub__ = _binary("sub", "fsub")
    __mul__ = __rmul__ = _binary("mul", "fmul")
    __truediv__ = _binary("", "fdiv")
    __floordiv__ = _binary("udiv", "")
    __mod__ = _binary("urem", "")
    __and__ = _binary("and_", "")
    __lshift__ = _binary("shl", "")
    __lt__ = _comparison("<")
    __gt__ = _comparison(">")
    __ge__ = _comparison(">=")
    equals = _comparison("==")
    fma = _intrinsic("fma")
    """self.fma(factor, added) is self * factor + added, rounded once."""
    abs = _intrinsic("fabs")
    sqrt = _intrinsic("sqrt")
    round = _intrinsic("roundeven")
    """To the nearest integer, ties to even."""
    min = _intrinsic("minnum", "smin", fastmath=NO_NAN)
    max = _intrinsic("maxnum", "smax", fastmath=NO_NAN)

    def __neg__(self) -> Value:
        return self.splat(0) - self

    def select(self, if_true: Value, if_false: Operand) -> Value:
        """Choose lane by lane; this value is the result of a comparison."""
        other = if_true.splat(if_false)
        return self.wrap(self.function.builder.select(self.raw, if_true.raw, other.raw))

    def select_pointer(self, if_true: Pointer, if_false: Pointer) -> Pointer:
        """Choose one of two addresses; this value is the result of a comparison of scalars."""
        chosen = self.function.builder.select(self.raw, if_true.address, if_false.address)
        return Pointer(self.function, chosen, if_true.element)

    def cast(self, element: IRType) -> Value:
        """Convert to another element type; integers are signed, and never widened."""
        if self.is_float and element in FLOATS:
            name = "fpext" if SIZES[element] > SIZES[self.element_type] else "fptrunc"
        elif self.is_float:
            name = "fptosi"
        else:
            name = "sitofp" if element in FLOATS else "trunc"
        ir_type = ir.VectorType(element, self.lanes) if self.lanes else element
        return self.wrap(getattr(self.function.builder, name)(self.raw, ir_type))

    def widen(self, element: IRType) -> Value:
        """Convert an unsigned integer to a larger type."""
        return self.wrap(self.function.builder.zext(self.raw, element))

    def bitcast(self, ir_type: IRType) -> Value:
        return self.wrap(self.function.builder.bitcast(self.raw, ir_type))

    def extract(self, lane: int) -> Value:
        return self.wrap(self.function.builder.extract_element(self.raw, ir.Constant(I32, lane)))

    def shuffle(self, lanes: Sequence[int]) -> Value:
        """Return a vector of the lanes with these numbers."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))
        unused = ir.Constant(self.ir_type, ir.Undefined)
        return self.wrap(self.function.builder.shuffle_vector(self.raw, unused, mask))

    def join(self, other: Value) -> Value:
        """Return a vector of the lanes of both."""
        mask = ir.Constant(ir.VectorType(I32, 2 * self.lanes), list(range(2 * self.lanes)))
        return self.wrap(self.function.builder.shuffle_vector(self.raw, other.raw, mask))

    def _reduce(self, name: str, *start: Value, fastmath: tuple[str, ...] = ()) -> Value:
        name = f"llvm.vector.reduce.{name}.{self.type_suffix()}"
        # In any order: a strictly sequential sum of sixteen lanes would take sixteen steps.
        flags = ("reassoc", *fastmath) if self.is_float else ()
        return self.function.intrinsic(name, self.element_type, [*start, self], fastmath=flags)

    def reduce_sum(self) -> Value:
        return self._reduce("fadd", self.function.const(-0.0, F32)) if self.is_float else self._reduce("add")

    def reduce_max(self) -> Value:
        return self._reduce("fmax", fastmath=NO_NAN)


class Variable:
    """A mutable local variable; LLVM keeps it in a register."""

    def __init__(self, function: Function, initial: Value) -> None:
        self._function, self._type = function, initial.ir_type
        # In the entry block: inside a loop every iteration would take more of the stack.
        self._slot = function.entry.alloca(initial.ir_type)
        self.value = initial

    @property
    def value(self) -> Value:
        return Value(self._function, self._function.builder.load(self._slot, typ=self._type))

    @value.setter
    def value(self, value: Value) -> None:
        self._function.builder.store(value.raw, self._slot)


class Pointer:
    """The address of numbers of one type; indices count elements."""

    def __init__(self, function: Function, address: Any, element: IRType) -> None:
        self.function, self.address, self.element = function, address, element

    def offset(self, index: Index) -> Pointer:
        return Pointer(self.function, self._at(index), self.element)

    def cast(self, element: IRType) -> Pointer:
        """Read the same memory as another type."""
        return Pointer(self.function, self.address, element)

    def load_vector(self, index: Index, lanes: int) -> Value:
        return self._load(index, ir.VectorType(self.element, lanes))

    def __getitem__(self, index: Index) -> Value:
        return self._load(index, self.element)

    def __setitem__(self, index: Index, value: Value) -> None:
        """Store a scalar, or a vector over as many elements as it has lanes."""
        self.function.builder.store(value.raw, self._at(index), align=SIZES[self.element])

    def prefetch(self, index: Index) -> None:
        read_keep_data = [self.function.const(fact, I32) for fact in (0, 3, 1)]
        address = Value(self.function, self._at(index))
        self.function.intrinsic("llvm.prefetch.p0", ir.VoidType(), [address, *read_keep_data])

    def fetch_add(self, index: Index, value: int) -> Value:
        """Add atomically, with acquire and release ordering, and return what was there before."""
        add = self.function.builder.atomic_rmw
        return Value(self.function, add("add", self._at(index), ir.Constant(self.element, value), "acq_rel"))

    def load_acquire(self, index: Index) -> Value:
        """Load atomically; what the releasing thread wrote before its release is visible afterwards."""
        load, size = self.function.builder.load_atomic, SIZES[self.element]
        return Value(self.function, load(self._at(index), "acquire", size, typ=self.element))

    def exchange_release(self, index: Index, value: Value) -> None:
        """Store atomically; a thread that acquires it sees everything that was written before."""
        self.function.builder.atomic_rmw("xchg", self._at(index), value.raw, "release")

    def _at(self, index: Index) -> Any:
        raw = index.raw if isinstance(index, Value) else ir.Constant(I64, int(index))
        return self.function.builder.gep(self.address, [raw], source_etype=self.element)

    def _load(self, index: Index, ir_type: IRType) -> Value:
        load, size = self.function.builder.load, SIZES[self.element]
        return Value(self.function, load(self._at(index), align=size, typ=ir_type))


class Function:
    """A function without a result, while it is being emitted."""

    def __init__(
        self, module: ir.Module, name: str, params: Mapping[str, IRType], *, inline: bool = False
    ) -> None:
        """Declare a function; a type other than I64 declares a pointer to elements of it."""
        types = [I64 if param == I64 else ADDRESS for param in params.values()]
        self.module, self.raw = module, ir.Function(module, ir.FunctionType(ir.VoidType(), types), name)
        if inline:
            self.raw.attributes.add("alwaysinline")
        first, self._body = self.raw.append_basic_block(), self.raw.append_basic_block()
        self.entry, self.builder = ir.IRBuilder(first), ir.IRBuilder(self._body)
        self.params: list[Any] = [
            Value(self, raw) if param == I64 else Pointer(self, raw, I64 if param is WORDS else param)
            for param, raw in zip(params.values(), self.raw.args, strict=True)
        ]
        """A `Value` or a `Pointer` for each parameter."""
        self._loop_exit: Any = None

    def ret(self) -> Self:
        """End the function and return it."""
        self.builder.ret_void()
        self.entry.branch(self._body)
        return self

    def pointer_at(self, address: Value, element: IRType) -> Pointer:
        """Return a pointer from an address that is an integer."""
        return Pointer(self, self.builder.inttoptr(address.raw, ADDRESS), element)

    def stack_array(self, element: IRType, count: int) -> Pointer:
        slot = self.entry.alloca(ir.ArrayType(element, count))
        return Pointer(self, self.entry.inttoptr(self.entry.ptrtoint(slot, I64), ADDRESS), element)

    def const(self, value: float, ir_type: IRType = I64) -> Value:
        return Value(self, ir.Constant(ir_type, value))

    def zeros(self, element: IRType, lanes: int) -> Value:
        zero = ir.Constant(element, 0.0 if element in FLOATS else 0)
        return Value(self, ir.Constant(ir.VectorType(element, lanes), [zero] * lanes))

    def iota(self, lanes: int) -> Value:
        """Return the vector 0, 1, 2 and so on."""
        return Value(self, ir.Constant(ir.VectorType(I64, lanes), list(range(lanes))))

    def variable(self, initial: Value) -> Variable:
        return Variable(self, initial)

    def variables(self, count: int, initial: Value) -> list[Variable]:
        return [Variable(self, initial) for _ in range(count)]

    def splat(self, scalar: Value, lanes: int) -> Value:
        """Return a vector with the scalar in every lane."""
        unused = ir.Constant(ir.VectorType(scalar.ir_type, lanes), ir.Undefined)
        first = self.builder.insert_element(unused, scalar.raw, ir.Constant(I32, 0))
        return Value(self, first).shuffle([0] * lanes)

    @contextmanager
    def loop(self, end: Index, *, start: Index = 0, step: int = 1) -> Iterator[Value]:
        """Loop over range(start, end, step)."""
        first, last = (n if isinstance(n, Value) else self.const(n) for n in (start, end))
        index = self.variable(first)
        with self.loop_forever():
            self.break_if(index.value >= last)
            yield index.value
            index.value += step

    @contextmanager
    def loop_forever(self) -> Iterator[None]:
        """Loop until `break_if`."""
        inside, outside = self.raw.append_basic_block(), self.raw.append_basic_block()
        self.builder.branch(inside)
        self.builder.position_at_end(inside)
        outer, self._loop_exit = self._loop_exit, outside
        yield
        self._loop_exit = outer
        self.builder.branch(inside)
        self.builder.position_at_end(outside)

    def break_if(self, condition: Value) -> None:
        """Leave the innermost loop."""
        following = self.raw.append_basic_block()
        self.builder.cbranch(condition.raw, self._loop_exit, following)
        self.builder.position_at_end(following)

    @contextmanager
    def if_then(self, condition: Value) -> Iterator[None]:
        with self.builder.if_then(condition.raw):
            yield

    @contextmanager
    def if_else(self, condition: Value) -> Iterator[Any]:
        """Yield two contexts, the first for the branch where the condition holds."""
        with self.builder.if_else(condition.raw) as branches:
            yield branches

    def call(self, function: Function, *args: Value | Pointer) -> None:
        self.builder.call(function.raw, [a.address if isinstance(a, Pointer) else a.raw for a in args])

    def intrinsic(
        self, name: str, result: IRType, args: Sequence[Value], *, fastmath: tuple[str, ...] = ()
    ) -> Value:
        """Call a function that LLVM itself defines, declaring it on first use."""
        function_type = ir.FunctionType(result, [a.ir_type for a in args])
        function = self.module.declare_intrinsic(name, fnty=function_type)
        return Value(self, self.builder.call(function, [a.raw for a in args], fastmath=fastmath))

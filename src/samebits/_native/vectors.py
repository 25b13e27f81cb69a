"""Instructions on vectors of 16 lanes, in kernels: the lanes, and so the bits, are the same on every machine.

`+ - * /` work lane by lane. In memory, a part of a vector is its first lanes; nothing beyond them is touched.
bfloat16 and float16 are read as float32, and rounded to nearest even when they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from samebits import _native as native
from samebits._native import formula as formulas
from samebits._native.float_bits import COMPUTED, SIZE, from_bits_64, narrowed, stored, widened
from samebits._native.formula import formula, where
from samebits._native.lazy_kernel import Part, inlined, instruction
from samebits._native.vector_writer import VectorWriter

LANES = 16


def vector_of(element: str) -> Any:
    """Returns the type of a vector of 16 lanes."""
    return native.llvm.vector_of(element, LANES)


def written(write: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the code of an instruction: `write` takes a writer of 16 lanes and the arguments."""

    def code(builder: Any, *arguments: Any) -> Any:
        return write(VectorWriter(builder, LANES), *arguments)

    return code


def _load(memory: str) -> Part:
    """The vector at an address, or its first lanes, if their number is given."""

    def write(writer: VectorWriter, address: Any, *count: Any) -> Any:
        mask = writer.first_lanes(*count) if count else None
        return widened(writer.builder, memory, writer.read(writer.pointer(address), stored(memory), 1, mask))

    def build(*given: Any) -> Any:
        return vector_of(COMPUTED[memory])(*[native.types.int64] * len(given)), written(write)

    return instruction(build)


def _store(memory: str) -> Part:
    """Writes a vector to an address, or its first lanes, if their number is given."""

    def write(writer: VectorWriter, address: Any, value: Any, *count: Any) -> None:
        mask = writer.first_lanes(*count) if count else None
        writer.write(narrowed(writer.builder, memory, value), writer.pointer(address), 1, mask)

    def build(_address: Any, _value: Any, *count: Any) -> Any:
        int64, value = native.types.int64, vector_of(COMPUTED[memory])
        return native.types.void(int64, value, *[int64] * len(count)), written(write)

    return instruction(build)


def _load_one(memory: str) -> Part:
    """The number at an address: as float32, if it is not float64."""

    def write(writer: VectorWriter, address: Any) -> Any:
        place = writer.builder.inttoptr(address, stored(memory).as_pointer())
        return widened(writer.builder, memory, writer.builder.load(place, align=1))

    return instruction(
        lambda _address: (getattr(native.types, COMPUTED[memory])(native.types.int64), written(write))
    )


def _store_one(memory: str) -> Part:
    """Writes a number to an address, rounded to the type of memory as `narrowed` does."""

    def write(writer: VectorWriter, address: Any, number: Any) -> None:
        place = writer.builder.inttoptr(address, stored(memory).as_pointer())
        writer.builder.store(narrowed(writer.builder, memory, number), place, align=1)

    return instruction(lambda _address, value: (native.types.void(native.types.int64, value), written(write)))


LOAD = {memory: _load(memory) for memory in SIZE}
LOAD_ONE = {memory: _load_one(memory) for memory in SIZE}
STORE = {memory: _store(memory) for memory in SIZE}
STORE_ONE = {memory: _store_one(memory) for memory in SIZE}


@inlined
def for_each_vector(whole: Any, rest: Any, part: Any, given: Any) -> None:
    """Calls `part(first, some, *given)` for `whole` vectors of a run, and for its `rest`, if there is one.

    `first`: the number of the first element. `some`: what `LOAD` and `STORE` take beside: nothing, or `rest`.
    """
    for i in range(whole):
        part(i * 16, (), *given)
    if rest:
        part(whole * 16, (rest,), *given)


def stack(size: int) -> Part:
    """Returns the expression for the address of `size` bytes, which live as long as the kernel's call."""

    def write(writer: VectorWriter) -> Any:
        with writer.builder.goto_entry_block():
            space = writer.builder.alloca(native.ir.ArrayType(writer.i8, size))
            space.align = 64
        return writer.builder.ptrtoint(space, writer.i64)

    return instruction(lambda: (native.types.int64(), written(write)))


@instruction
def prefetch(address: Any) -> Any:
    """Prefetches the cache line at an address, without waiting for it; any address is allowed."""

    def write(writer: VectorWriter, address: Any) -> None:
        read, second_level, data = writer.i32(0), writer.i32(2), writer.i32(1)
        place = writer.pointer(address)
        writer.call("llvm.prefetch.p0", native.ir.VoidType(), place, read, second_level, data)

    return native.types.void(native.types.int64), written(write)


@instruction
def copy_bytes(target: Any, source: Any, count: Any) -> Any:
    """Copies memory from one address to another; both pieces must be apart."""

    def write(writer: VectorWriter, target: Any, source: Any, count: Any) -> None:
        places = writer.pointer(target), writer.pointer(source)
        volatile = native.ir.IntType(1)(0)
        writer.call("llvm.memcpy.p0.p0.i64", native.ir.VoidType(), *places, count, volatile)

    types = native.types
    return types.void(types.int64, types.int64, types.int64), written(write)


@instruction
def splat(number: Any) -> Any:
    """Returns a vector with a number in every lane."""
    return vector_of(str(number))(number), written(lambda writer, number: writer.splat(number))


@formula
def fma(x: Any, y: Any, z: Any) -> Any:
    """Returns x y + z, rounded once; of vectors or of numbers."""
    return x.fused(y, z)


@formula
def root(x: Any) -> Any:
    """Returns IEEE's square root, of vectors or of numbers."""
    return x.square_root()


@formula
def magnitude(x: Any) -> Any:
    """Returns the absolute value, of vectors or of numbers."""
    return x.magnitude()


one_nan = formula(formulas.one_nan)


@formula
def number_or_zero(x: Any) -> Any:
    """Returns the lanes of a vector with 0 for NaN."""
    return where(x.equals(x), x, 0.0)


@formula
def not_zero(x: Any) -> Any:
    """Returns 1 in the lanes of a vector that are not zero (NaN is not), else 0."""
    return where(x.equals(0.0), x.constant(0.0), 1.0)


@instruction
def as_float64(x: Any) -> Any:
    """Returns the lanes in float64: exact."""

    def write(writer: VectorWriter, x: Any) -> Any:
        return writer.builder.fpext(x, writer.vector_of(native.ir.DoubleType()))

    return vector_of("float64")(x), written(write)


@instruction
def as_float32(x: Any) -> Any:
    """Returns the lanes of a vector of float64 rounded to float32."""

    def write(writer: VectorWriter, x: Any) -> Any:
        return writer.builder.fptrunc(x, writer.vector_of(native.ir.FloatType()))

    return vector_of("float32")(x), written(write)


@instruction
def first_of(count: Any, x: Any, y: Any) -> Any:
    """Returns the lanes of `x` below `count`, and those of `y` from there on."""

    def write(writer: VectorWriter, count: Any, x: Any, y: Any) -> Any:
        return writer.builder.select(writer.first_lanes(count), x, y)

    return x(native.types.int64, x, x), written(write)


@instruction
def where_less(a: Any, b: Any, x: Any, y: Any) -> Any:
    """Returns `x` in the lanes where a < b (false for a NaN), else `y`."""

    def write(writer: VectorWriter, a: Any, b: Any, x: Any, y: Any) -> Any:
        return writer.builder.select(writer.builder.fcmp_ordered("<", a, b), x, y)

    return x(a, b, x, y), written(write)


def _tree(combine: Callable[[Any, Any, Any], Any]) -> Part:
    def write(writer: VectorWriter, value: Any) -> Any:
        lanes = LANES
        while lanes > 1:
            lanes //= 2
            low, high = (
                writer.shuffled(value, value, list(range(start, start + lanes))) for start in (0, lanes)
            )
            value = combine(writer.builder, low, high)
        return writer.builder.extract_element(value, writer.i32(0))

    return instruction(lambda x: (x.element(x), written(write)))


added = _tree(lambda builder, low, high: builder.fadd(low, high))
"""Adds up the lanes: the upper half to the lower half, until one is left."""
multiplied = _tree(lambda builder, low, high: builder.fmul(low, high))


def _larger(builder: Any, low: Any, high: Any) -> Any:
    """The larger one; a NaN where one of both is NaN."""
    take = builder.or_(builder.fcmp_ordered(">", high, low), builder.fcmp_unordered("uno", high, high))
    return builder.select(take, high, low)


largest = _tree(_larger)
"""The largest lane, NaN if one is NaN."""


float64_of_bits = from_bits_64
"""The float64 with the bits of an integer: numbers travel so among a kernel's arguments."""

"""Instructions on vectors of 16 lanes, in kernels: the lanes, and so the bits, are the same on every machine.

`+ - * /` work lane by lane. In memory, a part of a vector is its first lanes; nothing beyond them is touched.
bfloat16 and float16 are read as float32, and rounded to nearest even when they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from samebits import _native as native
from samebits._native.lazy_kernel import Deferred, instruction

LANES = 16


def named(name: str, build: Callable[..., Any]) -> Deferred:
    """Returns the instruction that `build` makes, under a name of its own."""
    build.__name__ = build.__qualname__ = name
    return instruction(build)


def vector_of(element: str) -> Any:
    """Returns the type of a vector of 16 lanes."""
    return native.compilation.vector(element, LANES)


def first_lanes(builder: Any, count: Any) -> Any:
    """Returns the lanes below `count`, as bits."""
    ir = native.ir
    wide = ir.VectorType(ir.IntType(32), LANES)
    count = builder.trunc(count, ir.IntType(32))
    one = builder.insert_element(ir.Constant(wide, ir.Undefined), count, ir.IntType(32)(0))
    every = builder.shuffle_vector(one, one, ir.Constant(wide, [0] * LANES))
    return builder.icmp_signed("<", ir.Constant(wide, list(range(LANES))), every)


def call(builder: Any, name: str, result: Any, arguments: Any) -> Any:
    """Calls an intrinsic of LLVM by its full name (`declare_intrinsic` refuses vectors)."""
    ir, cgutils = native.ir, native.cgutils
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def suffix_of(kind: Any) -> str:
    """Returns a vector's type as it stands in the names of LLVM's intrinsics."""
    element = kind.element
    bits = {"float": "f32", "double": "f64", "half": "f16"}.get(str(element)) or str(element)
    return f"v{kind.count}{bits}"


_MEMORY = {
    "float32": ("float32", 4),
    "float64": ("float64", 8),
    "bfloat16": ("float32", 2),
    "float16": ("float32", 2),
}


def _stored(memory: str) -> Any:
    ir = native.ir
    elements = {
        "float32": ir.FloatType(),
        "float64": ir.DoubleType(),
        "bfloat16": ir.IntType(16),
        "float16": ir.IntType(16),
    }
    return ir.VectorType(elements[memory], LANES)


def _widen(builder: Any, memory: str, words: Any) -> Any:
    ir = native.ir
    if memory == "bfloat16":
        wide = ir.VectorType(ir.IntType(32), LANES)
        high = builder.shl(builder.zext(words, wide), ir.Constant(wide, [16] * LANES))
        return builder.bitcast(high, ir.VectorType(ir.FloatType(), LANES))
    if memory == "float16":
        return builder.fpext(
            builder.bitcast(words, ir.VectorType(ir.HalfType(), LANES)), ir.VectorType(ir.FloatType(), LANES)
        )
    return words


def _narrow(builder: Any, memory: str, value: Any) -> Any:
    """Rounds to nearest even."""
    ir = native.ir
    words = ir.VectorType(ir.IntType(16), LANES)
    if memory == "float16":
        return builder.bitcast(builder.fptrunc(value, ir.VectorType(ir.HalfType(), LANES)), words)
    if memory == "bfloat16":
        wide = ir.VectorType(ir.IntType(32), LANES)

        def number(n: int) -> Any:
            return ir.Constant(wide, [n] * LANES)

        bits = builder.bitcast(value, wide)
        odd = builder.and_(builder.lshr(bits, number(16)), number(1))
        rounded = builder.lshr(builder.add(bits, builder.add(odd, number(0x7FFF))), number(16))
        is_nan = builder.fcmp_unordered("uno", value, value)
        return builder.trunc(builder.select(is_nan, number(0x7FC0), rounded), words)
    return value


def _load(memory: str) -> Deferred:
    def build(typing_context: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], _stored(memory).as_pointer())
            return _widen(builder, memory, builder.load(pointer, align=1))

        return vector_of(_MEMORY[memory][0])(native.types.int64), code

    return named(f"load_{memory}", build)


def _load_part(memory: str) -> Deferred:
    def build(typing_context: Any, address: Any, count: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ir, kind = native.ir, _stored(memory)
            pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
            one, zero = ir.IntType(32)(1), ir.Constant(kind, [0] * LANES)
            mask = first_lanes(builder, arguments[1])
            words = call(builder, f"llvm.masked.load.{suffix_of(kind)}.p0", kind, [pointer, one, mask, zero])
            return _widen(builder, memory, words)

        types = native.types
        return vector_of(_MEMORY[memory][0])(types.int64, types.int64), code

    return named(f"load_part_{memory}", build)


def _store(memory: str) -> Deferred:
    def build(typing_context: Any, address: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], _stored(memory).as_pointer())
            builder.store(_narrow(builder, memory, arguments[1]), pointer, align=1)
            return context.get_dummy_value()

        return native.types.void(native.types.int64, vector_of(_MEMORY[memory][0])), code

    return named(f"store_{memory}", build)


def _store_part(memory: str) -> Deferred:
    def build(typing_context: Any, address: Any, value: Any, count: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ir, kind = native.ir, _stored(memory)
            pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
            mask, words = first_lanes(builder, arguments[2]), _narrow(builder, memory, arguments[1])
            call(
                builder,
                f"llvm.masked.store.{suffix_of(kind)}.p0",
                ir.VoidType(),
                [words, pointer, ir.IntType(32)(1), mask],
            )
            return context.get_dummy_value()

        types = native.types
        return types.void(types.int64, vector_of(_MEMORY[memory][0]), types.int64), code

    return named(f"store_part_{memory}", build)


LOAD = {memory: _load(memory) for memory in _MEMORY}
LOAD_PART = {memory: _load_part(memory) for memory in _MEMORY}
STORE = {memory: _store(memory) for memory in _MEMORY}
STORE_PART = {memory: _store_part(memory) for memory in _MEMORY}
SIZE = {memory: size for memory, (_, size) in _MEMORY.items()}


def stack(size: int) -> Deferred:
    """Returns the expression for the address of that number of bytes, which live as long as the kernel's call."""

    def build(typing_context: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ir = native.ir
            with builder.goto_entry_block():
                space = builder.alloca(ir.ArrayType(ir.IntType(8), size))
                space.align = 64
            return builder.ptrtoint(space, ir.IntType(64))

        return native.types.int64(), code

    return named(f"stack_{size}", build)


@instruction
def copy_bytes(typing_context: Any, target: Any, source: Any, count: Any) -> Any:
    """Copies memory from one address to another; both pieces must be apart."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ir = native.ir
        target, source = (builder.inttoptr(each, ir.IntType(8).as_pointer()) for each in arguments[:2])
        call(
            builder, "llvm.memcpy.p0.p0.i64", ir.VoidType(), [target, source, arguments[2], ir.IntType(1)(0)]
        )
        return context.get_dummy_value()

    types = native.types
    return types.void(types.int64, types.int64, types.int64), code


def _load_one(memory: str) -> Deferred:
    """The number at an address: as float32, if it is not float64."""

    def build(typing_context: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ir, kind = native.ir, _stored(memory).element
            word = builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            if memory == "bfloat16":
                return builder.bitcast(
                    builder.shl(builder.zext(word, ir.IntType(32)), ir.IntType(32)(16)), ir.FloatType()
                )
            if memory == "float16":
                return builder.fpext(builder.bitcast(word, ir.HalfType()), ir.FloatType())
            return word

        return getattr(native.types, _MEMORY[memory][0])(native.types.int64), code

    return named(f"load_one_{memory}", build)


LOAD_ONE = {memory: _load_one(memory) for memory in _MEMORY}


def _store_one(memory: str) -> Deferred:
    """Writes a number to an address, rounded to the type of memory (a float64 first to float32, if that is smaller)."""

    def build(typing_context: Any, address: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ir, kind, number = native.ir, _stored(memory).element, arguments[1]
            if memory != "float64" and str(number.type) == "double":
                number = builder.fptrunc(number, ir.FloatType())
            if memory == "float16":
                number = builder.bitcast(builder.fptrunc(number, ir.HalfType()), kind)
            if memory == "bfloat16":
                vector = ir.Constant(ir.VectorType(ir.FloatType(), LANES), ir.Undefined)
                vector = _narrow(builder, memory, builder.insert_element(vector, number, ir.IntType(32)(0)))
                number = builder.extract_element(vector, ir.IntType(32)(0))
            builder.store(number, builder.inttoptr(arguments[0], kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return native.types.void(native.types.int64, value), code

    return named(f"store_one_{memory}", build)


STORE_ONE = {memory: _store_one(memory) for memory in _MEMORY}


@instruction
def splat(typing_context: Any, number: Any) -> Any:
    """Returns a vector with a number in every lane."""
    kind = native.compilation.vector(str(number), LANES)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ir = native.ir
        start = ir.Constant(context.get_value_type(kind), ir.Undefined)
        one = builder.insert_element(start, arguments[0], ir.IntType(32)(0))
        return builder.shuffle_vector(
            one, one, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        )

    return kind(number), code


@instruction
def fma(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """Returns x y + z, rounded once; of vectors or of numbers."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        suffix = suffix_of(kind) if hasattr(kind, "count") else {"float": "f32", "double": "f64"}[str(kind)]
        return call(builder, f"llvm.fma.{suffix}", kind, arguments)

    return x(x, y, z), code


def _unary(name: str) -> Deferred:
    def build(typing_context: Any, x: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = arguments[0].type
            suffix = (
                suffix_of(kind) if hasattr(kind, "count") else {"float": "f32", "double": "f64"}[str(kind)]
            )
            return call(builder, f"llvm.{name}.{suffix}", kind, arguments)

        return x(x), code

    return named(name, build)


root = _unary("sqrt")
"""IEEE's square root, of vectors or of numbers."""
magnitude = _unary("fabs")


@instruction
def as_float64(typing_context: Any, x: Any) -> Any:
    """Returns the lanes in float64: exact."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(arguments[0], context.get_value_type(signature.return_type))

    return vector_of("float64")(x), code


@instruction
def as_float32(typing_context: Any, x: Any) -> Any:
    """Returns the lanes of a vector of float64 rounded to float32."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fptrunc(arguments[0], context.get_value_type(signature.return_type))

    return vector_of("float32")(x), code


@instruction
def first_of(typing_context: Any, count: Any, x: Any, y: Any) -> Any:
    """Returns the lanes of `x` below `count`, and those of `y` from there on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(first_lanes(builder, arguments[0]), arguments[1], arguments[2])

    return x(native.types.int64, x, x), code


def _chosen(name: str, compare: str) -> Deferred:
    """(a, b, x, y): x in the lanes where a and b compare so (false for a NaN), else y."""

    def build(typing_context: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.select(builder.fcmp_ordered(compare, *arguments[:2]), *arguments[2:])

        return x(a, b, x, y), code

    return named(name, build)


where_less = _chosen("where_less", "<")


@instruction
def one_nan(typing_context: Any, x: Any) -> Any:
    """Returns `x`, a vector or a number, with every NaN replaced by the quiet one with a positive sign and no payload."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ir, value = native.ir, arguments[0]
        if hasattr(value.type, "count"):
            nan = ir.Constant(value.type, [float("nan")] * value.type.count)
        else:
            nan = ir.Constant(value.type, float("nan"))
        return builder.select(builder.fcmp_unordered("uno", value, value), nan, value)

    return x(x), code


def _tree(name: str, combine: Callable[[Any, Any, Any], Any]) -> Deferred:
    def build(typing_context: Any, x: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            ir, value, lanes = native.ir, arguments[0], LANES
            index = ir.IntType(32)
            while lanes > 1:
                lanes //= 2
                low, high = (
                    builder.shuffle_vector(
                        value,
                        value,
                        ir.Constant(ir.VectorType(index, lanes), list(range(start, start + lanes))),
                    )
                    for start in (0, lanes)
                )
                value = combine(builder, low, high)
            return builder.extract_element(value, index(0))

        return x.element(x), code

    return named(name, build)


added = _tree("added", lambda builder, low, high: builder.fadd(low, high))
"""Adds up the lanes: the upper half to the lower half, until one is left."""
multiplied = _tree("multiplied", lambda builder, low, high: builder.fmul(low, high))


def _larger(builder: Any, low: Any, high: Any) -> Any:
    """The larger one; a NaN where one of both is NaN."""
    take = builder.or_(builder.fcmp_ordered(">", high, low), builder.fcmp_unordered("uno", high, high))
    return builder.select(take, high, low)


largest = _tree("largest", _larger)
"""The largest lane, NaN if one is NaN."""


@instruction
def number_or_zero(typing_context: Any, x: Any) -> Any:
    """Returns the lanes of a vector with 0 for NaN."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[0]
        zero = native.ir.Constant(value.type, [0.0] * value.type.count)
        return builder.select(builder.fcmp_unordered("uno", value, value), zero, value)

    return x(x), code


@instruction
def not_zero(typing_context: Any, x: Any) -> Any:
    """Returns 1 in the lanes of a vector that are not zero (NaN is not), else 0."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[0]
        one, zero = (native.ir.Constant(value.type, [number] * value.type.count) for number in (1.0, 0.0))
        return builder.select(builder.fcmp_ordered("==", value, zero), zero, one)

    return x(x), code


@instruction
def float64_of_bits(typing_context: Any, bits: Any) -> Any:
    """Returns the float64 with the 64 bits of an integer: how a number comes among a kernel's arguments."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], native.ir.DoubleType())

    return native.types.float64(native.types.int64), code

"""Instructions on vectors of 16 lanes, in kernels: the same lanes on every machine, so that their bits are the same.

`+ - * /` work on vectors lane by lane; `vector_memory` reads and writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from samebits import _native as native
from samebits._native.lazy_kernel import Deferred, instruction
from samebits._native.vector_memory import LANES, call, first_lanes, named, suffix_of, vector_of
from samebits._native.vector_memory import LOAD as LOAD
from samebits._native.vector_memory import LOAD_ONE as LOAD_ONE
from samebits._native.vector_memory import LOAD_PART as LOAD_PART
from samebits._native.vector_memory import SIZE as SIZE
from samebits._native.vector_memory import STORE as STORE
from samebits._native.vector_memory import STORE_ONE as STORE_ONE
from samebits._native.vector_memory import STORE_PART as STORE_PART
from samebits._native.vector_memory import copy_bytes as copy_bytes
from samebits._native.vector_memory import stack as stack


@instruction
def splat(typing_context: Any, number: Any) -> Any:
    """Returns a vector with a number in every lane."""
    kind = native.vector_types.vector(str(number), LANES)

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

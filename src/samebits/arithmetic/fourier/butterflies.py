"""One step of a pass, as instructions: r complex numbers of 16 columns each, their r sums, times roots.

In memory a complex number of 16 columns is a vector of real parts and, a plane further on, one of imaginary
parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits import _native as native
from samebits._native import Part, instruction
from samebits._native.float_bits import SIZE, stored
from samebits._native.formula import FormulaNumber, fma, one_nan
from samebits._native.vector_writer import VectorWriter
from samebits._native.vectors import LANES, written
from samebits.arithmetic.fourier.roots import roots

Complex = tuple[Any, ...]


def times(x: Complex, w: Complex) -> Complex:
    """Returns the product of two complex numbers."""
    return fma(x[0], w[0], -(x[1] * w[1])), fma(x[0], w[1], x[1] * w[0])


def _plus(x: Complex, y: Complex) -> Complex:
    return x[0] + y[0], x[1] + y[1]


def _minus(x: Complex, y: Complex) -> Complex:
    return x[0] - y[0], x[1] - y[1]


def _turned(x: Complex) -> Complex:
    """Returns -i x."""
    return x[1], -x[0]


def _sums_of_2(x: Sequence[Complex]) -> list[Complex]:
    return [_plus(*x), _minus(*x)]


def _sums_of_4(x: Sequence[Complex]) -> list[Complex]:
    even, odd = _sums_of_2(x[::2]), _sums_of_2(x[1::2])
    turned = _turned(odd[1])
    return [_plus(even[0], odd[0]), _plus(even[1], turned), _minus(even[0], odd[0]), _minus(even[1], turned)]


def _sums_of_odd(x: Sequence[Complex]) -> list[Complex]:
    radix, half = len(x), range(1, (len(x) + 1) // 2)
    table, found = roots(radix).tolist(), list(x)
    sums, differences = ([one(x[j], x[radix - j]) for j in half] for one in (_plus, _minus))
    for total in sums:
        found[0] = _plus(found[0], total)
    for k in half:
        w = [table[j * k % radix] for j in half]
        a, b = x[0], tuple(part * -w[0].imag for part in differences[0])
        for number, root in zip(sums, w, strict=True):
            a = tuple(fma(part, root.real, rest) for part, rest in zip(number, a, strict=True))
        for number, root in zip(differences[1:], w[1:], strict=True):
            b = tuple(fma(part, -root.imag, rest) for part, rest in zip(number, b, strict=True))
        found[k], found[radix - k] = _plus(a, _turned(b)), _minus(a, _turned(b))
    return found


def sums_of(x: Sequence[Complex]) -> list[Complex]:
    """Returns the transform of 2, 4, or an odd number of complex numbers."""
    return {2: _sums_of_2, 4: _sums_of_4}.get(len(x), _sums_of_odd)(x)


def butterfly(radix: int, element: str, *, is_last: bool) -> Part:
    """Returns the instruction (source, its step, target, its step, bytes of a plane, address of roots)."""
    size = SIZE[element]

    def write(
        writer: VectorWriter, source: Any, step: Any, target: Any, to: Any, plane: Any, table: Any
    ) -> None:
        builder, kind = writer.builder, stored(element)

        def load(place: Any) -> FormulaNumber:
            return FormulaNumber(builder, writer.read(writer.pointer(place), kind, size))

        def root(number: int) -> FormulaNumber:
            place = builder.add(table, writer.i64(number * size))
            return FormulaNumber(
                builder, writer.splat(builder.load(builder.inttoptr(place, kind.as_pointer()), align=size))
            )

        places = [source]
        for _ in range(1, radix):
            places.append(builder.add(places[-1], step))
        for k, x in enumerate(sums_of([(load(place), load(builder.add(place, plane))) for place in places])):
            made = x if k == 0 or is_last else times(x, (root(2 * k - 2), root(2 * k - 1)))
            writer.write(made[0].value, writer.pointer(target), size)
            writer.write(made[1].value, writer.pointer(builder.add(target, plane)), size)
            target = builder.add(target, to)

    def build(*_places: Any) -> Any:
        return native.types.void(*[native.types.int64] * 6), written(write)

    return instruction(build)


def load_columns(element: str) -> Part:
    """Returns the instruction (address, places of real and imaginary parts, columns): pairs to planes."""
    size = SIZE[element]

    def write(writer: VectorWriter, address: Any, real: Any, imaginary: Any, count: Any) -> None:
        builder, kind = writer.builder, stored(element)
        numbers = builder.mul(count, writer.i64(2))
        low, high = (
            writer.read(
                writer.pointer(builder.add(address, writer.i64(part * LANES * size))), kind, size,
                writer.first_lanes(builder.sub(numbers, writer.i64(part * LANES))),
            )
            for part in range(2)
        )  # fmt: skip
        for place, first in ((real, 0), (imaginary, 1)):
            writer.write(
                writer.shuffled(low, high, [*range(first, 2 * LANES, 2)]), writer.pointer(place), size
            )

    def build(*_places: Any) -> Any:
        return native.types.void(*[native.types.int64] * 4), written(write)

    return instruction(build)


def store_columns(element: str, *, has_roots: bool) -> Part:
    """Returns the instruction (places of real and imaginary parts, address, columns, factor, swap, roots).

    It writes pairs of each number times its root, if there are roots, times the factor, exchanged if `swap`.
    """
    size = SIZE[element]
    order = [lane // 2 + (lane % 2) * LANES for lane in range(2 * LANES)]

    def write(
        writer: VectorWriter,
        real: Any,
        imaginary: Any,
        address: Any,
        count: Any,
        factor: Any,
        swap: Any,
        table: Any,
    ) -> None:
        builder, kind = writer.builder, stored(element)
        numbers = builder.mul(count, writer.i64(2))
        masks = [writer.first_lanes(builder.sub(numbers, writer.i64(part * LANES))) for part in range(2)]

        def at(place: Any, part: int) -> Any:
            return writer.pointer(builder.add(place, writer.i64(part * LANES * size)))

        x = tuple(
            FormulaNumber(builder, writer.read(at(place, 0), kind, size)) for place in (real, imaginary)
        )
        if has_roots:
            low, high = (writer.read(at(table, part), kind, size, masks[part]) for part in range(2))
            lanes = [*range(0, 2 * LANES, 2)], [*range(1, 2 * LANES, 2)]
            w = tuple(FormulaNumber(builder, writer.shuffled(low, high, some)) for some in lanes)
            x = times(x, w)
        scale = FormulaNumber(builder, writer.splat(factor))
        first, second = (one_nan(part * scale).value for part in x)
        exchanged = builder.icmp_signed("!=", swap, writer.i64(0))
        first, second = builder.select(exchanged, second, first), builder.select(exchanged, first, second)
        for part in range(2):
            pairs = writer.shuffled(first, second, order[part * LANES : (part + 1) * LANES])
            writer.write(pairs, at(address, part), size, masks[part])

    def build(real: Any, imaginary: Any, address: Any, count: Any, factor: Any, swap: Any, table: Any) -> Any:
        int64 = native.types.int64
        return native.types.void(
            int64, int64, int64, int64, getattr(native.types, element), int64, int64
        ), written(write)

    return instruction(build)

"""LLVM instructions on vectors of some lanes, written where a builder stands; and LLVM's types of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits import _native as native


def features() -> frozenset[str]:
    """Returns the features of the CPU for which kernels are compiled, as LLVM names them."""
    return native.llvm.features()


class VectorWriter:
    """Writes instructions on vectors of `lanes` elements, put where `builder` stands.

    A mask says which lanes are loaded or stored: a bit for each, or, on a CPU with AVX2 and no registers for
    bits, an integer of the element's size, all ones or zero.
    """

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.i8, self.i32, self.i64 = (native.ir.IntType(bits) for bits in (8, 32, 64))

    def vector_of(self, element: Any) -> Any:
        """The type of a vector of that element."""
        return native.ir.VectorType(element, self.lanes)

    def filled(self, element: Any, number: float) -> Any:
        """The vector with one constant in every lane."""
        return constant(self.vector_of(element), number)

    def splat(self, scalar: Any) -> Any:
        """The vector with one number in every lane."""
        nothing = native.ir.Constant(self.vector_of(scalar.type), native.ir.Undefined)
        first = self.builder.insert_element(nothing, scalar, self.i32(0))
        return self.builder.shuffle_vector(first, first, self.filled(self.i32, 0))

    def first_lanes(self, count: Any, word: Any = None) -> Any:
        """The bits of the lanes below an int64 `count`, compared as integers of the type `word` (int32)."""
        word = word or self.i32
        count = count if word == self.i64 else self.builder.trunc(count, word)
        lane = native.ir.Constant(self.vector_of(word), list(range(self.lanes)))
        return self.builder.icmp_signed("<", lane, self.splat(count))

    def pointer(self, address: Any) -> Any:
        """The bytes at an address."""
        return self.builder.inttoptr(address, self.i8.as_pointer())

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        """Calls an intrinsic of LLVM by its full name."""
        return call(self.builder, name, result, *arguments)

    def read(self, place: Any, element: Any, align: int, mask: Any = None, other: Any = None) -> Any:
        """The vector at a pointer; lanes that the mask leaves out have those of `other` (0)."""
        kind = self.vector_of(element)
        if mask is None:
            return self.builder.load(self.builder.bitcast(place, kind.as_pointer()), align=align)
        if _is_bits(mask):
            other = self.filled(element, 0) if other is None else other
            return self.call(
                f"llvm.masked.load.{suffix_of(kind)}.p0", kind, place, self.i32(align), mask, other
            )
        loaded = self.call(f"llvm.x86.avx.maskload.{_avx_suffix(kind)}", kind, place, mask)
        if other is None:
            return loaded
        words = mask.type
        filler = self.builder.and_(self.builder.not_(mask), self.builder.bitcast(other, words))
        return self.builder.bitcast(self.builder.or_(self.builder.bitcast(loaded, words), filler), kind)

    def write(self, value: Any, place: Any, align: int, mask: Any = None) -> None:
        """Writes a vector to a pointer, or those lanes that the mask has."""
        kind, nothing = value.type, native.ir.VoidType()
        if mask is None:
            self.builder.store(value, self.builder.bitcast(place, kind.as_pointer()), align=align)
        elif _is_bits(mask):
            self.call(f"llvm.masked.store.{suffix_of(kind)}.p0", nothing, value, place, self.i32(align), mask)
        else:
            self.call(f"llvm.x86.avx.maskstore.{_avx_suffix(kind)}", nothing, place, mask, value)

    def fused(self, left: Any, right: Any, term: Any) -> Any:
        """The vector left times right plus term, rounded once."""
        return self.call(f"llvm.fma.{suffix_of(term.type)}", term.type, left, right, term)

    def shuffled(self, left: Any, right: Any, lanes: list[int]) -> Any:
        """A vector of lanes of two."""
        return self.builder.shuffle_vector(left, right, _order(lanes))


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Calls an intrinsic of LLVM by its full name (llvmlite's `declare_intrinsic` refuses vectors)."""
    kind = native.ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(native.llvm.function(builder.module, kind, name), arguments)


def permuted(builder: Any, numbers: Sequence[float], places: Any) -> Any:
    """Returns for each int32 in a vector the one of 16 constants of float32 that its last 4 bits name."""
    element, width = native.ir.FloatType(), 16 if "avx512f" in features() else 8
    kind = native.ir.VectorType(element, width)
    tables = [
        native.ir.Constant(kind, [element(number) for number in numbers[start : start + width]])
        for start in range(0, 16, width)
    ]
    parts = [_permuted_register(builder, tables, part) for part in _registers(builder, places, width)]
    return _joined(builder, parts)


def _permuted_register(builder: Any, tables: list[Any], places: Any) -> Any:
    kind = tables[0].type
    if len(tables) == 1:
        return call(builder, "llvm.x86.avx512.permvar.sf.512", kind, tables[0], places)
    low, high = (call(builder, "llvm.x86.avx2.permps", kind, table, places) for table in tables)
    is_high = builder.icmp_signed(
        "!=", builder.and_(places, constant(places.type, 8)), constant(places.type, 0)
    )
    return builder.select(is_high, high, low)


def _registers(builder: Any, vector: Any, width: int) -> list[Any]:
    """Returns a vector in parts of `width` lanes."""
    return [
        builder.shuffle_vector(vector, vector, _order(range(start, start + width)))
        for start in range(0, vector.type.count, width)
    ]


def _joined(builder: Any, parts: list[Any]) -> Any:
    """Returns the parts, a power of two of them, as one vector."""
    while len(parts) > 1:
        lanes = _order(range(2 * parts[0].type.count))
        parts = [builder.shuffle_vector(a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _order(lanes: Sequence[int]) -> Any:
    return native.ir.Constant(native.ir.VectorType(native.ir.IntType(32), len(lanes)), list(lanes))


def constant(kind: Any, number: float) -> Any:
    """Returns a number as a constant, in every lane of a vector."""
    if isinstance(kind, native.ir.VectorType):
        return native.ir.Constant(kind, [kind.element(number)] * kind.count)
    return native.ir.Constant(kind, number)


def element_of(kind: Any) -> Any:
    """Returns the type of a vector's elements; of a scalar, its own."""
    return kind.element if isinstance(kind, native.ir.VectorType) else kind


def like(kind: Any, element: Any) -> Any:
    """Returns the type of that element with as many lanes as `kind`."""
    return native.ir.VectorType(element, kind.count) if isinstance(kind, native.ir.VectorType) else element


def suffix_of(kind: Any) -> str:
    """Returns a type as it stands in the names of LLVM's intrinsics."""
    if isinstance(kind, native.ir.VectorType):
        return f"v{kind.count}{suffix_of(kind.element)}"
    return {"float": "f32", "double": "f64"}.get(str(kind)) or str(kind)


def _is_bits(mask: Any) -> bool:
    return mask.type.element.width == 1


def _avx_suffix(kind: Any) -> str:
    return "pd.256" if str(kind.element) == "double" else "ps.256"

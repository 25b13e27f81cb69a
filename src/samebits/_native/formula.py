"""Formulas: functions of floating-point numbers, each a fixed sequence of IEEE operations.

A formula is a Python function over `FormulaNumber`. It has no branch that the value of a number takes, so
that it is compiled for one number or for a vector of any width with the same bits: every lane, tail, length
and offset agrees. Operations are + - * /, square roots and fused multiply-adds (`fma`), each rounded once;
nothing else is contracted or reordered.

A formula can be used in three ways: in another formula (a call), in a kernel (a call with numbers,
which LLVM vectorises, or with vectors), and with any class of the same operations, as the tests' exact
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from samebits import _native as native
from samebits._native.lazy_kernel import Instruction
from samebits._native.vector_writer import call, constant, element_of, like, permuted, suffix_of


class FormulaNumber:
    """A number, or a vector of numbers, in a formula that is being compiled; `value` is LLVM's."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def of(self, other: Any) -> Any:
        """Returns LLVM's value of a number, or of a Python number as a constant in all lanes."""
        if isinstance(other, FormulaNumber):
            return other.value
        return constant(self.value.type, float(other))

    def _new(self, value: Any) -> FormulaNumber:
        return FormulaNumber(self.builder, value)

    def __add__(self, other: Any) -> FormulaNumber:
        return self._new(self.builder.fadd(self.value, self.of(other)))

    def __radd__(self, other: Any) -> FormulaNumber:
        return self._new(self.builder.fadd(self.of(other), self.value))

    def __sub__(self, other: Any) -> FormulaNumber:
        return self._new(self.builder.fsub(self.value, self.of(other)))

    def __rsub__(self, other: Any) -> FormulaNumber:
        return self._new(self.builder.fsub(self.of(other), self.value))

    def __mul__(self, other: Any) -> FormulaNumber:
        return self._new(self.builder.fmul(self.value, self.of(other)))

    def __rmul__(self, other: Any) -> FormulaNumber:
        return self._new(self.builder.fmul(self.of(other), self.value))

    def __truediv__(self, other: Any) -> FormulaNumber:
        return self._new(self.builder.fdiv(self.value, self.of(other)))

    def __rtruediv__(self, other: Any) -> FormulaNumber:
        return self._new(self.builder.fdiv(self.of(other), self.value))

    def __neg__(self) -> FormulaNumber:
        return self._new(self.builder.fneg(self.value))

    def _compared(self, sign: str, other: Any) -> Truth:
        return Truth(self.builder, self.builder.fcmp_ordered(sign, self.value, self.of(other)))

    def __lt__(self, other: Any) -> Truth:
        return self._compared("<", other)

    def __le__(self, other: Any) -> Truth:
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> Truth:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Truth:
        return self._compared(">=", other)

    def equals(self, other: Any) -> Truth:
        """Compares as IEEE does: zeros are equal, a NaN equals nothing."""
        return self._compared("==", other)

    def fused(self, factor: Any, term: Any) -> FormulaNumber:
        """Returns this number times the factor plus the term, rounded once."""
        return self._call("llvm.fma", self.value, self.of(factor), self.of(term))

    def square_root(self) -> FormulaNumber:
        """Returns the square root, rounded correctly."""
        return self._call("llvm.sqrt", self.value)

    def magnitude(self) -> FormulaNumber:
        """Returns the number without its sign."""
        return self._call("llvm.fabs", self.value)

    def with_sign_of(self, other: Any) -> FormulaNumber:
        """Returns the number with the sign of the other."""
        return self._call("llvm.copysign", self.value, self.of(other))

    def in_float32(self) -> FormulaNumber:
        """Returns a float64 rounded to float32, as a float64."""
        return self.as_float32().as_float64()

    def as_float32(self) -> FormulaNumber:
        """Returns a float64 rounded to float32."""
        kind = like(self.value.type, native.ir.FloatType())
        return self._new(self.builder.fptrunc(self.value, kind))

    def as_float64(self) -> FormulaNumber:
        """Returns a float32 as a float64: exact."""
        kind = like(self.value.type, native.ir.DoubleType())
        return self._new(self.builder.fpext(self.value, kind))

    def float32_reciprocal(self) -> FormulaNumber:
        """Returns 1 divided by this number in float32, of a float64 in the range of float32."""
        return (1.0 / self.as_float32()).as_float64()

    def bits(self) -> Bits:
        """Returns the bits of a float64 or float32."""
        width = 32 if isinstance(element_of(self.value.type), native.ir.FloatType) else 64
        kind = like(self.value.type, native.ir.IntType(width))
        return Bits(self.builder, self.builder.bitcast(self.value, kind))

    def chosen(self, condition: Truth, other: Any) -> FormulaNumber:
        """Returns this number where the condition holds, else the other one."""
        return self._new(self.builder.select(condition.value, self.value, self.of(other)))

    def constant(self, number: float) -> FormulaNumber:
        """Returns a Python number as one of these."""
        return self._new(self.of(number))

    def looked_up(self, table: Sequence[Sequence[float]], first: int) -> list[FormulaNumber]:
        """Returns the row of a table for an integral number; the first row has the number `first`."""
        rows = len(table)
        double = native.ir.DoubleType()
        columns = [_table(self.builder, numbers, double) for numbers in zip(*table, strict=True)]
        found = [native.ir.Constant(self.value.type, native.ir.Undefined) for _ in columns]
        for lane, value in _lanes(self.builder, self.value):
            index = self.builder.fptosi(value, native.ir.IntType(64))
            index = self.builder.sub(index, native.ir.IntType(64)(first))
            inside = self.builder.icmp_unsigned("<", index, native.ir.IntType(64)(rows))
            index = self.builder.select(inside, index, native.ir.IntType(64)(0))
            for place, column in enumerate(columns):
                at = self.builder.gep(column, [native.ir.IntType(64)(0), index])
                found[place] = _with_lane(self.builder, found[place], self.builder.load(at), lane)
        return [self._new(value) for value in found]

    def _call(self, name: str, *values: Any) -> FormulaNumber:
        kind = values[0].type
        return self._new(call(self.builder, f"{name}.{suffix_of(kind)}", kind, *values))


class Truth:
    """The result of a comparison, or a vector of them."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def __and__(self, other: Truth) -> Truth:
        return Truth(self.builder, self.builder.and_(self.value, other.value))

    def __or__(self, other: Truth) -> Truth:
        return Truth(self.builder, self.builder.or_(self.value, other.value))

    def __invert__(self) -> Truth:
        return Truth(self.builder, self.builder.not_(self.value))

    def rarely(self, common: FormulaNumber, rare: Callable[[], FormulaNumber]) -> FormulaNumber:
        """Returns `rare()` where this holds, else `common`; computes `rare` only if it holds in some lane."""
        builder = self.builder
        any_lane = self._in_any_lane()
        before = builder.block
        with builder.if_then(any_lane, likely=False):
            replaced = rare().chosen(self, common).value
            inside = builder.block
        merged = builder.phi(common.value.type)
        merged.add_incoming(common.value, before)
        merged.add_incoming(replaced, inside)
        return FormulaNumber(builder, merged)

    def _in_any_lane(self) -> Any:
        kind = self.value.type
        if not isinstance(kind, native.ir.VectorType):
            return self.value
        mask = self.builder.bitcast(self.value, native.ir.IntType(kind.count))
        return self.builder.icmp_unsigned("!=", mask, native.ir.IntType(kind.count)(0))


class Bits:
    """64 or 32 bits, or a vector of them, with the arithmetic of integers modulo 2^64 or 2^32."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any) -> None:
        self.builder, self.value = builder, value

    def of(self, other: Any) -> Any:
        """Returns LLVM's value of bits, or of a Python integer as a constant in all lanes."""
        return other.value if isinstance(other, Bits) else constant(self.value.type, int(other))

    def _with(self, operation: str, other: Any) -> Bits:
        return Bits(self.builder, getattr(self.builder, operation)(self.value, self.of(other)))

    def __add__(self, other: Any) -> Bits:
        return self._with("add", other)

    def __sub__(self, other: Any) -> Bits:
        return self._with("sub", other)

    def __and__(self, other: Any) -> Bits:
        return self._with("and_", other)

    def __or__(self, other: Any) -> Bits:
        return self._with("or_", other)

    def __lshift__(self, places: int) -> Bits:
        return self._with("shl", places)

    def __rshift__(self, places: int) -> Bits:
        """Shifts zeros in."""
        return self._with("lshr", places)

    def __lt__(self, other: Any) -> Truth:
        """Compares as signed integers."""
        return Truth(self.builder, self.builder.icmp_signed("<", self.value, self.of(other)))

    def __gt__(self, other: Any) -> Truth:
        """Compares as signed integers."""
        return Truth(self.builder, self.builder.icmp_signed(">", self.value, self.of(other)))

    def chosen(self, condition: Truth, other: Any) -> Bits:
        """Returns these bits where the condition holds, else the other ones."""
        return Bits(self.builder, self.builder.select(condition.value, self.value, self.of(other)))

    def constant(self, number: int) -> Bits:
        """Returns a Python integer as bits."""
        return Bits(self.builder, self.of(number))

    def looked_up(self, table: Sequence[Sequence[float]]) -> list[FormulaNumber]:
        """Returns the row of a table of 16 rows of float32, by the last 4 of the 32 bits."""
        return [self._permuted(numbers) for numbers in zip(*table, strict=True)]

    def _permuted(self, numbers: Sequence[float]) -> FormulaNumber:
        real = native.ir.FloatType()
        if not isinstance(self.value.type, native.ir.VectorType):
            place = self.builder.and_(self.value, self.of(15))
            column = _table(self.builder, numbers, real)
            return FormulaNumber(
                self.builder, self.builder.load(self.builder.gep(column, [place.type(0), place]))
            )
        return FormulaNumber(self.builder, permuted(self.builder, numbers, self.value))

    def converted(self) -> FormulaNumber:
        """Returns the value of 32 bits, as a signed integer, rounded to float32."""
        kind = like(self.value.type, native.ir.FloatType())
        return FormulaNumber(self.builder, self.builder.sitofp(self.value, kind))

    def number(self) -> FormulaNumber:
        """Returns the number with these bits."""
        real = native.ir.FloatType() if element_of(self.value.type).width == 32 else native.ir.DoubleType()
        kind = like(self.value.type, real)
        return FormulaNumber(self.builder, self.builder.bitcast(self.value, kind))


class Formula(Instruction):
    """A formula: called with numbers it computes, and in a kernel it is compiled in place."""

    def __init__(self, define: Callable[..., Any]) -> None:
        super().__init__(self._build)
        self.define = define
        self.__doc__ = define.__doc__

    def __call__(self, *arguments: Any) -> Any:
        """Returns the result for numbers of any class with the operations of `FormulaNumber`."""
        return self.define(*arguments)

    def _build(self, kind: Any, *others: Any) -> Any:
        def write(builder: Any, *values: Any) -> Any:
            return self.define(*(FormulaNumber(builder, value) for value in values)).value

        return kind(kind, *[kind] * len(others)), write


def formula(define: Callable[..., Any]) -> Formula:
    """Makes a formula of a function over numbers."""
    return Formula(define)


def in_each_precision(define: Callable[..., Any], *choices: tuple[Any, ...]) -> tuple[Formula, ...]:
    """Makes a formula for each choice of the first arguments of a function: what it calls in a precision."""
    return tuple(Formula(partial(define, *chosen)) for chosen in choices)


def fma(factor: Any, other: Any, term: Any) -> Any:
    """Returns factor * other + term, rounded once; the first operand that is no constant decides the type."""
    if not isinstance(factor, int | float):
        return factor.fused(other, term)
    if not isinstance(other, int | float):
        return other.fused(factor, term)
    return term.constant(factor).fused(other, term)


def where(condition: Any, chosen: Any, other: Any) -> Any:
    """Returns `chosen` where the condition holds, else `other`; one of them is no constant."""
    if isinstance(chosen, int | float):
        chosen = other.constant(chosen)
    return chosen.chosen(condition, other)


def by_horners_rule(x: Any, coefficients: Sequence[float]) -> Any:
    """Returns the polynomial, each step one fma; the first coefficient is the constant."""
    result = fma(x, coefficients[-1], coefficients[-2])
    for coefficient in coefficients[-3::-1]:
        result = fma(result, x, coefficient)
    return result


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Returns the polynomial; the first coefficient is the constant.

    It is evaluated by Horner's rule, each step one fma. With more than 12 coefficients its even and its odd
    part are, in x^2: two short chains, where one chain of all would keep the CPU waiting for each step.
    """
    if len(coefficients) <= _SHORT:
        return by_horners_rule(x, coefficients)
    square = x * x
    odd = by_horners_rule(square, coefficients[1::2])
    return fma(odd, x, by_horners_rule(square, coefficients[::2]))


def at_least(x: Any, bound: float) -> Any:
    """Returns the number or the bound, whichever is larger; a NaN stays."""
    return where(x < bound, bound, x)


def at_most(x: Any, bound: float) -> Any:
    """Returns the number or the bound, whichever is smaller; a NaN stays."""
    return where(x > bound, bound, x)


def one_nan(x: Any) -> Any:
    """Returns the number, and for every NaN the quiet one with a positive sign and no payload."""
    return where(x.equals(x), x, NAN)


def quotient(numerator: Any, denominator: Any) -> Any:
    """Returns the quotient to 2^-46: a float32 reciprocal and a Newton step, half the time of a division.

    The denominator is a normal float32 below 2^126, so that the reciprocal is no subnormal.
    """
    start = denominator.float32_reciprocal()
    return numerator * fma(fma(-denominator, start, 1.0), start, start)


INFINITY, NAN = float("inf"), float("nan")
_SHORT = 12
ROUNDING = 6755399441055744.0
"""1.5 * 2^52: adding it rounds a number of at most 2^51 to an integer, which the low bits then hold."""
ROUNDING_NARROW = 12582912.0
"""1.5 * 2^23: the same for float32, and numbers of at most 2^22."""


def _lanes(builder: Any, value: Any) -> list[tuple[int | None, Any]]:
    if not isinstance(value.type, native.ir.VectorType):
        return [(None, value)]
    index = native.ir.IntType(32)
    return [(lane, builder.extract_element(value, index(lane))) for lane in range(value.type.count)]


def _with_lane(builder: Any, vector: Any, value: Any, lane: int | None) -> Any:
    return value if lane is None else builder.insert_element(vector, value, native.ir.IntType(32)(lane))


def _table(builder: Any, numbers: Sequence[float], element: Any) -> Any:
    kind = native.ir.ArrayType(element, len(numbers))
    name = builder.module.get_unique_name("samebits_table")
    table = native.ir.GlobalVariable(builder.module, kind, name)
    table.global_constant, table.linkage = True, "internal"
    table.initializer = native.ir.Constant(kind, [*numbers])
    return table

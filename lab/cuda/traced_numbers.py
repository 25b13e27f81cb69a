"""Numbers that write down what a formula does with them: its one definition becomes the text of a Triton kernel.

They have the operations of `samebits._native.formula`'s `Number`, `Truth` and `Bits`; the text has one line for each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any


class Trace:
    """The lines that a formula has written so far; an expression that was written before is not written again."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.tables: list[Sequence[Sequence[float]]] = []
        self._names: dict[str, str] = {}

    def name_of(self, expression: str) -> str:
        """Returns the variable that has the value of an expression."""
        if expression not in self._names:
            name = self._names[expression] = f"v{len(self._names)}"
            self.lines.append(f"{name} = {expression}")
        return self._names[expression]

    def table(self, table: Sequence[Sequence[float]]) -> int:
        """Returns the number of a table, which the kernel takes as an argument."""
        for number, known in enumerate(self.tables):
            if known is table:
                return number
        self.tables.append(table)
        return len(self.tables) - 1


class _Traced:
    """A value of the kernel by the name of its variable."""

    def __init__(self, trace: Trace, expression: str) -> None:
        self.trace, self.name = trace, trace.name_of(expression)


class TracedNumber(_Traced):
    """A block of float64 or float32, `dtype`."""

    def __init__(self, trace: Trace, dtype: str, expression: str) -> None:
        super().__init__(trace, expression)
        self.dtype = dtype

    def _new(self, expression: str) -> TracedNumber:
        return TracedNumber(self.trace, self.dtype, expression)

    def _of(self, other: Any) -> str:
        return other.name if isinstance(other, TracedNumber) else self.constant(other).name

    def constant(self, number: float) -> TracedNumber:
        """Returns a Python number as one of these, by its bits."""
        bits, form, word = (64, "d", "Q") if self.dtype == "float64" else (32, "f", "I")
        (code,) = struct.unpack(f"<{word}", struct.pack(f"<{form}", number))
        word = f"tl.full((BLOCK,), {code:#x}, tl.uint{bits})"
        return self._new(f"{word}.to(tl.{self.dtype}, bitcast=True)  # {float(number)!r}")

    def __add__(self, other: Any) -> TracedNumber:
        return self._new(f"{self.name} + {self._of(other)}")

    def __radd__(self, other: Any) -> TracedNumber:
        return self._new(f"{self._of(other)} + {self.name}")

    def __sub__(self, other: Any) -> TracedNumber:
        return self._new(f"{self.name} - {self._of(other)}")

    def __rsub__(self, other: Any) -> TracedNumber:
        return self._new(f"{self._of(other)} - {self.name}")

    def __mul__(self, other: Any) -> TracedNumber:
        return self._new(f"{self.name} * {self._of(other)}")

    def __rmul__(self, other: Any) -> TracedNumber:
        return self._new(f"{self._of(other)} * {self.name}")

    def __truediv__(self, other: Any) -> TracedNumber:
        return self._new(f"divided({self.name}, {self._of(other)})")

    def __rtruediv__(self, other: Any) -> TracedNumber:
        return self._new(f"divided({self._of(other)}, {self.name})")

    def __neg__(self) -> TracedNumber:
        return self._new(f"negated({self.name})")

    def _compared(self, sign: str, other: Any) -> TracedTruth:
        return TracedTruth(self.trace, f"{self.name} {sign} {self._of(other)}")

    def __lt__(self, other: Any) -> TracedTruth:
        return self._compared("<", other)

    def __le__(self, other: Any) -> TracedTruth:
        return self._compared("<=", other)

    def __gt__(self, other: Any) -> TracedTruth:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> TracedTruth:
        return self._compared(">=", other)

    def equals(self, other: Any) -> TracedTruth:
        """Compares as IEEE does."""
        return self._compared("==", other)

    def fused(self, factor: Any, term: Any) -> TracedNumber:
        """Returns this number times the factor plus the term, rounded once."""
        return self._new(f"fma({self.name}, {self._of(factor)}, {self._of(term)})")

    def square_root(self) -> TracedNumber:
        """Returns the square root, rounded correctly."""
        return self._new(f"sqrt({self.name})")

    def magnitude(self) -> TracedNumber:
        """Returns the number without its sign."""
        return self._new(f"magnitude({self.name})")

    def with_sign_of(self, other: Any) -> TracedNumber:
        """Returns the number with the sign of the other."""
        return self._new(f"with_sign_of({self.name}, {self._of(other)})")

    def float32_reciprocal(self) -> TracedNumber:
        """Returns 1 divided by this number in float32."""
        one = "tl.full((BLOCK,), 1.0, tl.float32)"
        return self._new(f"divided({one}, {self.name}.to(tl.float32)).to(tl.{self.dtype})")

    def as_float32(self) -> TracedNumber:
        """Returns a float64 rounded to float32."""
        return TracedNumber(self.trace, "float32", f"{self.name}.to(tl.float32)")

    def as_float64(self) -> TracedNumber:
        """Returns a float32 as a float64: exact."""
        return TracedNumber(self.trace, "float64", f"{self.name}.to(tl.float64)")

    def bits(self) -> TracedBits:
        """Returns the bits."""
        return TracedBits(
            self.trace, self.dtype[-2:], f"{self.name}.to(tl.uint{self.dtype[-2:]}, bitcast=True)"
        )

    def chosen(self, condition: TracedTruth, other: Any) -> TracedNumber:
        """Returns this number where the condition holds, else the other one."""
        return self._new(f"tl.where({condition.name}, {self.name}, {self._of(other)})")

    def looked_up(self, table: Sequence[Sequence[float]], first: int) -> list[TracedNumber]:
        """Returns the row of a table for a number that is an integer; the first row has the number `first`."""
        number, columns = self.trace.table(table), len(table[0])
        row = self.trace.name_of(f"row_of({self.name}, {first}, {len(table)}) * {columns}")
        return [self._new(f"tl.load(table_{number} + {row} + {column})") for column in range(columns)]


class TracedTruth(_Traced):
    """A block of results of a comparison."""

    def __and__(self, other: TracedTruth) -> TracedTruth:
        return TracedTruth(self.trace, f"{self.name} & {other.name}")

    def __or__(self, other: TracedTruth) -> TracedTruth:
        return TracedTruth(self.trace, f"{self.name} | {other.name}")

    def __invert__(self) -> TracedTruth:
        return TracedTruth(self.trace, f"{self.name} ^ tl.full((BLOCK,), 1, tl.int1)")

    def rarely(self, common: TracedNumber, rare: Callable[[], TracedNumber]) -> TracedNumber:
        """Returns `rare()` where this holds, else `common`; both are computed."""
        return rare().chosen(self, common)


class TracedBits(_Traced):
    """A block of 64 or 32 bits (`width`), with the arithmetic of integers modulo 2^64 or 2^32."""

    def __init__(self, trace: Trace, width: str, expression: str) -> None:
        super().__init__(trace, expression)
        self.width = width

    def _with(self, sign: str, other: Any) -> TracedBits:
        right = other.name if isinstance(other, TracedBits) else self._word(int(other))
        return TracedBits(self.trace, self.width, f"{self.name} {sign} {right}")

    def _word(self, number: int) -> str:
        return self.trace.name_of(
            f"tl.full((BLOCK,), {number % 2 ** int(self.width):#x}, tl.uint{self.width})"
        )

    def __add__(self, other: Any) -> TracedBits:
        return self._with("+", other)

    def __sub__(self, other: Any) -> TracedBits:
        return self._with("-", other)

    def __and__(self, other: Any) -> TracedBits:
        return self._with("&", other)

    def __or__(self, other: Any) -> TracedBits:
        return self._with("|", other)

    def __lshift__(self, places: int) -> TracedBits:
        return self._with("<<", places)

    def __rshift__(self, places: int) -> TracedBits:
        """Shifts zeros in."""
        return self._with(">>", places)

    def looked_up(self, table: Sequence[Sequence[float]]) -> list[TracedNumber]:
        """Returns the row of a table of 16 rows of float32, by the last 4 of the 32 bits."""
        number, columns = self.trace.table(table), len(table[0])
        row = self.trace.name_of(f"({self.name} & {self._word(15)}).to(tl.int32) * {columns}")
        loaded = (f"tl.load(table_{number} + {row} + {column}).to(tl.float32)" for column in range(columns))
        return [TracedNumber(self.trace, "float32", one) for one in loaded]

    def converted(self) -> TracedNumber:
        """Returns the value of 32 bits, as a signed integer, rounded to float32."""
        return TracedNumber(self.trace, "float32", f"{self.name}.to(tl.int32, bitcast=True).to(tl.float32)")

    def number(self) -> TracedNumber:
        """Returns the number with these bits."""
        kind = f"float{self.width}"
        return TracedNumber(self.trace, kind, f"{self.name}.to(tl.{kind}, bitcast=True)")

"""Numbers, vectors, addresses and arrays of a kernel, and the operations on them, as LLVM instructions.

Integers are computed in 64 bits, unsigned if both are; float32 and an integer give float64. `//` and `%`
round down, as in Python, and divided by zero an integer is 0. Nothing is reordered or fused. An index is not
checked and is no negative one.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from llvmlite import ir

from samebits._native import llvm
from samebits._native.llvm import NUMBERS, Type, boolean, float32, float64, int64, uint64

I1, I64 = ir.IntType(1), ir.IntType(64)
_BYTES = ir.IntType(8).as_pointer()
PLAIN = int, float, bool
"""Numbers that Python computes with while a kernel is compiled."""


class LanguageError(Exception):
    """A kernel's source is not of the language: not a TypeError, which Python's operators swallow."""


class Computed:
    """A number, a vector or an address, which the compiled code computes."""

    __slots__ = ("llvm", "type")

    def __init__(self, kind: Type, value: Any) -> None:
        self.type, self.llvm = kind, value


class Array:
    """Elements in memory; `shape` and `strides` (in elements) are integers of Python or of LLVM."""

    __slots__ = ("element", "place", "shape", "strides")

    def __init__(self, element: Type, place: Any, shape: Sequence[Any], strides: Sequence[Any]) -> None:
        self.element, self.place, self.shape, self.strides = element, place, tuple(shape), tuple(strides)


class Operations:
    """Writes operations where its builder stands."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder
        self.where = "a kernel"
        """The function that is being compiled, for errors."""
        self.owned: list[Any] = []
        """Memory that the function frees at its end."""
        self._tables: dict[Any, Any] = {}

    def value(self, x: Any) -> Computed:
        """Returns a constant of Python or NumPy as a value."""
        if isinstance(x, Computed):
            return x
        if isinstance(x, bool | np.bool_):
            return Computed(boolean, I1(int(x)))
        if isinstance(x, int):
            kind = uint64 if x >= 1 << 63 else int64
            return Computed(kind, I64(x - (1 << 64) if x >= 1 << 63 else x))
        if isinstance(x, float):
            return Computed(float64, float64.llvm(x))
        if isinstance(x, np.generic):
            kind = NUMBERS[x.dtype.name]
            return Computed(kind, kind.llvm(float(x) if kind.domain == "float" else int(x)))
        return self.fail(f"a number is needed, not {x!r}")

    def fail(self, what: str) -> NoReturn:
        """Raises for source that is not of the language."""
        raise LanguageError(f"{self.where} cannot be compiled: {what}")

    def cast(self, x: Any, kind: Type) -> Computed:
        """Returns a number converted to a type, as `np.float32(x)` and its like do."""
        x = self.value(x)
        builder, own = self.builder, x.type
        if own is kind:
            return x
        if kind.domain in {"vector", "pointer"} or own.domain in {"vector", "pointer"}:
            return self.fail(f"{own} is no {kind}")
        if kind is boolean:
            return Computed(boolean, self.truth(x))
        if own.domain == "float":
            if kind.domain == "float":
                convert = builder.fpext if kind.bits > own.bits else builder.fptrunc
            else:
                convert = builder.fptosi if kind.domain == "int" else builder.fptoui
            return Computed(kind, convert(x.llvm, kind.llvm))
        if kind.domain == "float":
            convert = builder.sitofp if own.domain == "int" else builder.uitofp
            return Computed(kind, convert(x.llvm, kind.llvm))
        if own.bits == kind.bits:
            return Computed(kind, x.llvm)
        if own.bits > kind.bits:
            return Computed(kind, builder.trunc(x.llvm, kind.llvm))
        return Computed(kind, (builder.sext if own.domain == "int" else builder.zext)(x.llvm, kind.llvm))

    def integer(self, x: Any) -> Any:
        """Returns an integer as LLVM's of 64 bits."""
        return self.cast(x, int64).llvm

    def truth(self, x: Any) -> Any:
        """Returns LLVM's bit for a condition."""
        x = self.value(x)
        if x.type is boolean:
            return x.llvm
        if x.type.domain == "float":
            return self.builder.fcmp_unordered("!=", x.llvm, x.type.llvm(0.0))
        return self.builder.icmp_unsigned("!=", x.llvm, x.type.llvm(0))

    def unified(self, a: Type, b: Type) -> Type:
        """Returns the type that has both, as where two branches meet."""
        if a is b:
            return a
        if "vector" in {a.domain, b.domain} or "pointer" in {a.domain, b.domain}:
            return self.fail(f"{a} and {b} meet")
        if "float" in {a.domain, b.domain}:
            return self._float(a, b)
        if a.domain == b.domain:
            return a if a.bits >= b.bits else b
        unsigned, other = (a, b) if a.domain in {"uint", "bool"} else (b, a)
        if other.domain == "bool":
            return unsigned
        if unsigned.bits < other.bits:
            return other
        return NUMBERS[f"int{2 * unsigned.bits}"] if unsigned.bits < 64 else self.fail(f"{a} and {b} meet")

    def _float(self, a: Type, b: Type) -> Type:
        small = {float32, NUMBERS["uint8"], NUMBERS["int8"], boolean}
        return float32 if {a, b} <= small else float64

    # --- operations ---

    def binary(self, name: str, a: Any, b: Any) -> Computed:
        """Returns the result of an operator."""
        a, b = self.value(a), self.value(b)
        builder, kinds = self.builder, {a.type.domain, b.type.domain}
        if "vector" in kinds:
            if a.type is not b.type:
                self.fail(f"{a.type} {name} {b.type}")
            return Computed(a.type, getattr(builder, f"f{name}")(a.llvm, b.llvm))
        if "float" in kinds or name == "div":
            kind = self._float(a.type, b.type) if "float" in kinds else float64
            a, b = self.cast(a, kind), self.cast(b, kind)
            if name not in {"add", "sub", "mul", "div"}:
                self.fail(f"{name} of floats")
            return Computed(kind, getattr(builder, f"f{name}")(a.llvm, b.llvm))
        if kinds == {"bool"} and name in {"and_", "or_", "xor"}:
            return Computed(boolean, getattr(builder, name)(a.llvm, b.llvm))
        if name in {"shl", "shr"}:
            kind = uint64 if a.type.domain == "uint" else int64
            operation = builder.shl if name == "shl" else builder.lshr if kind is uint64 else builder.ashr
            return Computed(kind, operation(self.cast(a, kind).llvm, self.integer(b)))
        if name == "pow":
            self.fail("a power whose numbers are not known: multiply instead")
        kind = uint64 if kinds == {"uint"} else int64
        x, y = self.cast(a, kind).llvm, self.cast(b, kind).llvm
        if name in {"floordiv", "mod"}:
            return Computed(kind, self._divided(name, kind, x, y))
        return Computed(kind, getattr(builder, name)(x, y))

    def _divided(self, name: str, kind: Type, x: Any, y: Any) -> Any:
        builder, zero = self.builder, I64(0)
        known = isinstance(y, ir.Constant) and y.constant
        none = None if known else builder.icmp_unsigned("==", y, zero)
        y = y if none is None else builder.select(none, I64(1), y)
        if kind is uint64:
            result = (builder.udiv if name == "floordiv" else builder.urem)(x, y)
        else:
            quotient, rest = builder.sdiv(x, y), builder.srem(x, y)
            apart = builder.icmp_signed("<", builder.xor(rest, y), zero)
            below = builder.and_(builder.icmp_unsigned("!=", rest, zero), apart)
            if name == "floordiv":
                result = builder.sub(quotient, builder.zext(below, I64))
            else:
                result = builder.add(rest, builder.select(below, y, zero))
        return result if none is None else builder.select(none, zero, result)

    def compared(self, sign: str, a: Any, b: Any) -> Computed:
        """Returns True if two numbers are as the sign says; a NaN is unequal to all."""
        a, b = self.value(a), self.value(b)
        builder, kinds = self.builder, {a.type.domain, b.type.domain}
        if "float" in kinds:
            kind = self._float(a.type, b.type)
            compare = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
            return Computed(boolean, compare(sign, self.cast(a, kind).llvm, self.cast(b, kind).llvm))
        if not kinds <= {"int", "uint", "bool"}:
            self.fail(f"{a.type} {sign} {b.type}")
        x, y = (self.cast(one, uint64 if one.type.domain == "uint" else int64) for one in (a, b))
        if x.type is y.type or all(self._not_negative(one) for one in (x, y)):
            compare = builder.icmp_unsigned if uint64 in {x.type, y.type} else builder.icmp_signed
            return Computed(boolean, compare(sign, x.llvm, y.llvm))
        if x.type is uint64:
            return self.compared({"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(sign, sign), b, a)
        negative = builder.icmp_signed("<", x.llvm, I64(0))  # of an int64, and a uint64 y
        below = I1(int(sign in {"<", "<=", "!="}))
        return Computed(boolean, builder.select(negative, below, builder.icmp_unsigned(sign, x.llvm, y.llvm)))

    def _not_negative(self, x: Computed) -> bool:
        return x.type is uint64 or (isinstance(x.llvm, ir.Constant) and x.llvm.constant >= 0)

    def extreme(self, sign: str, *numbers: Any) -> Any:
        """Returns what `min` (`<`) or `max` (`>`) of Python returns."""
        if all(isinstance(one, PLAIN) for one in numbers):
            return min(numbers) if sign == "<" else max(numbers)
        best, *others = (self.value(one) for one in numbers)
        for one in others:
            kind = self.unified(best.type, one.type)
            best, one = self.cast(best, kind), self.cast(one, kind)  # noqa: PLW2901
            better = self.compared(sign, one, best)
            best = Computed(kind, self.builder.select(better.llvm, one.llvm, best.llvm))
        return best

    # --- memory ---

    def array(self, address: Any, shape: Any) -> Array:
        """Returns the elements at an address, in the order of C."""
        shape = shape if isinstance(shape, tuple) else (shape,)
        address = self.value(address)
        return Array(address.type.element or int64, address.llvm, shape, self.strides(shape))

    def product(self, sizes: Sequence[Any]) -> Any:
        """Returns the product of integers; 1 of none."""
        return functools.reduce(lambda a, b: self.arithmetic("mul", operator.mul, a, b), sizes, 1)

    def strides(self, shape: Sequence[Any]) -> list[Any]:
        """Returns the strides, in elements, of an array in the order of C."""
        strides: list[Any] = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, self.arithmetic("mul", operator.mul, strides[0], size))
        return strides

    def arithmetic(self, name: str, plain: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """Returns the result of an operator; of two numbers of Python, Python's."""
        if isinstance(a, PLAIN) and isinstance(b, PLAIN):
            return plain(a, b)
        return self.binary(name, a, b)

    def room(self, shape: Any, kind: Type) -> Array:
        """Returns an array whose elements nobody wrote, on the stack where its size is known."""
        shape = shape if isinstance(shape, tuple) else (shape,)
        if not all(isinstance(size, int) for size in shape):
            bytes_ = self.builder.mul(self.integer(self.product(shape)), I64(kind.bytes))
            memory = self.builder.call(self._library("malloc", _BYTES, I64), [bytes_])
            self.owned.append(memory)
            return Array(
                kind, self.builder.bitcast(memory, kind.llvm.as_pointer()), shape, self.strides(shape)
            )
        place = llvm.local(self.builder, ir.ArrayType(kind.llvm, math.prod(shape)), align=64)
        return Array(kind, self.builder.bitcast(place, kind.llvm.as_pointer()), shape, self.strides(shape))

    def free(self, memory: Any) -> None:
        """Gives back memory of `room`."""
        self.builder.call(self._library("free", ir.VoidType(), _BYTES), [memory])

    def _library(self, name: str, result: Any, *arguments: Any) -> Any:
        return llvm.function(self.builder.module, ir.FunctionType(result, arguments), name)

    def zeros(self, shape: Any, kind: Type) -> Array:
        """Returns an array of zeros."""
        made = self.room(shape, kind)
        count = self.product(made.shape)
        with llvm.for_range(self.builder, self.integer(count)) as index:
            self.builder.store(kind.llvm(0), self.builder.gep(made.place, [index], inbounds=True))
        return made

    def _indexed(self, array: Array, index: Any) -> Array:
        """Returns the part of an array that an index leaves; no dimensions: one element."""
        parts = index if isinstance(index, tuple) else (index,)
        offset: Any = 0
        shape, strides = [], []
        for part, size, stride in zip(parts, array.shape, array.strides, strict=False):
            start = part.start or 0 if isinstance(part, slice) else part
            offset = self._sum(offset, self.arithmetic("mul", operator.mul, start, stride))
            if isinstance(part, slice):
                step, stop = part.step or 1, size if part.stop is None else part.stop
                length = self.arithmetic("sub", operator.sub, stop, start)
                if step != 1:
                    length = self.arithmetic("floordiv", operator.floordiv, self._sum(length, step - 1), step)
                shape.append(length)
                strides.append(self.arithmetic("mul", operator.mul, stride, step))
        place = array.place
        if not (isinstance(offset, int) and offset == 0):
            place = self.builder.gep(place, [self.integer(offset)], inbounds=True)
        rest = len(parts)
        return Array(array.element, place, [*shape, *array.shape[rest:]], [*strides, *array.strides[rest:]])

    def _sum(self, a: Any, b: Any) -> Any:
        return self.arithmetic("add", operator.add, a, b)

    def item(self, holder: Any, index: Any) -> Any:
        """Returns what `holder[index]` is."""
        if isinstance(holder, Array):
            part = self._indexed(holder, index)
            return part if part.shape else Computed(part.element, self.builder.load(part.place))
        if isinstance(holder, Computed) and holder.type.domain == "pointer":
            place = self.builder.gep(holder.llvm, [self.integer(index)], inbounds=True)
            return Computed(holder.type.element or int64, self.builder.load(place))
        if isinstance(holder, np.ndarray):
            holder = tuple(holder)
        if not isinstance(index, Computed):
            return holder[index]
        return Computed(*self._looked_up(holder, index))

    def _looked_up(self, numbers: Sequence[Any], index: Computed) -> tuple[Type, Any]:
        values = [self.value(one) for one in numbers]
        kind = values[0].type
        builder, form = self.builder, ir.ArrayType(kind.llvm, len(values))
        if all(isinstance(one.llvm, ir.Constant) for one in values):
            key = (str(kind), tuple(str(one.llvm) for one in values))
            if key not in self._tables:
                table = ir.GlobalVariable(builder.module, form, f"table_{len(self._tables)}")
                table.initializer, table.global_constant, table.linkage = (
                    ir.Constant(form, [one.llvm for one in values]), True, "internal",
                )  # fmt: skip
                self._tables[key] = table
            place = self._tables[key]
        else:
            place = llvm.local(builder, form)
            for number, one in enumerate(values):
                builder.store(self.cast(one, kind).llvm, builder.gep(place, [I64(0), I64(number)]))
        return kind, builder.load(builder.gep(place, [I64(0), self.integer(index)], inbounds=True))

    def store(self, holder: Any, index: Any, x: Any) -> None:
        """Writes `holder[index] = x`."""
        if isinstance(holder, Computed):
            element, place = (
                holder.type.element,
                self.builder.gep(holder.llvm, [self.integer(index)], inbounds=True),
            )
        else:
            part = self._indexed(holder, index)
            if part.shape:
                self._copy(part, x)
                return
            element, place = part.element, part.place
        self.builder.store(self.cast(x, element or int64).llvm, place)

    def _copy(self, to: Array, source: Any) -> None:
        with llvm.for_range(self.builder, self.integer(to.shape[0])) as place:
            index = Computed(int64, place)
            self.store(to, index, self.item(source, index) if isinstance(source, Array) else source)

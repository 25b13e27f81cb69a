"""Entry points of compiled kernels: for the threads of a team, and for Python."""

from __future__ import annotations

import functools
import re
from typing import Any

from llvmlite import ir

from samebits._native import llvm
from samebits._native.compiler import Compiler
from samebits._native.lazy_kernel import Kernel
from samebits._native.llvm import NUMBERS, Type, float64, int64, uint64
from samebits._native.operations import I64, Array, Computed


class ArgumentType:
    """The type of a kernel's argument: a number, or an array of some dimensions, contiguous or not."""

    def __init__(self, text: str) -> None:
        name, _, rest = text.strip().partition("[")
        self.element = NUMBERS[name if name != "boolean" else "bool"]
        self.dimensions = rest.count(":") - rest.count("::")
        self.is_contiguous = rest.endswith("::1]")


def signature_of(text: str) -> tuple[tuple[Type, ...], tuple[ArgumentType, ...]]:
    """Returns the results and the arguments of a signature such as `int64(uint32[::1], int64)`."""
    match = re.fullmatch(r"(?:UniTuple\((\w+), (\d+)\)|(\w+))\((.*)\)", text)
    if match is None:
        raise TypeError(f"{text!r} is no signature of a kernel")
    element, count, single, arguments = match.groups()
    if element:
        results = (NUMBERS[element],) * int(count)
    else:
        results = () if single == "void" else (ArgumentType(single).element,)
    parts = re.findall(r"\w+(?:\[[^\]]*\])?", arguments)
    return results, tuple(ArgumentType(part) for part in parts)


def team_module(part: Any, name: str) -> Any:
    """Returns the module of a kernel whose chunks are shared: `name(packed)` takes chunks until none is left.

    `packed` is the number of chunks taken, the number of all, and the arguments, 64 bits each. A thread takes
    the next chunk when it is free, so that one that is suspended delays no other.
    """
    module = ir.Module(name)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64.as_pointer()]), name)
    function.attributes.add("nounwind")
    builder, (packed,) = ir.IRBuilder(function.append_basic_block("entry")), function.args
    args = Array(int64, builder.gep(packed, [I64(1)], inbounds=True), (1 << 20,), (1,))
    chunks = builder.load(args.place)
    take, body, end = (builder.append_basic_block(label) for label in ("take", "chunk", "end"))
    builder.branch(take)
    builder.position_at_end(take)
    chunk = builder.atomic_rmw("add", packed, I64(1), "acq_rel")
    builder.cbranch(builder.icmp_signed("<", chunk, chunks), body, end)
    builder.position_at_end(body)
    Compiler(builder).call(part, [Computed(int64, chunk), args])
    builder.branch(take)
    builder.position_at_end(end)
    builder.ret_void()
    return module


def rounds_module(name: str, *, has_barrier: bool) -> Any:
    """Returns the module of `name(packed)`, which calls kernels in turn, round by round; see `kernel_rounds`.

    `packed` is the address of their codes, the number of them, the address of what they are called with, how
    many numbers that is each time, the number of rounds, and whether each thread of a team calls them: then
    all wait at a barrier after each call. Numbers have 64 bits.
    """
    module = ir.Module(name)
    form = ir.FunctionType(ir.VoidType(), [I64.as_pointer()])
    function = ir.Function(module, form, name)
    builder, (packed,) = ir.IRBuilder(function.append_basic_block("entry")), function.args
    numbers = [builder.load(builder.gep(packed, [I64(i)])) for i in range(6)]
    codes, given = (
        builder.inttoptr(numbers[place], kind.as_pointer())
        for place, kind in ((0, form.as_pointer()), (2, I64))
    )
    _, calls, _, width, rounds, is_team = numbers
    with llvm.for_range(builder, rounds) as turn, llvm.for_range(builder, calls) as number:
        done = builder.add(builder.mul(turn, calls), number)
        builder.call(
            builder.load(builder.gep(codes, [number])), [builder.gep(given, [builder.mul(done, width)])]
        )
        if has_barrier:
            with builder.if_then(builder.icmp_signed("!=", is_team, I64(0))):
                wait = ir.FunctionType(ir.VoidType(), [])
                builder.call(llvm.function(module, wait, "samebits_GOMP_barrier"), [])
    builder.ret_void()
    return module


_BYTES = ir.IntType(8).as_pointer()
_I32 = ir.IntType(32)
_BUFFER_BYTES, _OWNER, _DIMENSIONS, _FORMAT, _SHAPE, _STRIDES = 80, 8, 36, 40, 48, 56
"""The size of CPython's `Py_buffer`, and where in it some of its fields are."""
_CONTIGUOUS, _STRIDED = 0x3C, 0x1C
"""Flags of a request: PyBUF_FORMAT with PyBUF_C_CONTIGUOUS or PyBUF_STRIDES."""
_FORMATS = {"int64": "lq", "uint64": "LQ", "int32": "i", "uint32": "I", "int16": "h", "uint16": "H",
            "int8": "b", "uint8": "B", "float32": "f", "float64": "d", "bool": "?"}  # fmt: skip
"""Letters of Python's `struct` for each type of elements."""


class _PythonFunction:
    """Writes the C function that Python calls, with a vector of objects (METH_FASTCALL)."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.module = ir.Module(name)
        form = ir.FunctionType(_BYTES, [_BYTES, _BYTES.as_pointer(), I64])
        self.function = ir.Function(self.module, form, name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.compiler, self.kernel = Compiler(self.builder), kernel
        self.buffers: list[Any] = []
        self.failed = self.function.append_basic_block("failed")

    def write(self) -> Any:
        """Writes the function, and returns its module."""
        builder, kinds = self.builder, self.kernel.arguments
        for kind in kinds:
            if kind.dimensions:
                room = builder.alloca(ir.ArrayType(ir.IntType(8), _BUFFER_BYTES))
                room.align = 8
                self.buffers.append(builder.bitcast(room, _BYTES))
                builder.store(_BYTES(None), self._field(self.buffers[-1], _OWNER, _BYTES))
        _, arguments, count = self.function.args
        self._require(builder.icmp_signed("==", count, I64(len(kinds))), f"it takes {len(kinds)} arguments")
        buffers = iter(self.buffers)
        given = []
        for number, kind in enumerate(kinds):
            one = builder.load(builder.gep(arguments, [I64(number)]))
            given.append(
                self._array(one, next(buffers), kind) if kind.dimensions else self._number(one, kind.element)
            )
        thread = self._python("PyEval_SaveThread", _BYTES) if self.buffers else None
        result = self.compiler.call(self.kernel, given)
        if thread is not None:
            self._python("PyEval_RestoreThread", ir.VoidType(), thread)
        self._release()
        builder.ret(self._object(result))
        builder.position_at_end(self.failed)
        self._release()
        builder.ret(_BYTES(None))
        return self.module

    def _python(self, name: str, result: Any, *arguments: Any) -> Any:
        form = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(llvm.function(self.module, form, name), arguments)

    def _field(self, buffer: Any, offset: int, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(buffer, [I64(offset)]), kind.as_pointer())

    def _require(self, holds: Any, text: str = "") -> None:
        """Ends the call unless a condition holds; with a TypeError, if there is a text."""
        builder = self.builder
        well, wrong = (builder.append_basic_block(name) for name in ("well", "wrong"))
        builder.cbranch(holds, well, wrong)
        builder.position_at_end(wrong)
        if text:
            kind = self.module.globals.get("PyExc_TypeError") or ir.GlobalVariable(
                self.module, _BYTES, "PyExc_TypeError"
            )
            self._python("PyErr_SetString", ir.VoidType(), builder.load(kind), self._text(text))
        builder.branch(self.failed)
        builder.position_at_end(well)

    def _text(self, text: str) -> Any:
        content = bytearray(f"kernel {self.function.name}: {text}\0".encode())
        form = ir.ArrayType(ir.IntType(8), len(content))
        held = ir.GlobalVariable(self.module, form, self.module.get_unique_name("text"))
        held.initializer, held.global_constant, held.linkage = ir.Constant(form, content), True, "internal"
        return self.builder.bitcast(held, _BYTES)

    def _number(self, one: Any, kind: Type) -> Computed:
        if kind.domain == "float":
            number = Computed(float64, self._python("PyFloat_AsDouble", float64.llvm, one))
            failed = self.builder.fcmp_ordered("==", number.llvm, float64.llvm(-1.0))
        else:
            number = Computed(uint64, self._python("PyLong_AsUnsignedLongLongMask", I64, one))
            failed = self.builder.icmp_signed("==", number.llvm, I64(-1))
        with self.builder.if_then(failed, likely=False):
            error = self._python("PyErr_Occurred", _BYTES)
            self._require(self.builder.icmp_unsigned("==", error, _BYTES(None)))
        return self.compiler.cast(number, kind)

    def _array(self, one: Any, buffer: Any, kind: ArgumentType) -> Array:
        builder = self.builder
        flags = _I32(_CONTIGUOUS if kind.is_contiguous else _STRIDED)
        got = self._python("PyObject_GetBuffer", _I32, one, buffer, flags)
        self._require(builder.icmp_signed("==", got, _I32(0)))
        text = f"an array of {kind.element} with {kind.dimensions} dimensions is needed"
        dimensions = builder.load(self._field(buffer, _DIMENSIONS, _I32))
        self._require(builder.icmp_signed("==", dimensions, _I32(kind.dimensions)), text)
        self._require(self._is_of(buffer, kind.element), text)
        shape, steps = (
            [builder.load(builder.gep(builder.load(self._field(buffer, place, I64.as_pointer())), [I64(i)]))
             for i in range(kind.dimensions)]
            for place in (_SHAPE, _STRIDES)
        )  # fmt: skip
        sizes = [Computed(int64, size) for size in shape]
        size = I64(kind.element.bytes)
        strides = [Computed(int64, builder.sdiv(step, size)) for step in steps]
        place = builder.load(self._field(buffer, 0, kind.element.llvm.as_pointer()))
        return Array(
            kind.element, place, sizes, self.compiler.strides(sizes) if kind.is_contiguous else strides
        )

    def _is_of(self, buffer: Any, element: Type) -> Any:
        """Returns LLVM's bit: the elements have that type, in the CPU's order of bytes."""
        builder, letter = self.builder, ir.IntType(8)
        place = builder.load(self._field(buffer, _FORMAT, _BYTES))

        def one_of(byte: Any, letters: str) -> Any:
            equal = (builder.icmp_signed("==", byte, letter(ord(one))) for one in letters)
            return functools.reduce(builder.or_, equal)

        has_order = one_of(builder.load(place), "<=@")
        place = builder.select(has_order, builder.gep(place, [I64(1)]), place)
        return one_of(builder.load(place), _FORMATS[element.name])

    def _release(self) -> None:
        for buffer in self.buffers:
            self._python("PyBuffer_Release", ir.VoidType(), buffer)

    def _object(self, result: Any) -> Any:
        if result is None:
            none = ir.GlobalVariable(self.module, ir.IntType(8), "_Py_NoneStruct")
            self._python("Py_IncRef", ir.VoidType(), none)
            return none
        if not isinstance(result, tuple):
            return self._boxed(result)
        made = self._python("PyTuple_New", _BYTES, I64(len(result)))
        for number, one in enumerate(result):
            self._python("PyTuple_SetItem", _I32, made, I64(number), self._boxed(one))
        return made

    def _boxed(self, number: Computed) -> Any:
        kind = number.type
        if kind.domain == "float":
            return self._python("PyFloat_FromDouble", _BYTES, self.compiler.cast(number, float64).llvm)
        if kind.domain == "bool":
            return self._python("PyBool_FromLong", _BYTES, self.compiler.cast(number, int64).llvm)
        signed = kind.domain == "int"
        wide = self.compiler.cast(number, int64 if signed else uint64).llvm
        return self._python("PyLong_FromLongLong" if signed else "PyLong_FromUnsignedLongLong", _BYTES, wide)


def kernel_module(kernel: Kernel, name: str) -> Any:
    """Returns the module of a kernel with a signature: the C function `name(self, arguments, count)`.

    It converts integers modulo 2**64, and takes arrays by the buffer protocol. While it works on arrays other
    threads run Python.
    """
    return _PythonFunction(kernel, name).write()

"""Instructions of kernels, written in LLVM: they read named numbers, or take integers and return nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from samebits import _native as native
from samebits._native import Part, instruction
from samebits.arithmetic.product.vectors import Emitter, Number


def fields_at(*kinds: type[Any]) -> Part:
    """Returns the part of kernels that reads records of integers, side by side at an address.

    So the writer of a kernel's numbers and the kernel call them by the same names.
    """
    names = [name for kind in kinds for name in inspect.get_annotations(kind)]

    def fields(*values: Any) -> SimpleNamespace:
        return SimpleNamespace(**dict(zip(names, values, strict=True)))

    @instruction
    def read(address: Any) -> Any:
        types, count = native.types, len(names)

        def build(builder: Any, *arguments: Any) -> Any:
            integer = native.ir.IntType(64)
            place = builder.inttoptr(arguments[0], integer.as_pointer())
            return [builder.load(builder.gep(place, [integer(number)])) for number in range(count)]

        return types.TupleType(count, fields)(types.int64), build

    return read


def procedure(number: Number, write: Callable[..., None], count: int = 0, *, registers: int = 1) -> Part:
    """Returns the instruction that `write(emit, *integers)` writes, on vectors of so many registers.

    `count`: of the integers, where `write` takes any number of them.
    """
    count = count or len(inspect.signature(write).parameters) - 1

    def define(*_kinds: Any) -> Any:
        def build(builder: Any, *arguments: Any) -> Any:
            write(Emitter(builder, number, registers), *arguments)

        return native.types.void(*[native.types.int64] * count), build

    return instruction(define)


def cases(emit: Emitter, value: Any, options: Iterable[int], write: Callable[[int], None]) -> None:
    """Writes `write(option)` for each option that an integer may be; with other integers nothing is done."""
    builder = emit.builder
    end = builder.append_basic_block("cases_end")
    choice = builder.switch(value, end)
    for option in options:
        block = builder.append_basic_block(f"case_{option}")
        choice.add_case(emit.i64(option), block)
        builder.position_at_end(block)
        write(option)
        builder.branch(end)
    builder.position_at_end(end)


def procedure_of_cases(
    number: Number,
    name: str,
    options: Sequence[int],
    count: int,
    write: Callable[[Emitter, int, Sequence[Any]], None],
) -> Part:
    """Returns the instruction with `count` integers that calls a function, by the first one: an option.

    `write(emit, option, arguments)` writes the function of an option, whose arguments are the other integers.
    It is not inlined, so that no register holds anything else.
    """
    ir = native.ir

    def function(module: Any, option: int) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * (count - 1))
        made = native.llvm.function(module, kind, f"samebits_{number.name}_{name}_{option}")
        if made.is_declaration:
            made.linkage = "internal"
            made.attributes.add("noinline")
            builder = ir.IRBuilder(made.append_basic_block("entry"))
            write(Emitter(builder, number), option, made.args)
            builder.ret_void()
        return made

    def call(emit: Emitter, chosen: Any, *arguments: Any) -> None:
        builder = emit.builder
        cases(emit, chosen, options, lambda option: builder.call(function(builder.module, option), arguments))

    return procedure(number, call, count)

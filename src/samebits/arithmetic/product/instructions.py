"""Instructions of kernels, written in LLVM: they read named numbers, or take integers and return nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from samebits import _native as native
from samebits._native import inlined, instruction
from samebits._native.lazy_kernel import Deferred
from samebits.arithmetic.product.vectors import Emitter, Number


def fields_at(kind: type[Any]) -> Deferred:
    """Returns the part of kernels that reads a named tuple of integers, side by side at an address.

    So the writer of a kernel's numbers and the kernel call them by the same names.
    """

    @instruction
    def read(typing_context: Any, address: Any) -> Any:
        types, count = native.types, len(kind._fields)

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            integer = native.ir.IntType(64)
            place = builder.inttoptr(arguments[0], integer.as_pointer())
            fields = [builder.load(builder.gep(place, [integer(number)])) for number in range(count)]
            return context.make_tuple(builder, signature.return_type, fields)

        return types.NamedUniTuple(types.int64, count, kind)(types.int64), build

    return read


@inlined
def keep_alive(memory: Any) -> None:
    """Keeps an array whose address is in use: Numba frees an array after the last line that names it."""
    memory[0] = 0


def procedure(number: Number, write: Callable[..., None], count: int = 0) -> Deferred:
    """Returns the instruction that `write(emit, *integers)` writes.

    `count`: of the integers, where `write` takes any number of them.
    """
    names = [f"integer_{i}" for i in range(count)] or [*inspect.signature(write).parameters][1:]

    def define(typing_context: Any, *integers: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write(Emitter(builder, number), *arguments)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * len(names)), build

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("typing_context", *names)]
    vars(define)["__signature__"] = inspect.Signature(parameters)
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
) -> Deferred:
    """Returns the instruction with `count` integers that calls a function, by the first one: an option.

    `write(emit, option, arguments)` writes the function of an option, whose arguments are the other integers.
    It is not inlined, so that no register holds anything else.
    """
    ir = native.ir

    def function(module: Any, option: int) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * (count - 1))
        made = native.cgutils.get_or_insert_function(module, kind, f"samebits_{number.name}_{name}_{option}")
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

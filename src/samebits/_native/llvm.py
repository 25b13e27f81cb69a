"""LLVM for kernels: the CPU, types as instructions name them, loops, optimised code, and code in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import llvmlite
from llvmlite import binding as binding
from llvmlite import ir as ir

VERSION = llvmlite.__version__


class InstructionType(NamedTuple):
    """The types of an instruction's result and arguments."""

    return_type: Type
    args: tuple[Type, ...]


class Type:
    """The type of a value in a kernel. Called with the types of arguments it is a signature's result."""

    def __init__(self, name: str, llvm: Any, domain: str, *, element: Type | None = None) -> None:
        self.name, self.llvm, self.element = name, llvm, element
        self.domain = domain
        """`int`, `uint`, `bool`, `float`, `vector`, `pointer`, `tuple` or `void`."""

    def __call__(self, *arguments: Type) -> InstructionType:
        return InstructionType(self, arguments)

    def __repr__(self) -> str:
        return self.name

    @property
    def bits(self) -> int:
        """The bits of a number."""
        return {"float": 32, "double": 64}.get(str(self.llvm)) or self.llvm.width

    @property
    def bytes(self) -> int:
        """The bytes of a number in memory."""
        return max(self.bits // 8, 1)


_integers = {
    f"{sign}int{bits}": Type(f"{sign}int{bits}", ir.IntType(bits), f"{sign}int")
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
boolean = Type("bool", ir.IntType(1), "bool")
float32, float64 = Type("float32", ir.FloatType(), "float"), Type("float64", ir.DoubleType(), "float")
void = Type("void", ir.VoidType(), "void")
NUMBERS = {**_integers, "bool": boolean, "float32": float32, "float64": float64}
int64, uint64 = NUMBERS["int64"], NUMBERS["uint64"]


@cache
def pointer_to(element: Type) -> Type:
    """Returns the type of an address of elements."""
    return Type(f"{element}*", element.llvm.as_pointer(), "pointer", element=element)


@cache
def vector_of(element: str, lanes: int) -> Type:
    """Returns the type of some lanes of a type of that name."""
    one = NUMBERS[element]
    return Type(f"vector({element} x {lanes})", ir.VectorType(one.llvm, lanes), "vector", element=one)


class TupleType(Type):
    """The type of a named tuple of integers."""

    def __init__(self, count: int, kind: Callable[..., Any]) -> None:
        super().__init__(f"{kind}", None, "tuple")
        self.count, self.kind = count, kind


types: Any = SimpleNamespace(**NUMBERS, void=void, pointer_to=pointer_to, TupleType=TupleType)
"""The types by which instructions declare what they take and return."""


@contextmanager
def for_range(builder: Any, count: Any, *, start: Any = None, step: Any = None) -> Iterator[Any]:
    """Writes a loop over int64 numbers, which it gives, from `start` (0) below `count`, by `step` (1)."""
    kind = ir.IntType(64)
    start, step = kind(0) if start is None else start, kind(1) if step is None else step
    before = builder.block
    head, body, end = (builder.append_basic_block(name) for name in ("loop", "body", "loop_end"))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(kind)
    index.add_incoming(start, before)
    builder.cbranch(builder.icmp_signed("<", index, count), body, end)
    builder.position_at_end(body)
    yield index
    index.add_incoming(builder.add(index, step, flags=("nsw",)), builder.block)
    builder.branch(head)
    builder.position_at_end(end)


def local(builder: Any, kind: Any, *, align: int = 0) -> Any:
    """Returns memory for a value, which lives as long as the function's call."""
    with builder.goto_entry_block():
        place = builder.alloca(kind)
        if align:
            place.align = align
    return place


def function(module: Any, kind: Any, name: str) -> Any:
    """Returns a module's function of that name, declared if need be."""
    return module.globals.get(name) or ir.Function(module, kind, name)


@lru_cache(maxsize=1)
def target() -> tuple[str, str]:
    """Returns the name and the features of the CPU that kernels are compiled for, as LLVM names them.

    `SAMEBITS_CPU_NAME` and `SAMEBITS_CPU_FEATURES` play another CPU.
    """
    name = os.environ.get("SAMEBITS_CPU_NAME") or binding.get_host_cpu_name()
    features = os.environ.get("SAMEBITS_CPU_FEATURES")
    return name, binding.get_host_cpu_features().flatten() if features is None else features


@lru_cache(maxsize=1)
def features() -> frozenset[str]:
    """Returns the features that the CPU has."""
    return frozenset(name[1:] for name in target()[1].split(",") if name.startswith("+"))


@lru_cache(maxsize=1)
def _machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    name, features = target()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=3, reloc="static", codemodel="jitdefault", jit=True
    )


def compiled(module: Any) -> bytes:
    """Returns a module's machine code: an object file."""
    return _machine().emit_object(_optimized(module))


def assembly(module: Any) -> str:
    """Returns a module's machine code as a text."""
    return _machine().emit_assembly(_optimized(module))


def _optimized(module: Any) -> Any:
    machine = _machine()
    module.triple = binding.get_process_triple()
    module.data_layout = str(machine.target_data)
    parsed = binding.parse_assembly(str(module))
    tuning = binding.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization, tuning.slp_vectorization = True, False
    passes = binding.create_pass_builder(machine, tuning)
    passes.getModulePassManager().run(parsed, passes)
    return parsed


@lru_cache(maxsize=1)
def _engine() -> Any:
    return binding.create_mcjit_compiler(binding.parse_assembly(""), _machine())


def loaded(code: bytes, name: str) -> int:
    """Returns the address of a function of that name in an object file, which stays in memory."""
    engine = _engine()
    engine.add_object_file(binding.object_file.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine.get_function_address(name)


def add_symbol(name: str, address: int) -> None:
    """Gives machine code that is loaded from now on a C function by name."""
    binding.add_symbol(name, address)

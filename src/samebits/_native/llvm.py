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


_V3 = (
    "+64bit,+avx,+avx2,+bmi,+bmi2,+cmov,+cx16,+cx8,+f16c,+fma,+fxsr,+lzcnt,+mmx,+movbe,+popcnt,+sahf,+sse,+sse2,"
    "+sse3,+sse4.1,+sse4.2,+ssse3,+xsave"
)
_V4 = f"{_V3},+avx512bw,+avx512cd,+avx512dq,+avx512f,+avx512vl"
_LONG = "-prefer-256-bit"
TARGETS = {
    "x86-64-v3": ("x86-64-v3", f"{_V3},{_LONG}"),
    "x86-64-v4": ("x86-64-v4", f"{_V4},{_LONG}"),
    "x86-64-v4-bf16": ("x86-64-v4", f"{_V4},+avx512bf16,{_LONG}"),
}
"""The kinds of CPU that kernels are compiled for: the name and the features for LLVM. So all CPUs of a kind
run the same machine code. The last kind multiplies pairs of bfloat16 faster by one instruction.
"""


@lru_cache(maxsize=1)
def target() -> str:
    """Returns the kind of the CPU, a name in `TARGETS`, or "" for none; `SAMEBITS_CPU_NAME` plays another."""
    played = os.environ.get("SAMEBITS_CPU_NAME")
    if played:
        if played not in TARGETS:
            raise ValueError(
                f"SAMEBITS_CPU_NAME={played} is none of {', '.join(TARGETS)}: set one, or unset it"
            )
        return played
    has = {f"+{name}" for name, found in binding.get_host_cpu_features().items() if found}
    kinds = [kind for kind, (_, needed) in TARGETS.items() if has.issuperset(needed.split(",")[:-1])]
    # Zen's VDPBF16PS takes less time than two fused multiply-adds. By Intel's (Emerald Rapids) products take
    # 1.2 times as long (`bench/portable_product.py --dtype bfloat16`, both ways).
    if not binding.get_host_cpu_name().startswith("znver"):
        kinds = [kind for kind in kinds if not kind.endswith("bf16")]
    return kinds[-1] if kinds else ""


def cpu() -> tuple[str, str]:
    """Returns the name and the features of the CPU that kernels are compiled for, as LLVM names them."""
    host = binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()
    return TARGETS.get(target(), host)


@lru_cache(maxsize=1)
def features() -> frozenset[str]:
    """Returns the features that the CPU has."""
    return frozenset(name[1:] for name in cpu()[1].split(",") if name.startswith("+"))


@lru_cache(maxsize=1)
def _machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    name, features = cpu()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=name, features=features, opt=3, reloc="static", codemodel="jitdefault", jit=True
    )


def compiled(module: Any, *, is_vectorized: bool = False) -> bytes:
    """Returns a module's machine code: an object file; see `kernel_threads.on_team`."""
    return _machine().emit_object(_optimized(module, is_vectorized))


def _optimized(module: Any, is_vectorized: bool) -> Any:
    machine = _machine()
    module.triple = binding.get_process_triple()
    module.data_layout = str(machine.target_data)
    parsed = binding.parse_assembly(str(module))
    tuning = binding.create_pipeline_tuning_options(speed_level=1 if is_vectorized else 3)
    tuning.loop_vectorization, tuning.slp_vectorization = True, False
    passes = binding.create_pass_builder(machine, tuning)
    if is_vectorized:
        manager = passes.getFunctionPassManager()
        for one in parsed.functions:
            if not one.is_declaration:
                manager.run(one, passes)
    else:
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

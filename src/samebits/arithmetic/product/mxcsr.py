"""The register that says how SSE and AVX round and what becomes of denormals."""

from __future__ import annotations

from typing import Any

from samebits import _native as native
from samebits._native import instruction
from samebits.arithmetic.product.vectors import BFLOAT16, Number

KEPT, FLUSHED = 0x1F80, 0x9FC0
"""The register MXCSR: rounds to nearest even, and keeps denormals, or flushes results and factors to zero."""


def mxcsr_of(number: Number) -> int:
    """Returns the register with which numbers are multiplied: as VDPBF16PS does pairs of bfloat16."""
    return FLUSHED if number is BFLOAT16 else KEPT


@instruction
def set_mxcsr(value: Any) -> Any:
    """Sets the register for this thread; returns the value before."""

    def build(builder: Any, *arguments: Any) -> Any:
        ir = native.ir
        word, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        place = native.llvm.local(builder, word)
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        store = native.llvm.function(builder.module, kind, "llvm.x86.sse.stmxcsr")
        load = native.llvm.function(builder.module, kind, "llvm.x86.sse.ldmxcsr")
        builder.call(store, [builder.bitcast(place, pointer)])
        before = builder.zext(builder.load(place), ir.IntType(64))
        builder.store(builder.trunc(arguments[0], word), place)
        builder.call(load, [builder.bitcast(place, pointer)])
        return before

    return native.types.int64(native.types.int64), build

"""CPU kernels: a compiler of our own to LLVM, cached, and parallel runs (on torch's OpenMP threads).

LLVM is imported when the first kernel is called. A kernel's body or an instruction's code finds what it needs
in `native.carray`, `native.types`, `native.ir` and `native.llvm`.

Read `formula.py` first. Doors: here and in pyproject.toml. Imports: `_program` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach
from samebits._native.lazy_kernel import Part as Part
from samebits._native.lazy_kernel import compiled_here as compiled_here
from samebits._native.lazy_kernel import imported_by_others as imported_by_others
from samebits._native.lazy_kernel import inlined as inlined
from samebits._native.lazy_kernel import instruction as instruction
from samebits._native.lazy_kernel import kernel as kernel

if TYPE_CHECKING:
    from samebits._native import entry_points as entry_points
    from samebits._native import llvm as llvm
    from samebits._native import machine_code as machine_code
    from samebits._native.compiler import address_of as address_of
    from samebits._native.compiler import carray as carray
    from samebits._native.llvm import ir as ir
    from samebits._native.llvm import types as types

__getattr__, __dir__ = attach(__name__)

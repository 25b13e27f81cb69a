"""CPU kernels: compilation (Numba, cached) and parallel runs (on torch's OpenMP threads).

Numba is imported when the first kernel is called. A kernel's body or an instruction's code finds what it
needs of it in `native.carray`, `native.types`, `native.ir` and `native.cgutils`.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach
from samebits._native.lazy_kernel import called as called
from samebits._native.lazy_kernel import inlined as inlined
from samebits._native.lazy_kernel import instruction as instruction
from samebits._native.lazy_kernel import kernel as kernel

if TYPE_CHECKING:
    from samebits._native import compilation as compilation
    from samebits._native.compilation import carray as carray
    from samebits._native.compilation import cgutils as cgutils
    from samebits._native.compilation import ir as ir
    from samebits._native.compilation import types as types

__getattr__, __dir__ = attach(
    __name__,
    ["compilation"],
    {
        "carray": "samebits._native.compilation",
        "cgutils": "samebits._native.compilation",
        "ir": "samebits._native.compilation",
        "types": "samebits._native.compilation",
    },
)

"""How CPU kernels are compiled (Numba, cached) and run in parallel (on torch's own OpenMP threads).

Numba is imported when the first kernel is called. What a kernel's body or an instruction's code needs of it is
`kernels.carray`, `kernels.types`, `kernels.ir` and `kernels.cgutils`.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach
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

"""How CPU kernels are compiled (Numba, cached) and run in parallel (on torch's own OpenMP threads).

Numba is imported when the first kernel is called. What a kernel's body or an instruction's code needs of it is
`kernels.carray`, `kernels.types`, `kernels.ir` and `kernels.cgutils`.
"""

from typing import TYPE_CHECKING

from samebits.imports import attach
from samebits.kernels.deferred import inlined as inlined
from samebits.kernels.deferred import instruction as instruction
from samebits.kernels.deferred import kernel as kernel

if TYPE_CHECKING:
    from samebits.kernels import compile as compile  # noqa: A004 (a module)
    from samebits.kernels.compile import carray as carray
    from samebits.kernels.compile import cgutils as cgutils
    from samebits.kernels.compile import ir as ir
    from samebits.kernels.compile import types as types

__getattr__, __dir__ = attach(
    __name__,
    ["compile"],
    {
        "carray": "samebits.kernels.compile",
        "cgutils": "samebits.kernels.compile",
        "ir": "samebits.kernels.compile",
        "types": "samebits.kernels.compile",
    },
)

"""How CPU kernels are compiled (Numba, cached) and run in parallel (on torch's own OpenMP threads)."""

from samebits.kernels.compile import inlined as inlined
from samebits.kernels.compile import instruction as instruction
from samebits.kernels.compile import kernel as kernel

"""The arithmetic of threads and machines: our kernels, the ops they cover; the rest: one thread, or refusals.

The switch imports none of it before `across="threads"` or `across="machines"` is asked for.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.determinism._ops import attention as attention
    from samebits.determinism._ops import coverage as coverage
    from samebits.determinism._ops import one_thread as one_thread
    from samebits.determinism._ops import recurrent as recurrent
    from samebits.determinism._ops import refusal as refusal
    from samebits.determinism._ops import replacements as replacements

__getattr__, __dir__ = attach(__name__)

"""The arithmetic of threads and machines: our kernels, the ops that they cover, and the rest: one thread, or refusals.

The switch imports none of it before `across="threads"` or `across="machines"` is asked for.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.determinism._machine_invariant import coverage as coverage
    from samebits.determinism._machine_invariant import machine as machine
    from samebits.determinism._machine_invariant import one_thread as one_thread
    from samebits.determinism._machine_invariant import recurrent as recurrent
    from samebits.determinism._machine_invariant import refusal as refusal
    from samebits.determinism._machine_invariant import replacements as replacements

__getattr__, __dir__ = attach(
    __name__, ["coverage", "machine", "one_thread", "recurrent", "refusal", "replacements"]
)

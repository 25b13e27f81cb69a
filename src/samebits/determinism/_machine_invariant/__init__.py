"""The mode `enable_op_determinism(across="machines")`: the ops that it covers, our kernels for them, and
refusals of the rest.

The switch imports none of it before the mode is asked for.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.determinism._machine_invariant import coverage as coverage
    from samebits.determinism._machine_invariant import machine as machine
    from samebits.determinism._machine_invariant import recurrent as recurrent
    from samebits.determinism._machine_invariant import refusal as refusal
    from samebits.determinism._machine_invariant import replacements as replacements

__getattr__, __dir__ = attach(__name__, ["coverage", "machine", "recurrent", "refusal", "replacements"])

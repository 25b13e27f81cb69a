"""Op determinism: one switch; ops are reproducible or raise with the cure.

Read `_switch.py` first. Doors: here and in pyproject.toml. Imports: `random` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.determinism import _cuda_decompositions as _cuda_decompositions
    from samebits.determinism import table as table
    from samebits.determinism._environment import UntestedVersionWarning as UntestedVersionWarning
    from samebits.determinism._environment import environment_fingerprint as environment_fingerprint
    from samebits.determinism._guards.custom_ops import declare_op as declare_op
    from samebits.determinism._switch import OpDeterminism as OpDeterminism
    from samebits.determinism._switch import enable_op_determinism as enable_op_determinism
    from samebits.determinism._switch import op_determinism_enabled as op_determinism_enabled

__getattr__, __dir__ = attach(__name__)

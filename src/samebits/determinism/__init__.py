"""Op determinism: one switch; ops are reproducible or raise with the way out."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.determinism import cuda_decompositions as cuda_decompositions
    from samebits.determinism import table as table
    from samebits.determinism.custom import declare_op as declare_op
    from samebits.determinism.environment import UntestedVersionWarning as UntestedVersionWarning
    from samebits.determinism.environment import environment_fingerprint as environment_fingerprint
    from samebits.determinism.switch import OpDeterminism as OpDeterminism
    from samebits.determinism.switch import enable_op_determinism as enable_op_determinism
    from samebits.determinism.switch import op_determinism_enabled as op_determinism_enabled

__getattr__, __dir__ = attach(
    __name__,
    ["cuda_decompositions", "table"],
    {
        "OpDeterminism": "samebits.determinism.switch",
        "UntestedVersionWarning": "samebits.determinism.environment",
        "declare_op": "samebits.determinism.custom",
        "enable_op_determinism": "samebits.determinism.switch",
        "environment_fingerprint": "samebits.determinism.environment",
        "op_determinism_enabled": "samebits.determinism.switch",
    },
)

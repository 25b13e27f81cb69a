"""Op determinism: one switch; ops are reproducible or raise with the way out."""

from samebits.determinism.custom import declare_op as declare_op
from samebits.determinism.environment import UntestedVersionWarning as UntestedVersionWarning
from samebits.determinism.environment import environment_fingerprint as environment_fingerprint
from samebits.determinism.switch import OpDeterminism as OpDeterminism
from samebits.determinism.switch import enable_op_determinism as enable_op_determinism
from samebits.determinism.switch import op_determinism_enabled as op_determinism_enabled

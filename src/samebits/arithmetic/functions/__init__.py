"""Elementary functions as fixed sequences of IEEE operations: no libm, no vendor's table, no contraction."""

from samebits.arithmetic.functions.exponential import exp_bounded_double as exp_bounded_double
from samebits.arithmetic.functions.optimizer_steps import adagrad_step as adagrad_step
from samebits.arithmetic.functions.optimizer_steps import adam_step as adam_step
from samebits.arithmetic.functions.optimizer_steps import sgd_step as sgd_step

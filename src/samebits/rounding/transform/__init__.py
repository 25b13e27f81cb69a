"""Stochastic rounding of a whole captured step: what `samebits.rounding.assign_methods` and `lower` are.

methods = samebits.rounding.assign_methods(step, samebits.replica.analyze(step))
lowered = samebits.rounding.lower(step, seed=1)
loss, = lowered(*tensors)
"""

from samebits.rounding.transform.lowered import LoweredStep as LoweredStep
from samebits.rounding.transform.lowered import lower as lower
from samebits.rounding.transform.methods import Method as Method
from samebits.rounding.transform.methods import assign_methods as assign_methods
from samebits.rounding.transform.methods import clear_methods as clear_methods
from samebits.rounding.transform.methods import verify_methods as verify_methods

"""Stochastic rounding of a captured step: the functions `assign_methods` and `lower` of `samebits.rounding`.

methods = samebits.rounding.assign_methods(step, samebits.replica.analyze(step))
lowered = samebits.rounding.lower(step, seed=1)
loss, = lowered(*tensors)
"""

from samebits.rounding._transform.lowered_step import LoweredStep as LoweredStep
from samebits.rounding._transform.lowered_step import lower as lower
from samebits.rounding._transform.seed_methods import Method as Method
from samebits.rounding._transform.seed_methods import assign_methods as assign_methods
from samebits.rounding._transform.seed_methods import clear_methods as clear_methods
from samebits.rounding._transform.seed_methods import verify_methods as verify_methods

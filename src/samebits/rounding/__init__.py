"""Stochastic rounding: by keys, so that it has the same bits on every replica, and again after a resume."""

from samebits.rounding import optim as optim
from samebits.rounding.stochastic import stochastic_round as stochastic_round

__all__ = ["optim", "stochastic_round"]

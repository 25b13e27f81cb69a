"""Stochastic rounding by keys: the same bits on every replica, and after a resume.

Read `_stochastic_round.py` first. Doors: here and in pyproject.toml. Imports: `distributed` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.rounding import optim as optim
    from samebits.rounding._stochastic_round import stochastic_round as stochastic_round
    from samebits.rounding._transform import LoweredStep as LoweredStep
    from samebits.rounding._transform import Method as Method
    from samebits.rounding._transform import assign_methods as assign_methods
    from samebits.rounding._transform import clear_methods as clear_methods
    from samebits.rounding._transform import lower as lower
    from samebits.rounding._transform import verify_methods as verify_methods

__all__ = [
    "LoweredStep", "Method", "assign_methods", "clear_methods", "lower", "optim", "stochastic_round",
    "verify_methods",
]  # fmt: skip

__getattr__, __dir__ = attach(__name__)

"""Stochastic rounding: by keys, so that it has the same bits on every replica, and again after a resume."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.rounding import optim as optim
    from samebits.rounding.stochastic import stochastic_round as stochastic_round
    from samebits.rounding.transform import LoweredStep as LoweredStep
    from samebits.rounding.transform import Method as Method
    from samebits.rounding.transform import assign_methods as assign_methods
    from samebits.rounding.transform import clear_methods as clear_methods
    from samebits.rounding.transform import lower as lower
    from samebits.rounding.transform import verify_methods as verify_methods

__all__ = [
    "LoweredStep",
    "Method",
    "assign_methods",
    "clear_methods",
    "lower",
    "optim",
    "stochastic_round",
    "verify_methods",
]

__getattr__, __dir__ = attach(
    __name__,
    ["optim"],
    {
        "stochastic_round": "samebits.rounding.stochastic",
        "LoweredStep": "samebits.rounding.transform",
        "Method": "samebits.rounding.transform",
        "assign_methods": "samebits.rounding.transform",
        "clear_methods": "samebits.rounding.transform",
        "lower": "samebits.rounding.transform",
        "verify_methods": "samebits.rounding.transform",
    },
)

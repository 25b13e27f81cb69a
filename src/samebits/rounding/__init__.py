"""Stochastic rounding: by keys, so that it has the same bits on every replica, and again after a resume."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from samebits.rounding import optim as optim
from samebits.rounding.stochastic import stochastic_round as stochastic_round

if TYPE_CHECKING:
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


def __getattr__(name: str) -> Any:
    """What works on captured steps comes with the analysis, which reads the op table: at first use only."""
    if name in __all__:
        return getattr(import_module("samebits.rounding.transform"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""torch's optimizers for weights of 16 bits: float32 arithmetic, and new weights rounded stochastically."""

from samebits.rounding.optim._optimizers import SGD as SGD
from samebits.rounding.optim._optimizers import AdamW as AdamW

__all__ = ["SGD", "AdamW"]

"""torch's optimizers for weights of 16 bits: float32 arithmetic, and new weights rounded stochastically."""

from samebits.rounding.optim._adamw_class import AdamW as AdamW
from samebits.rounding.optim._sgd_class import SGD as SGD

__all__ = ["SGD", "AdamW"]

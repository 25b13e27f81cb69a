"""Same program, same bits: reproducible, pre-emptible training for PyTorch, with the proof."""

from samebits import callbacks, data, determinism, errors, nn, random, rounding
from samebits.determinism import declare_op, enable_op_determinism, op_determinism_enabled
from samebits.determinism.environment import warn_if_untested
from samebits.random import set_random_seed
from samebits.train import Run, Step, Trainer

__all__ = [
    "Run",
    "Step",
    "Trainer",
    "callbacks",
    "data",
    "declare_op",
    "determinism",
    "enable_op_determinism",
    "errors",
    "nn",
    "op_determinism_enabled",
    "random",
    "rounding",
    "set_random_seed",
]
__version__ = "0.1.0.dev0"

warn_if_untested()

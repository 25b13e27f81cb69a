"""Same program, same bits: reproducible, pre-emptible training for PyTorch, with the proof.

`import samebits` imports nothing else: each name, and torch with it, is imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from samebits import _context
from samebits._lazy_imports import attach, when_imported

if TYPE_CHECKING:
    from samebits import _digest as _digest
    from samebits import _native as _native
    from samebits import audit as audit
    from samebits import callbacks as callbacks
    from samebits import checkpoint as checkpoint
    from samebits import cli as cli
    from samebits import data as data
    from samebits import determinism as determinism
    from samebits import distributed as distributed
    from samebits import errors as errors
    from samebits import nn as nn
    from samebits import random as random
    from samebits import replica as replica
    from samebits import rounding as rounding
    from samebits import state as state
    from samebits import testing as testing
    from samebits import train as train
    from samebits import trainer as trainer
    from samebits.determinism import declare_op as declare_op
    from samebits.determinism import enable_op_determinism as enable_op_determinism
    from samebits.determinism import op_determinism_enabled as op_determinism_enabled
    from samebits.random import set_random_seed as set_random_seed
    from samebits.train import Epoch as Epoch
    from samebits.train import Run as Run
    from samebits.train import Step as Step
    from samebits.trainer import Trainer as Trainer

__all__ = [
    "Epoch", "Run", "Step", "Trainer", "callbacks", "checkpoint", "data", "declare_op", "determinism",
    "distributed", "enable_op_determinism", "errors", "nn", "op_determinism_enabled", "random", "replica",
    "rounding", "set_random_seed", "state", "testing",
]  # fmt: skip
__version__ = _context.VERSION

__getattr__, __dir__ = attach(__name__)
# The state at the import shows whether somebody had set a seed before.
when_imported("torch", _context.note_torch)
when_imported("random", _context.note_random)
when_imported("numpy.random", _context.note_numpy)

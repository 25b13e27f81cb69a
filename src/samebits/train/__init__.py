"""Training that can be killed anywhere: `Run` for own loops, `Trainer` on top of it."""

from samebits.train.run import Run as Run
from samebits.train.steps import Step as Step
from samebits.train.trainer import Trainer as Trainer

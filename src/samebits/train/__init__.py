"""Training that can be killed anywhere: `Run` for own loops, `Trainer` on top of it."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.train.run import Run as Run
    from samebits.train.steps import Step as Step
    from samebits.train.trainer import Trainer as Trainer

__getattr__, __dir__ = attach(
    __name__,
    names={
        "Run": "samebits.train.run",
        "Step": "samebits.train.steps",
        "Trainer": "samebits.train.trainer",
    },
)

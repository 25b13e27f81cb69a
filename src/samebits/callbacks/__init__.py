"""Callbacks: hooks of `Trainer.fit`, whose state is part of every commit.

Read `_base.py` first. Doors: here and in pyproject.toml. Imports: `rounding` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.callbacks._base import Callback as Callback
    from samebits.callbacks._csv_logger import CSVLogger as CSVLogger
    from samebits.callbacks._early_stopping import EarlyStopping as EarlyStopping
    from samebits.callbacks._early_stopping import TerminateOnNaN as TerminateOnNaN
    from samebits.callbacks._lambda import Lambda as Lambda
    from samebits.callbacks._learning_rates import LearningRateScheduler as LearningRateScheduler
    from samebits.callbacks._learning_rates import ReduceLROnPlateau as ReduceLROnPlateau
    from samebits.callbacks._model_checkpoint import ModelCheckpoint as ModelCheckpoint
    from samebits.callbacks._progress_bar import ProgressBar as ProgressBar
    from samebits.callbacks._tensorboard import TensorBoard as TensorBoard

__getattr__, __dir__ = attach(__name__)

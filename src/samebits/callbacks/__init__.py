"""Callbacks with state by contract: what they remember is part of every commit."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.callbacks.base import Callback as Callback
    from samebits.callbacks.csvlog import CSVLogger as CSVLogger
    from samebits.callbacks.functions import Lambda as Lambda
    from samebits.callbacks.modelcheckpoint import ModelCheckpoint as ModelCheckpoint
    from samebits.callbacks.progress import ProgressBar as ProgressBar
    from samebits.callbacks.rates import LearningRateScheduler as LearningRateScheduler
    from samebits.callbacks.rates import ReduceLROnPlateau as ReduceLROnPlateau
    from samebits.callbacks.stopping import EarlyStopping as EarlyStopping
    from samebits.callbacks.stopping import TerminateOnNaN as TerminateOnNaN
    from samebits.callbacks.tensorboard import TensorBoard as TensorBoard

__getattr__, __dir__ = attach(
    __name__,
    names={
        "CSVLogger": "samebits.callbacks.csvlog",
        "Callback": "samebits.callbacks.base",
        "EarlyStopping": "samebits.callbacks.stopping",
        "Lambda": "samebits.callbacks.functions",
        "LearningRateScheduler": "samebits.callbacks.rates",
        "ModelCheckpoint": "samebits.callbacks.modelcheckpoint",
        "ProgressBar": "samebits.callbacks.progress",
        "ReduceLROnPlateau": "samebits.callbacks.rates",
        "TensorBoard": "samebits.callbacks.tensorboard",
        "TerminateOnNaN": "samebits.callbacks.stopping",
    },
)

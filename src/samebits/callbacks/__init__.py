"""Callbacks with state by contract: what they remember is part of every commit."""

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

"""Callbacks with state by contract: what they remember is part of every commit."""

from samebits.callbacks.base import Callback as Callback
from samebits.callbacks.monitors import EarlyStopping as EarlyStopping
from samebits.callbacks.monitors import ReduceLROnPlateau as ReduceLROnPlateau
from samebits.callbacks.progress import ProgressBar as ProgressBar

"""Layers that own their randomness, models whose layers are replaced by them, and initialisation by name.

Read `_dropout.py` first. Doors: here and in pyproject.toml. Imports: `determinism` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.nn import utils as utils
    from samebits.nn._compiled import compiled as compiled
    from samebits.nn._dropout import AlphaDropout as AlphaDropout
    from samebits.nn._dropout import Dropout as Dropout
    from samebits.nn._dropout import Dropout1d as Dropout1d
    from samebits.nn._dropout import Dropout2d as Dropout2d
    from samebits.nn._dropout import Dropout3d as Dropout3d
    from samebits.nn._dropout import FeatureAlphaDropout as FeatureAlphaDropout
    from samebits.nn._layer_keys import OwnsRandomness as OwnsRandomness
    from samebits.nn._layer_keys import set_step as set_step
    from samebits.nn._multihead_attention import MultiheadAttention as MultiheadAttention
    from samebits.nn._noise import FractionalMaxPool2d as FractionalMaxPool2d
    from samebits.nn._noise import FractionalMaxPool3d as FractionalMaxPool3d
    from samebits.nn._noise import GaussianNoise as GaussianNoise
    from samebits.nn._noise import RReLU as RReLU
    from samebits.nn._noise import StochasticDepth as StochasticDepth
    from samebits.nn._own_randomness import own_randomness as own_randomness
    from samebits.nn._reset_parameters import reset_parameters as reset_parameters
    from samebits.nn._rnn import GRU as GRU
    from samebits.nn._rnn import LSTM as LSTM
    from samebits.nn._rnn import RNN as RNN

__getattr__, __dir__ = attach(__name__)

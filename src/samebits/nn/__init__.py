"""Layers that own their randomness, models that are given such layers, and initialisation by name."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.nn.attention import MultiheadAttention as MultiheadAttention
    from samebits.nn.compiled import compiled as compiled
    from samebits.nn.dropout import AlphaDropout as AlphaDropout
    from samebits.nn.dropout import Dropout as Dropout
    from samebits.nn.dropout import Dropout1d as Dropout1d
    from samebits.nn.dropout import Dropout2d as Dropout2d
    from samebits.nn.dropout import Dropout3d as Dropout3d
    from samebits.nn.dropout import FeatureAlphaDropout as FeatureAlphaDropout
    from samebits.nn.initialisation import reset_parameters as reset_parameters
    from samebits.nn.keyed import OwnsRandomness as OwnsRandomness
    from samebits.nn.keyed import name_layers as name_layers
    from samebits.nn.keyed import set_aside as set_aside
    from samebits.nn.keyed import set_step as set_step
    from samebits.nn.noise import FractionalMaxPool2d as FractionalMaxPool2d
    from samebits.nn.noise import FractionalMaxPool3d as FractionalMaxPool3d
    from samebits.nn.noise import GaussianNoise as GaussianNoise
    from samebits.nn.noise import RReLU as RReLU
    from samebits.nn.noise import StochasticDepth as StochasticDepth
    from samebits.nn.own import own_randomness as own_randomness
    from samebits.nn.recurrent import GRU as GRU
    from samebits.nn.recurrent import LSTM as LSTM
    from samebits.nn.recurrent import RNN as RNN

__getattr__, __dir__ = attach(
    __name__,
    names={
        "AlphaDropout": "samebits.nn.dropout",
        "Dropout": "samebits.nn.dropout",
        "Dropout1d": "samebits.nn.dropout",
        "Dropout2d": "samebits.nn.dropout",
        "Dropout3d": "samebits.nn.dropout",
        "FeatureAlphaDropout": "samebits.nn.dropout",
        "FractionalMaxPool2d": "samebits.nn.noise",
        "FractionalMaxPool3d": "samebits.nn.noise",
        "GRU": "samebits.nn.recurrent",
        "GaussianNoise": "samebits.nn.noise",
        "LSTM": "samebits.nn.recurrent",
        "MultiheadAttention": "samebits.nn.attention",
        "OwnsRandomness": "samebits.nn.keyed",
        "RNN": "samebits.nn.recurrent",
        "RReLU": "samebits.nn.noise",
        "StochasticDepth": "samebits.nn.noise",
        "compiled": "samebits.nn.compiled",
        "name_layers": "samebits.nn.keyed",
        "own_randomness": "samebits.nn.own",
        "reset_parameters": "samebits.nn.initialisation",
        "set_aside": "samebits.nn.keyed",
        "set_step": "samebits.nn.keyed",
    },
)

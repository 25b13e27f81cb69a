"""Layers that own their randomness, models that are given such layers, and initialisation by name."""

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

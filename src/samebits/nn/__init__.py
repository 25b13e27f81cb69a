"""Layers that own their randomness."""

from samebits.nn.dropout import Dropout as Dropout
from samebits.nn.dropout import name_layers as name_layers

"""Gives a `state_dict` to objects without one: environments, metrics, generators, containers, your own."""

from samebits.state._attributes import attributes as attributes
from samebits.state._known_classes import adapter_for as adapter_for

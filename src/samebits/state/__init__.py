"""Gives a `state_dict` to objects without one: environments, metrics, generators, containers, your own.

Read `_attributes.py` first. Doors: here and in pyproject.toml. Imports: `callbacks` and below.
"""

from samebits.state._attributes import attributes as attributes
from samebits.state._known_classes import adapter_for as adapter_for

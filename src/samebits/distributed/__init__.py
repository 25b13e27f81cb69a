"""Logical shards: training on any number of processes with the bits of one process.

Read `_shards.py` first. Doors: here and in pyproject.toml. Imports: `data` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.distributed._shards import Shards as Shards

__getattr__, __dir__ = attach(__name__)

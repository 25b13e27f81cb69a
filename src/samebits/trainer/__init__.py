"""`Trainer`: the usual loop, on top of `Run`.

Read `_trainer.py` first. Doors: here and in pyproject.toml. Imports: `train` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.trainer._trainer import Trainer as Trainer

__getattr__, __dir__ = attach(__name__)

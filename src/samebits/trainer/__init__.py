"""`Trainer`: the usual loop, on top of `Run`."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.trainer._trainer import Trainer as Trainer

__getattr__, __dir__ = attach(__name__)

"""`Run`: training that can be killed anywhere, around your own loop.

Read `_run.py` first. Doors: here and in pyproject.toml. Imports: `state` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.train._loop.epochs import Epoch as Epoch
    from samebits.train._loop.steps import Step as Step
    from samebits.train._run import Run as Run

__getattr__, __dir__ = attach(__name__)

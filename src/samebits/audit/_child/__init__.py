"""One process of a check, or of `samebits run`: launches, records, varies and kills a script."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit._child import launch as launch
    from samebits.audit._child import variations as variations

__getattr__, __dir__ = attach(__name__)

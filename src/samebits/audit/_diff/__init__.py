"""The comparison of two records."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit._diff import comparison as comparison
    from samebits.audit._diff import first_difference as first_difference

__getattr__, __dir__ = attach(__name__, ["comparison", "first_difference"])

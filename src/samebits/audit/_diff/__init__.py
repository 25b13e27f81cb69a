"""The comparison of two records."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit._diff import compare as compare
    from samebits.audit._diff import comparison as comparison

__getattr__, __dir__ = attach(__name__, ["compare", "comparison"])

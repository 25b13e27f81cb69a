"""Proofs about programs: records, the first difference of two of them, the checks of `samebits verify`.

Read `_verify/verification.py` first. Doors: here and in pyproject.toml. Imports: `train` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit import _child as _child
    from samebits.audit import _comparison as _comparison
    from samebits.audit import _first_difference as _first_difference
    from samebits.audit import _html_page as _html_page
    from samebits.audit import _record as _record
    from samebits.audit import _trace as _trace
    from samebits.audit import _verify as _verify

__getattr__, __dir__ = attach(__name__)

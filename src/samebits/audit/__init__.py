"""Proofs about programs: their records, the first difference between two of them, the checks of `samebits verify`."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit import _child as _child
    from samebits.audit import _diff as _diff
    from samebits.audit import _record as _record
    from samebits.audit import _verify as _verify

__getattr__, __dir__ = attach(__name__, ["_child", "_diff", "_record", "_verify"])

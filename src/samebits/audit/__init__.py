"""Proofs about programs: their records, what differs between two of them, the checks of `samebits verify`."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.audit import compare as compare
    from samebits.audit import comparison as comparison
    from samebits.audit import launch as launch
    from samebits.audit import record as record
    from samebits.audit import review as review
    from samebits.audit import verify as verify

__getattr__, __dir__ = attach(__name__, ["compare", "comparison", "launch", "record", "review", "verify"])

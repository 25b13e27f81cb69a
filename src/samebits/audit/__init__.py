"""Proofs about programs: their records, what differs between two of them, the checks of `samebits verify`."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.audit import compare as compare
    from samebits.audit import comparison as comparison
    from samebits.audit import kill as kill
    from samebits.audit import launch as launch
    from samebits.audit import loaders as loaders
    from samebits.audit import perturb as perturb
    from samebits.audit import record as record
    from samebits.audit import review as review
    from samebits.audit import verify as verify

__getattr__, __dir__ = attach(
    __name__,
    ["compare", "comparison", "kill", "launch", "loaders", "perturb", "record", "review", "verify"],
)

"""`samebits ops --review`: a battery of ops on the user's own machine, compared byte by byte."""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.audit.review.report import Review as Review
    from samebits.audit.review.review import review as review
    from samebits.audit.review.table import show as show

__getattr__, __dir__ = attach(
    __name__,
    names={
        "Review": "samebits.audit.review.report",
        "review": "samebits.audit.review.review",
        "show": "samebits.audit.review.table",
    },
)

"""`samebits ops --review`: a battery of ops on the user's own machine, compared byte by byte."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit._review.report import show as show
    from samebits.audit._review.review import review as review

__getattr__, __dir__ = attach(
    __name__,
    names={
        "review": "samebits.audit._review.review",
        "show": "samebits.audit._review.report",
    },
)

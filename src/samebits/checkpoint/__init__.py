"""Commits: their list, their export to other formats, and weights for another run."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.checkpoint import _listing as _listing
    from samebits.checkpoint._exchange.export import export as export
    from samebits.checkpoint._exchange.load import load_commit as load_commit
    from samebits.checkpoint._exchange.load import load_weights as load_weights
    from samebits.checkpoint._listing import list_commits as list_commits
    from samebits.checkpoint._listing import prune as prune

__all__ = ["export", "list_commits", "load_commit", "load_weights", "prune"]

__getattr__, __dir__ = attach(
    __name__,
    ["_listing"],
    names={
        "export": "samebits.checkpoint._exchange.export",
        "list_commits": "samebits.checkpoint._listing",
        "load_commit": "samebits.checkpoint._exchange.load",
        "load_weights": "samebits.checkpoint._exchange.load",
        "prune": "samebits.checkpoint._listing",
    },
)

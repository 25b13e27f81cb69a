"""Commits: their list, their export to other formats, and weights for another run.

Read `_store.py` first. Doors: here and in pyproject.toml. Imports: `determinism` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.checkpoint._dcp_reader import DCPReader as DCPReader
    from samebits.checkpoint._export import export as export
    from samebits.checkpoint._listing import list_commits as list_commits
    from samebits.checkpoint._listing import prune as prune
    from samebits.checkpoint._load import load_commit as load_commit
    from samebits.checkpoint._load import load_weights as load_weights

__getattr__, __dir__ = attach(__name__)

"""Every replacement of the mode: the switch installs them, the op table reads their names."""

from __future__ import annotations

from collections.abc import Iterator

from samebits.determinism import _all_replacements as without_mode
from samebits.determinism._machine_invariant import (
    coverage,
    creation_ops,
    elementwise,
    linear_ops,
    reduction_ops,
)
from samebits.determinism._replacement import Replacement

REPLACEMENTS: tuple[Replacement, ...] = (
    *creation_ops.REPLACEMENTS,
    *elementwise.REPLACEMENTS,
    *linear_ops.REPLACEMENTS,
    *reduction_ops.REPLACEMENTS,
)
"""Those whose bits are the same on every machine."""


def wanted() -> Iterator[Replacement]:
    """Yields what the mode installs: those of every machine, and of the others such as stay for a covered op."""
    yield from REPLACEMENTS
    ours = {it.op for it in REPLACEMENTS if it.device == "CPU"}
    for it in without_mode.REPLACEMENTS:
        if it.op not in ours and coverage.stays(it.op):
            yield it

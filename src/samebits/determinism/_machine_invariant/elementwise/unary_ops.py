"""Functions of one tensor: exp, log, sin, sqrt and the rest."""

from __future__ import annotations

from collections.abc import Iterator

from samebits.arithmetic.elementwise_functions import UNARY
from samebits.determinism._machine_invariant.elementwise.forms import unary_forms
from samebits.determinism._replacement import Replacement

_REASON = "a vendor's function, or vector code and scalar tail that round differently; ours is one sequence of IEEE operations"


def _replacements() -> Iterator[Replacement]:
    for op, function in UNARY.items():
        yield from unary_forms(function, _REASON, op)


REPLACEMENTS = tuple(_replacements())

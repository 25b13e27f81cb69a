"""The switch on a GPU: each op has the same bits run after run or is refused with a cure, and every formulation holds.

`formulations` checks the replacements of torch's refused kernels, `refused` the ops without one, `battery` the cases of
`make review` on the GPU. `adopt` writes the verified ones into the data file that installs them.
"""

from __future__ import annotations

from collections.abc import Iterator

from samebits.selfcheck.case import Case, Part
from samebits.selfcheck.parts.switch import battery, formulations, refused


def _cases() -> Iterator[Case]:
    yield from battery.controls()
    yield from refused.cases()
    yield from formulations.cases()
    yield from battery.cases()


PART = Part(
    "switch",
    "the same bits run after run, or refused with the way out; formulations against float64; what it costs",
    7,
    _cases,
    {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},  # the switch is turned on and off in one process
)

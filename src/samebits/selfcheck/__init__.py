"""`samebits selfcheck`: tests the promises of samebits on the user's device, part by part, and writes a report.

A part is a file in `parts`; `case` defines its contents.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.selfcheck import machine as machine
    from samebits.selfcheck import parts as parts
    from samebits.selfcheck import report as report
    from samebits.selfcheck import text as text
    from samebits.selfcheck.case import Case as Case
    from samebits.selfcheck.case import Part as Part
    from samebits.selfcheck.parts.switch.adopt_formulations import adopt as adopt
    from samebits.selfcheck.rehearsal import rehearse as rehearse
    from samebits.selfcheck.runner import run as run

__all__ = ["Case", "Part", "adopt", "parts", "rehearse", "run", "text"]

__getattr__, __dir__ = attach(
    __name__,
    ["machine", "parts", "report", "text"],
    {
        "Case": "samebits.selfcheck.case",
        "Part": "samebits.selfcheck.case",
        "adopt": "samebits.selfcheck.parts.switch.adopt_formulations",
        "rehearse": "samebits.selfcheck.rehearsal",
        "run": "samebits.selfcheck.runner",
    },
)

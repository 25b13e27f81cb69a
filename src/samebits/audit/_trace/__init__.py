"""The trace of one step: its ops and statements, the first that differs in two runs, and why.

Read `search.py` first.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit._trace import tracer as tracer
    from samebits.audit._trace.recorded_runs import find_op as find_op

__getattr__, __dir__ = attach(__name__)

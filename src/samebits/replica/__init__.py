"""Proves that values keep equal bits on all replicas over a training step, or explains why not.

step = samebits.replica.capture(train_step, model, optimizer, x, y, world_size=8)
report = samebits.replica.analyze(step)
report.expect_equal("model.fc.weight")

Read `_analysis/interpreter.py` first. Doors: here and in pyproject.toml. Imports: `determinism` and below.
"""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.replica._analysis.fixpoint import analyze as analyze
    from samebits.replica._capture.capture import capture as capture
    from samebits.replica._capture.captured_step import CapturedStep as CapturedStep
    from samebits.replica._capture.captured_step import DataParallel as DataParallel
    from samebits.replica._capture.per_rank import PerRank as PerRank
    from samebits.replica._declarations import Equal as Equal
    from samebits.replica._declarations import Partition as Partition
    from samebits.replica._declarations import PerReplica as PerReplica
    from samebits.replica._report.html_page import dot_graph as dot_graph
    from samebits.replica._report.html_page import write_html as write_html
    from samebits.replica._report.report import Report as Report
    from samebits.replica._report.step_listing import listing as listing
    from samebits.replica._witness import Witness as Witness

__getattr__, __dir__ = attach(__name__)

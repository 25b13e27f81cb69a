"""Proves that values keep equal bits on all replicas over a training step, or says why not.

step = samebits.replica.capture(train_step, model, optimizer, x, y, world_size=8)
report = samebits.replica.analyze(step)
report.expect_equal("model.fc.weight")
"""

from typing import TYPE_CHECKING

from samebits.imports import attach

if TYPE_CHECKING:
    from samebits.replica.analysis import analyze as analyze
    from samebits.replica.built import PerRank as PerRank
    from samebits.replica.capture import capture as capture
    from samebits.replica.declarations import Equal as Equal
    from samebits.replica.declarations import Partition as Partition
    from samebits.replica.declarations import PerReplica as PerReplica
    from samebits.replica.listing import listing as listing
    from samebits.replica.parallel import DataParallel as DataParallel
    from samebits.replica.picture import write_html as write_html
    from samebits.replica.report import Report as Report
    from samebits.replica.step import CapturedStep as CapturedStep
    from samebits.replica.witness import Witness as Witness

__getattr__, __dir__ = attach(
    __name__,
    names={
        "CapturedStep": "samebits.replica.step",
        "DataParallel": "samebits.replica.parallel",
        "Equal": "samebits.replica.declarations",
        "Partition": "samebits.replica.declarations",
        "PerRank": "samebits.replica.built",
        "PerReplica": "samebits.replica.declarations",
        "Report": "samebits.replica.report",
        "Witness": "samebits.replica.witness",
        "analyze": "samebits.replica.analysis",
        "capture": "samebits.replica.capture",
        "listing": "samebits.replica.listing",
        "write_html": "samebits.replica.picture",
    },
)

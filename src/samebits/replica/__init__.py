"""Proves that values keep equal bits on all replicas over a training step, or says why not.

step = samebits.replica.capture(train_step, model, optimizer, x, y, world_size=8)
report = samebits.replica.analyze(step)
report.expect_equal("model.fc.weight")
"""

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

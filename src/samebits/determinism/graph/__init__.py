"""Graph mode: what `enable_op_determinism` does to torch.compile and TorchScript."""

from samebits.determinism.graph.mode import enter as enter
from samebits.determinism.graph.mode import leave as leave

"""Graph mode: the effects of `enable_op_determinism` on torch.compile and TorchScript."""

from samebits.determinism._compile.graph_mode import enter as enter
from samebits.determinism._compile.graph_mode import leave as leave

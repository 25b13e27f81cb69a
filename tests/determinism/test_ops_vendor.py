"""No arithmetic of a vendor runs under `across="machines"`: MKL and oneDNN say of each call of theirs that it
was made.
"""

import pytest

SCRIPT = """
import sys, torch, samebits
from torch import nn
from torch.nn import functional as F
samebits.set_random_seed(1)
mode = sys.argv[1] == "mode"

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(50, 32), nn.LSTM(32, 32, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.head = nn.Linear(32, 50)
    def forward(self, x):
        return self.head(self.layer(self.lstm(self.embed(x))[0])).flatten(0, 1)

def images():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 16, 3, 2),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10))

def train(make, x, y, optimizer, dtype):
    model = make()
    optimizer = optimizer(model.parameters(), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return loss

def everything():
    words = torch.randint(50, (4, 12))
    for dtype in (torch.float32, torch.bfloat16):
        if mode or dtype == torch.float32:  # on some CPUs oneDNN has no LSTM in bfloat16
            train(Words, words, words.flatten(), torch.optim.AdamW, dtype)
        train(images, torch.randn(4, 3, 16, 16), torch.randint(10, (4,)), torch.optim.SGD, dtype)
    x = torch.rand(100_000)
    for op in ("exp", "log", "tanh", "sqrt", "sin", "erf", "sigmoid"):
        getattr(torch, op)(x)
    x.double().exp().sum(), x @ x, x.view(100, -1) @ x.view(-1, 100), torch.normal(x, x)

with torch.backends.mkl.verbose(torch.backends.mkl.VERBOSE_ON), torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
    if mode:
        with samebits.enable_op_determinism(across="machines"):
            everything()
    else:
        everything()
"""


def calls(python, mode):
    """The lines that MKL and oneDNN print of their calls, each."""
    lines = python(SCRIPT, mode).stdout.splitlines()
    return (
        [line for line in lines if line.startswith("MKL_VERBOSE") and "oneMKL" not in line],
        [line for line in lines if line.startswith("onednn_verbose") and ",exec," in line],
    )


@pytest.mark.slow
def test_neither_mkl_nor_onednn_is_called(python):
    """Training of four kinds of layers, and functions of numbers, call neither library; without the mode they call both."""
    assert calls(python, "mode") == ([], [])
    by_mkl, by_onednn = calls(python, "default")
    assert len(by_mkl) > 10 and len(by_onednn) > 10

"""What a value that a program makes once is made from: read from the source, so each case is a program."""

import pytest

from samebits._program.made_once import DataDependence

PROGRAM = """
import copy, torch
class Net(torch.nn.Module):
    def __init__(self): self.c = None; self.rate = 0.5
    def build(self, n): return torch.arange(n) * self.rate
    def noise(self, n): return torch.randn(n)
    def keep(self, value): self.c = value
    def forward(this, x, mask=None, n: int = 3):
        y = x * 2
        rows, _ = x.shape
        {line}
        return x
def train(net, loader, run):
    for i in range(3):
        for step, (a, b) in run.steps(loader):
            net(a)
            {loop}
"""
DATA = [
    "this.c = x.mean(0)",
    "this.c = y",
    "this.c = [y.sum(), 1]",
    "this.c = {'mean': x.mean(0)}",
    "this.c, other = x, 1",
    "this.c = torch.rand(3)",
    "this.c = this.noise(3)",
    "this.c = copy.deepcopy(this)",
    "this.c = torch.full_like(y, 1.0) * y.max()",
    "this.keep(x)",
    "this.keep(value=y[0])",
    "this.c = mask",
    "this.c = torch.stack([r for r in x])",
    "this.c: torch.Tensor = x + 1",
]
SHAPES = [
    "this.c = torch.ones(x.shape[1])",
    "this.c = this.build(x.size(0))",
    "this.c = torch.zeros_like(x)",
    "this.c = x.device",
    "this.c = len(x)",
    "this.c = torch.arange(n, device=x.device)",
    "this.c = torch.ones(rows)",
    "this.keep(x.dtype)",
    "this.c = [torch.ones(i) for i in range(x.dim())]",
    "this.c = lambda: x",
]


def reader(line, loop, folder):
    path = folder / "program.py"
    path.write_text(PROGRAM.format(line=line, loop=loop))
    return DataDependence([compile(path.read_text(), str(path), "exec")])


@pytest.mark.parametrize(
    ("line", "expected"), [*((one, True) for one in DATA), *((one, False) for one in SHAPES)]
)
def test_what_an_attribute_is_made_from(line, expected, tmp_path):
    """Batches, random numbers and copies of weights are data; shapes, kinds, constants and annotated integers are not."""
    assert reader(line, "pass", tmp_path).attribute("c") is expected


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("net.c = a", True),
        ("net.c = i", False),
        ("net.c = step.number", True),
        ("net.keep(b.mean())", True),
        ("net.c = 3", False),
    ],
)
def test_what_a_loop_sets(loop, expected, tmp_path):
    """A batch of the loop is data, and so is its step; the number of a round of `range` is not."""
    assert reader("pass", loop, tmp_path).attribute("c") is expected


def test_a_global_variable(tmp_path):
    """A function that sets a global variable from its argument is traced to the calls, and one that draws is seen."""
    path = tmp_path / "globals.py"
    path.write_text(
        "import torch\nfirst = second = third = None\n"
        "def f(x, n):\n    global first, second, third\n    first = x.sum()\n    second = torch.ones(n)\n    third = torch.rand(n)\n"
        "def train(loader):\n    for x in loader:\n        f(x, len(x))\n"
    )
    reads = DataDependence([compile(path.read_text(), str(path), "exec")])
    assert [reads.variable(name) for name in ("first", "second", "third")] == [True, False, True]

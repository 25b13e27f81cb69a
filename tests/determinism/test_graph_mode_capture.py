import json

import pytest

QUIET = {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONWARNINGS": "ignore"}

SCRIPTED = """
import io, json, sys, torch, samebits
from samebits import _digest as digest
samebits.set_random_seed(0)
a, b = torch.randn(37, 61), torch.randn(61, 53)
def products(a, b): return torch.mm(a, b) + torch.mm(a, b * 2) + torch.mm(a, b * 3) + torch.mm(a, b * 4)
def others(a, b): return torch.mm(a, b) + torch.mm(a, b * 2) + torch.mm(a, b * 3) + torch.mm(a, b * 4)
def more(a, b): return torch.mm(a, b) + torch.mm(a, b * 2) + torch.mm(a, b * 3) + torch.mm(a, b * 4)
class Module(torch.nn.Module):
    def forward(self, a, b): return products(a, b)
def loaded(module):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(module), file)
    file.seek(0)
    return torch.jit.load(file)
def calls(f): return [digest.of_value(f(a, b)) for _ in range(4)]
every = [torch.jit.script(products), torch.jit.script(Module()), torch.jit.trace(others, (a, b)), loaded(Module())]
before = [calls(f) for f in every]
samebits.enable_op_determinism(across="threads")
every.append(torch.jit.script(more))
under = [calls(f) for f in every]
eager = calls(products)
samebits.enable_op_determinism(False)
after = [calls(f) for f in every[:4]]
print(json.dumps([before, under, eager, after]))
"""


@pytest.mark.slow
def test_torchscript_runs_as_written_under_the_switch(python):
    """Scripted, traced and loaded code has eager bits at every call, profiled before or not. Off: bits change at call 2."""
    before, under, eager, after = json.loads(python(SCRIPTED, env=QUIET).stdout)
    assert {bits for calls in under for bits in calls} == set(eager)
    assert len(set(eager)) == 1
    for calls in (before[0], before[1], before[3], *after):  # negative control
        assert calls[0] != calls[1] == calls[2]


UNSEEDED = """
import sys, torch, samebits
from torch.fx.experimental.proxy_tensor import make_fx
from samebits.errors import UnseededError
x = torch.ones(64)
def drop(x): return torch.nn.functional.dropout(x, 0.5)
if sys.argv[1] == "on": samebits.enable_op_determinism(across="threads")
assert not any(name.startswith("torch._inductor") for name in sys.modules)
def run(make):
    try: make()(x)
    except UnseededError: print("raised")
    else: print("drew")
run(lambda: make_fx(drop, tracing_mode="fake")(x))
run(lambda: torch.export.export(torch.nn.Dropout(0.5).train(), (x,)).module())
run(lambda: torch.compile(drop, backend="aot_eager"))
if sys.argv[1] == "on": run(lambda: torch.compile(drop))
"""


@pytest.mark.slow
def test_a_captured_draw_raises_when_nobody_seeded(python):
    """make_fx, torch.export, aot_eager and Inductor: a dropout raises without a seed, when it is captured or at its first run."""
    assert python(UNSEEDED, "on", env=QUIET).stdout.split() == ["raised"] * 4


@pytest.mark.slow
def test_a_captured_draw_goes_through_without_the_switch(python):
    """Negative control: without the switch they draw numbers that no second run has."""
    assert python(UNSEEDED, "off", env=QUIET).stdout.split() == ["drew"] * 3

"""The trace of one step: its ops and statements, without a change of its bits."""

import json
import subprocess
import sys

import pytest

from samebits._context import CheckOverrides
from samebits.audit._child.launch_spec import LaunchSpec, TraceSpec, read_spec
from samebits.audit._first_difference import first_difference
from samebits.audit._record.record_file import read_record
from samebits.audit._trace.first_op import read_trace

SCRIPT = """
import torch, samebits
from torch import nn
samebits.set_random_seed(1)
torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(8, 1)
    def forward(self, x):
        return self.head(self.body(x))
model = Net()
optimizer = torch.optim.{optimizer}
loss_of = {wrap}(lambda x: model(x).square().mean())
for step in range(5):
    x = torch.randn(6, 4)
    optimizer.zero_grad()
    loss_of(x).backward()
    optimizer.step()
"""


def launch(folder, text, trace):
    """The record and the trace of a script that is started with this `TraceSpec`, or none."""
    folder.mkdir()
    (folder / "train.py").write_text(text)
    trace = trace and TraceSpec(str(folder / "trace"), **trace)
    spec = LaunchSpec(record_dir=str(folder / "record"), trace=trace)
    path = spec.write(folder / "spec.json")
    assert read_spec(path) == spec
    command = [sys.executable, "-m", "samebits.audit._child.launch", str(path), "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return read_record(folder / "record"), folder / "trace"


def test_a_step_is_traced_with_its_modules_lines_and_phases_and_keeps_its_bits(tmp_path):
    """Forward, backward and update of step 3 and nothing else; each step has the bits of a run without a trace."""
    text = SCRIPT.format(optimizer="AdamW(model.parameters(), foreach=False)", wrap="")
    record, path = launch(tmp_path / "traced", text, {"step": 3, "stop": 4})
    plain, _ = launch(tmp_path / "plain", text, None)
    assert len(record.steps) == 4 and len(plain.steps) == 5
    assert all(line == plain.steps[key] for key, line in record.steps.items())
    trace = read_trace(path)
    assert trace.whole
    of = {
        phase: [op for op in trace.ops if op["p"] == phase] for phase in ("forward", "backward", "optimizer")
    }
    linear = next(op for op in of["forward"] if op["n"] == "aten::addmm")
    assert linear["m"] == "model.body.0" and linear["at"].endswith("train.py:11")
    back = [op for op in of["backward"] if op["n"] == "aten::mm"]
    assert {op["m"] for op in back} == {"model.body.0", "model.head"}
    assert all(op["fw"].endswith("train.py:11") and op["at"].endswith("train.py:18") for op in back)
    assert any(op["n"].startswith("aten::addcdiv_") for op in of["optimizer"])
    assert [op["n"] for op in of["forward"]].count("aten::randn") == 1  # of this step alone
    changed, _ = launch(tmp_path / "changed", text.replace("mean()", "sum()"), {"step": 3, "stop": 4})
    assert first_difference(plain, changed) is not None  # the control


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "wrap"),
    [
        ("SGD(model.parameters(), 0.1, fused=True)", ""),
        ("AdamW(model.parameters(), fused=True)", ""),
        ("AdamW(model.parameters(), foreach=True)", ""),
        ("AdamW(model.parameters())", "torch.compile"),
    ],
)
def test_fused_updates_and_compiled_code_keep_their_bits(tmp_path, optimizer, wrap):
    """The traced step has the bits of the step without a trace, and the trace has its update."""
    text = SCRIPT.format(optimizer=optimizer, wrap=wrap)
    record, path = launch(tmp_path / "traced", text, {"step": 3, "stop": 4})
    plain, _ = launch(tmp_path / "plain", text, None)
    assert len(record.steps) == 4
    assert all(line == plain.steps[key] for key, line in record.steps.items())
    assert any(op["p"] == "optimizer" for op in read_trace(path).ops)


def test_a_trace_that_ends_early_is_read_as_far_as_it_goes(tmp_path):
    """Its last line is cut: what is before counts, and it does not count as whole."""
    text = SCRIPT.format(optimizer="SGD(model.parameters(), 0.1)", wrap="")
    _, path = launch(tmp_path / "traced", text, {"step": -1, "stop": 1})
    lines = path.read_text().splitlines()
    assert json.loads(lines[-1]) == {"k": "end"}
    path.write_text("\n".join(lines[:-1])[:-20])
    cut = read_trace(path)
    assert cut.ops and not cut.whole


def test_a_launch_without_a_trace_calls_nothing_of_it():
    """The cost until it is asked for: the defaults have no trace, and no override of the environment check."""
    assert LaunchSpec().trace is None and not CheckOverrides().any_environment

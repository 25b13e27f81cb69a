"""What a killed and resumed run lost in memory is named, where the records of its steps show a loss alone."""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import functools, torch, samebits
from torch import nn
samebits.set_random_seed(1)
x = torch.randn(64, 4)
loader = samebits.data.DataLoader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
opt = torch.optim.SGD(model.parameters(), 0.1)
add = functools.partial(list.append, [])

@functools.lru_cache
def known(k):
    return k / 50

with samebits.Run("runs/x", model=model, optimizer=opt, save=1) as run:
    for step, (a, b) in run.steps(loader, epochs=1):
        scale = 1 + known(step.number)
        {carried}
        loss = nn.functional.cross_entropy(model(a), b) * scale
        opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("carried", "path"),
    [
        ("add(1); scale += len(add.args[0]) / 50", "add.args[0]"),
        ("if step.number == 2: model[1] = nn.Tanh()", "model.1.class"),
        ("", None),
    ],
    ids=["a list in a partial", "another submodule", "control: only a cache differs"],
)
def test_what_was_lost_is_named(tmp_path, carried, path):
    """The row of a kill names the list in a partial and the replaced submodule; an emptier cache alone is no difference."""
    (tmp_path / "train.py").write_text(SCRIPT.format(carried=carried))
    command = [
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--seed",
        "7",
        "--json",
        "out.json",
        "--checks",
        "kill-mid-epoch",
    ]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        [sys.executable, *command, "train.py"], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    row = json.loads((tmp_path / "out.json").read_text())["rows"][-1]
    assert row["equal"] is (path is None), done.stdout
    if path is not None:
        assert row["difference"]["component"] == "memory"
        assert path in row["difference"]["paths"]
        assert "then loss" in row["difference"]["sentence"] or "then model" in row["difference"]["sentence"]

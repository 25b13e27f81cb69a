"""`samebits verify` judges training scripts that are broken in one way each, and their repaired twins.

The scripts in tests/broken were written, and proven to be broken, by people who did not write `verify`. Each says in
its docstring which component parts first and which check shows it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from script_pairs import repaired

BROKEN = Path(__file__).parent.parent / "broken"
NAMES = sorted(path.stem for path in BROKEN.glob("*.py"))
QUICK = {
    "best_local": "kill-mid-epoch",
    "callback_patience": "kill-epoch-end",
    "worker_number_seed": "workers",
    "listdir_shards": "run-again",
    "time_budget": "run-again",
}
"""One of each kind, with the one check that must find it; the rest, with all checks, is `make soak`."""


def claim(script):
    """(component, check) as the docstring of a broken script says."""
    text = script.read_text()
    component = re.search(r"^component: (\S+)", text, re.MULTILINE)
    return component[1], re.search(r"^check: (\S+)", text, re.MULTILINE)[1]


def verify(script, folder, checks, *args):
    """Exit code and report of `samebits verify`, started in an empty folder."""
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--seed",
        "7",
        "--json",
        "out.json",
        "--checks",
        checks,
    ]
    done = subprocess.run(
        [*command, str(script), *args],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE"},
    )
    assert (folder / "out.json").exists(), done.stdout + done.stderr
    return done.returncode, json.loads((folder / "out.json").read_text()), done.stdout


def is_named(component, difference):
    """Whether a row's difference names the component: the cause itself, or what differs besides in that step."""
    if component.startswith("locals:"):
        last = re.split(r"[.\[\]:]+", component)[-1]
        names = [name for path in difference["paths"] for name in re.split(r"[^\w]+", path)]
        return last in names or f"{last}`" in difference["sentence"]
    return component == difference["component"] or component in difference["sentence"]


def judged(name, folder, checks, count=lambda *_: None):
    (folder / "broken").mkdir()
    (folder / "repaired").mkdir()
    component, check = claim(BROKEN / f"{name}.py")
    code, report, shown = verify(BROKEN / f"{name}.py", folder / "broken", checks)
    assert code == 1, shown
    failing = [row for row in report["rows"] if row["equal"] is False and row["promised"]]
    count("broken scripts")
    count("checks of them", len(report["rows"]))
    count("of these failed", len(failing))
    assert failing, shown
    crashes = [row for row in failing if row["difference"] is None]
    assert crashes or any(is_named(component, row["difference"]) for row in failing), (component, shown)
    groups = {"run-again": "run again", "kill": "killed", "workers": "loader worker"}
    assert any(groups[check] in row["check"] for row in failing), (check, shown)
    count("broken scripts found, by the check and with the component that their authors name")
    code, report, shown = verify(repaired(BROKEN / f"{name}.py", folder), folder / "repaired", checks)
    equal = [row for row in report["rows"] if row["equal"]]
    count("repaired scripts")
    count("checks of those", len(report["rows"]))
    count("of those equal", len(equal))
    assert code == 0, shown
    count("repaired scripts that pass")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", QUICK)
def test_broken_is_named_and_repaired_passes(name, tmp_path):
    """verify exits 1 on the broken script, its check fails and names the component; on the repaired twin it exits 0."""
    judged(name, tmp_path, QUICK[name])


OWN_GENERATOR = """
import sys
import numpy as np, torch
torch.manual_seed(0)
class Noisy(torch.utils.data.Dataset):
    def __init__(self, seed):
        self.noise, self.x = [np.random.default_rng(seed)], torch.randn(24, 4)
    def __len__(self):
        return 24
    def __getitem__(self, i):
        return self.x[i] + self.noise[0].normal(), self.x[i].sum()
net = torch.nn.Linear(4, 1, dtype=torch.float64)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
seed = {"none": None, "fixed": 3}[sys.argv[1]]
for x, y in torch.utils.data.DataLoader(Noisy(seed), 8, num_workers=int(sys.argv[2])):
    loss = (net(x.double())[:, 0] - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_generator_of_a_datasets_object_is_named(workers, tmp_path):
    """Torch's loader, inline and with workers: the batch differs because of `dataset.noise[0]`. Control: seeded, it is equal."""
    script = tmp_path / "own.py"
    script.write_text(OWN_GENERATOR)
    for seed, expected in (("none", 1), ("fixed", 0)):
        folder = tmp_path / seed
        folder.mkdir()
        code, report, shown = verify(script, folder, "run-again", seed, workers)
        assert code == expected, shown
        found = report["rows"][0]["difference"]
        if expected:
            assert (found["component"], found["paths"]) == ("generators", ["dataset.noise[0]"])
            assert "default_rng(seed)" in report["verdict"]


ROUNDED = """
import torch, samebits
samebits.set_random_seed(1)
samebits.enable_op_determinism()
class Masters:
    def __init__(self): self.kept = torch.zeros(3)
    def step(self): return float(self.kept.add_(0.3717).sum())
    def state_dict(self): return {"kept": self.kept}
    def load_state_dict(self, state): self.kept = state["kept"]
masters = Masters()
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
loader = samebits.data.DataLoader(data, batch_size=8, shuffle=True)
with samebits.Run("runs/m", model=model, opt=opt, masters=masters, save=1) as run:
    for step, (a, b) in run.steps(loader, epochs=4):
        loss = (model(a) - b).square().mean() * (1 + masters.step() / 50)
        opt.zero_grad(); loss.backward(); opt.step()
"""


@pytest.mark.slow
def test_the_verdict_quotes_the_error_that_would_stop_the_resume(tmp_path):
    """A load_state_dict that rounds: the verdict has ResumeMismatchError's lines, with the script's own run directory. Control: exact, it is equal."""
    script = tmp_path / "masters.py"
    for load, expected in (("", 0), (".bfloat16().float()", 1)):
        script.write_text(ROUNDED.replace('state["kept"]', f'state["kept"]{load}'))
        code, report, shown = verify(script, tmp_path, "kill-mid-epoch")
        assert code == expected, shown
        note = "outside of verify a ResumeMismatchError stops its resume: masters.kept"
        assert (note in report["notes"]) == bool(expected)
    assert f"The commits in {tmp_path}/runs/m lack it" in report["verdict"]
    assert 'run.add("masters_rest", samebits.state.attributes(masters, "kept"))' in report["verdict"]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", NAMES)
def test_every_broken_script_with_every_check(name, tmp_path, soak):
    """The same for every script, with every check that decides."""
    judged(name, tmp_path, "run-again,kill,workers", soak)

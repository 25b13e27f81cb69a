"""Programs of all libraries but Lightning that are killed, stopped and started again: the facts that hold for all."""

import os
import re
import signal
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from killed_programs import killed, whole
from script_pairs import patched

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXAMPLES = ROOT / "examples" / "integrations"
SUPPORT = {"PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent / 'support'}"}


@pytest.fixture(params=["ignite", "keras", "stable_baselines3", "transformers"])
def program(request):
    """The path of a program that trains with that library."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return HERE / f"{request.param}_program.py"


@pytest.mark.slow
def test_without_the_adapter_a_kill_changes_the_end(tmp_path, program):
    """The control: by its own resume the library ends with other weights, or cannot start again after a kill in a save."""
    expected, steps = whole([program, "plain"], tmp_path / "whole", **SUPPORT)
    assert whole([program, "plain"], tmp_path / "again", **SUPPORT)[0] == expected
    try:
        found = killed([program, "plain"], tmp_path / "killed", steps, seed=2, **SUPPORT)
    except AssertionError as error:
        assert "no FINAL line" in str(error)  # noqa: PT017 (it names the half file that it cannot read)
        return
    assert found != expected


@pytest.mark.slow
def test_workers_and_finished_runs(tmp_path, program):
    """Another number of workers changes nothing; a finished run trains nothing, and has its weights and log."""
    expected, steps = whole([program, "resumable"], tmp_path / "whole", **SUPPORT)
    assert whole([program, "resumable"], tmp_path / "none", **SUPPORT, WORKERS="0")[0] == expected
    assert whole([program, "resumable"], tmp_path / "whole", **SUPPORT) == (expected, steps)


@pytest.mark.slow
def test_sigterm_commits_and_exits_with_75(tmp_path, program):
    """After SIGTERM the process exits with code 75, and the next one goes on without repeating a step."""
    expected, steps = whole([program, "resumable"], tmp_path / "whole", **SUPPORT)
    given = {"kills": 2, "seed": 3, "how": signal.SIGTERM, "code": 75}
    assert killed([program, "resumable"], tmp_path / "k", steps, **given, **SUPPORT) == expected
    assert (tmp_path / "k" / "progress").stat().st_size == steps


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keras", "lightning"])
def test_verify_proves_the_example(tmp_path, name):
    """The command in the example's first lines exits with 0, kills it in three ways, and misses no object's state."""
    pytest.importorskip(name)
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--checks",
        "kill",
        EXAMPLES / f"train_{name}.py",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **SUPPORT}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("VERIFIED: ")
    assert "note: " not in done.stdout


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.py")), ids=lambda one: one.stem)
def test_an_example_is_a_plain_program_and_a_patch(script, tmp_path):
    """Without the lines of its patch, an import and one more (Accelerate: six), it knows nothing of samebits."""
    patch = script.with_suffix(".patch")
    plain = patched(script, patch, tmp_path, "--reverse").read_text()
    assert "samebits" in code(script.read_text()) and "samebits" not in code(plain)
    added = [line for line in patch.read_text().splitlines() if re.match(r"\+[^+]", line)]
    assert len(added) == (7 if "accelerate" in script.name else 2)


def code(text):
    """What follows the docstring of a program, which compiles."""
    compile(text, "program", "exec")
    return text.partition('"""\n\n')[2]


KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np
from samebits.integrations.keras import Resumable
keras.utils.set_random_seed(0)
class Custom(keras.Model):
    def __init__(self):
        super().__init__()
        self.inside = keras.layers.Dense(1)
    def call(self, x, training=False):
        return self.inside(x)
x = np.random.default_rng(1).normal(size=(20, 3)).astype("float32")
model = Custom()
model.compile(optimizer="sgd", loss="mse")
callbacks = [Resumable("runs/a"), keras.callbacks.ReduceLROnPlateau(patience=1)]
model.fit(x, x[:, :1], batch_size=4, epochs=3, validation_split=0.2, verbose=0, callbacks=callbacks)
"""
LIGHTNING = """
import lightning as L, torch
from lightning.pytorch.callbacks import ModelCheckpoint
from samebits.integrations.lightning import Resumable
L.seed_everything(0, workers=True)
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)
    def training_step(self, batch, i):
        return self.net(batch[0]).square().mean()
    def validation_step(self, batch, i):
        self.log("val", self.net(batch[0]).square().mean())
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)
data = torch.utils.data.TensorDataset(torch.randn(24, 3))
loader = torch.utils.data.DataLoader(data, batch_size=4)
shown = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
callbacks = [Resumable("runs/a"), ModelCheckpoint(dirpath="ck", monitor="val", save_top_k=2)]
L.Trainer(max_epochs=3, callbacks=callbacks, **shown).fit(Net(), loader, loader)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "source"), [("keras", KERAS), ("lightning", LIGHTNING)])
def test_what_a_library_keeps_below_a_callback_is_no_loss(tmp_path, name, source):
    """Keras's model below a callback, and the paths and the score of a ModelCheckpoint, whose files a killed process left: VERIFIED."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    (tmp_path / "train.py").write_text(source)
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--checks",
        "kill",
        "--seed",
        "1",
        "train.py",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **SUPPORT}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("VERIFIED: ")


def test_the_oldest_versions_are_the_floors():
    """`make integrations OLDEST=1` installs the very versions that pyproject.toml admits first."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = ("ignite", "keras", "lightning", "stable-baselines3", "transformers")
    floors = dict(one.split(">=") for name in names for one in extras[name])
    pinned = dict(re.findall(r"^([^#=]+)==(\S+)$", (HERE / "oldest.txt").read_text(), re.MULTILINE))
    assert floors == {name: pinned.get(name, pinned.get(name.replace("-", "_"))) for name in floors}


@pytest.mark.parametrize("name", ["ignite", pytest.param("sb3 PPO", marks=pytest.mark.slow)])
def test_the_bench_prints_a_line_for_a_library(tmp_path, name):
    """bench/integrations.py runs the plain program and ours, and finds a commit of ours and a save of the library."""
    if find_spec({"sb3 PPO": "stable_baselines3"}.get(name, name)) is None:
        pytest.skip(f"{name} is not installed")
    command = [
        sys.executable,
        ROOT / "bench" / "integrations.py",
        "--rounds",
        "1",
        "--steps",
        "4",
        "--only",
        name,
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = done.stdout.splitlines()[-1]
    milliseconds, megabytes = (re.findall(rf"([\d.]+) {unit}", line) for unit in ("ms", "MB"))
    assert line.startswith(name) and len(milliseconds) == 4 and len(megabytes) == 2, line
    assert all(float(one) > 0 for one in (*milliseconds, *megabytes)), line

"""Keras on torch with `samebits.integrations.keras.Resumable`: programs that are killed and started again."""

import difflib
import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
pytest.importorskip("keras")
pytest.importorskip("sklearn")

from killed_programs import SEEDS, killed, whole

HERE = Path(__file__).parent
PROGRAM = HERE / "keras_program.py"
EXAMPLES = HERE.parents[1] / "examples" / "integrations"
SUPPORT = {"PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent / 'support'}"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed, data", [*((seed, "loader") for seed in SEEDS), *((seed, "arrays") for seed in range(3))]
)
def test_killed_anywhere_it_ends_as_when_nobody_kills(tmp_path, seed, data):
    """Variables, optimizer and history are equal: plateau, schedule, early stopping, dropout, 2 workers or arrays."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT, DATA=data)
    found = killed([PROGRAM, "resumable"], tmp_path / "killed", steps, seed=seed, **SUPPORT, DATA=data)
    assert found == expected


FORGETS = """
class Draws(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.generator, self.drawn = numpy.random.default_rng(0), 0.0

    def on_train_batch_end(self, batch, logs=None):
        self.drawn += self.generator.random()
"""
SAVES = """
    def state_dict(self):
        return {"generator": self.generator.bit_generator.state, "drawn": self.drawn}

    def load_state_dict(self, state):
        self.generator.bit_generator.state, self.drawn = state["generator"], state["drawn"]
"""


@pytest.mark.parametrize("saves", [True, False])
def test_a_callback_that_would_lose_a_generator_is_an_error(tmp_path, saves):
    """A generator in a callback of the program stops fit in its first steps, by its path; with a state_dict it does not."""
    script = tmp_path / "script.py"
    given = {"steps": 1, "prepare": FORGETS + SAVES * saves, "data": "x, y", "more": "batch_size=2"}
    script.write_text(REFUSED.replace('[Resumable("run")]', '[Draws(), Resumable("run")]').format(**given))
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env={**os.environ, **SUPPORT}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (done.returncode == 0) == saves, done.stderr
    if not saves:
        assert "callback_Draws.generator" in done.stderr
        assert "give the callback state_dict and load_state_dict" in done.stderr


REFUSED = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy, samebits
from samebits.integrations.keras import Resumable
samebits.set_random_seed(1)
x, y = numpy.ones((8, 4), "float32"), numpy.ones((8, 1), "float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution={steps})
{prepare}
model.fit({data}, epochs=2, verbose=0, callbacks=[Resumable("run")], {more})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"steps": 2}, "steps_per_execution"),
        ({"more": "initial_epoch=1"}, "initial_epoch"),
        ({"data": "((x, y) for _ in range(99))", "more": "steps_per_epoch=2"}, "Give arrays or a torch DataLoader"),
        ({"prepare": "del model._initial_epoch"}, "has no Trainer._initial_epoch"),
    ],
    ids=["executions", "epoch", "generator", "version"],
)  # fmt: skip
def test_what_is_not_covered_is_an_error(tmp_path, given, says):
    """Each message names what was given and the cure, before a step is made; the program without it trains."""
    values = {"steps": 1, "prepare": "", "data": "x, y", "more": ""}
    for asked, code in ((values, 0), (values | given, 1)):
        script = tmp_path / f"ends_with_{code}" / "script.py"
        script.parent.mkdir()
        script.write_text(REFUSED.format(**asked))
        done = subprocess.run(
            [sys.executable, script], cwd=script.parent, env={**os.environ, **SUPPORT}, capture_output=True, text=True, check=False
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert code == 0 or says in done.stderr


def test_the_example_differs_from_the_plain_one_in_one_line():
    """One line, and its import."""
    plain, ours = (
        (EXAMPLES / f"train_keras{kind}.py").read_text().partition('"""\n\n')[2].splitlines()
        for kind in ("_plain", "")
    )
    changes = [line for line in difflib.ndiff(plain, ours) if line[0] in "+-" and line[1:].strip()]
    assert changes == [
        "+ from samebits.integrations.keras import Resumable",
        '+     callbacks.append(Resumable("runs/keras"))',
    ]

"""Keras on torch with `samebits.integrations.keras.Resumable`: programs that are killed and started again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

os.environ.setdefault("KERAS_BACKEND", "torch")
keras = pytest.importorskip("keras")
pytest.importorskip("sklearn")

import numpy as np
import torch

import samebits
from killed_programs import SEEDS, killed, whole
from samebits._digest import of_value
from samebits.errors import IncompleteStateError, UnimplementedError
from samebits.integrations.keras import Resumable

HERE = Path(__file__).parent
PROGRAM = HERE / "keras_program.py"
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
        assert "give the callback or metric state_dict and load_state_dict" in done.stderr


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


layers = keras.layers
ROWS = np.random.default_rng(0).random((8, 4)).astype("float32")
IMAGES = np.random.default_rng(0).random((8, 8, 8, 1)).astype("float32")
TOKENS = np.random.default_rng(0).integers(0, 9, (8, 6))


class Counts(layers.Layer):
    """Keeps numbers and lists, which each call changes."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.sums = 0, [], {"a": [0.0]}

    def call(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        self.sums["a"][0] += 0.01 * len(self.seen)
        return x * (1 + self.sums["a"][0])


class Draws(layers.Layer):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = np.random.default_rng(0)

    def call(self, x):
        return x * float(self.generator.random())


class SavedDraws(Draws):
    """Saves its generator."""

    def get_extra_state(self):
        return {"generator": self.generator.bit_generator.state}

    def set_extra_state(self, state):
        self.generator.bit_generator.state = state["generator"]


class Box:
    """Holds a number."""

    def __init__(self):
        self.number = 0


class Holds(layers.Layer):
    """Counts in an object of the program."""

    def __init__(self):
        super().__init__()
        self.box = Box()

    def call(self, x):
        self.box.number += 1
        return x * self.box.number


class Keeps(layers.Layer):
    """Keeps what it has computed, for whoever wants to look at it."""

    def __init__(self):
        super().__init__()
        self.dense, self.last = layers.Dense(4), None

    def call(self, x):
        self.scores = keras.ops.softmax(self.dense(x))
        self.last = self.scores
        return x * self.scores


class Recalls(layers.Layer):
    """Adds what it kept of the call before."""

    def __init__(self):
        super().__init__()
        self.dense, self.before = layers.Dense(4), None

    def call(self, x):
        x = self.dense(x)
        if self.before is not None:
            x = x + keras.ops.mean(self.before.detach())
        if x.device.type != "meta":  # Keras builds a model with tensors that have no values
            self.before = x
        return x


class Shows(layers.Layer):
    """Keeps something for a function elsewhere."""

    def __init__(self):
        super().__init__()
        self.dense, self.shown = layers.Dense(4), None

    def call(self, x):
        self.shown = self.dense(x)
        return x * self.shown


def looks(model):
    shown = model.layers[0].shown
    is_first = shown is None or shown.is_meta  # made when the model was built
    model.optimizer.learning_rate = 0.001 if is_first else abs(float(shown.detach().mean())) / 10


class Looks(keras.callbacks.Callback):
    """Sets the learning rate by what a layer showed in the step before."""

    def on_train_batch_begin(self, batch, logs=None):
        looks(self.model)


class Subclassed(keras.Model):
    """Has layers in lists and dicts, settings, a metric and a seed generator."""

    def __init__(self):
        super().__init__()
        self.blocks, self.named = (
            [layers.Dense(4), layers.BatchNormalization()],
            {"drop": layers.Dropout(0.3)},
        )
        self.settings = {"names": ["a"], "factor": 0.5}
        self.mean, self.seeds = keras.metrics.Mean(name="own"), keras.random.SeedGenerator(1)

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x)
        return self.named["drop"](x, training=training)


class CountsSteps(Subclassed):
    """Scales its inputs by the number of steps."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def train_step(self, data):
        self.steps += 1
        return super().train_step((data[0] * self.steps, data[1]))


class TwoOptimizers(keras.Model):
    """Two parts, each with an optimizer."""

    def __init__(self, *, builds=True):
        super().__init__()
        self.first, self.second = layers.Dense(4), layers.Dense(1)
        self.builds = builds

    def compile(self):
        super().compile()
        self(ROWS)
        self.optimizers = {"first": keras.optimizers.Adam(0.1), "second": keras.optimizers.Adam(0.1)}
        if self.builds:
            self.optimizers["first"].build(self.first.trainable_variables)
            self.optimizers["second"].build(self.second.trainable_variables)

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        self.zero_grad()
        loss = keras.ops.mean(self(data[0]) ** 2)
        loss.backward()
        for name, part in (("first", self.first), ("second", self.second)):
            variables = part.trainable_variables
            with torch.no_grad():
                self.optimizers[name].apply([one.value.grad for one in variables], variables)
        return {"loss": loss}


class CountingMetric(keras.metrics.Mean):
    """Counts its updates."""

    def __init__(self):
        super().__init__("counting")
        self.updates = 0

    def update_state(self, y, found, sample_weight=None):
        self.updates += 1
        return super().update_state(self.updates)


class CountingLoss(keras.losses.Loss):
    """Multiplies by the number of calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def call(self, y, found):
        self.calls += 1
        return keras.ops.mean((y - found) ** 2, -1) * self.calls


class Hangs(keras.callbacks.Callback):
    """Hangs a number, or a generator, on the model, and changes the learning rate by it."""

    def __init__(self, generator=None):
        super().__init__()
        self.given = generator

    def on_train_begin(self, logs=None):
        self.model.hung = 0 if self.given is None else np.random.default_rng(0)

    def on_train_batch_end(self, batch, logs=None):
        if self.given is None:
            self.model.hung += 1
        value = self.model.hung if self.given is None else self.model.hung.random()
        self.model.optimizer.learning_rate = 0.001 * value


class Anneals(keras.callbacks.Callback):
    """Lowers the rate of a dropout, hangs a number on another layer, and then freezes a third."""

    def on_train_batch_end(self, batch, logs=None):
        dropout, dense = self.model.layers[:2]
        dropout.rate *= 0.9
        dense.hung = getattr(dense, "hung", 0) + 1
        self.model.layers[2].trainable = dense.hung < 3


class Stops(keras.callbacks.Callback):
    """Ends the program in a step of the second epoch, if asked to."""

    def __init__(self, *, stops):
        super().__init__()
        self.stops = stops

    def on_train_batch_end(self, batch, logs=None):
        if self.stops and batch == 1 and len(self.model.history.epoch) == 1:
            raise KeyboardInterrupt


def sequential(*given, loss="mse", metrics=("mae",), optimizer="adam"):
    model = keras.Sequential([keras.Input((4,)), *given, layers.Dense(4)])
    model.compile(optimizer, loss, metrics=list(metrics))
    return model


def compiled(model, loss="mse"):
    model.compile("adam", loss)
    return model


def two_optimizers(**given):
    model = TwoOptimizers(**given)
    model.compile()
    return model


def of_images():
    given = keras.Input((8, 8, 1))
    x = layers.Rescaling(2.0)(layers.RandomRotation(0.1)(layers.RandomFlip()(given)))
    x = layers.GaussianNoise(0.1)(layers.BatchNormalization()(layers.Conv2D(2, 3)(x)))
    inner = keras.Sequential([layers.Flatten(), layers.Dense(3), layers.LayerNormalization()])
    return compiled(keras.Model(given, layers.Dense(4)(layers.Lambda(lambda x: x * 2)(inner(x)))))


def of_tokens():
    given = keras.Input((6,))
    x = layers.LSTM(4, dropout=0.1, return_sequences=True)(layers.Embedding(9, 4)(given))
    x = layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x)
    x = layers.TimeDistributed(layers.Dense(2))(layers.Bidirectional(layers.GRU(3, return_sequences=True))(x))
    return compiled(keras.Model(given, layers.Dense(4)(layers.GlobalAveragePooling1D()(x))))


def with_a_loss_of_its_weights():
    model = Subclassed()
    model(ROWS)

    def loss(y, found):
        return keras.ops.mean((y - found) ** 2) + keras.ops.sum(model.blocks[0].kernel ** 2)

    return compiled(model, loss)


def of_torch():
    return sequential(layers.TorchModuleWrapper(torch.nn.BatchNorm1d(4)))


def drawn_rates():
    generator = np.random.default_rng(0)
    return keras.callbacks.LearningRateScheduler(lambda epoch, rate: float(generator.random()))


def fit(make, folder, *callbacks, x=ROWS, **options):
    """Trains three epochs of four steps; returns the digest of all state, or None if the program was ended."""
    samebits.set_random_seed(1)
    model = make()
    resumable = Resumable(folder, save=1, **options)
    given = [*callbacks[:1], resumable, *callbacks[1:]]
    try:
        model.fit(x, ROWS, batch_size=2, epochs=3, verbose=0, callbacks=given)
    except KeyboardInterrupt as error:
        resumable._open.leave(error)
        return None
    optimizers = [model.optimizer, *getattr(model, "optimizers", {}).values()]
    variables = [*model.variables, *(one for each in optimizers for one in each.variables)]
    modules = [one.module for one in model.layers if isinstance(one, layers.TorchModuleWrapper)]
    return of_value([[one.value.detach() for one in variables], [one.state_dict() for one in modules]])


def ends(tmp_path, make, callback=None, **options):
    """Returns the ends of a program that was not ended, and of one that was, and was started again."""
    found = []
    for name, stops in (("whole", False), ("parts", True), ("parts", False)):
        callbacks = [] if callback is None else [callback()]
        found.append(fit(make, tmp_path / name, *callbacks, Stops(stops=stops), **options))
    assert found.pop(1) is None
    return found


@pytest.mark.parametrize(
    ("make", "callback"),
    [
        (lambda: sequential(Counts()), None),
        (lambda: sequential(SavedDraws()), None),
        (lambda: compiled(CountsSteps()), None),
        (lambda: sequential(metrics=[CountingMetric()]), None),
        (sequential, Hangs),
        (lambda: sequential(layers.Dropout(0.5), layers.Dense(4), layers.Dense(4)), Anneals),
        (two_optimizers, None),
        (of_torch, None),
    ],
    ids=["layer", "extra state", "model", "metric", "hung", "annealed", "optimizers", "torch's buffers"],
)
def test_state_that_is_in_no_variable_goes_on(tmp_path, make, callback):
    """Numbers and lists in attributes, extra state, a model's own optimizers and torch's buffers go on in an epoch."""
    whole, parts = ends(tmp_path, make, callback)
    assert parts == whole


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("path", "make", "callback"),
    [
        ("layer_Draws.generator", lambda: sequential(Draws()), None),
        ("layer_Holds.box.number", lambda: sequential(Holds()), None),
        ("layer_Recalls.before", lambda: sequential(Recalls()), None),
        ("layer_Shows.shown", lambda: sequential(Shows()), Looks),
        ("model.loss.calls", lambda: sequential(loss=CountingLoss()), None),
        ("model.hung", sequential, lambda: Hangs(1)),
        ("callback_LearningRateScheduler.schedule.generator", sequential, drawn_rates),
    ],
    ids=["generator", "object", "recalled", "read elsewhere", "loss", "hung", "schedule"],
)
def test_state_of_the_program_that_no_commit_holds_is_an_error(tmp_path, path, make, callback):
    """It is named with the cure; ignored, the program trains, and ends elsewhere if it is ended in between."""
    callbacks = [callback()] if callback else []
    with pytest.raises(IncompleteStateError) as raised:
        fit(make, tmp_path / "error", *callbacks)
    assert f'Run(ignore=["{path}"])' in str(raised.value)
    assert "get_extra_state and set_extra_state" in "".join(raised.value.__notes__)
    whole, parts = ends(tmp_path, make, callback, ignore=[path])
    assert parts != whole


@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: compiled(Subclassed()), ROWS),
        (lambda: sequential(Keeps()), ROWS),
        (lambda: compiled(keras.Sequential([Subclassed(), Keeps()])), ROWS),
        (with_a_loss_of_its_weights, ROWS),
        (of_images, IMAGES),
        (of_tokens, TOKENS),
    ],
    ids=["subclassed", "keeps", "nested", "closure", "images", "tokens"],
)
def test_what_ordinary_models_keep_is_no_alarm(tmp_path, make, x, recwarn):
    """Models of all kinds train with a layer's activations kept and Keras's callbacks, without a warning of the run."""
    callbacks = keras.callbacks
    plateau = callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=0.5)
    log = callbacks.CSVLogger(str(tmp_path / "log"), append=True)
    each = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    early = callbacks.EarlyStopping("loss", patience=3, restore_best_weights=True)
    assert fit(make, tmp_path / "run", plateau, log, each, early, x=x)
    assert [str(one.message) for one in recwarn if "Run" in str(one.message)] == []


def test_an_optimizer_that_could_not_be_restored_is_an_error(tmp_path):
    """One that is built in the first step has nothing to restore into: it is named with the cure, and none is committed."""
    with pytest.raises(UnimplementedError, match=r"TwoOptimizers.optimizers .*call its build\(variables\)"):
        fit(lambda: two_optimizers(builds=False), tmp_path / "run")
    assert [one for one in (tmp_path / "run").rglob("*") if one.suffix == ".safetensors"] == []
    unused = keras.optimizers.Adam()

    def make():
        model = sequential()
        model.unused = unused
        return model

    assert fit(make, tmp_path / "unused")


@pytest.mark.slow
@pytest.mark.parametrize("endless", [False, True])
def test_a_pipeline_goes_on_in_the_epoch(tmp_path, endless):
    """A samebits pipeline in torch's loader, finite, and endless with steps_per_epoch: cut in epoch 1, equal weights."""

    def trained(folder, *, stops=False):
        samebits.set_random_seed(4)
        rows = np.random.rand(40, 5).astype("float32")
        pipeline = samebits.data.Pipeline.from_source([(row[:4], row[4:]) for row in rows]).shuffle().batch(8)
        read = (pipeline.repeat() if endless else pipeline).as_iterable_dataset()
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        loader = torch.utils.data.DataLoader(read, batch_size=None)
        run = Resumable(folder, save=1)
        try:
            model.fit(
                loader,
                epochs=3,
                steps_per_epoch=5 if endless else None,
                verbose=0,
                callbacks=[run, Stops(stops=stops)],
            )
        except KeyboardInterrupt as error:
            run._open.leave(error)
        return of_value([one.value.detach() for one in model.variables if "seed" not in one.path])

    expected = trained(tmp_path / "whole")
    assert trained(tmp_path / "cut", stops=True) != expected
    assert trained(tmp_path / "cut") == expected

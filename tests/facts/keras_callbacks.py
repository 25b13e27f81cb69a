"""Records what Keras 3's callbacks do with series of metrics, as facts that `test_callbacks_keras.py` compares ours with.

Needs Keras, which samebits does not depend on: in an environment with torch 2.13.0 and keras 3.15.1,
`KERAS_BACKEND=torch python keras_callbacks.py` writes keras_callbacks.json beside this file.
"""

import itertools
import json
import math
import random
import sys
import tempfile
import warnings
from pathlib import Path

NAN = math.nan


def all_series():
    """Series of one metric value per epoch: made by hand, then random walks with plateaus, equal values and NaN."""
    yield [1.0, 0.9, 0.95, 0.8, 0.85, 0.84, 0.83, 0.9]
    yield [0.5] * 10
    yield [NAN, 1.0, 0.5, 0.4, 0.3, 0.2]  # a NaN first
    yield [1.0, NAN, 0.5, NAN, NAN, NAN, 0.4, 0.4]
    yield [NAN] * 6
    yield [1.0, math.inf, 0.5, -math.inf, -math.inf, 0.0, 0.1, 0.1]
    yield [1.0, 0.99999999, 0.99999998, 0.99999997, 0.9999999, 0.9999998]  # float32 sees only some of it
    yield [0.1 * k for k in (9, 8, 7, 6, 5, 4, 3, 2, 1)]
    yield [0.1 * k for k in (1, 2, 3, 3, 3, 2, 3, 4, 4, 4, 4)]
    for number in range(14):
        rng = random.Random(number)
        value, walk = 1.0, []
        for _ in range(14):
            if rng.random() < 0.6:
                value += rng.choice((-0.2, -0.1, -0.05, 0.05, 0.1))
            walk.append(NAN if rng.random() < 0.05 else value)
        yield walk


def some(grid, every, series):
    """Each `every`-th of the combinations of a dict of lists, as dicts; other ones for the next series."""
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return combinations[series % every :: every]


STOPPING = {
    "patience": [0, 1, 2, 3], "min_delta": [0.0, 0.1], "baseline": [None, 0.6], "start_from_epoch": [0, 3],
    "mode": ["min", "max"],
}  # fmt: skip
PLATEAU = {
    "patience": [0, 1, 2, 3], "cooldown": [0, 1, 3], "min_delta": [0.0, 0.1], "min_lr": [0.0, 0.05, 0.25],
    "factor": [0.5, 0.1], "mode": ["min", "max"],
}  # fmt: skip
CHECKPOINT = {"initial_value_threshold": [None, 0.7], "mode": ["min", "max"]}
SCHEDULES = {
    "by epoch": lambda epoch: 0.1 / (epoch + 1),
    "by epoch and rate": lambda epoch, rate: rate if epoch < 3 else rate * 0.5,
    "optional rate": lambda epoch, rate=None: 0.25 if rate is None else rate * 0.75,
}


def main():
    """Drives Keras."""
    import keras
    import torch

    warnings.simplefilter("error", UserWarning)

    class Model:
        """As much of a model as these callbacks touch."""

        metrics: list = []

        def __init__(self):
            self.optimizer = keras.optimizers.SGD(1.0)
            self.stop_training = False
            self.weight, self.saved = 0, []

        def get_weights(self):
            return [self.weight]

        def set_weights(self, weights):
            self.weight = weights[0]

        def save(self, path, overwrite):
            self.saved.append(Path(path).name)

    def begun(callback):
        callback.set_model(Model())
        callback.on_train_begin()
        return callback, callback.model

    def stopping(series, arguments):
        callback, model = begun(
            keras.callbacks.EarlyStopping("val_loss", restore_best_weights=True, **arguments)
        )
        for epoch, value in enumerate(series):
            model.weight = epoch
            callback.on_epoch_end(epoch, {"val_loss": value})
            if model.stop_training:
                break
        callback.on_train_end()
        ended = epoch if model.stop_training else None
        return {"stopped": ended, "best_epoch": callback.best_epoch, "weight": model.weight}

    def plateau(series, arguments):
        callback, model = begun(keras.callbacks.ReduceLROnPlateau("val_loss", **arguments))
        rates = []
        for epoch, value in enumerate(series):
            callback.on_epoch_end(epoch, {"val_loss": value})
            rates.append(float(model.optimizer.learning_rate))
        return rates

    def checkpoint(series, arguments):
        path = str(Path(tempfile.gettempdir()) / "{epoch:02d}-{val_loss:.3f}.keras")
        callback, model = begun(keras.callbacks.ModelCheckpoint(path, save_best_only=True, **arguments))
        for epoch, value in enumerate(series):
            callback.on_epoch_end(epoch, {"val_loss": value})
        return [name.removesuffix(".keras") for name in model.saved]

    def scheduled(schedule):
        callback, model = begun(keras.callbacks.LearningRateScheduler(schedule))
        rates = []
        for epoch in range(8):
            logs = {"loss": 1.0}
            callback.on_epoch_begin(epoch)
            callback.on_epoch_end(epoch, logs)
            rates.append(logs["learning_rate"])
            assert logs["learning_rate"] == float(model.optimizer.learning_rate)
        return rates

    def terminated(series):
        callback, model = begun(keras.callbacks.TerminateOnNaN())
        for batch, value in enumerate(series):
            callback.on_batch_end(batch, {"loss": value})
            if model.stop_training:
                return batch
        return None

    def logged(rows):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log.csv"
            callback, _ = begun(keras.callbacks.CSVLogger(path))
            for epoch, logs in enumerate(rows):
                callback.on_epoch_end(epoch, dict(logs))
            callback.on_train_end()
            return path.read_text()

    series = list(all_series())
    numbered = list(enumerate(series))
    rows = [{"loss": 1.0 / 3, "acc": 0.5, "val_loss": 1e-9}, {"loss": NAN, "acc": 1e22, "val_loss": 2.0}]
    facts = {
        "versions": {
            "keras": keras.__version__,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
        },
        "series": series,
        "early_stopping": [
            [number, arguments, stopping(values, arguments)]
            for number, values in numbered
            for arguments in some(STOPPING, 3, number)
        ],
        "reduce_lr_on_plateau": [
            [number, arguments, plateau(values, arguments)]
            for number, values in numbered
            for arguments in some(PLATEAU, 11, number)
        ],
        "model_checkpoint": [
            [number, arguments, checkpoint(values, arguments)]
            for number, values in numbered
            for arguments in some(CHECKPOINT, 1, number)
        ],
        "learning_rate_scheduler": {name: scheduled(schedule) for name, schedule in SCHEDULES.items()},
        "terminate_on_nan": [terminated(values) for values in series],
        "csv_logger": [
            [rows, logged(rows)],
            [short := [{"loss": 1.0}, {"loss": 0.5, "val_loss": 0.25}], logged(short)],
        ],
    }
    lines = (f"{json.dumps(name)}: {_text(value)}" for name, value in facts.items())
    Path(__file__).with_suffix(".json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _text(value):
    """One fact per line."""
    if not isinstance(value, list):
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(item) for item in value) + "\n]"


if __name__ == "__main__":
    main()

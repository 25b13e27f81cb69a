"""Records what Keras 3's `fit` does with its arguments, as facts that `test_trainer_keras.py` compares ours with.

Needs Keras, which samebits does not depend on: in an environment with torch 2.13.0 and keras 3.15.1,
`KERAS_BACKEND=torch python keras_fit.py` writes keras_fit.json beside this file.
"""

import json
import sys
from pathlib import Path

X = [[0.5, -1.0], [1.5, 0.25], [-0.75, 0.5], [0.125, 2.0], [1.0, 1.0], [-1.0, 0.75], [0.25, -0.5]]
Y = [0, 1, 2, 1, 0, 2, 1]
WEIGHTS = [1.0, 0.5, 2.0, 0.0, 1.5, 3.0, 0.25]
KERNEL = [[0.1, -0.2, 0.3], [0.25, 0.5, -0.125]]
HOOKS = [
    "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_test_begin", "on_test_end",
    "on_epoch_end", "on_train_end",
]  # fmt: skip
FITS = {
    "plain": {"epochs": 2},
    "freq 2": {"epochs": 5, "validation_freq": 2},
    "freq list": {"epochs": 5, "validation_freq": [1, 4]},
    "freq 3 from 2": {"epochs": 7, "validation_freq": 3, "initial_epoch": 2},
    "steps": {"epochs": 2, "steps_per_epoch": 2, "validation_steps": 1},
    "class_weight": {"epochs": 2, "class_weight": {0: 0.5, 2: 3.0}},
    "sample_weight": {"epochs": 2, "sample_weight": WEIGHTS},
}


def main():
    import keras
    import numpy as np
    import torch

    x, y = np.array(X, "float32"), np.array(Y)

    def fit(arguments):
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(3)])
        model.layers[-1].set_weights([np.array(KERNEL, "float32"), np.zeros(3, "float32")])
        model.compile(
            keras.optimizers.SGD(0.5),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
        events = []

        class Watch(keras.callbacks.Callback):
            pass

        for name in HOOKS:
            setattr(Watch, name, lambda self, *about, name=name, logs=None: events.append(name))
        arguments = dict(arguments)
        weights = arguments.pop("sample_weight", None)
        history = model.fit(
            x, y, batch_size=2, shuffle=False, verbose=0, validation_data=(x, y), callbacks=[Watch()],
            sample_weight=None if weights is None else np.array(weights, "float32"), **arguments,
        )  # fmt: skip
        kernel = model.layers[-1].get_weights()[0].tolist()
        return {"epoch": history.epoch, "history": history.history, "events": events, "kernel": kernel}

    facts = {
        "versions": {
            "keras": keras.__version__,
            "torch": torch.__version__,
            "python": sys.version.split()[0],
        },
        "fits": {name: fit(arguments) for name, arguments in FITS.items()},
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()

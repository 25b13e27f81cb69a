"""A program of Keras on torch, as its documentation has it: `python keras_program.py plain|resumable FOLDER`.

Augmentation in workers (or arrays), dropout, a plateau and early stopping that watch epoch means, validation.
"""

import os
import sys
import warnings

os.environ["KERAS_BACKEND"] = "torch"
import keras
from torch.utils.data import DataLoader

from killed_programs import tick
from noisy_digits import Digits
from samebits._digest import of_value

warnings.simplefilter("ignore")


class Tick(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        tick()


def main(kind, folder):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((1, 8, 8)),
            layers.Conv2D(8, 3, padding="same", data_format="channels_first"),
            *(
                layers.BatchNormalization(axis=1),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dropout(0.3),
                layers.Dense(10),
            ),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    callbacks = [
        keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, factor=0.5, min_delta=0.2),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=0.01, restore_best_weights=True),
    ]
    if kind == "resumable":
        import samebits.integrations.keras

        callbacks.insert(1, samebits.integrations.keras.Resumable(f"{folder}/run", save=3))
    else:
        callbacks.append(
            keras.callbacks.BackupAndRestore(f"{folder}/backup", save_freq=4, delete_checkpoint=False)
        )
    digits, val = Digits(True), DataLoader(Digits(False), 32)
    if os.environ.get("DATA") == "arrays":
        given = {
            "x": digits.images.numpy(),
            "y": digits.labels.numpy(),
            "batch_size": 32,
            "validation_split": 0.2,
        }
    else:
        train = DataLoader(digits, 32, shuffle=True, num_workers=int(os.environ.get("WORKERS", "2")))
        given = {"x": train, "validation_data": val}
    history = model.fit(**given, epochs=6, verbose=0, callbacks=[*callbacks, Tick()])
    values = [one.value.detach() for one in [*model.variables, *model.optimizer.variables]]
    print("FINAL", of_value(values), sorted(history.history.items()), history.epoch, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

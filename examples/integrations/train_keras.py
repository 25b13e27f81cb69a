"""Handwritten digits with Keras on torch: augmentation in workers, dropout, a plateau, early stopping, validation.

python examples/integrations/train_keras.py                    # start it again after a kill and it goes on
samebits verify examples/integrations/train_keras.py           # prove that it ends with the same bits
"""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")
import keras
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset

from samebits.integrations.keras import Resumable


class Digits(Dataset):
    """8 x 8 digits; those of training are shifted by up to one pixel and get noise."""

    def __init__(self, train):
        digits = load_digits()
        part = slice(0, 1400) if train else slice(1400, None)
        self.images = torch.tensor(digits.images[part], dtype=torch.float32)[:, None] / 16
        self.labels, self.train = torch.tensor(digits.target[part]), train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            shift = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll(shift, (1, 2)) + 0.1 * torch.randn(image.shape)
        return image, self.labels[index]


def main():
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((1, 8, 8)),
            *(
                layers.Conv2D(16, 3, padding="same", data_format="channels_first"),
                layers.BatchNormalization(axis=1),
            ),
            *(layers.ReLU(), layers.Flatten(), layers.Dropout(0.2), layers.Dense(10)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    train = DataLoader(Digits(train=True), 32, shuffle=True, num_workers=2)
    val = DataLoader(Digits(train=False), 128)
    callbacks = [keras.callbacks.ReduceLROnPlateau(patience=1), keras.callbacks.EarlyStopping(patience=3)]
    callbacks.append(Resumable("runs/keras"))
    history = model.fit(train, validation_data=val, epochs=6, verbose=0, callbacks=callbacks)
    print(f"{len(history.epoch)} epochs, {history.history['val_accuracy'][-1]:.4f} of the digits right")


if __name__ == "__main__":
    main()

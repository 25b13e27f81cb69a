"""Digits of scikit-learn with random augmentation, for programs that train."""

import torch
from sklearn.datasets import load_digits
from torch.utils.data import Dataset


class Digits(Dataset):
    """8 x 8 digits; those of training are rolled and get noise."""

    def __init__(self, train):
        digits = load_digits()
        part = slice(0, 320) if train else slice(600, 760)
        self.images = torch.tensor(digits.images[part], dtype=torch.float32)[:, None] / 16
        self.labels, self.train = torch.tensor(digits.target[part]), train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            dx, dy = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((dx, dy), (1, 2)) + 0.1 * torch.randn(image.shape)
        return image, self.labels[index]

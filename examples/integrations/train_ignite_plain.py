"""Handwritten digits with Ignite: augmentation in workers, dropout, a plateau, early stopping, validation.

python examples/integrations/train_ignite_plain.py                    # after a kill it begins anew
samebits verify examples/integrations/train_ignite_plain.py           # prove that it ends with the same bits
"""

import torch
from ignite.engine import Engine, Events, create_supervised_evaluator
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping
from ignite.handlers.param_scheduler import ReduceLROnPlateauScheduler
from ignite.metrics import Accuracy, Loss, RunningAverage
from ignite.utils import manual_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


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
    manual_seed(1)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(1024, 10))
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)
    loss_fn = nn.CrossEntropyLoss()
    train = DataLoader(Digits(train=True), 32, shuffle=True, num_workers=2)
    val = DataLoader(Digits(train=False), 128)

    def update(engine, batch):
        model.train()
        optimizer.zero_grad()
        loss = loss_fn(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(update)
    RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
    evaluator = create_supervised_evaluator(model, {"loss": Loss(loss_fn), "accuracy": Accuracy()})
    evaluator.add_event_handler(Events.COMPLETED, ReduceLROnPlateauScheduler(optimizer, "loss", patience=1))
    stop = EarlyStopping(3, lambda engine: -engine.state.metrics["loss"], trainer)
    evaluator.add_event_handler(Events.COMPLETED, stop)
    saver = DiskSaver("runs/ignite-checkpoints", create_dir=True, require_empty=False)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, Checkpoint({"model": model}, saver, n_saved=2))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(val))
    trainer.run(train, max_epochs=6)
    metrics = evaluator.state.metrics
    print(f"{trainer.state.epoch} epochs, {metrics['accuracy']:.4f} of the digits right")


if __name__ == "__main__":
    main()

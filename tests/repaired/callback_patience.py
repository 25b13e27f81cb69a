"""The callback returns its attributes from state_dict."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class HalveOnPlateau(samebits.callbacks.Callback):
    def __init__(self, optimizer, patience=7):
        self.optimizer = optimizer
        self.patience = patience
        self.best = float("inf")
        self.wait = 0

    def on_batch_end(self, trainer, step, logs):
        if logs["loss"] < self.best:
            self.best = logs["loss"]
            self.wait = 0
            return
        self.wait += 1
        if self.wait == self.patience:
            self.wait = 0
            for group in self.optimizer.param_groups:
                group["lr"] /= 2

    def state_dict(self):
        return {"best": self.best, "wait": self.wait}

    def load_state_dict(self, state):
        self.best, self.wait = state["best"], state["wait"]


def main():
    samebits.set_random_seed(9)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(7)
    x = torch.randn(80, 6, generator=fixed)
    y = x @ torch.randn(6, 1, generator=fixed) + torch.randn(80, 1, generator=fixed)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callbacks = [HalveOnPlateau(optimizer)]
    trainer = samebits.Trainer(model, nn.functional.mse_loss, optimizer, callbacks=callbacks)
    history = trainer.fit(loader, epochs=4, run_dir="runs/callback_patience", verbose=False)
    print(f"loss {history.history['loss'][-1]:.6f} lr {optimizer.param_groups[0]['lr']}")


if __name__ == "__main__":
    main()

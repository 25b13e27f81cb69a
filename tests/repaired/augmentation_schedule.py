"""The strength of the augmentation is one constant."""

import torch
from torch import nn

import samebits


class Jittered(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        strength = 0.5
        return self.x[index] + strength * torch.randn(self.x[index].shape), self.y[index]


def main():
    samebits.set_random_seed(32)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(31)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(Jittered(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    trainer = samebits.Trainer(model, nn.functional.cross_entropy, optimizer)
    history = trainer.fit(loader, epochs=3, run_dir="runs/augmentation_schedule", verbose=False)
    print(f"loss {history.history['loss'][-1]:.6f}")


if __name__ == "__main__":
    main()

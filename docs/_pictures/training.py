"""One small training that writes its weights after each step: `python docs/_pictures/training.py OUT`.

`cases.py` runs it with one thing changed, with torch alone and with samebits.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

import numpy as np
import torch
from torch import nn

import samebits

STEPS, BATCH, SAVED, KILLED = 40, 32, 20, 24
"""Steps, samples in each, steps before the checkpoint, and the step (from 0) after which `--kill` kills."""


class NoisyImages(torch.utils.data.Dataset):
    """Images, each with noise that the process draws which loads it."""

    def __init__(self) -> None:
        self.images = torch.randn(STEPS * BATCH, 1, 12, 12, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        return image + 0.1 * torch.randn(1, 12, 12), (image.mean() > 0).long()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--samebits", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--draw", action="store_true", help="one random number more, after eleven steps")
    parser.add_argument("--kill", action="store_true", help="SIGKILL; the next call resumes")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    (with_samebits if given.samebits else with_torch)(given)


def with_torch(given: argparse.Namespace) -> None:
    """A usual loop, with torch's seed and torch's switch, and checkpoints of model and optimizer."""
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(mode=True)
    loader = torch.utils.data.DataLoader(NoisyImages(), BATCH, shuffle=True, num_workers=given.workers)
    model, optimizer = made()
    checkpoint, begin = given.out.with_suffix(".pt"), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    for number, batch in enumerate(loader):
        if number < begin:
            continue  # trained before the kill
        train(model, optimizer, batch, number, given, killing=not begin)
        if number + 1 == SAVED:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": number + 1}
            torch.save(state, checkpoint)


def with_samebits(given: argparse.Namespace) -> None:
    """The same loop with samebits."""
    samebits.set_random_seed(1)
    samebits.enable_op_determinism(across="machines")
    loader = samebits.data.DataLoader(NoisyImages(), BATCH, shuffle=True, num_workers=given.workers)
    model, optimizer = made()
    with samebits.Run(given.out.with_suffix(".run"), model=model, optimizer=optimizer, save=SAVED) as run:
        for step, batch in run.steps(loader):
            train(model, optimizer, batch, step.number, given, killing=not run.resumed)


class RootMeanSquare(nn.Module):
    """Divides by the root of the mean square of the whole batch: one large sum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Called by the model."""
        return x / x.square().mean().sqrt()


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model with a convolution, a normalisation, products and a dropout, and its optimizer."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), RootMeanSquare(), nn.SiLU(),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(1600, 2),
    )  # fmt: skip
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[torch.Tensor, torch.Tensor],
          number: int, given: argparse.Namespace, *, killing: bool) -> None:  # fmt: skip
    """One step; its weights are written before the process may end."""
    x, y = batch
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if given.draw and number == 10:
        torch.rand(1)  # as a validation might
    row = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
    mode = "r+" if given.out.exists() else "w+"
    rows = np.lib.format.open_memmap(given.out, mode, np.float32, (STEPS, len(row)))
    rows[number] = row
    rows.flush()
    if given.kill and killing and number == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

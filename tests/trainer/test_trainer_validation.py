"""`Trainer.fit` that is killed inside a validation goes on there: the same weights and history, no batch evaluated twice."""

import pytest
import torch
from torch import nn

import samebits
from samebits import _digest as digest
from samebits.trainer import Trainer
from trainer_metric import Correct


class Cut(Exception):
    """Ends a run as a kill would."""


class Counting(nn.Module):
    """A model that counts its evaluations outside of its state, and is cut in one of them."""

    def __init__(self, evaluations, cut_at):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2))
        self.evaluated = lambda: evaluations.append(1)
        self.cut = lambda: len(evaluations) == cut_at

    def forward(self, x):
        if not self.training:
            self.evaluated()
            if self.cut():
                raise Cut
        return self.layers(x)


def fit(run_dir, cut_at=None, steps=None):
    samebits.set_random_seed(1)
    evaluations = []
    model = Counting(evaluations, cut_at)
    opt = torch.optim.Adam(model.parameters(), 0.01)
    x = torch.randn(40, 4)
    data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
    loader = samebits.data.DataLoader(data, batch_size=10, shuffle=True)
    validation = samebits.data.DataLoader(data, batch_size=8)
    callbacks = [samebits.callbacks.ReduceLROnPlateau(opt, patience=0)]
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), opt, callbacks=callbacks, metrics={"correct": Correct()}, ema=0.9
    )
    # the test counts evaluations
    options = {"check_complete": False} | ({} if run_dir is None else {"save": "0.000001s"})
    history = trainer.fit(
        loader,
        ignore=["model.evaluated"],  # counts for the test alone
        epochs=3,
        validation_data=validation,
        validation_steps=steps,
        run_dir=run_dir,
        verbose=0,
        **options,
    )
    return digest.of_value([model.state_dict(), opt.state_dict(), history.history]), len(evaluations)


@pytest.mark.parametrize("steps", [None, 3])
@pytest.mark.parametrize("cut_at", [2, 3, 8])
def test_fit_goes_on_inside_its_validation(tmp_path, steps, cut_at):
    """Cut in a batch of a validation: that batch and those behind it are evaluated, none before; equal to the whole fit."""
    expected, whole = fit(None, steps=steps)
    with pytest.raises(Cut):
        fit(tmp_path, cut_at, steps)
    got, rest = fit(tmp_path, steps=steps)
    assert got == expected and rest == whole - (cut_at - 1)

"""Sparse gradients, and the optimizers that take them, in a `Run` that is cut."""

import pytest
import torch
from torch import nn

import samebits
from samebits import _digest as digest
from samebits.train import _object_states

OPTIMIZERS = {
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters),
}


class Cut(Exception):
    """Ends a run as a kill would."""


def train(run_dir, optimizer, cut=None):
    """Two epochs of six batches in groups of three: at most boundaries a sparse gradient is alive."""
    samebits.set_random_seed(1)
    model = nn.Embedding(20, 4, sparse=True)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    loader = samebits.data.DataLoader(torch.arange(18), batch_size=3, shuffle=True)
    with samebits.Run(run_dir, model=model, optimizer=optimizer, save=1) as run:
        for step, ids in run.steps(loader, epochs=2):
            model(torch.cat([ids, ids[:1]])).square().sum().backward()
            if step.number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            if step.number == cut:
                raise Cut
    return digest.of_value([model.state_dict(), optimizer.state_dict()])


@pytest.mark.first_case_quick
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_with_sparse_gradients_resumes(tmp_path, optimizer):
    """Cut in each place of a group, where a sparse gradient is alive too, it ends with the same bits."""
    whole = train(None, optimizer)
    for cut in (3, 4, 5):
        with pytest.raises(Cut):
            train(tmp_path / f"{cut}", optimizer, cut)
        assert train(tmp_path / f"{cut}", optimizer) == whole


def test_without_its_gradient_it_ends_elsewhere(tmp_path, monkeypatch):
    """Negative control: sparse gradients that no commit holds are missed in the middle of a group."""
    monkeypatch.setattr(
        _object_states, "_to_dense", lambda grad: None if grad is not None and grad.is_sparse else grad
    )
    with pytest.raises(Cut):
        train(tmp_path / "r", "SGD", 4)
    assert train(tmp_path / "r", "SGD") != train(None, "SGD")

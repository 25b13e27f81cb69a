"""What a callback of `Trainer` forgets: the error has the lines to paste into its class."""

import pytest
import torch

import samebits
from samebits.callbacks import Callback

LOADER = samebits.data.DataLoader(torch.arange(24.0).reshape(12, 2), batch_size=2)


class Warm(Callback):
    """Sets the rate by what it has counted and seen."""

    def __init__(self):
        self.calls, self.seen = 0, []

    def on_batch_end(self, trainer, step, logs):
        self.calls += 1
        self.seen.append(logs["loss"])
        trainer.optimizer.param_groups[0]["lr"] = 0.1 / (self.calls + len(self.seen))


def fit(callback, run_dir):
    samebits.set_random_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    trainer = samebits.Trainer(
        model, None, optimizer, callbacks=[callback], forward=lambda m, x: (m(x).mean(), {})
    )
    return trainer.fit(LOADER, epochs=2, run_dir=run_dir, verbose=0)


def test_the_lines_of_the_error_save_a_callback(tmp_path):
    """They are methods of its class; pasted there, the run goes to its end."""
    with pytest.raises(samebits.errors.IncompleteStateError, match="To save them, in class Warm:") as caught:
        fit(Warm(), tmp_path / "forgets")
    lines = str(caught.value).partition("in class Warm:\n")[2].partition("\nWhat does no harm")[0]
    scope = {}
    exec(f"class Pasted(Warm):\n{lines}", {"Warm": Warm}, scope)
    assert scope["Pasted"]().state_dict() == {"calls": 0, "seen": []}
    assert fit(scope["Pasted"](), tmp_path / "saves").epoch == [0, 1]

"""`Trainer.fit` does with its arguments what Keras 3's `fit` does: recorded facts (tests/facts/keras_fit.py)."""

import json

import pytest
import torch
from torch import nn

import samebits
from samebits.callbacks import Callback

HOOKS = {
    "on_train_batch_begin": "on_batch_begin", "on_train_batch_end": "on_batch_end", "on_test_begin": "on_validation_begin",
    "on_test_end": "on_validation_end",
}  # fmt: skip
OURS = ("on_commit", "on_exit")


@pytest.fixture(scope="module")
def facts():
    from pathlib import Path

    return json.loads((Path(__file__).parent.parent / "facts" / "keras_fit.json").read_text())["fits"]


def given():
    """The data, weights and arguments that Keras was given."""
    import runpy
    from pathlib import Path

    return runpy.run_path(str(Path(__file__).parent.parent / "facts" / "keras_fit.py"))


NAMES = ("plain", "freq 2", "freq list", "freq 3 from 2", "steps", "class_weight", "sample_weight")


@pytest.mark.parametrize("name", NAMES)
def test_fit_does_what_keras_does(facts, name):
    """Epoch numbers, epochs with a validation, losses, weights and the order of the hooks are those of Keras 3."""
    samebits.set_random_seed(1)
    source, fact = given(), facts[name]
    x, y = torch.tensor(source["X"]), torch.tensor(source["Y"])
    model = nn.Linear(2, 3)
    with torch.no_grad():
        model.weight.copy_(torch.tensor(source["KERNEL"]).T)
        model.bias.zero_()
    events = []

    class Watch(Callback):
        pass

    for hook in [hook for hook in vars(Callback) if hook.startswith("on_") and hook not in OURS]:
        setattr(Watch, hook, lambda self, *about, hook=hook: events.append(hook))
    arguments = dict(source["FITS"][name])
    weights = arguments.pop("sample_weight", None)
    train = [x, y] if weights is None else [x, y, torch.tensor(weights)]
    loader = samebits.data.DataLoader(torch.utils.data.TensorDataset(*train), batch_size=2)
    validation = samebits.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=2)
    trainer = samebits.Trainer(
        model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), 0.5), callbacks=[Watch()]
    )
    history = trainer.fit(loader, validation_data=validation, verbose=0, **arguments)
    assert history.epoch == fact["epoch"]
    assert history.history.keys() == fact["history"].keys()
    for metric, values in fact["history"].items():
        assert history.history[metric] == pytest.approx(values, rel=1e-5)
    assert events == [HOOKS.get(hook, hook) for hook in fact["events"]]
    torch.testing.assert_close(model.weight.T.detach(), torch.tensor(fact["kernel"]), rtol=1e-4, atol=1e-5)


def test_torchs_rule_for_weights_is_another(facts):
    """Negative control: CrossEntropyLoss(weight=...), which divides by the sum of the weights, has other losses."""
    source = given()
    x, y = torch.tensor(source["X"]), torch.tensor(source["Y"])
    loss = nn.functional.cross_entropy(
        x @ torch.tensor(source["KERNEL"]), y, weight=torch.tensor([0.5, 1.0, 3.0])
    )
    assert loss.item() != pytest.approx(facts["class_weight"]["history"]["loss"][0], rel=1e-2)

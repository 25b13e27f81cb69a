"""`Run(replay_check=)`: a step that is computed twice has the same bits, or the run stops before the optimizer."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samebits
from samebits._digest import of_value
from samebits.errors import InvalidArgumentError, ReplayMismatchError
from samebits.train._replay_check import steps_between


class Network(nn.Module):
    """Has all that a second call could change: buffers, draws, and a count."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(20, 64), nn.BatchNorm1d(64)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(64, 10)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Fault:
    """Makes one row of a tensor wrong, the `at`-th time that it is asked: a machine that errs once."""

    def __init__(self, at):
        self.at, self.count = at, 0

    def __call__(self, value):
        self.count += 1
        if self.count != self.at:
            return None
        error = torch.zeros_like(value)
        error[5] = 2.0**-10
        return value + error


def train(replay_check, *, fault=None, where="", accumulate=1, autocast=False):
    """Returns a digest of the weights and the number of calls that the model has counted, and of steps done."""
    samebits.set_random_seed(1)
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    x, y = torch.randn(64, 20), torch.randint(10, (64,))
    if where == "forward":
        model.first.register_forward_hook(lambda _module, _args, out: fault(out))
    if where == "backward":
        model.first.weight.register_hook(fault)
    train.steps = 0
    with samebits.Run(None, replay_check=replay_check, model=model, optimizer=optimizer) as run:
        for step, (inputs, target) in run.steps([(x, y)] * 24):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(inputs), target)
            loss.backward()
            if (step.number + 1) % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
            train.steps += 1
    return of_value(model.state_dict()), model.calls


@pytest.mark.parametrize("options", [{}, {"accumulate": 3}, {"autocast": True}], ids=str)
def test_a_check_changes_nothing(options):
    """Weights, buffers, draws and the model's own count are those of a run without the check, for any share."""
    expected = train(None, **options)
    assert expected[1] == 24
    assert train("10%", **options) == train(1, **options) == expected


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_one_wrong_row_stops_the_run_before_the_optimizer(where):
    """One row that is wrong once is seen in a step that is checked, and named; in another step it is not."""
    with pytest.raises(ReplayMismatchError, match=r"step 5 .*model was computed twice") as caught:
        train(5, fault=Fault(7), where=where)  # steps 0 and 5 ask twice
    assert train.steps == 5
    assert ("gradient of first.weight" in str(caught.value)) == (where == "backward")
    train(5, fault=Fault(9), where=where)


def test_two_calls_in_one_backward_are_checked_together():
    """A model that is called twice for one loss has the sum of both gradients; a wrong row in the second call is seen."""

    def both(fault):
        samebits.set_random_seed(1)
        model = nn.Sequential(nn.Linear(20, 10), nn.Tanh())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model[0].register_forward_hook(lambda _module, _args, out: fault(out))
        data = [(torch.randn(8, 20), torch.randn(8, 20)) for _ in range(4)]
        with samebits.Run(None, replay_check=2, model=model, optimizer=optimizer) as run:
            for _, (a, b) in run.steps(data):
                (model(a) * model(b)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    both(Fault(0))
    with pytest.raises(ReplayMismatchError, match="step 2"):
        both(Fault(8))


def test_a_share_is_a_percentage_or_a_number_of_steps():
    """1% is every hundredth step; anything else raises and says the forms."""
    assert [steps_between(share) for share in ("1%", "0.5%", "100%", 7)] == [100, 200, 1, 7]
    for share in ("0%", "101%", 0, 0.5, "often", True):
        with pytest.raises(InvalidArgumentError, match="a share of the steps"):
            samebits.Run(None, replay_check=share)


def test_a_step_in_which_nothing_is_compared_is_warned_of():
    """A model that changes its input in place cannot be called again with it; one that does not brings no warning."""

    def run(model):
        samebits.set_random_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with samebits.Run(None, replay_check=1, model=model, optimizer=optimizer) as run:
            for _, x in run.steps([torch.randn(8, 20)]):
                model(x).sum().backward()
                optimizer.step()

    with pytest.warns(UserWarning, match="in step 0 nothing was compared"):
        run(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(20, 10)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(nn.Sequential(nn.ReLU(), nn.Linear(20, 10)))

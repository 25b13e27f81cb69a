"""Training without an optimizer of torch's is recorded step by step, by what it does to the parameters."""

import functools

import pytest
import torch

import samebits.random
from samebits.audit._first_difference import first_difference
from samebits.audit._record.record_file import RecordFile, read_record
from samebits.audit._record.recorder import Recorder, StopScript, recording
from samebits.train import Run

STEPS = 6
TWIST = [None]  # the step in which a script below does something else


def net():
    layers = (torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    return torch.nn.Sequential(*layers)


def loss_of(model, step=None):
    x = torch.randn(16, 6)
    if step is not None and step == TWIST[0]:
        x[0, 0] += 1e-4
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def evaluate(model, times=3):
    model.eval()
    with torch.no_grad():
        for _ in range(times):
            model(torch.ones(4, 6))
    model.train()


def add(model):
    """word_language_model's way."""
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-0.05)
        p.grad = None


def subtract(model):
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.05 * p.grad
    model.zero_grad()


def replace(model):
    """New memory at each step."""
    for p in model.parameters():
        p.data = p.data - 0.05 * p.grad
    model.zero_grad()


def train(update=None, accumulate=1, steps=STEPS, model=None):
    """Steps of `accumulate` backwards, an evaluation behind every third, by `update` or (None) torch's SGD."""
    model = model or net()
    optimizer = None if update else torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        for _ in range(accumulate):
            loss_of(model, step).backward()
        if optimizer is None:
            update(model)
        else:
            optimizer.step()
            optimizer.zero_grad()
        if step % 3 == 2:
            evaluate(model)


def by_autograd_grad():
    """No backward, and no `grad` on any parameter."""
    model = net()
    for _ in range(STEPS):
        parameters = list(model.parameters())
        gradients = torch.autograd.grad(outputs=loss_of(model), inputs=parameters)
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p.sub_(gradient, alpha=0.05)


class Moving(torch.nn.Module):
    """Keras's way: statistics are parameters without a gradient, and each training forward moves them."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 1)
        self.mean = torch.nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x):
        if self.training and not x.is_meta:
            with torch.no_grad():
                self.mean.copy_(0.9 * self.mean + 0.1 * x.mean(0))
        return self.inner(x - (torch.zeros_like(x) if x.is_meta else self.mean))


def like_keras():
    """Shapes found out on the meta device, then six updates by somebody else's optimizer; two backwards for each."""
    model = Moving()
    with torch.device("meta"):
        functional = torch.func.functional_call
        functional(model, {k: v.to("meta") for k, v in model.named_parameters()}, (torch.empty(2, 6),))
    for _ in range(STEPS):
        loss_of(model).backward()
        loss_of(model).backward()
        with torch.no_grad():
            torch._foreach_add_([model.inner.weight], [model.inner.weight.grad], alpha=-0.05)
        model.zero_grad()
    evaluate(model)


def nano_gpt():
    """An estimate of the loss, eight forwards, before the first step and after some; two backwards a step."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        if step % 4 == 0:
            evaluate(model, 8)
        for _ in range(2):
            (loss_of(model) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def new_weights_first():
    """A forward to see the shapes, then weights drawn anew: no gradient, so no step."""
    model = net()
    loss_of(model)
    for p in model.parameters():
        p.data.normal_()
    train(model=model)


def clipped():
    """A critic's weights are clipped between an optimizer's step and two backwards."""
    model = net()
    optimizer = torch.optim.RMSprop(model.parameters())
    for _ in range(STEPS):
        for p in model.parameters():
            p.data.clamp_(-0.3, 0.3)
        for _ in range(3):
            loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def sharpness_aware():
    """Parameters are moved by hand, and back, before the optimizer steps."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        loss_of(model).backward()
        moves = [0.01 * p.grad for p in model.parameters()]
        for p, move in zip(model.parameters(), moves, strict=True):
            p.data.add_(move)
        loss_of(model).backward()
        for p, move in zip(model.parameters(), moves, strict=True):
            p.data.sub_(move)
        optimizer.step()


def line_search():
    """L-BFGS calls the model, and moves parameters, several times in one step."""
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(16, 6)

    def closure():
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def both_in_turn():
    """One model by hand, then another by an optimizer: one step, as it is without the first."""
    by_hand, other = net(), net()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    for _ in range(STEPS):
        loss_of(by_hand).backward()
        add(by_hand)
        loss_of(other).backward()
        optimizer.step()
        optimizer.zero_grad()


def both_at_once():
    """One backward for a model by hand and another by an optimizer."""
    by_hand, other = net(), net()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    for _ in range(STEPS):
        x = torch.randn(8, 6)
        (by_hand(x) + other(x)).square().mean().backward()
        add(by_hand)
        optimizer.step()
        optimizer.zero_grad()


def one_after_the_other():
    """Two steps by an optimizer, two by hand, two by the optimizer again."""
    model = net()
    for update in (None, add, None):
        train(update, steps=2, model=model)


def with_run():
    """A `Run` counts its own steps, whoever updates the parameters; the plain steps before it count, too."""
    samebits.random.set_random_seed(1)
    model = net()
    train(add, steps=2, model=model)
    evaluate(model)  # without it the last update is not told from what the run may restore
    with Run(None, model=model) as run:
        for _, x in run.steps([torch.randn(8, 6)] * 4):
            model(x).square().mean().backward()
            add(model)


SIX = {
    "add": functools.partial(train, add),
    "subtract": functools.partial(train, subtract),
    "replace": functools.partial(train, replace),
    "accumulated": functools.partial(train, add, 3),
    "optimizer": functools.partial(train),
    "optimizer, accumulated": functools.partial(train, None, 3),
    **{
        script.__name__: script
        for script in (
            by_autograd_grad,
            like_keras,
            nano_gpt,
            new_weights_first,
            clipped,
            sharpness_aware,
            line_search,
        )
        + (both_in_turn, both_at_once, one_after_the_other, with_run)
    },
}


@pytest.fixture
def record(tmp_path):
    def run(script, twist=None, **options):
        TWIST[0] = twist
        torch.manual_seed(0)
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        recorder = Recorder(RecordFile(folder), **options)
        level, every = options.get("level", "state"), options.get("every", 1)
        with recording(recorder, "script.py", level=level, every=every, allowed=(tmp_path,)):
            try:
                script()
            except StopScript:
                pass
            recorder.finish()
        recorder.file.close()
        found = read_record(folder)
        assert not [note for note in found.notes if note.startswith("recorder")], found.notes
        return found

    return run


@pytest.mark.parametrize("name", SIX)
def test_every_update_is_one_step(record, name):
    """Six updates, whoever makes them and however many forwards and backwards each takes, are six steps."""
    found = record(SIX[name])
    plain = [(line.loop, line.step) for line in found.steps.values()]
    expected = [("", 0), ("", 1), *(("train", step) for step in range(4))] if name == "with_run" else None
    assert plain == (expected or [("", step) for step in range(STEPS)])
    assert found.end["steps"] == STEPS
    assert first_difference(found, record(SIX[name])) is None


@pytest.mark.parametrize("name", SIX)
def test_the_loss_level_counts_the_same_steps(record, name):
    """But between an optimizer's steps: no hash says how they ended, so two updates by hand count with what follows."""
    expected = STEPS - 2 if name == "one_after_the_other" else STEPS
    assert len(record(SIX[name], level="loss").steps) == expected


def test_tensors_without_data_are_recorded_by_type_and_shape(record):
    """A model with a part on the meta device, and a meta tensor among its inputs: six steps, and no note."""

    class Partly(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(6, 1)
            self.elsewhere = torch.nn.Linear(2, 2, device="meta")

        def forward(self, x, shape=None):
            return self.inner(x)

    def script():
        model = Partly()
        for step in range(STEPS):
            model(
                torch.randn(8, 6), torch.empty(3, 4 if step == TWIST[0] else 2, device="meta")
            ).sum().backward()
            model.inner.weight.data.sub_(model.inner.weight.grad)

    one = record(script)
    assert len(one.steps) == STEPS and first_difference(one, record(script)) is None
    assert first_difference(one, record(script, twist=3)).step == 3  # control: another shape


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_step_by_hand_is_recorded_as_that_of_an_optimizer(record, accumulate):
    """SGD by hand and torch's give the same bits, and the same lines: batch, loss, model, buffers, generators, evaluations."""
    by_hand, torchs = (record(functools.partial(train, update, accumulate)) for update in (add, None))
    for key, line in torchs.steps.items():
        mine = {
            name: value
            for name, value in by_hand.steps[key].values.items()
            if name not in {"optimizer", "lr"}
        }
        assert (
            mine == {name: line.values[name] for name in mine} and {"model", "batch", "loss"} <= mine.keys()
        )
    assert by_hand.final == torchs.final
    assert any("eval" in line.values for line in by_hand.steps.values())


@pytest.mark.parametrize("name", ["add", "accumulated", "replace"])
def test_a_difference_is_told_at_its_step(record, name):
    """One number of one batch that differs in step 3 is a difference of step 3, in the batch."""
    found = first_difference(record(SIX[name]), record(SIX[name], twist=3))
    assert (found.step, found.component) == (3, "batch"), found.sentence()


def test_gradients_that_nobody_uses_make_no_step(record):
    """Backwards without an update: no line, although BatchNorm's buffers change; with one update (control) one line."""

    def backwards(updates):
        model = net()
        for step in range(STEPS):
            loss_of(model).backward()
            if step in updates:
                add(model)
            model.zero_grad()

    assert not record(functools.partial(backwards, ())).steps
    assert len(record(functools.partial(backwards, (4,))).steps) == 1


def test_evaluations_before_the_first_step_are_compared_and_are_no_steps(record):
    """What an evaluation before the first step gives is a difference "before the first step"."""

    def script(factor):
        model = net().eval()
        with torch.no_grad():
            model(torch.full((4, 6), factor))
        model.train()
        train(add, model=model)

    one, other = record(functools.partial(script, 1.0)), record(functools.partial(script, 1.5))
    assert len(one.steps) == STEPS
    found = first_difference(one, other)
    assert (found.place, found.component) == ("start", "eval")


def test_training_without_gradients_is_compared_call_by_call(record):
    """A random search over weights has no gradient: its forwards are the steps, each with the model as it was."""

    def search():
        model = net()
        for step in range(STEPS):
            loss_of(model)
            for p in model.parameters():
                p.data.add_(torch.randn_like(p), alpha=0.02 if step == TWIST[0] else 0.01)

    found = first_difference(record(search), record(search, twist=3))
    assert (found.step, found.component) == (4, "model"), found.sentence()


@pytest.mark.parametrize("name", ["add", "optimizer", "accumulated"])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_script_is_stopped_after_as_many_steps_as_asked_for(record, name, steps):
    """`verify --steps` cuts a training without an optimizer, too."""
    found = record(SIX[name], stop_after_steps=steps)
    assert len(found.steps) == found.end["steps"] == steps


def test_each_kth_step_is_recorded(record):
    """With every=2, steps 0, 2 and 4, whole, also where a step by hand was first taken for one of its own."""
    for name in ("add", "accumulated", "both_in_turn"):
        found, whole = record(SIX[name], every=2), record(SIX[name])
        assert [step for _, step in found.steps] == [0, 2, 4] and found.end["steps"] == STEPS
        assert all(line.values == whole.steps[key].values for key, line in found.steps.items())


def test_regular_steps_of_an_optimizer_cost_no_hash(tmp_path):
    """Where an optimizer steps after each backward, the parameters are read once for this, before its first step."""
    torch.manual_seed(0)
    recorder = Recorder(RecordFile(tmp_path))
    taken, take = [], recorder._updates._parameters
    recorder._updates._parameters = lambda: taken.append(1) or take()
    with recording(recorder, "script.py", level="state", every=1, allowed=(tmp_path,)):
        train()
        assert len(taken) == 1
        train(add)
        assert len(taken) > STEPS  # control
    recorder.file.close()

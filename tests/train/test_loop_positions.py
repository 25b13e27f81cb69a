"""Several loops in one run: one after the other, in turn, one inside the other; cut anywhere, the same bits."""

import pytest
import torch
from torch import nn

import samebits
from at_step import AtStep
from samebits import _digest as digest
from samebits._context import CheckOverrides, Observer, process
from samebits.errors import DuplicateNameError, InvalidArgumentError

pytestmark = pytest.mark.filterwarnings("ignore:resuming replays")


class Cut(Exception):
    """Ends a run as a kill would: nothing more is committed."""


def cut():
    raise Cut


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.randn(4) + index / 12


def loader(size=4):
    return samebits.data.DataLoader(Data(), batch_size=size, shuffle=True)


def make(*sizes):
    samebits.set_random_seed(3)
    models = [
        nn.Sequential(nn.Linear(4, n), samebits.nn.Dropout(0.2), nn.Dropout(0.2), nn.Linear(n, 1))
        for n in sizes
    ]
    return models, [torch.optim.Adam(model.parameters(), 0.05) for model in models]


def update(model, opt, x):
    loss = model(x).square().mean() * (1 + torch.rand(1).item())
    opt.zero_grad()
    loss.backward()
    opt.step()
    return float(loss.detach())


def in_turn(run_dir):
    """Two networks in turn, a loop of each per round."""
    (a, b), (opt_a, opt_b) = make(5, 6)
    data_a, data_b = loader(), loader(6)
    with samebits.Run(run_dir, a=a, b=b, opt_a=opt_a, opt_b=opt_b) as run:
        for turn in range(3):
            for _, x in run.steps(data_a, name=f"a{turn}"):
                update(a, opt_a, x + b(x).detach())
            for _, x in run.steps(data_b, name=f"b{turn}"):
                update(b, opt_b, x + a(x).detach())
    return [thing.state_dict() for thing in (a, b, opt_a, opt_b)]


def nested(run_dir, inner=loader):
    """Some steps of a critic inside each step of a generator, and more of the step behind them."""
    (a, b), (opt_a, opt_b) = make(5, 6)
    data = inner()
    with samebits.Run(run_dir, a=a, b=b, opt_a=opt_a, opt_b=opt_b) as run:
        for step, x in run.steps(loader(6), epochs=2, name="generator"):
            before = float(a(x).mean().detach())
            for inner_step, y in run.steps(data, name="critic"):
                run.state.total = run.state.get("total", 0.0) + update(b, opt_b, y + before)
                if inner_step.batch_index == 1 and step.batch_index == 1:
                    break
            update(a, opt_a, x + b(x).detach())
            if step.ends_epoch:
                for y in run.validate(data):
                    run.state.total += float(b(y).mean().detach()) + torch.rand(1).item()
    return [thing.state_dict() for thing in (a, b, opt_a, opt_b)], dict(run.state)


def nested_in_three(run_dir):
    """A loop of rounds around a loop of tasks around a loop of batches."""
    (model,), (opt,) = make(5)
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for _, turn in run.steps([1.0, 2.0], name="rounds"):
            for _, task in run.steps([3.0, 4.0], name="tasks"):
                for _, x in run.steps(loader(6), name="batches"):
                    update(model, opt, x * task + turn)
                for _, x in run.steps(loader(6), name="more"):
                    update(model, opt, x * task - turn)
    return model.state_dict(), opt.state_dict()


def accumulating(run_dir):
    """Gradients of four micro-batches are alive at the boundaries between them."""
    (model,), (opt,) = make(5)
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for step, x in run.steps(loader(1), name="train"):
            (model(x).square().mean() / 4).backward()
            if step.number % 4 == 3:
                opt.step()
                opt.zero_grad(set_to_none=step.number > 5)
    return model.state_dict(), opt.state_dict()


def shared_loader(run_dir):
    """The inner loop reads the very loader of the outer one."""
    (model,), (opt,) = make(5)
    data = loader(6)
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for _, x in run.steps(data, epochs=2, name="outer"):
            for _, y in run.steps(data, epochs=2, name="inner"):
                update(model, opt, x + y)
    return model.state_dict(), opt.state_dict()


def nested_over_torchs_loader(run_dir):
    return nested(run_dir, lambda: torch.utils.data.DataLoader(Data(), batch_size=4, shuffle=True))


def nested_over_a_pipeline(run_dir):
    return nested(run_dir, lambda: samebits.data.Pipeline.from_source(Data()).shuffle().batch(4))


PROGRAMS = {
    in_turn: 15,
    nested: 4 + 3 + 2 + 3 + 2,
    nested_in_three: 2 + 4 + 16,
    accumulating: 12,
    shared_loader: 4 + 16,
    nested_over_torchs_loader: 14,
    nested_over_a_pipeline: 14,
}


def ran(program, run_dir, observer=None, commits=None):
    """What the program ends with; None when it was cut."""
    process.overrides = CheckOverrides(commit_steps=commits)
    process.observers[:] = [] if observer is None else [observer]
    try:
        return digest.of_value(program(run_dir))
    except Cut:
        return None


class Count(Observer):
    def __init__(self):
        self.steps, self.numbers = [], []

    def step_begins(self, run, step, batch, *, ends_epoch):
        self.steps.append((step.loop, step.epoch, step.batch_index))
        self.numbers.append(step.step)


@pytest.mark.first_case_quick
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_cut_at_every_step_of_every_loop(tmp_path, program):
    """A run that is cut at any step of any of its loops, with commits wherever the state is complete, ends with equal bits."""
    count = Count()
    expected = ran(program, None, count)
    steps = PROGRAMS[program]
    assert count.numbers == list(range(steps)), count.steps
    for step in range(1, steps):
        run_dir = tmp_path / str(step)
        assert ran(program, run_dir, AtStep("step_begins", step, cut), tuple(range(steps))) is None
        assert ran(program, run_dir) == expected, step


@pytest.mark.first_case_quick
@pytest.mark.parametrize("program", [nested, accumulating], ids=lambda p: p.__name__)
def test_killed_in_an_inner_loop(forked, tmp_path, program):
    """SIGKILL inside the inner loop, twice: equal bits."""
    expected = forked(ran, program, None).value
    for step in (6, 9):
        killer = AtStep("step_begins", step)
        assert forked(ran, program, tmp_path / "r", killer, (4, 5, 8)).code == -9
    assert forked(ran, program, tmp_path / "r").value == expected


def test_gradients_that_are_alive_are_needed(tmp_path):
    """Negative control: a program that drops the gradients of the last boundary ends with other bits."""
    expected = ran(accumulating, None)

    class Drops(Observer):
        def boundary(self, run, step, frame):
            if step.step == 6:
                run.objects["model"].zero_grad()

    assert ran(accumulating, None, Drops()) != expected


def test_inner_loops_have_a_name_and_numbers_of_their_own():
    """The name says the loops around, numbers go on through all of them, and every inner loop has batches of its own."""
    samebits.set_random_seed(1)
    seen, batches = [], []
    with samebits.Run(None) as run:
        for outer, _ in run.steps([0, 0], name="outer"):
            for inner, x in run.steps(loader(6), name="inner"):
                seen.append((inner.loop, outer.number, inner.number, inner.batch_index, inner.ends_epoch))
                batches.append(digest.of_value(x))
            for x in run.steps([1], name="other"):
                pass
    assert seen == [("outer/inner", 0, 1, 0, False), ("outer/inner", 0, 2, 1, True)] + [
        ("outer/inner", 4, 5, 0, False), ("outer/inner", 4, 6, 1, True)
    ]  # fmt: skip
    assert len(set(batches)) == 4


def test_an_inner_loop_leaves_the_draws_of_the_step_as_they_were():
    """What the body of the outer step draws behind an inner loop is what it draws without it."""

    def drawn(inner):
        samebits.set_random_seed(1)
        numbers = []
        with samebits.Run(None) as run:
            for step, _ in run.steps([0, 0], name="outer"):
                numbers.append(float(torch.rand(1)))
                if inner:
                    for _ in run.steps([1, 2], name="inner"):
                        torch.rand(7)
                numbers.append(float(torch.rand(1)))
        return numbers[:2]

    assert drawn(True) == drawn(False)


def test_stop_ends_the_innermost_loop():
    """`run.stop()` in an inner loop ends that loop alone."""
    samebits.set_random_seed(1)
    seen = []
    with samebits.Run(None) as run:
        for _, x in run.steps([1, 2], name="outer"):
            for _, y in run.steps([1, 2, 3], name="inner"):
                seen.append((x, y))
                if y == 2:
                    run.stop()
    assert seen == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_names():
    """Two loops of a run, or of one step, need two names; in the next step the name may come again."""
    samebits.set_random_seed(1)
    with samebits.Run(None) as run:
        for _ in run.steps([1, 2], name="outer"):
            for _ in run.steps([1], name="inner"):
                pass
            with pytest.raises(
                DuplicateNameError, match="'inner'.*this step already has a loop of that name"
            ):
                run.steps([1], name="inner")
        with pytest.raises(
            DuplicateNameError, match="'outer'.*this run already has a loop of that name.*round"
        ):
            run.steps([1], name="outer")
        with pytest.raises(InvalidArgumentError, match="a name has no"):
            run.steps([1], name="a/b")


def test_loops_that_are_read_in_turn_step_by_step_are_refused():
    """zip over two loops is refused with the cure: neither is inside the other's body."""
    samebits.set_random_seed(1)
    with samebits.Run(None) as run:
        with pytest.raises(InvalidArgumentError, match="step by step .*zip.*Pipeline.zip"):
            for _ in zip(run.steps([1, 2], name="a"), run.steps([1, 2], name="b"), strict=True):
                pass


def left_by_break(run_dir, keep):
    """The first loop is left by break; its iterator may still be held by a variable, as a progress bar does."""
    (model,), (opt,) = make(5)
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        steps = run.steps(loader(), epochs=2, name="first")
        if keep == "variable":
            held = steps
        for step, x in steps:
            update(model, opt, x)
            if step.number == 3:
                break
        del steps
        for _, x in run.steps(loader(), epochs=2, name="second"):
            update(model, opt, x)
        held = None
    return model.state_dict(), opt.state_dict()


@pytest.mark.first_case_quick
@pytest.mark.parametrize("keep", ["nothing", "variable"])
def test_a_loop_left_by_break_is_over(tmp_path, keep):
    """After a break the next loop comes behind it, not inside: the same numbers and bits, whoever still holds the iterator."""
    count, expected = Count(), ran(lambda run_dir: left_by_break(run_dir, "nothing"), None)
    assert ran(lambda run_dir: left_by_break(run_dir, keep), None, count) == expected
    assert {name for name, _, _ in count.steps} == {"first", "second"}
    for step in (3, 4, 7):
        program = lambda run_dir: left_by_break(run_dir, keep)  # noqa: E731
        assert ran(program, tmp_path / str(step), AtStep("step_begins", step, cut), tuple(range(10))) is None
        assert ran(program, tmp_path / str(step)) == expected


class Pool(torch.utils.data.Dataset):
    """A dataset that grows with each round, and is part of the commit."""

    def __init__(self):
        self.rows = list(torch.randn(12, 4))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index] + 0.1 * torch.randn(4)

    def state_dict(self):
        return {"rows": list(self.rows)}

    def load_state_dict(self, state):
        self.rows[:] = state["rows"]


def rounds(folder, stop_at=None, workers=0):
    """Four rounds: a loop over the pool as it is, then new rows by the model; an error ends it at a step."""
    samebits.set_random_seed(2)
    pool, model = Pool(), nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    loader = samebits.data.DataLoader(pool, batch_size=4, shuffle=True, num_workers=workers)
    with samebits.Run(folder, model=model, opt=opt, pool=pool, save=1) as run:
        for number in range(4):
            for step, x in run.steps(loader, epochs=1, name=f"round{number}"):
                if step.number == stop_at:
                    raise InterruptedError
                opt.zero_grad()
                (model(x) - x.flip(1)).square().mean().backward()
                opt.step()
            if len(pool) < 12 + 5 * (number + 1):
                with torch.no_grad():
                    pool.rows += list(model(torch.ones(5, 4)))
    return digest.of_value([model.state_dict(), pool.rows])


def test_a_loop_for_each_round_over_a_growing_dataset_resumes(tmp_path):
    """A loop that has ended is not checked again: the restored dataset is longer than it was there."""
    expected = rounds(tmp_path / "whole")
    for stop_at in (5, 12):  # in the second and the last round
        with pytest.raises(InterruptedError):
            rounds(tmp_path / str(stop_at), stop_at)
        assert rounds(tmp_path / str(stop_at)) == expected

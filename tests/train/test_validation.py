"""`run.validate` is a phase of its own: killed inside, a run ends with equal bits, and training never notices it."""

import os
import signal

import pytest
import torch
from torch import nn

import samebits
from samebits import _digest as digest
from samebits._context import CheckOverrides, Observer, process
from samebits.errors import DuplicateNameError, InvalidArgumentError


class Data(torch.utils.data.Dataset):
    def __init__(self, length=12):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.randn(6) + index / 22, index % 3


class Drawn:
    """An iterable without length that draws from torch's generator."""

    def __iter__(self):
        return ((torch.randn(4, 6), torch.arange(4) % 3) for _ in range(3))


def make():
    samebits.set_random_seed(5)
    model = nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), samebits.nn.Dropout(0.3), nn.Dropout(0.2), nn.Linear(8, 3)
    )
    return model, torch.optim.Adam(model.parameters(), 0.05)


LOADERS = {
    "samebits": lambda: samebits.data.DataLoader(Data(), batch_size=4, shuffle=True),
    "pipeline": lambda: samebits.data.Pipeline.from_source(Data()).shuffle().batch(4),
    "torch": lambda: torch.utils.data.DataLoader(Data(), batch_size=4, shuffle=True),
    "unsized": Drawn,
    "list": lambda: [(torch.ones(4, 6) * i, torch.arange(4) % 3) for i in range(3)],
}


def train(run_dir, *, kind="samebits", kill=None, commits=None, plain=False, number=signal.SIGKILL):
    """Kills itself before batch `kill[1]` of the validation in the body of step `kill[0]`."""
    process.overrides = CheckOverrides(commit_steps=commits)
    model, opt = make()
    validation = LOADERS[kind]()
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for step, (x, y) in run.steps(samebits.data.DataLoader(Data(), batch_size=4, shuffle=True), epochs=4):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step.ends_epoch:
                model.eval()
                model[2].train()  # draws masks while it validates
                total, batches = 0.0, 0
                for x, y in validation if plain else run.validate(validation):
                    if kill == (step.number, batches):
                        os.kill(os.getpid(), number)
                    with torch.no_grad():
                        total += float(nn.functional.cross_entropy(model(x), y)) + float(torch.rand(1))
                    batches += 1
                model.train()
                run.state.setdefault("history", []).append(total / batches + float(torch.rand(1)))
    return digest.of_value([model.state_dict(), opt.state_dict(), dict(run.state)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.filterwarnings("ignore:resuming replays")
def test_killed_at_any_batch_of_a_validation(forked, tmp_path, kind):
    """SIGKILL at each batch of a validation, then again in a later one: equal weights, optimizer and history."""
    expected = forked(lambda: train(None, kind=kind)).value
    for batch in range(3):
        run_dir, commits = tmp_path / str(batch), (3, 4, 6, 8)
        assert forked(lambda: train(run_dir, kind=kind, kill=(5, batch), commits=commits)).code == -9
        assert forked(lambda: train(run_dir, kind=kind, kill=(8, 2 - batch), commits=commits)).code == -9
        assert forked(lambda: train(run_dir, kind=kind)).value == expected


def test_plain_validation_in_the_body_is_replayed(forked, tmp_path):
    """A validation that is no phase, an ordinary loop in the body, is run again from the last commit: equal bits."""
    expected = forked(lambda: train(None, plain=True)).value
    assert forked(lambda: train(tmp_path, plain=True, kill=(5, 1), commits=(4,))).code == -9
    assert forked(lambda: train(tmp_path, plain=True)).value == expected


def noisy(validates, draws=0):
    """Two draws of each kind in the body of each step, around a validation."""
    model, opt = make()
    seen = []
    with samebits.Run(None, model=model, opt=opt) as run:
        for step, (x, _) in run.steps(samebits.data.DataLoader(Data(), batch_size=4, shuffle=True), epochs=2):
            seen.append(
                [model[2](torch.ones(9)), samebits.random.get_global_generator().uniform(3), torch.rand(2)]
            )
            if validates:
                for number, _ in enumerate(run.validate(LOADERS["samebits"]())):
                    (
                        model[2](torch.ones(9)),
                        samebits.random.get_global_generator().uniform(5),
                        torch.rand(draws),
                    )
                    if number == draws:
                        break
            counted = samebits.random.draws()
            seen.append(
                [model[2](torch.ones(9)), samebits.random.get_global_generator().uniform(3), torch.rand(2)]
            )
            seen.append([counted["torch"], process.position.phase])
    return digest.of_value(seen)


def test_training_draws_are_not_shifted_by_a_validation():
    """Masks, generators and the count of draws behind a validation, broken off or not, are those without one."""
    assert noisy(True, 0) == noisy(True, 1) == noisy(True, 3) == noisy(False)


def masks(kind):
    model, opt = make()
    seen = []
    with samebits.Run(None, model=model, opt=opt) as run:
        for step, _ in run.steps(LOADERS["list"]()):
            for x, _ in run.validate(LOADERS[kind]()):
                seen.append(
                    [
                        x,
                        model[2](torch.ones(50)),
                        samebits.random.get_global_generator().uniform(3),
                        torch.rand(2),
                    ]
                )
    return seen


@pytest.mark.parametrize("kind", LOADERS)
def test_each_batch_of_a_validation_draws_its_own(kind):
    """No two batches of a validation, of no two steps, draw the same masks, numbers or (random) elements."""
    seen = masks(kind)
    assert len(seen) == 9
    for part in range(kind == "list", 4):
        assert len({digest.of_value(one[part]) for one in seen}) == 9, part


class Positions(Observer):
    def __init__(self):
        self.seen = []

    def validation_begins(self, run, step):
        self.seen.append(step)


def test_names_and_positions():
    """The position says the phase, its name and its batch; two validations of one step need two names."""
    watcher, seen = Positions(), []
    process.observers.append(watcher)
    with samebits.Run(None) as run:
        for step, _ in run.steps([1, 2], epochs=2):
            for name in ("clean", "noisy"):
                for _ in run.validate([1, 2], name=name):
                    seen.append(process.position)
            with pytest.raises(DuplicateNameError, match="this step already has .* of that name"):
                run.validate([1], name="noisy")
    assert [(p.step, p.name, p.phase_batch) for p in seen] == [
        (step, name, batch) for step in range(4) for name in ("clean", "noisy") for batch in range(2)
    ]
    assert {p.phase for p in seen} == {"validate"} and len(watcher.seen) == 8


def test_what_is_refused():
    """An iterator, a validation inside another, an empty loader, and a run that is not entered are refused with the cure."""
    with pytest.raises(InvalidArgumentError, match="enter the run first"):
        samebits.Run(None).validate([1])
    with samebits.Run(None) as run:
        for _ in run.steps([1]):
            with pytest.raises(InvalidArgumentError, match="Run.validate.*an iterator can be read only once"):
                run.validate(iter([1]))
            with pytest.raises(samebits.errors.EmptyDatasetError, match="Run.validate"):
                list(run.validate([], name="empty"))
            for _ in run.validate([1, 2], name="outer"):
                with pytest.raises(InvalidArgumentError, match="inside the body of"):
                    list(run.validate([1], name="inner"))
                break


def test_outside_of_loops(forked):
    """A validation before or behind a loop works, too, with draws of its own."""

    def program():
        model, _ = make()
        with samebits.Run(None, model=model) as run:
            before = [torch.rand(1) for _ in run.validate([1, 2])]
            for _ in run.steps([1]):
                pass
            behind = torch.rand(1)
            for _ in run.validate([1, 2]):
                torch.rand(1)
            return [float(x) for x in before], float(behind), float(torch.rand(1))

    first, second = forked(program).value, forked(program).value
    assert first == second and len(set(first[0])) == 2 and first[1] != first[2]


class Cut(Exception):
    """Ends a run as a kill would: nothing more is committed."""


def keeping(run_dir, kind="samebits", cut=None, save="0.000001s", where="state", act=None, batches=None):
    """As `train`, with what the validation adds up in the run; `batches` collects those that the validation body saw."""
    model, opt = make()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=0)
    validation, metric = LOADERS[kind](), torch.nn.Linear(1, 1)
    objects = {"model": model, "opt": opt, "scheduler": scheduler, "metric": metric}
    with samebits.Run(run_dir, **objects, save=save, ignore=["batches"]) as run:
        for step, (x, y) in run.steps(samebits.data.DataLoader(Data(), batch_size=4, shuffle=True), epochs=3):
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step.ends_epoch:
                run.state.total = 0.0
                with torch.no_grad():
                    metric.bias.zero_()
                model.eval()
                model[2].train()
                number = 0
                for x, y in run.validate(validation):
                    if batches is not None:
                        batches.append(
                            (step.number, process.position.phase_batch, model.training, model[2].training)
                        )
                    if cut == (step.number, process.position.phase_batch):
                        act()
                    with torch.no_grad():
                        run.state.total += float(nn.functional.cross_entropy(model(x), y)) + float(
                            torch.rand(1)
                        )
                        metric.bias += model(x).sum()
                    if where == "local":
                        number += 1
                model.train()
                scheduler.step(run.state.total)
                run.state.setdefault("history", []).append(
                    run.state.total + float(metric.bias.detach()) + float(loss.detach()) + number
                )
    return digest.of_value(
        [thing.state_dict() for thing in (model, opt, scheduler, metric)] + [dict(run.state)]
    )


def cut():
    raise Cut


@pytest.mark.first_case_quick
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.filterwarnings("ignore:resuming replays")
def test_a_validation_goes_on_inside(tmp_path, kind):
    """Cut at each batch, with commits between batches: the next start goes on at that batch or the one before, to equal bits."""
    expected = keeping(None, kind)
    for batch in (1, 2):
        for again in (None, (5, 2)):
            run_dir = tmp_path / f"{batch}{again}"
            with pytest.raises(Cut):
                keeping(run_dir, kind, (5, batch), act=cut)
            if again and batch == 1:
                with pytest.raises(Cut):
                    keeping(run_dir, kind, again, act=cut)
            seen = []
            assert keeping(run_dir, kind, batches=seen) == expected
            first = 2 if again and batch == 1 else batch
            assert seen[0] == (5, first, False, True) and seen[-1] == (8, 2, False, True)


def test_what_the_loop_carries_sends_it_back_to_its_first_batch(tmp_path, capfd):
    """A total in a local variable is not in a commit: the validation starts again, says why, and the bits are equal."""
    expected = keeping(None, where="local")
    with pytest.raises(Cut):
        keeping(tmp_path, cut=(5, 2), act=cut, where="local")
    err = capfd.readouterr().err
    assert err.count("restarts it from its first batch, because number changes") == 1
    seen = []
    assert keeping(tmp_path, where="local", batches=seen) == expected
    assert seen[0][:2] == (5, 0)


def test_killed_while_a_validation_is_committed(forked, tmp_path):
    """SIGKILL between the tensors and the manifest of a commit inside a validation: equal bits."""

    class KillInCommit(Observer):
        def commit_writing(self, run, step):
            if (step.phase, step.step, step.phase_batch) == ("validate", 5, 2):
                os.kill(os.getpid(), signal.SIGKILL)

    def killed():
        process.observers.append(KillInCommit())
        keeping(tmp_path)

    expected = forked(lambda: keeping(None)).value
    assert forked(killed).code == -9
    seen = []
    assert keeping(tmp_path, batches=seen) == expected
    assert seen[0][:2] == (5, 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_in_a_long_validation_keeps_what_is_done(forked, tmp_path, number):
    """SIGTERM commits between two batches, whatever the cadence, once there is a commit to build on; SIGKILL starts again."""
    expected = forked(lambda: keeping(None)).value
    act = lambda: os.kill(os.getpid(), number)  # noqa: E731
    code = forked(lambda: keeping(tmp_path, cut=(5, 1), save=4, act=act)).code
    assert code == (75 if number == signal.SIGTERM else -9)
    seen = []
    assert keeping(tmp_path, batches=seen) == expected
    if number == signal.SIGTERM:
        assert seen[0][:2] == (5, 2)


@pytest.mark.parametrize(
    "wrap",
    [enumerate, lambda batches: zip(batches, range(9), strict=False), list],
    ids=["enumerate", "zip", "list"],
)
def test_something_between_for_and_validate_starts_again(tmp_path, wrap):
    """The counter of enumerate is nobody's state: no commit is made inside such a validation."""

    def program(cut_at=None):
        samebits.set_random_seed(1)
        seen = []
        with samebits.Run(tmp_path, save="0.000001s", ignore=["seen"]) as run:
            for step, _ in run.steps([1, 2]):
                for item in wrap(run.validate([10, 20, 30])):
                    seen.append((step.number, item))
                    if len(seen) == cut_at:
                        raise Cut
        return seen

    with pytest.raises(Cut):
        program(5)
    assert program()[0] == (1, next(iter(wrap([10, 20, 30]))))

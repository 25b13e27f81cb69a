"""`run.epochs`: programs with a function call per epoch, killed anywhere, end with the bits of the whole run."""

import os
import random
import signal

import pytest
import torch
from torch import nn

import samebits
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.errors import (
    DuplicateNameError,
    IncompleteStateError,
    InvalidArgumentError,
    RunMismatchError,
)

EPOCHS, BATCHES = 4, 5
PLACES = ("begins", "body", "validation", "ends")


def run_program(run_dir, kill=None, *, how=signal.SIGKILL, commits=None, epochs=EPOCHS, keep=True, workers=0):
    """One call for each epoch to train and to test; Dropout, a schedule, draws everywhere; killed at (place,
    number).
    """
    samebits.set_random_seed(5)
    process.overrides = CheckOverrides(commit_steps=commits)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    opt = torch.optim.Adam(model.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.8)
    loader = samebits.data.DataLoader(torch.randn(18, 4), batch_size=4, shuffle=True, num_workers=workers)
    held_out = samebits.data.DataLoader(torch.randn(9, 4), batch_size=3)

    def here(place, number):
        if kill == (place, number):
            os.kill(os.getpid(), how)

    def train(epoch):
        model.train()
        noise = 0.1 * epoch
        for step, x in epoch.steps(loader):
            loss = model(x + noise * torch.randn(4)).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            here("body", step.number)
        return loss.detach()

    def test(epoch):
        model.eval()
        run.state.total = 0.0
        with torch.no_grad():
            for x in run.validate(held_out):
                run.state.total += float(model(x + torch.randn(4)).sum())
                here("validation", epoch.number)
        return run.state.total

    objects = {"model": model, "opt": opt, **({"schedule": schedule} if keep else {})}
    with samebits.Run(run_dir, check_complete=keep, **objects) as run:
        for epoch in run.epochs(epochs):
            run.state.noise = float(torch.rand(()))
            here("begins", epoch.number)
            last = train(epoch)
            total = test(epoch)
            schedule.step()
            trace = [float(torch.rand(())), total, run.state.noise, last]
            run.state.trace = [*run.state.get("trace", []), *trace]
            here("ends", epoch.number)
        after = float(torch.rand(()))
    return digest.of_value(
        [model.state_dict(), opt.state_dict(), schedule.state_dict(), dict(run.state), after]
    )


EXPECTED = []


def expected(forked):
    if not EXPECTED:
        EXPECTED.append(forked(run_program, None).value)
    return EXPECTED[0]


@pytest.mark.first_case_quick
@pytest.mark.parametrize("commits", [tuple(range(EPOCHS * BATCHES)), (3, 9, 12)])
@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("place", PLACES)
def test_a_kill_anywhere_ends_with_equal_bits(forked, tmp_path, place, number, commits):
    """SIGKILL before the steps, in a step, in the validation and after it, with a commit at each step or few:
    equal.
    """
    at = BATCHES * number + BATCHES - 1 if place == "body" else number
    killed = forked(lambda: run_program(tmp_path / "r", (place, at), commits=commits))
    assert killed.code == -signal.SIGKILL
    assert forked(run_program, tmp_path / "r").value == expected(forked)
    assert forked(run_program, tmp_path / "r").value == expected(forked)  # a finished one yields nothing


def test_many_kills_at_random_places(forked, tmp_path):
    """Eight kills and other workers: equal; without the schedule among the objects (control) not."""
    draw = random.Random(1)
    kills = [("body", draw.randrange(3, 20)) for _ in range(5)] + [
        ("ends", 1),
        ("validation", 2),
        ("begins", 3),
    ]
    for keep in (True, False):
        for kill in sorted(kills, key=lambda one: one[1] if one[0] == "body" else BATCHES * (one[1] + 1)):
            forked(lambda k=kill, s=keep: run_program(tmp_path / f"{s}", k, commits=tuple(range(20)), keep=s))
        got = forked(lambda s=keep: run_program(tmp_path / f"{s}", keep=s, workers=2)).value
        assert (got == expected(forked)) == keep


@pytest.mark.parametrize("place", PLACES)
def test_a_signal_commits_at_the_next_boundary(forked, tmp_path, place):
    """SIGTERM in each place: exit code 75, a commit at the next fetch (in a validation, which leaves at once, inside
    the commit before), and equal bits in the end.
    """
    at = 7 if place == "body" else 1
    killed = forked(lambda: run_program(tmp_path / "r", (place, at), how=signal.SIGTERM, commits=(3,)))
    assert killed.code == 75
    newest = samebits.checkpoint.list_commits(tmp_path / "r")[0]
    assert newest.step == {"begins": 5, "body": 8, "validation": 3, "ends": 10}[place]
    assert forked(run_program, tmp_path / "r").value == expected(forked)


def trained(loop, loader, **options):
    samebits.set_random_seed(2)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    with samebits.Run(None, model=model, opt=opt) as run:
        for _, x in loop(run, loader):
            opt.zero_grad()
            model(x + torch.randn(4)).square().mean().backward()
            opt.step()
    return digest.of_value(model.state_dict())


def by_epoch(run, loader, **options):
    for epoch in run.epochs(3):
        yield from epoch.steps(loader() if callable(loader) else loader, **options)


def test_the_steps_are_those_of_run_steps():
    """Batches and draws of the bodies are those of run.steps(loader, epochs=3), also with a loader made in
    each epoch, or steps_per_epoch.
    """
    data = torch.arange(80.0).reshape(20, 4) / 80

    def make():
        return samebits.data.DataLoader(data, batch_size=4, shuffle=True, seed=3)

    plain = trained(lambda run, loader: run.steps(loader, 3), make())
    assert trained(by_epoch, make()) == plain == trained(by_epoch, make)
    rows = [data[k : k + 4] for k in range(0, 20, 4)]
    short = trained(lambda run, loader: run.steps(loader, 3, steps_per_epoch=2), rows)
    assert trained(lambda run, loader: by_epoch(run, loader, steps_per_epoch=2), rows) == short
    assert trained(lambda run, loader: by_epoch(run, loader, steps_per_epoch=2), lambda: list(rows)) == short
    assert short != plain != trained(lambda run, loader: run.steps(loader, 2), make())


def test_an_epoch_is_its_number():
    """An epoch counts, compares and prints as an int; its steps have the numbers of the run, and the last one
    ends the epoch.
    """
    samebits.set_random_seed(1)
    with samebits.Run(None) as run:
        seen = [
            (
                epoch + 1,
                f"{epoch}",
                epoch == 1,
                type(epoch.number),
                step.number,
                step.batch_index,
                step.ends_epoch,
                x,
            )
            for epoch in run.epochs(2)
            for step, x in epoch.steps("ab")
        ]
        assert not run.finished or len(seen) == 4
    assert seen == [
        (1, "0", False, int, 0, 0, False, "a"), (1, "0", False, int, 1, 1, True, "b"),
        (2, "1", True, int, 2, 0, False, "a"), (2, "1", True, int, 3, 1, True, "b"),
    ]  # fmt: skip
    assert run.finished


def broken_off(folder, kill=None, stop=None):
    """Leaves each epoch's steps after two, by `break`, or the whole run by run.stop() at step `stop`."""
    samebits.set_random_seed(1)
    process.overrides = CheckOverrides(commit_steps=tuple(range(30)))
    weight = nn.Linear(1, 1)
    with samebits.Run(folder, weight=weight) as run:
        for epoch in run.epochs(4):
            for step, x in epoch.steps(
                samebits.data.DataLoader(torch.randn(6, 1), batch_size=1, shuffle=True)
            ):
                with torch.no_grad():
                    weight.weight += x * torch.rand(1)
                if step.number == kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step.number == stop:
                    run.stop()
                if step.batch_index == 2 and stop is None:
                    break
            with torch.no_grad():
                weight.bias += torch.rand(1)
    return weight.weight.item(), weight.bias.item(), run.parts.loops.step


def test_break_and_stop(forked, tmp_path):
    """`break` ends the steps of an epoch, the code after them runs; run.stop() ends the run after the epoch's
    code. Both resume.
    """
    whole = forked(broken_off, None).value
    assert whole[2] == 12
    for kill in (4, 5, 11):
        assert forked(lambda k=kill: broken_off(tmp_path / f"{k}", k)).code == -signal.SIGKILL
        assert forked(lambda k=kill: broken_off(tmp_path / f"{k}")).value == whole
    stopped = forked(lambda: broken_off(None, stop=8)).value
    assert stopped[2] == 9
    assert forked(lambda: broken_off(tmp_path / "s", 7, stop=8)).code == -signal.SIGKILL
    assert forked(lambda: broken_off(tmp_path / "s", stop=8)).value == stopped
    assert forked(lambda: broken_off(tmp_path / "s")).value == stopped  # it is over


def test_more_epochs_continue(forked, tmp_path):
    """A finished run of 2 epochs that is asked for 4 ends as one of 4; with run.steps (control) it is
    refused.
    """
    forked(lambda: run_program(tmp_path / "r", epochs=2))
    assert forked(run_program, tmp_path / "r").value == expected(forked)
    killed = forked(lambda: run_program(tmp_path / "k", ("body", 7), commits=(6,)))
    assert killed.code == -signal.SIGKILL
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))
    samebits.set_random_seed(5)
    opt = torch.optim.Adam(model.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.8)
    with (
        pytest.raises(RunMismatchError, match="in the loop 'train' of run.epochs"),
        samebits.Run(tmp_path / "k", model=model, opt=opt, schedule=schedule) as run,
    ):
        next(run.steps([torch.ones(4, 4)]))


class Own:
    def __init__(self):
        self.count = self.loads = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count, self.loads = state["count"], self.loads + 1


def reset_in_each_epoch(folder, kill=None):
    samebits.set_random_seed(1)
    process.overrides = CheckOverrides(commit_steps=(3,))
    own, weight = Own(), nn.Linear(1, 1)
    with samebits.Run(folder, own=own, weight=weight) as run:
        for epoch in run.epochs(3):
            own.count, run.state.total = 0, 0.0
            for step, x in epoch.steps(samebits.data.DataLoader([1.0, 2.0], batch_size=None)):
                own.count += 1
                run.state.total += x
                with torch.no_grad():
                    weight.weight += own.count * run.state.total
                if step.number == kill:
                    os.kill(os.getpid(), signal.SIGKILL)
    return weight.weight.item(), own.loads


@pytest.mark.filterwarnings("error")
def test_what_an_epoch_resets_at_its_beginning_does_not_undo_the_commit(forked, tmp_path):
    """Sums and objects that are reset before the steps come back as they were in the middle of the epoch,
    without a warning.
    """
    whole = forked(reset_in_each_epoch, None).value
    assert forked(lambda: reset_in_each_epoch(tmp_path / "r", 3)).code == -signal.SIGKILL
    resumed = forked(reset_in_each_epoch, tmp_path / "r").value
    assert resumed[0] == whole[0] and whole[1] == 0 < resumed[1]


def carrying(folder, kind):
    samebits.set_random_seed(1)
    model = nn.Linear(1, 1)
    best, calls = 1e9, Own()

    def train(epoch):
        rate, total = 0.1 / (epoch + 1), 0.0
        for _, x in epoch.steps([torch.ones(1, 1), torch.zeros(1, 1)]):
            loss = model(x).square().mean()
            loss.backward()
            with torch.no_grad():
                model.weight -= rate * model.weight.grad
            if kind == "sum":
                total += loss.item()
        if kind == "sum":
            model.weight.data *= total
        return loss.item()

    with samebits.Run(folder, model=model, save="explicit") as run:
        for epoch in run.epochs(3):
            model.zero_grad()
            loss = train(epoch)
            if kind == "best" and loss > best:
                model.weight.data *= 0.5
            best = min(best, loss) if kind == "best" else best
            if kind == "object":
                calls.count += 1
                model.weight.data *= calls.count


@pytest.mark.parametrize(
    ("kind", "named"), [("best", "best"), ("sum", "total"), ("object", "calls"), ("none", None)]
)
@pytest.mark.filterwarnings("error")
def test_what_the_loops_carry_is_named(tmp_path, kind, named):
    """A local variable of the loop over epochs, a sum in an epoch and an object are named; what each epoch
    computes anew (control) is not.
    """
    if named is None:
        carrying(tmp_path / "r", kind)
        return
    with pytest.raises(IncompleteStateError, match=rf"- {named}\b") as caught:
        carrying(tmp_path / "r", kind)
    assert "loss (" not in str(caught.value) and "rate (" not in str(caught.value)


def test_wrong_calls():
    """A second loop over steps, an epoch that is over, another stateful loader, and a missing loader say what
    to do.
    """
    samebits.set_random_seed(1)
    with samebits.Run(None) as run:
        for call, text in [
            (
                lambda: run.epochs([1], 3),
                r"for epoch in run.epochs\(3\):\n        for step, batch in epoch.steps\(loader\)",
            ),
            (lambda: run.epochs(0), "at least 1"),
        ]:
            with pytest.raises(InvalidArgumentError, match=text):
                call()
        before = None
        for epoch in run.epochs(2):
            with pytest.raises(
                InvalidArgumentError, match=r"the loader, first. Type\n    epoch.steps\(loader\)"
            ):
                epoch.steps()
            if before is not None:
                with pytest.raises(InvalidArgumentError, match="epoch 0 is over"):
                    before.steps([1])
            for _ in epoch.steps([1, 2]):
                with pytest.raises(InvalidArgumentError, match="inside the body of another loop"):
                    run.epochs(2, name="inner")
            with pytest.raises(DuplicateNameError, match=r"run.steps\(loader, name=\"second\"\)"):
                epoch.steps([3])
            assert [x for _, x in run.steps([3, 4], name="second")] == [3, 4]
            before = epoch
    assert run.parts.loops.step == 8

    def torchs():
        data, generator = torch.ones(2, 1), torch.Generator()
        return torch.utils.data.DataLoader(data, shuffle=True, generator=generator)

    with (
        samebits.Run(None) as run,
        pytest.raises(InvalidArgumentError, match="Make it once, before run.epochs"),
    ):
        for epoch in run.epochs(2):
            list(epoch.steps(torchs()))
    kept = torchs()
    with samebits.Run(None) as run:
        assert sum(len(list(epoch.steps(kept))) for epoch in run.epochs(2)) == 4


VERIFIED = """
import torch, samebits
samebits.set_random_seed(1)
samebits.enable_op_determinism()
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
opt = torch.optim.Adam(model.parameters(), 0.01)
schedule = torch.optim.lr_scheduler.StepLR(opt, 1, 0.7)
loader = samebits.data.DataLoader(torch.randn(24, 4), batch_size=4, shuffle=True)
def train(epoch):
    for step, x in epoch.steps(loader):
        loss = model(x + torch.randn(4)).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        run.log(loss=loss)
with samebits.Run("run", model=model, opt=opt{more}) as run:
    for epoch in run.epochs(4):
        train(epoch)
        schedule.step()
"""


@pytest.mark.slow
def test_verify(tmp_path):
    """`samebits verify` of such a script is VERIFIED with kills in mid-epoch and at an epoch's end; without
    the schedule (control) it is not.
    """
    import subprocess
    import sys

    for more, kills, code in (
        (", schedule=schedule", "kill", 0),
        (", check_complete=False", "kill-epoch-end", 1),
    ):
        (tmp_path / "train.py").write_text(VERIFIED.replace("{more}", more))
        command = [
            sys.executable,
            "-m",
            "samebits",
            "verify",
            "--no-find-op",
            "--seed",
            "1",
            "--checks",
            f"run-again,{kills}",
            "train.py",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stdout + done.stderr
        assert ("VERIFIED" in done.stdout) == (code == 0), done.stdout


def test_an_epoch_whose_steps_are_read_past_the_run_is_warned_of(tmp_path):
    """`for batch in loader` in the place of epoch.steps(loader) is committed nowhere: the line to type is in a warning."""
    samebits.set_random_seed(1)
    with (
        samebits.Run(tmp_path / "run") as run,
        pytest.warns(UserWarning, match="in epoch.steps.loader.` in the place"),
    ):
        for _epoch in run.epochs(2):
            for _batch in [1, 2]:
                pass

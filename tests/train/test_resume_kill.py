"""Runs are really killed (SIGKILL, SIGTERM), started again, and must end with the bits of an uninterrupted run."""

import os
import random
import signal
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import samebits
from at_step import AtStep, sends
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.errors import UnimplementedError


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.randn(6) + index / 22 + np.random.rand() + random.random(), index % 3


STEPS = 4 * 6  # epochs of ceil(22 / 4) batches


def train(run_dir, *, killer=None, commits=None, workers=0, accumulate=1, keep_scheduler=True, stop_at=None):
    """An ordinary loop: Dropout (torch's and ours), BatchNorm, Adam, plateau, accumulation, best loss in run.state."""
    samebits.set_random_seed(5)
    process.overrides = CheckOverrides(commit_steps=commits)
    if killer is not None:
        process.observers.append(killer)
    model = nn.Sequential(
        nn.Linear(6, 8),
        nn.BatchNorm1d(8),
        samebits.nn.Dropout(0.2),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(8, 3),
    )
    opt = torch.optim.Adam(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0, threshold=0.5)
    loader = samebits.data.DataLoader(Data(), batch_size=4, shuffle=True, num_workers=workers)
    objects = {"scheduler": scheduler} if keep_scheduler else {}
    with samebits.Run(run_dir, model=model, opt=opt, check_complete=keep_scheduler, **objects) as run:
        for step, (x, y) in run.steps(loader, epochs=4):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if (step.number + 1) % accumulate == 0:
                opt.step()
                opt.zero_grad()
            if step.ends_epoch:
                scheduler.step(loss.detach())
                run.state.best = min(run.state.get("best", 1e9), float(loss))
                run.state.trace = [*run.state.get("trace", []), float(torch.rand(1))]
            if stop_at == step.number:
                run.stop()
        after = (torch.rand(1).item(), np.random.rand(), random.random())
    return digest.of_value([model.state_dict(), opt.state_dict(), dict(run.state), after]), run.resumed


EXPECTED = []


def _uninterrupted(forked):
    if not EXPECTED:
        EXPECTED.append(forked(train, None).value[0])
    return EXPECTED[0]


@pytest.mark.first_case_quick
@pytest.mark.parametrize("event", ["boundary", "step_begins", "commit_writing", "committed"])
@pytest.mark.parametrize("step", [0, 1, 5, 6, 13, 23])
def test_killed_at_any_event_and_resumed(forked, tmp_path, event, step):
    """SIGKILL at the boundary, in the body, inside a commit and after it, at first, middle and epoch-end steps: equal."""
    commits = tuple(range(1, STEPS, 2)) if "commit" not in event else tuple(range(STEPS))
    expected = _uninterrupted(forked)
    assert forked(lambda: train(tmp_path / "r", killer=AtStep(event, step), commits=commits)).code == -9
    got, resumed = forked(train, tmp_path / "r").value
    assert got == expected
    # the step with a commit behind it
    first = {"boundary": 2, "step_begins": 1, "commit_writing": 1, "committed": 0}
    assert resumed == (step >= first[event])


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(
        st.tuples(st.integers(0, STEPS - 1), st.sampled_from(["boundary", "step_begins", "commit_writing"])),
        min_size=1, max_size=4,
    ),
    commits=st.sets(st.integers(0, STEPS), max_size=8),
    workers=st.sampled_from([0, 0, 0, 2]),
)  # fmt: skip
def test_killed_several_times_anywhere_with_any_cadence(forked, tmp_path_factory, cuts, commits, workers):
    """Any number of kills, any commit cadence, other workers after the resume: the same bits."""
    run_dir = tmp_path_factory.mktemp("run") / "r"
    expected = _uninterrupted(forked)
    for step, event in cuts:
        killer = AtStep(event, step)
        code = forked(lambda k=killer: train(run_dir, killer=k, commits=tuple(commits))).code
        assert code in (-9, 0)  # 0: an earlier commit lies behind the cut
    assert forked(lambda: train(run_dir, workers=workers)).value[0] == expected


def test_every_micro_step_of_an_accumulation_can_be_a_cut(forked, tmp_path):
    """Gradients that are alive at a boundary are part of the commit: cut at every micro-step of 4, equal."""
    expected, _ = forked(lambda: train(None, accumulate=4)).value
    for cut in range(8, 13):
        run_dir = tmp_path / str(cut)
        killer = AtStep("step_begins", cut)
        assert (
            forked(lambda k=killer, d=run_dir, c=cut: train(d, killer=k, commits=(c,), accumulate=4)).code
            == -9
        )
        assert forked(lambda d=run_dir: train(d, accumulate=4)).value == (expected, True)


def test_a_scheduler_that_was_not_given_to_the_run_is_lost(forked, tmp_path):
    """Negative control: without the scheduler in the commit, the resumed run ends with other bits."""
    expected = _uninterrupted(forked)
    killer = AtStep("step_begins", 14)
    arguments = {"keep_scheduler": False}
    assert forked(lambda: train(tmp_path / "r", killer=killer, commits=(13,), **arguments)).code == -9
    got, resumed = forked(lambda: train(tmp_path / "r", **arguments)).value
    assert resumed and got != expected


def test_sigterm_commits_the_boundary_and_exits_75(forked, tmp_path, capfd):
    """SIGTERM in the body: the iteration ends, its boundary is committed, exit code 75; the next start goes on from it."""
    expected = _uninterrupted(forked)
    killer = AtStep("step_begins", 9, sends(signal.SIGTERM))
    assert forked(lambda: train(tmp_path / "r", killer=killer, commits=())).code == 75
    assert "committed at step 10" in capfd.readouterr().err
    assert forked(lambda: train(tmp_path / "r")).value == (expected, True)


def test_a_second_sigterm_during_the_commit_does_no_harm(forked, tmp_path):
    """SIGTERM while the commit of the first one is being written: still exit 75 and a whole commit."""
    expected = _uninterrupted(forked)

    class Twice(AtStep):
        def commit_writing(self, run, step):
            self.act()

    killer = Twice("step_begins", 9, sends(signal.SIGTERM))
    assert forked(lambda: train(tmp_path / "r", killer=killer, commits=())).code == 75
    assert forked(lambda: train(tmp_path / "r")).value == (expected, True)


def test_a_finished_run_yields_nothing_and_restores_its_end(forked, tmp_path):
    """Started again after its end, a run trains no step and gives the code behind the loop the same state and draws."""
    expected, _ = forked(lambda: train(tmp_path / "r")).value
    assert forked(lambda: train(tmp_path / "r", killer=AtStep("step_begins", 0))).value == (expected, True)


def test_stop_finishes_the_run(forked, tmp_path):
    """run.stop() ends the loop after its iteration; a restart does not train on."""
    expected, _ = forked(lambda: train(tmp_path / "r", stop_at=10)).value
    assert forked(lambda: train(tmp_path / "r", killer=AtStep("step_begins", 11))).value == (expected, True)


def two_loops(run_dir, killer=None, commits=None):
    samebits.set_random_seed(2)
    process.overrides = CheckOverrides(commit_steps=commits)
    if killer is not None:
        process.observers.append(killer)
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loader = samebits.data.DataLoader(Data(), batch_size=4, shuffle=True)
    with samebits.Run(run_dir, model=model, opt=opt) as run:
        for name in ("pretrain", "finetune"):
            for _, (x, y) in run.steps(loader, epochs=2, name=name):
                opt.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                opt.step()
            if name == "pretrain":
                model[1].reset_parameters()  # a fresh head, drawn between the loops
                model[0].requires_grad_(False)
    return digest.of_value([model.state_dict(), opt.state_dict()])


@pytest.mark.parametrize("step", [3, 11, 12, 13, 20])
def test_two_loops_resume_by_name(forked, tmp_path, step):
    """Pretrain, then fine-tune with a fresh head: killed in either loop or between them, the end is equal."""
    expected = forked(two_loops, None).value
    commits = (step - 1, step)
    assert forked(lambda: two_loops(tmp_path / "r", AtStep("step_begins", step), commits)).code == -9
    assert forked(lambda: two_loops(tmp_path / "r")).value == expected


def accelerated(dataset):
    """A loader that the real Accelerate prepared."""
    from accelerate import Accelerator

    loader = torch.utils.data.DataLoader(dataset, 4, shuffle=True)
    return Accelerator(cpu=True).prepare(loader)


def plain_iterables(kind, run_dir, killer=None, commits=None):
    samebits.set_random_seed(2)
    process.overrides = CheckOverrides(commit_steps=commits)
    if killer is not None:
        process.observers.append(killer)

    class Unsized:
        def __iter__(self):
            return (torch.randn(4, 6) + i for i in range(7))

    class Passing:
        """A loader that has a state by its looks only, as one that Accelerate prepared."""

        def __init__(self, base, error):
            self.base, self.error = base, error

        def __iter__(self):
            return iter(self.base)

        def __len__(self):
            return len(self.base)

        def state_dict(self):
            if self.error is not None:
                raise self.error
            return self.base.dl_state_dict

        def load_state_dict(self, state):
            raise AssertionError("nothing was saved")

    loader = {
        "without the state that it passes on": lambda: Passing(
            torch.utils.data.DataLoader([torch.ones(6) * i for i in range(20)], 4, shuffle=True), None
        ),
        "whose state raises": lambda: Passing(
            [torch.ones(4, 6) * i for i in range(5)], RuntimeError("broken")
        ),
        "of Accelerate": lambda: accelerated([torch.ones(6) * i for i in range(20)]),
        "torch": lambda: torch.utils.data.DataLoader([torch.ones(6) * i for i in range(20)], 4, shuffle=True),
        "torch with generator": lambda: torch.utils.data.DataLoader(
            [torch.ones(6) * i for i in range(20)],
            4,
            shuffle=True,
            generator=torch.Generator().manual_seed(9),
        ),
        "list": lambda: [torch.ones(4, 6) * i for i in range(5)],
        "unsized": Unsized,
    }[kind]()
    model = nn.Linear(6, 3)
    seen = []
    with samebits.Run(run_dir, model=model, ignore=["seen"]) as run:
        for step, x in run.steps(loader, epochs=3):
            model.weight.data += model(x).mean() * 0.01 + torch.randn(3, 6)
            seen.append((step.epoch, step.batch_index, step.ends_epoch))
    return digest.of_value(model.state_dict()), seen


class LateSampler(torch.utils.data.RandomSampler):
    """Makes its generator when it is first read, as Accelerate's seedable sampler."""

    def __iter__(self):
        self.generator = self.generator or torch.Generator().manual_seed(4)
        return super().__iter__()


def late_generator(run_dir, stop=None):
    samebits.set_random_seed(2)
    dataset = [torch.ones(6) * i for i in range(20)]
    loader = torch.utils.data.DataLoader(dataset, 4, sampler=LateSampler(dataset))
    model = nn.Linear(6, 3)
    process.overrides = CheckOverrides(commit_steps=(7,))
    with samebits.Run(run_dir, model=model) as run:
        for step, x in run.steps(loader, epochs=3):
            model.weight.data += model(x).mean() * 0.01
            if step.number == stop:
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:resuming replays")
def test_a_sampler_that_makes_its_generator_late_is_refused_by_name(forked, tmp_path):
    """The restart has no place to put the saved generator: an error with the cure, not a ValueError of `zip`."""
    assert forked(late_generator, None).code == 0  # negative control: it trains

    def resumed():
        with pytest.raises(
            UnimplementedError, match="had 1 generators .* has 0 now.*samebits.data.DataLoader"
        ):
            late_generator(tmp_path / "r")

    assert forked(late_generator, tmp_path / "r", 9).code == -9
    assert forked(resumed).code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "torch",
        "torch with generator",
        "list",
        "unsized",
        "without the state that it passes on",
        "whose state raises",
        pytest.param(
            "of Accelerate",
            marks=pytest.mark.skipif(not find_spec("accelerate"), reason="accelerate is not installed"),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:resuming replays", "ignore:.*state_dict.. raised RuntimeError")
def test_any_iterable_resumes_by_replay(forked, tmp_path, kind):
    """torch's own DataLoader, a list, and an iterable without length resume to the same bits, by replaying."""
    expected, seen = forked(plain_iterables, kind, None).value
    per_epoch = len(seen) // 3
    assert [s for s in seen if s[2]] == [(epoch, per_epoch - 1, True) for epoch in range(3)]
    for cut in (2, per_epoch, per_epoch + 2):
        run_dir = tmp_path / str(cut)
        killer = AtStep("step_begins", cut)
        assert forked(lambda k=killer, d=run_dir, c=cut: plain_iterables(kind, d, k, (c,))).code == -9
        got, tail = forked(plain_iterables, kind, run_dir).value
        assert got == expected and tail == seen[cut:]

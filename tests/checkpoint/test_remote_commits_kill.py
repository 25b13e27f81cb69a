"""Runs at URLs that are killed: resumed to the same bits on the same machine and on another one, nothing lost."""

import itertools
import os
import random
import signal
import time

import pytest
import torch

import samebits
from at_step import AtStep
from samebits import _digest as digest
from samebits._context import CheckOverrides, Observer, process
from samebits.checkpoint._remote.writer_claim import WRITER
from samebits.checkpoint._store import CommitStore
from samebits.errors import CommitError
from url_storages import DyingFileSystem, break_connection, commit, get, names, newest, state_at, steps

pytestmark = pytest.mark.usefixtures("machine")


def train(url, killer=None, commits=None, save="explicit"):
    """Trains 12 steps and commits each: before the next one (explicit) or while it is computed."""
    samebits.set_random_seed(5)
    process.overrides = CheckOverrides(commit_steps=commits)
    if killer is not None:
        process.observers.append(killer)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    loader = samebits.data.DataLoader(
        [(torch.full((6,), i / 22), i % 3) for i in range(12)], batch_size=4, shuffle=True
    )
    check = not str(url).startswith("unreliable")  # it would find that storage's memory, which changes
    with samebits.Run(url, model=model, optimizer=optimizer, save=save, check_complete=check) as run:
        for step, (x, y) in run.steps(loader, epochs=4):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if save == "explicit":
                run.commit()
            else:
                time.sleep(0.01)
    return digest.of_value([model.state_dict(), optimizer.state_dict()]), run.resumed


class Committed(Observer):
    """Notes, whenever a commit is said to be durable, the newest commit at the URL."""

    def __init__(self, url):
        self.url, self.steps = url, []

    def committed(self, run, step):
        self.steps.append((step.step, newest(self.url)[0]))


class Stopped(Exception):
    pass


def stop():
    raise Stopped


@pytest.mark.first_case_quick
@pytest.mark.parametrize("other", ["a", "b"])
@pytest.mark.parametrize("event", ["boundary", "commit_writing"])
def test_a_run_in_memory_is_resumed_to_the_same_bits(machine, event, other):
    """Ended by an exception at a boundary or between tensors and manifest, a run in memory:// ends as uninterrupted, on each machine."""
    expected, resumed = train(None)
    assert not resumed
    with pytest.raises(Stopped):
        train("memory://runs/a", AtStep(event, 6, stop))
    process.observers.clear()
    machine(other)
    assert train("memory://runs/a") == (expected, True)
    assert train("memory://runs/a") == (expected, True)  # finished: its end is restored
    assert train("memory://runs/b") == (expected, False)  # the control: another place
    assert [step for step, _ in names("memory://runs/a")] == [12, 11]


@pytest.mark.first_case_quick
@pytest.mark.parametrize("other", ["a", "b"])
@pytest.mark.parametrize("event", ["boundary", "commit_writing"])
@pytest.mark.parametrize("step", [1, 6, 11])
def test_a_killed_run_behind_a_file_url_is_resumed_to_the_same_bits(
    forked, machine, tmp_path, event, step, other
):
    """SIGKILL at a boundary and between tensors and manifest; the next process takes the directory over at once, on each machine."""
    url = f"file://{tmp_path}/r"
    assert forked(lambda: train(url, AtStep(event, step))).code == -9
    assert b'"ended": false' in get(url, WRITER)
    machine(other)
    assert forked(train, url).value == (train(None)[0], step > 1)
    assert b'"ended": true' in get(url, WRITER)
    assert {status for _, status in names(url)} == {"valid"}


@pytest.mark.parametrize("other", ["a", "b"])
@pytest.mark.parametrize("step", [3, 11])
def test_a_killed_run_with_asynchronous_commits_is_resumed_to_the_same_bits(
    forked, machine, tmp_path, step, other
):
    """save=1: commits are written and uploaded while the run computes; SIGKILLed, it ends as uninterrupted, on each machine."""
    url = f"file://{tmp_path}/r"
    assert forked(lambda: train(url, AtStep("boundary", step), save=1)).code == -9
    machine(other)
    assert forked(lambda: train(url, save=1)).value[0] == train(None)[0]
    assert names(url)[0] == (12, "valid")


def test_a_commit_counts_as_durable_when_it_is_at_the_url(tmp_path):
    """`committed` comes, for asynchronous commits and for others, when the newest commit at the URL is of that step or later."""
    url = f"file://{tmp_path}/r"
    for save, least in ((1, 1), ("explicit", 12)):
        observer = Committed(f"{url}-{save}")
        train(observer.url, observer, save=save)
        process.observers.remove(observer)
        assert len(observer.steps) >= least and observer.steps[-1] == (12, 12)
        assert all(there >= step for step, there in observer.steps)


@pytest.mark.parametrize("save", [1, "explicit"])
@pytest.mark.parametrize("other", ["a", "b"])
def test_a_connection_lost_in_the_training_is_a_commit_error(machine, save, other):
    """From some call on nothing answers: CommitError at the next boundary or at the commit; with the connection back, the same bits."""
    url, expected = "unreliable://runs/a", train(None)[0]

    with (
        pytest.warns(UserWarning, match=r"commit of step \d+ to unreliable://runs/a failed"),
        pytest.raises(CommitError, match=r"Check the connection, the credentials and the URL"),
    ):
        train(url, AtStep("boundary", 6, lambda: break_connection(3)), save=save)
    process.observers.clear()
    break_connection(None)
    there = max(steps(url), default=0)  # of a busy machine's asynchronous commits none may be there yet
    assert there <= 7 and (save == 1 or there >= 3)
    machine(other)
    assert train(url, save=save) == (expected, other == "a" or there > 0)
    assert names(url)[0] == (12, "valid")


@pytest.mark.first_case_quick
@pytest.mark.parametrize("other", ["a", "b"])
def test_a_kill_at_any_call_of_an_upload_leaves_whole_commits(forked, machine, tmp_path, other):
    """SIGKILL at each call to the storage in a commit: 1 or 2 is whole there, here 2; both machines go on, to whole commits."""
    there = set()

    def killed(url, calls):
        with CommitStore(url, keep=1) as store:
            commit(store, 1)
            DyingFileSystem.left = calls
            commit(store, 2)
            DyingFileSystem.left = None

    for calls in itertools.count():
        machine(f"a{calls}")
        url = f"dying://{tmp_path}/{calls}"
        code = forked(killed, url, calls).code
        if code == 0:
            break
        assert code == -9
        step, state, damaged = newest(url)
        assert damaged == 0  # none with a manifest is half there
        assert digest.of_value(state) == digest.of_value(state_at(step))
        there.add(step)
        machine(f"{other}{calls}")
        with CommitStore(url, keep=1) as store:
            assert store.newest()[0].step == (2 if other == "a" else step)
            commit(store, 3)
        assert names(url) == [(3, "valid")]
    assert calls > 5 and there == {1, 2}


def committing(url, report):
    """Commits step after step and reports each when commit() has returned."""
    with CommitStore(url) as store:
        found = store.newest()
        for step in range(found[0].step + 1 if found else 0, 10**6):
            commit(store, step)
            os.write(report, b"%d\n" % step)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("other", ["a", "b"])
def test_no_kill_loses_a_commit_that_was_reported(machine, tmp_path, other):
    """SIGKILL at 20 random instants (or more, until 3 hit one in the middle) of a committing process: what it reported is there, whole, and the next, on either machine, goes on from it."""
    url, chance, last, unfinished = f"file://{tmp_path}/r", random.Random(3), -1, 0
    for kills in itertools.count(1):
        machine(other if kills % 2 else "a")
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                committing(url, writer)
            finally:
                os._exit(1)
        os.close(writer)
        told = os.read(reader, 100)
        time.sleep(chance.uniform(0, 0.01))
        os.kill(child, signal.SIGKILL)
        told += b"".join(iter(lambda: os.read(reader, 4096), b""))
        os.close(reader)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
        # with one uploaded and not reported, and one here alone
        assert int(told.split()[0]) in (last + 1, last + 2, last + 3)
        last = max(map(int, told.split()))
        step, state, _ = newest(url)
        assert step in (last, last + 1)
        assert digest.of_value(state) == digest.of_value(state_at(step))
        unfinished += len(os.listdir(tmp_path / "r" / "commits")) != 2
        if kills >= 20 and unfinished > 2:  # the kills did hit commits in the middle
            break
        assert kills < 400

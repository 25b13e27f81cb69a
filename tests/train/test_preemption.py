"""SIGTERM, SIGUSR1 and the first Ctrl-C, wherever a run is: the boundary is committed, exit code 75, equal bits afterwards."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn

import samebits
from samebits import _digest as digest
from samebits._context import CheckOverrides, Observer, process

LONG = 200
"""Seconds of what is interrupted."""


class Slow(torch.utils.data.Dataset):
    """Sends `number` to the training process before element `at` and then blocks, in the process that started it."""

    def __init__(self, at=None, number=signal.SIGTERM):
        self.at, self.number, self.parent = at, number, os.getpid()

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index == self.at:
            os.kill(self.parent, self.number)
            time.sleep(LONG)
        return torch.randn(4) + index


class SlowIterable:
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return (torch.stack([self.dataset[i + 4 * k] for i in range(4)]) for k in range(3))


class Harder(samebits.data.DataLoader):
    """Has a state of its own beside the position: the batches grow from one to the next."""

    level = 0

    def __iter__(self):
        for batch in super().__iter__():
            self.level += 1
            yield batch * self.level

    def state_dict(self):
        return {**super().state_dict(), "level": self.level}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.level = state.get("level", 0)


LOADERS = {
    "inline": lambda data: samebits.data.DataLoader(data, batch_size=4, shuffle=True),
    "worker": lambda data: samebits.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=1),
    "pipeline": lambda data: samebits.data.Pipeline.from_source(data).shuffle().batch(4),
    "torch": lambda data: torch.utils.data.DataLoader(data, batch_size=4, shuffle=True),
    "torch worker": lambda data: torch.utils.data.DataLoader(data, batch_size=4, shuffle=True, num_workers=1),
    "generator": SlowIterable,
}


def train(run_dir, loader=None, *, body=lambda step: None, validate=None, grace=20.0, commits=(), **options):
    """Two epochs of three steps; `body` is called in the body of each step, `validate` gives the batches of a validation."""
    samebits.set_random_seed(5)
    process.overrides = CheckOverrides(commit_steps=commits)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
    opt = torch.optim.Adam(model.parameters(), 0.05)
    loader = LOADERS["inline"](Slow()) if loader is None else loader
    with samebits.Run(run_dir, model=model, opt=opt, grace=grace, **options) as run:
        for step, x in run.steps(loader, epochs=2):
            opt.zero_grad()
            model(x).square().mean().backward()
            opt.step()
            body(step)
            if step.ends_epoch and validate is not None:
                for x in run.validate(validate):
                    run.state.total = run.state.get("total", 0.0) + float(model(x).sum().detach())
    return digest.of_value([model.state_dict(), opt.state_dict(), dict(run.state)]), run.resumed


def at(number, act):
    return lambda step: act() if step.number == number else None


def kill(number):
    return lambda: os.kill(os.getpid(), number)


def timed(work):
    begun = time.monotonic()
    ended = work()
    return ended, time.monotonic() - begun


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_in_the_body_commits_the_next_boundary(forked, tmp_path, capfd, number):
    """Each of the three signals: a line at once, the boundary behind the body durable, exit code 75, then equal bits."""
    expected = forked(lambda: train(None)).value[0]
    assert forked(lambda: train(tmp_path / "r", body=at(2, kill(number)))).code == 75
    said = [line for line in capfd.readouterr().err.splitlines() if number.name in line]
    assert (
        len(said) == 2
        and f"{number.name}: saving after this step (3)" in said[0]
        and "committed at step 3" in said[1]
    )
    assert forked(lambda: train(tmp_path / "r")).value == (expected, True)


def test_without_a_run_directory_signals_are_left_alone(forked):
    """Negative control: a run that saves nothing takes no signal over, so that SIGTERM ends it as any program."""
    assert forked(lambda: train(None, body=at(2, kill(signal.SIGTERM)))).code == -signal.SIGTERM


@pytest.mark.first_case_quick
@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.filterwarnings("ignore:resuming replays")
def test_a_wait_for_a_batch_is_interrupted(forked, tmp_path, kind):
    """A loader that blocks for a minute: the boundary before the batch is committed at once, and resumed to equal bits."""
    expected = forked(lambda: train(None, LOADERS[kind](Slow()))).value[0]

    def interrupted():
        try:
            train(tmp_path / "r", LOADERS[kind](Slow(7)), commits=(0,))
        finally:
            multiprocessing.util._exit_function()  # what the interpreter's own end does

    ended, seconds = timed(lambda: forked(interrupted))
    assert ended.code == 75 and seconds < LONG / 4
    got, resumed = forked(lambda: train(tmp_path / "r", LOADERS[kind](Slow()))).value
    assert resumed and got == expected


def test_a_wait_for_a_batch_of_a_loader_with_more_state_is_interrupted(forked, tmp_path):
    """What the user's class adds to the state is in the commit: step 1's batch is multiplied as if nothing had happened."""
    expected = forked(lambda: train(None, Harder(Slow(), batch_size=4))).value[0]
    assert forked(lambda: train(tmp_path / "r", Harder(Slow(5), batch_size=4))).code == 75
    assert forked(lambda: train(tmp_path / "r", Harder(Slow(), batch_size=4))).value == (expected, True)


def test_start_up_ends_at_once(forked, tmp_path, capfd):
    """Before the first step there is nothing to save: exit code 75 at once; a commit that was there before stands."""

    def slow_start():
        with samebits.Run(tmp_path / "r"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(LONG)

    samebits.set_random_seed(5)
    assert forked(slow_start).code == 75
    assert "nothing was committed" in capfd.readouterr().err
    expected = forked(lambda: train(None)).value[0]
    assert forked(lambda: train(tmp_path / "s", body=at(2, kill(signal.SIGKILL)), commits=(2,))).code == -9

    class Slower(Observer):
        def run_opened(self, run):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(LONG)

    def restarted():
        process.observers.append(Slower())
        train(tmp_path / "s")

    assert forked(restarted).code == 75
    assert "committed at step 2" in capfd.readouterr().err
    assert forked(lambda: train(tmp_path / "s")).value == (expected, True)


@pytest.mark.parametrize("place", ["body", "wait"])
def test_a_signal_in_a_validation(forked, tmp_path, place):
    """SIGTERM between two batches of a validation, or while one is awaited, ends the run there: equal bits afterwards."""
    batches = [torch.ones(2, 4) * i for i in range(3)]
    expected = forked(lambda: train(None, validate=batches)).value[0]

    class Signals:
        def __iter__(self):
            yield batches[0]
            os.kill(os.getpid(), signal.SIGTERM)
            if place == "wait":
                time.sleep(LONG)
            yield from batches[1:]

    ended, seconds = timed(lambda: forked(lambda: train(tmp_path / "r", validate=Signals(), commits=(1,))))
    assert ended.code == 75 and seconds < LONG / 4
    assert forked(lambda: train(tmp_path / "r", validate=batches)).value == (expected, True)


def blocked_in_python():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(LONG)


def blocked_in_c():
    """A mutex that is locked twice waits for ever, and no handler of Python's runs: as a collective without its peer."""
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM]).start()
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)


@pytest.mark.first_case_quick
@pytest.mark.parametrize("block", [blocked_in_python, blocked_in_c], ids=lambda f: f.__name__)
def test_a_body_that_does_not_come_back_is_ended_in_time(forked, tmp_path, capfd, block):
    """A body that sleeps, or hangs in one C call: within the grace period exit code 75, and the last commit stands."""
    expected = forked(lambda: train(None)).value[0]
    ended, seconds = timed(
        lambda: forked(lambda: train(tmp_path / "r", body=at(4, block), grace=1.5, commits=(3,)))
    )
    assert ended.code == 75 and seconds < LONG / 4
    assert "did not react within 1.5 s; committed at step 3" in capfd.readouterr().err
    assert forked(lambda: train(tmp_path / "r")).value == (expected, True)


class SignalsInCommit(Observer):
    def commit_writing(self, run, step):
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_second_signals_do_not_break_a_commit(forked, tmp_path, number):
    """The same signal again while the commit of the first one is written: it is whole, and the run goes on from it."""
    expected = forked(lambda: train(None)).value[0]

    def twice():
        watcher = SignalsInCommit()
        watcher.number = number
        process.observers.append(watcher)
        try:
            train(tmp_path / "r", body=at(2, kill(number)))
        except KeyboardInterrupt:
            os._exit(130)

    assert forked(twice).code == (75 if number == signal.SIGTERM else 130)
    assert forked(lambda: train(tmp_path / "r")).value == (expected, True)


TWICE = """
import os, signal, sys, time
import samebits
samebits.set_random_seed(1)
with samebits.Run(sys.argv[1], save=1) as run:
    for step, x in run.steps([1, 2, 3]):
        if step.number == 1:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(200)
"""


def test_a_second_ctrl_c_stops_at_once_with_one_line(tmp_path):
    """Ctrl-C twice: KeyboardInterrupt in the middle of the body, and one line instead of a traceback: the newest commit."""
    done = subprocess.run(
        [sys.executable, "-c", TWICE, tmp_path / "r"], capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == -signal.SIGINT, done.stderr
    assert "Traceback" not in done.stderr
    newest = max(
        (int(name[:12]) for name in os.listdir(tmp_path / "r" / "commits") if name[0] == "0"), default=None
    )
    what = "nothing was committed" if newest is None else f"committed at step {newest}"
    assert f"samebits: stopped at once; {what} in" in done.stderr.splitlines()[-1]


def test_handlers_of_the_user_are_called_and_put_back(forked, tmp_path):
    """A handler that was there before is called, too, and is there again after the run; an ignored signal stays ignored."""

    def program():
        seen = []
        signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        mine = signal.getsignal(signal.SIGUSR1)
        train(tmp_path / "whole", body=at(1, kill(signal.SIGINT)))
        kept = signal.getsignal(signal.SIGUSR1) is mine and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        try:
            train(tmp_path / "r", body=at(2, kill(signal.SIGUSR1)))
        except SystemExit as leaving:
            return kept, leaving.code, seen

    assert forked(program).value == (True, 75, [signal.SIGUSR1])


def test_signals_while_the_program_is_ending_change_nothing(forked, tmp_path):
    """A scheduler that sends SIGTERM again and again still gets exit code 75."""

    def program():
        try:
            train(tmp_path / "r", body=at(2, kill(signal.SIGTERM)))
        finally:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)

    assert forked(program).code == 75


def test_a_forked_child_has_its_own_signals(forked, tmp_path):
    """A process that the loop's body forks dies of SIGTERM as any other, and the run does not take it for its own."""

    def program():
        codes = []

        def body(step):
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(LONG,))
            child.start()
            time.sleep(0.1)
            child.terminate()
            child.join()
            codes.append(child.exitcode)

        train(tmp_path / "r", body=at(1, lambda: body(None)), check_complete=False)
        return codes

    assert forked(program).value == [-signal.SIGTERM]


def test_an_error_after_the_signal_is_told_and_the_exit_code_stays(forked, tmp_path, capfd):
    """What a dying peer makes the body raise after SIGTERM is one line; the program says: start me again."""

    def body():
        os.kill(os.getpid(), signal.SIGTERM)
        raise RuntimeError("connection closed by peer")

    assert forked(lambda: train(tmp_path / "r", body=at(2, body), commits=(1,))).code == 75
    err = capfd.readouterr().err
    assert "after the signal: RuntimeError: connection closed by peer" in err and "committed at step 1" in err


def test_outside_of_the_main_thread_a_run_says_what_it_cannot_do(tmp_path):
    """A run that is entered in another thread warns once, and trains."""
    caught = []

    def work():
        with pytest.warns(UserWarning, match="outside of the main thread") as warned:
            caught.append(train(tmp_path / "r"))
        caught.append(len(warned))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert caught[0] == train(tmp_path / "s") and caught[1] == 1


HANGS = """
import atexit, os, signal, sys, time
import samebits
atexit.register(time.sleep, 200)
samebits.set_random_seed(1)
with samebits.Run(sys.argv[1], grace=4.0) as run:
    for step, x in run.steps([1, 2, 3]):
        if step.number == 1:
            os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.slow
def test_an_interpreter_that_hangs_at_its_end_is_ended(tmp_path):
    """Exit handlers that block do not hold the process beyond the grace period."""
    command = [sys.executable, "-c", HANGS, tmp_path / "r"]
    done, seconds = timed(lambda: subprocess.run(command, capture_output=True, text=True, timeout=LONG))
    assert done.returncode == 75 and "committed at step 2" in done.stderr and seconds < LONG / 2


def test_grace_must_be_seconds(tmp_path):
    """A grace period of nothing, or for ever, is refused."""
    for grace in (0, -1.0, float("inf"), float("nan")):
        with pytest.raises(samebits.errors.InvalidArgumentError, match="grace"):
            samebits.Run(tmp_path, grace=grace)

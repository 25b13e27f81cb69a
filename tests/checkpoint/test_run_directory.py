"""One writer per run directory: the second is told who, and a killed one does not keep the lock."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
import torch

from samebits.checkpoint._store import CommitStore
from samebits.errors import RunDirectoryError
from store_commits import write_commit

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {}}
OWNER = """
import fcntl, os, sys, time
from samebits.checkpoint._store import CommitStore
store = CommitStore(sys.argv[1])
store.open()
flocked = open(sys.argv[1] + "/flocked", "w")
fcntl.flock(flocked, fcntl.LOCK_EX)
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
time.sleep(60)
"""


@contextmanager
def owner(run_dir):
    """A process that holds the run directory, and the pid of a child that it forked, as a loader does."""
    process = subprocess.Popen([sys.executable, "-c", OWNER, run_dir], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    try:
        yield process, child
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.kill(child, signal.SIGKILL)


def test_a_second_process_is_told_who_has_the_run_and_gets_it_when_the_first_is_killed(tmp_path):
    """While a process lives its pid and host are named; after its SIGKILL the lock is free at once, though its child lives."""
    with owner(tmp_path) as (process, child):
        with pytest.raises(
            RunDirectoryError, match=f"in use by process {process.pid} on host {socket.gethostname()}"
        ):
            CommitStore(tmp_path).open()
        process.kill()
        process.wait()
        with CommitStore(tmp_path) as store:
            write_commit(store, 1, {}, **FACTS)
        os.kill(child, 0)  # it does live
        with open(tmp_path / "flocked") as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # negative control: flock would still be held


def in_child(call):
    """Exit code 0 if `call` is true in a forked child of this process."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if call() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def raises(call, words):
    try:
        call()
    except RunDirectoryError as error:
        return words in str(error)
    return False


def test_a_forked_child_neither_commits_nor_releases_the_lock(tmp_path):
    """In a child of the owner commit() and open() raise, and its close() leaves the parent's lock in place."""
    with CommitStore(tmp_path) as store:
        assert in_child(lambda: raises(lambda: write_commit(store, 1, {}, **FACTS), "has not opened")) == 0
        assert in_child(lambda: store.close() is None) == 0
        assert in_child(lambda: raises(CommitStore(tmp_path).open, f"process {os.getppid()}")) == 0
        write_commit(store, 1, {"x": torch.ones(1)}, **FACTS)
    assert in_child(lambda: CommitStore(tmp_path).open() is None) == 0  # negative control: free after close()


def test_one_process_opens_a_run_once(tmp_path):
    """A second open() in one process raises, also through another path, and works again after close()."""
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with CommitStore(tmp_path / "run") as store:
        for again in (CommitStore(tmp_path / "link"), store):
            with pytest.raises(RunDirectoryError, match="already open in this process"):
                again.open()
        write_commit(store, 0, {}, **FACTS)
    with CommitStore(tmp_path / "link"):
        pass

"""Two processes, and two machines, with one run directory at a URL: the earlier one is told, no old commit comes back."""

import json
import os
import shutil
import signal
import time

import pytest

from samebits import _digest as digest
from samebits.checkpoint._listing import prune
from samebits.checkpoint._remote.remote_commits import staging_folder
from samebits.checkpoint._remote.writer_claim import WRITER
from samebits.checkpoint._retention import step_of
from samebits.checkpoint._store import CommitStore
from samebits.errors import CommitError, RemoteStorageError, RunDirectoryError
from url_storages import UnreliableFileSystem, commit, get, names, newest, put, state_at, steps

FAR = {
    "id": "x",
    "staging": "y",
    "host": "far",
    "pid": 7,
    "since": "2026-01-01T00:00:00+00:00",
    "ended": False,
}


pytestmark = pytest.mark.usefixtures("machine")


def staging_commits(url):
    return [step_of(name) for name in os.listdir(staging_folder(url) / "commits")]


def in_child(work):
    """The process id of a child that does `work`, says so, and sleeps."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            os.write(writer, b"1")
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(writer)
    assert os.read(reader, 1) == b"1"
    os.close(reader)
    return child


def end(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_live_process_of_this_machine_keeps_others_out(tmp_path, capfd):
    """While another process has the directory open: RunDirectoryError that names it; SIGKILLed (control), it opens at once, without a word."""
    url = f"file://{tmp_path}/r"
    child = in_child(CommitStore(url).open)
    try:
        with pytest.raises(RunDirectoryError, match=rf"{url}.*in use by process {child} on host"):
            CommitStore(url).open()
        with pytest.raises(RunDirectoryError, match="in use by"):
            prune(url, 1)
    finally:
        end(child)
    with CommitStore(url) as store:
        commit(store, 1)
    assert capfd.readouterr().err == ""


def test_of_two_machines_the_earlier_is_told_at_its_next_commit(tmp_path, machine, capfd):
    """B opens what A has open: B is told of A, A's next commit is a CommitError that names B, B's commits stand; alone (control) A commits."""
    url = f"file://{tmp_path}/r"
    with CommitStore(url) as first:
        commit(first, 1)
        commit(first, 2)

        def on_b():
            machine("b")
            store = CommitStore(url)
            store.open()
            assert store.newest()[0].step == 2
            commit(store, 3, program={"of": "b"})

        child = in_child(on_b)
        try:
            told = capfd.readouterr().err
            assert f"process {os.getpid()} on host" in told and "takes over" in told
            with pytest.raises(
                CommitError, match=rf"process {child} on host .* two processes cannot write one run; end one"
            ):
                commit(first, 3)
            assert names(url) == [(3, "valid"), (2, "valid")]
        finally:
            end(child)
    assert json.loads(get(url, WRITER))["pid"] == child
    machine("b")
    with CommitStore(url) as store:
        assert store.newest()[0].program == {"of": "b"}


@pytest.mark.parametrize(
    "text",
    [json.dumps(FAR).encode(), b'{"id": "x"}', b"", b"[1]", b"\xff{", b"[" * 10**5, b'{"staging": ["x"]}'],
)
def test_the_claim_of_another_machine_is_taken_over_at_once(url, capfd, text):
    """One that has not ended, or cannot be read: the run begins, and says whose it was, if that is known."""
    put(url, WRITER, text)
    put(url, "samebits-run.json", b"{}")
    with CommitStore(url) as store:
        commit(store, 1)
    assert names(url) == [(1, "valid")]
    told = capfd.readouterr().err
    assert ("takes over" in told) == text.startswith(b'{"')
    assert ("process 7 on host 'far' has opened" in told) == (b"far" in text)
    put(url, WRITER, json.dumps({**FAR, "ended": True}).encode())
    with CommitStore(url):
        assert capfd.readouterr().err == ""  # the control: it had left


def test_a_process_that_was_taken_over_leaves_the_others_claim(url):
    """After another machine opened: CommitError that names it, the newest commit stays, and its claim is not touched."""
    with CommitStore(url) as store:
        commit(store, 1)
        put(url, WRITER, json.dumps(FAR).encode())
        with pytest.raises(
            CommitError, match=r"step 1 is safe. process 7 on host 'far' has opened .* since '2026"
        ):
            commit(store, 2)
    assert names(url) == [(1, "valid")]
    assert json.loads(get(url, WRITER)) == FAR


def test_a_directory_that_was_removed_under_the_run_is_an_error(url):
    """Its writer.json is gone: CommitError that says so, at the next commit."""
    with CommitStore(url) as store:
        commit(store, 1)
        store._remote.files.remove(WRITER)
        with pytest.raises(CommitError, match=r"was removed \(its writer.json is gone\)"):
            commit(store, 2)


def test_prune_waits_for_the_process_of_another_machine(url, machine):
    """What another machine has open is not pruned, with the cure; once that has ended, or runs here no more (control), it is."""
    with CommitStore(url, keep=9) as store:
        for step in (1, 2, 3):
            commit(store, step)
        own = get(url, WRITER)
        machine("b")
        with pytest.raises(
            RunDirectoryError,
            match=rf"process {os.getpid()} on .*has not closed it.*remove {url}/writer.json",
        ):
            prune(url, 1)
        assert steps(url) == [3, 2, 1]
    assert len(prune(url, 2)[1]) == 1
    put(url, WRITER, own)  # as after SIGKILL
    machine("a")
    assert len(prune(url, 1)[1]) == 1
    with CommitStore(url) as store:
        assert store.newest()[0].step == 3


@pytest.fixture
def stale(machine):
    """Machine A has commits 1 and 2 at the URL, and 3 in its staging folder alone: its connection was lost."""
    url = "unreliable://runs/a"
    with CommitStore(url) as store:
        commit(store, 1)
        commit(store, 2)
        UnreliableFileSystem.left = 0
        with pytest.raises(CommitError, match="connection reset"):
            commit(store, 3)
        UnreliableFileSystem.left = None
    assert steps(url) == [2, 1]
    return url


def test_what_only_this_machine_has_is_uploaded_by_the_next_start(stale, capfd):
    """The control of those below: nobody else has opened the directory, so A goes on from 3, and uploads it."""
    with CommitStore(stale) as store:
        assert store.newest()[0].step == 3
        store.publish(wait=True)
        assert steps(stale) == [3, 2]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("last", [3, 4])
def test_a_machine_never_goes_on_from_its_old_commit(stale, machine, capfd, last):
    """A, B, A: B went on from 2 to 3 or 4, so A drops its own 3 with a line, reads B's, and the chain goes on from there."""
    machine("b")
    with CommitStore(stale) as store:
        assert store.newest()[0].step == 2
        for step in range(3, last + 1):
            made = commit(store, step, program={"of": "b"})
    machine("a")
    capfd.readouterr()
    with CommitStore(stale) as store:
        assert store.newest()[0] == made
        told = capfd.readouterr().err
        assert "commits that only this machine has are deleted (of step" in told and told.count("\n") == 1
        assert commit(store, 5).parent == made.digest
    assert steps(stale) == [5, last]
    machine("b")
    with CommitStore(stale) as store:
        assert digest.of_value(store.newest()[1]) == digest.of_value(state_at(5))
    assert capfd.readouterr().err == ""


def test_a_kill_in_opening_leaves_the_old_commit_stale(stale, machine):
    """A, B, A, where A's connection breaks at each call of opening in turn: it never goes on from its own 3."""
    machine("b")
    with CommitStore(stale) as store:
        assert store.newest()[0].step == 2
        made = commit(store, 3, program={"of": "b"})
    machine("a")
    for calls in range(100):
        store = CommitStore(stale)
        UnreliableFileSystem.left = calls
        try:
            store.open()
            break
        except RemoteStorageError:
            UnreliableFileSystem.left = 0  # nothing is put right at the end, as after SIGKILL
        finally:
            store.close()
    assert calls > 5
    UnreliableFileSystem.left = None
    assert CommitStore(stale).newest()[0] == made
    assert staging_commits(stale) == [2]


def test_a_machine_that_made_no_commit_drops_none(stale, machine, capfd):
    """A, B, A where B only opened the directory: the newest commit there is still A's, so A goes on from its 3."""
    machine("b")
    with CommitStore(stale) as store:
        assert store.newest()[0].step == 2
    machine("a")
    with CommitStore(stale) as store:
        assert store.newest()[0].step == 3
        store.publish(wait=True)
    assert steps(stale) == [3, 2] and capfd.readouterr().err == ""


def test_a_directory_that_was_removed_is_not_filled_again(url, machine, capfd):
    """Everything at the URL is removed: the next start drops what the staging folder has, with a line, and begins at the first step."""
    with CommitStore(url) as store:
        commit(store, 1)
    store._remote.files._files.rm(store._remote.files._root, recursive=True)
    with CommitStore(url) as store:
        assert store.newest() is None
        assert "or was removed" in capfd.readouterr().err
        commit(store, 0)
    assert newest(url)[0] == 0


def test_a_staging_folder_may_be_removed_between_two_runs(url):
    """It is a cache: without it, the next start reads the URL."""
    for step in (1, 2):
        with CommitStore(url) as store:
            assert (store.newest() is None) == (step == 1)
            commit(store, step)
        shutil.rmtree(staging_folder(url))
    assert names(url) == [(2, "valid"), (1, "valid")]

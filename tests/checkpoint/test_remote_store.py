"""Run directories behind fsspec URLs: resumed to the same bits, one writer, nothing lost with the connection."""

import itertools
import os
import random
import signal
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import fsspec
import pytest
import torch
from fsspec.implementations.memory import MemoryFileSystem

import samebits
from samebits import _digest as digest
from samebits.checkpoint._remote.remote_store import RemoteStore
from samebits.checkpoint import list_commits
from samebits.checkpoint import load_commit
from samebits.checkpoint._listing import prune
from samebits.checkpoint._remote.lease import LEASE
from samebits._context import Observer, CheckOverrides, process, resolve_run_dir
from samebits.errors import (
    CommitError,
    CorruptCommitError,
    InvalidArgumentError,
    RemoteStorageError,
    RunDirectoryError,
)

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {}}


class UnreliableFileSystem(MemoryFileSystem):
    """Memory behind a connection that breaks after `left` calls."""

    protocol = "unreliable"
    store, pseudo_dirs = {}, [""]
    left = None

    @classmethod
    def _call(cls):
        if cls.left is not None:
            cls.left -= 1
            if cls.left < 0:
                raise ConnectionResetError("connection reset by peer")

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.removeprefix("unreliable://"))

    def ls(self, *args, **kwargs):
        self._call()
        return super().ls(*args, **kwargs)

    def info(self, *args, **kwargs):
        self._call()
        return super().info(*args, **kwargs)

    def _open(self, *args, **kwargs):
        self._call()
        return super()._open(*args, **kwargs)

    def rm_file(self, *args, **kwargs):
        self._call()
        return super().rm_file(*args, **kwargs)


fsspec.register_implementation("unreliable", UnreliableFileSystem, clobber=True)


@pytest.fixture(autouse=True)
def _nothing_in_memory():
    for kind in (MemoryFileSystem, UnreliableFileSystem):
        kind.store.clear()
        kind.pseudo_dirs[:] = [""]
    UnreliableFileSystem.left = None


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return f"memory://bucket{tmp_path}/run" if request.param == "memory" else f"file://{tmp_path}/deep/run"


def files(url):
    system, root = fsspec.core.url_to_fs(url)
    return sorted(str(name)[len(root) + 1 :] for name in system.find(root))


def put(url, name, data):
    system, root = fsspec.core.url_to_fs(url)
    system.makedirs(f"{root}/{name}".rpartition("/")[0], exist_ok=True)
    with system.open(f"{root}/{name}", "wb") as file:
        file.write(data)


def get(url, name):
    system, root = fsspec.core.url_to_fs(url)
    return system.cat_file(f"{root}/{name}")


def state_at(step):
    return {
        "w": torch.arange(300.0) + step,
        "n": torch.tensor(step),
        "c": torch.ones(2, 3, 2, 2).to(memory_format=torch.channels_last),
    }


def commit(store, step, **facts):
    return store.commit(step, state_at(step), **{**FACTS, **facts})


def names(url):
    return [(listed.step, listed.status) for listed in list_commits(url, verify=True)]


def train(url, killer=None, commits=None):
    samebits.set_random_seed(5)
    process.overrides = CheckOverrides(commit_steps=commits)
    if killer is not None:
        process.observers.append(killer)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters())
    loader = samebits.data.DataLoader(
        [(torch.full((6,), i / 22), i % 3) for i in range(12)], batch_size=4, shuffle=True
    )
    with samebits.Run(url, model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=4):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.commit()
    return digest.of_value([model.state_dict(), optimizer.state_dict()]), run.resumed


class Killer(Observer):
    def __init__(self, event, step, act=lambda: os.kill(os.getpid(), signal.SIGKILL)):
        self.event, self.step, self.act = event, step, act

    def commit_writing(self, run, step):
        if self.event == "commit_writing" and step.step == self.step:
            self.act()

    def boundary(self, run, step, frame):
        if self.event == "boundary" and step.step == self.step:
            self.act()


class Stopped(Exception):
    pass


def stop():
    raise Stopped


@pytest.mark.parametrize("event", ["boundary", "commit_writing"])
def test_a_run_in_memory_is_resumed_to_the_same_bits(event):
    """Ended by an exception at a boundary or between tensors and manifest, a run in memory:// ends as uninterrupted."""
    expected, resumed = train(None)
    assert not resumed
    with pytest.raises(Stopped):
        train("memory://runs/a", Killer(event, 6, stop))
    process.observers.clear()
    assert train("memory://runs/a") == (expected, True)
    assert train("memory://runs/a") == (expected, True)  # finished: its end is restored
    assert train("memory://runs/b") == (expected, False)  # the control: another place
    assert [step for step, _ in names("memory://runs/a")] == [12, 11]


@pytest.mark.parametrize("event", ["boundary", "commit_writing"])
@pytest.mark.parametrize("step", [1, 6, 11])
def test_a_killed_run_behind_a_file_url_is_resumed_to_the_same_bits(forked, tmp_path, event, step):
    """SIGKILL at a boundary and between tensors and manifest; the next process takes the dead one's lease at once."""
    url = f"file://{tmp_path}/r"
    assert forked(lambda: train(url, Killer(event, step))).code == -9
    assert LEASE in files(url)
    assert forked(train, url).value == (train(None)[0], step > 1)
    assert LEASE not in files(url)
    assert {status for _, status in names(url)} == {"valid"}


@pytest.mark.filterwarnings("ignore:skipped the damaged commit")
@pytest.mark.parametrize("name", ["manifest.json", "tensors.safetensors"])
@pytest.mark.parametrize("keep", [0, 100])
def test_a_file_that_is_half_written_is_skipped(url, name, keep):
    """A storage that writes in place, killed in the middle: the commit before is read; a commit of the same bits mends it."""
    with RemoteStore(url) as store:
        for step in (1, 2):
            commit(store, step)
    path = f"commits/{list_commits(url)[0].folder.name}/{name}"
    put(url, path, get(url, path)[:keep])
    with RemoteStore(url) as store:
        manifest, state = store.newest()
        assert (manifest.step, len(store.skipped)) == (1, 1)
        assert digest.of_value(state) == digest.of_value(state_at(1))
        assert names(url) == [(2, "damaged"), (1, "valid")]
        commit(store, 2)
        assert names(url) == [(2, "valid"), (1, "valid")]


def committing(url, report):
    """Commits step after step and reports each when commit() has returned."""
    with RemoteStore(url) as store:
        found = store.newest()
        for step in range(found[0].step + 1 if found else 0, 10**6):
            commit(store, step)
            os.write(report, b"%d\n" % step)


@pytest.mark.filterwarnings("ignore")
def test_no_kill_loses_a_commit_that_was_reported(tmp_path):
    """SIGKILL at 20 random instants (or more, until 3 hit one in the middle) of a committing process: what it reported is there, whole, and the next goes on from it."""
    url, chance, last, unfinished = f"file://{tmp_path}/r", random.Random(3), -1, 0
    for kills in itertools.count(1):
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
        last = max(last, *map(int, told.split()))
        manifest, state = RemoteStore(url).newest()
        assert manifest.step in (last, last + 1)
        assert digest.of_value(state) == digest.of_value(state_at(manifest.step))
        unfinished += len(os.listdir(tmp_path / "r" / "commits")) != 2
        if kills >= 20 and unfinished > 2:  # the kills did hit commits in the middle
            break
        assert kills < 400


def test_commits_come_back_bit_for_bit_and_old_ones_go(url):
    """Five commits: the last two stay, with values, strides and the chain of parents; others' files are not touched."""
    with RemoteStore(url) as store:
        assert store.newest() is None
        put(url, "commits/notes.txt", b"mine")
        made = [commit(store, step) for step in range(5)]
        assert [m.parent for m in made] == [None, *(m.digest for m in made[:4])]
        assert commit(store, 4) == made[4]
        with pytest.raises(InvalidArgumentError, match="which is at step 4"):
            commit(store, 3)
    assert [step for step, _ in names(url)] == [4, 3]
    assert "commits/notes.txt" in files(url)
    manifest, state = RemoteStore(url).newest()
    assert manifest == made[4]
    assert digest.of_value(state) == digest.of_value(state_at(4)) == digest.of_value(load_commit(url, 4))
    assert state["c"].stride() == state_at(0)["c"].stride()
    assert prune(url, 1)[1][0].step == 3
    assert names(url) == [(4, "valid")]


def test_what_has_no_manifest_is_no_commit_and_is_swept(url):
    """Tensors without a manifest are neither read nor reported, and gone after the next open."""
    with RemoteStore(url) as store:
        commit(store, 1)
    put(url, "commits/000000000009-0123abcd/tensors.safetensors", b"half")
    store = RemoteStore(url)
    assert store.newest()[0].step == 1
    assert store.skipped == []
    with store:
        assert not any("0123abcd" in name for name in files(url))


def test_a_place_with_other_things_is_refused_and_nothing_is_written(url):
    """A URL below which other files lie: RunDirectoryError; with our marker beside them (control) it opens."""
    put(url, "thesis.tex", b"x")
    with pytest.raises(RunDirectoryError, match=r"not empty and not a run directory.*'thesis.tex'"):
        RemoteStore(url).open()
    assert files(url) == ["thesis.tex"]
    put(url, "samebits-run.json", b"{}")
    with RemoteStore(url) as store:
        commit(store, 1)


def test_when_all_commits_are_damaged_it_is_an_error(url):
    """Commits, and none valid: CorruptCommitError with each and its reason, never a start from the first step."""
    with RemoteStore(url) as store:
        commit(store, 1)
    put(url, f"commits/{list_commits(url)[0].folder.name}/manifest.json", b"{")
    with pytest.raises(CorruptCommitError, match=r"(?s)no commit in .* is valid:.*000000000001-.*not JSON"):
        RemoteStore(url).newest()


def test_links_behind_a_file_url_are_not_followed(tmp_path):
    """A link or a pipe in place of a file: skipped, as in a folder."""
    url = f"file://{tmp_path}/r"
    with RemoteStore(url) as store:
        for step in (1, 2):
            commit(store, step)
    path = tmp_path / "r" / "commits" / list_commits(url)[0].folder.name / "manifest.json"
    copy = path.rename(tmp_path / "copy")
    path.symlink_to(copy)
    assert RemoteStore(url).newest()[0].step == 1
    path.unlink()
    os.mkfifo(path)
    assert RemoteStore(url).newest()[0].step == 1
    path.unlink()
    copy.rename(path)
    assert RemoteStore(url).newest()[0].step == 2
    moved = path.parent.rename(tmp_path / "moved")
    path.parent.symlink_to(moved)
    assert RemoteStore(url).newest()[0].step == 1
    with RemoteStore(url) as store:
        commit(store, 3)
    assert len(os.listdir(moved)) == 2


def test_a_lost_connection_never_looks_like_missing_commits():
    """Whichever call of reading fails: RemoteStorageError with the cure, nothing skipped; with the connection back, it reads."""
    url = "unreliable://runs/a"
    with RemoteStore(url) as store:
        for step in (1, 2):
            commit(store, step)
    for calls in range(100):
        store = RemoteStore(url)
        UnreliableFileSystem.left = calls
        try:
            assert store.newest()[0].step == 2
            break
        except RemoteStorageError as error:
            assert "Check the connection" in str(error)
            assert "connection reset by peer" in str(error)
    assert calls > 5


def test_a_connection_lost_in_any_part_of_a_commit_loses_no_commit():
    """Whichever call of committing fails: CommitError (or a warning, when only old ones could not go), and step 1 or 2 is whole."""
    failed = 0
    for calls in range(100):
        url = f"unreliable://runs/{calls}"
        with RemoteStore(url, keep=1) as store:
            commit(store, 1)
            UnreliableFileSystem.left = calls
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # old commits that cannot be deleted
                    commit(store, 2)
                ended = "durable"
            except CommitError as error:
                ended, failed = "failed", failed + 1
                assert "The commit of step 1 is safe" in str(error)
            left, UnreliableFileSystem.left = UnreliableFileSystem.left, None
        manifest, state = RemoteStore(url).newest()
        assert digest.of_value(state) == digest.of_value(state_at(manifest.step))
        assert manifest.step == 2 if ended == "durable" else manifest.step in (1, 2)
        if left >= 0:
            break
    assert failed > 3


def test_two_stores_of_one_process_do_not_write_one_run(url):
    """The second open() raises; after close() (control) it may."""
    first = RemoteStore(url)
    with first, pytest.raises(RunDirectoryError, match="already open in this process"):
        RemoteStore(url).open()
    with RemoteStore(url) as second:
        commit(second, 1)


def test_a_live_process_keeps_others_out(tmp_path):
    """While another process renews its lease: RunDirectoryError that names it; SIGKILLed (control), it is taken over at once."""
    url = f"file://{tmp_path}/r"
    child = os.fork()
    if child == 0:
        try:
            RemoteStore(url, lease_seconds=0.4).open()
            time.sleep(60)
        finally:
            os._exit(1)
    try:
        while not (tmp_path / "r" / "samebits-run.json").exists():
            time.sleep(0.01)
        with pytest.raises(RunDirectoryError, match=rf"in use by process {child} on host"):
            RemoteStore(url, lease_seconds=60).open()
        with pytest.raises(RunDirectoryError, match="in use by"):
            prune(url, 1)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    started = time.monotonic()
    with RemoteStore(url, lease_seconds=3600) as store:
        commit(store, 1)
    assert time.monotonic() - started < 600


@pytest.mark.parametrize(
    "text",
    [b'{"owner": "x", "host": "far", "pid": 1, "machine": "other"}', b"", b"[1]", b"\xff{", b"[" * 10**5],
)
def test_a_lease_that_stands_still_is_taken_over(url, text):
    """A lease of another machine (or one that cannot be read) that does not change for `lease_seconds` is taken over."""
    put(url, LEASE, text)
    started = time.monotonic()
    with RemoteStore(url, lease_seconds=0.3) as store:
        assert time.monotonic() - started >= 0.3
        commit(store, 1)
    assert names(url) == [(1, "valid")]


def test_who_lost_the_lease_commits_no_more(url):
    """After another process took over: CommitError that names it, the newest commit stays, and its lease is not removed."""
    with RemoteStore(url) as store:
        commit(store, 1)
        put(url, LEASE, b'{"owner": "x", "host": "far", "pid": 7}')
        with pytest.raises(CommitError, match=r"process 7 on host 'far' has taken it over"):
            commit(store, 2)
    assert names(url) == [(1, "valid")]
    assert b"far" in get(url, LEASE)


def test_a_place_that_is_emptied_is_an_error(url):
    """Everything removed between two commits: CommitError that says so, and no word of commits that are safe."""
    with RemoteStore(url) as store:
        commit(store, 1)
        system, root = fsspec.core.url_to_fs(url)
        system.rm(root, recursive=True)
        with pytest.raises(CommitError, match="was removed") as caught:
            commit(store, 2)
    assert "safe" not in str(caught.value)


def test_a_forked_child_neither_commits_nor_gives_the_lease_back(forked, tmp_path):
    """In a child that was forked from the owner: commit() raises, close() leaves the lease to its owner."""
    url = f"file://{tmp_path}/r"
    with RemoteStore(url) as store:

        def in_child():
            with pytest.raises(RunDirectoryError, match="has not opened"):
                commit(store, 1)
            store.close()

        assert forked(in_child).code == 0
        commit(store, 1)


@pytest.mark.parametrize(("url", "words"), [
    ("nonsense://x", "Protocol not known: nonsense"), ("s3://bucket/run", "Install"),
])  # fmt: skip
def test_a_url_that_nothing_opens_names_the_cure(url, words):
    """An unknown protocol, and one whose package is not installed: RemoteStorageError before anything happens."""
    if url.startswith("s3") and find_spec("s3fs"):
        pytest.skip("s3fs is installed")
    with pytest.raises(RemoteStorageError, match=words):
        samebits.Run(url, model=torch.nn.Linear(1, 1))


def test_a_check_moves_urls_below_its_folder():
    """Under a check's run root a URL becomes a folder below it, whatever it holds; without (control) it stays a URL."""
    assert resolve_run_dir("s3://b/../../run/") == "s3://b/../../run"
    process.overrides = CheckOverrides(run_root=Path("/checks"))
    assert resolve_run_dir("s3://b/../../run/").parent == Path("/checks")
    assert resolve_run_dir("s3://b/a.b") != resolve_run_dir("s3://b/a/b")

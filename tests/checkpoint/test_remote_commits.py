"""Run directories at URLs: one writer, whole commits, nothing lost with the connection."""

import os
import threading
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import samebits
from samebits import _digest as digest
from samebits._context import CheckOverrides, process, resolve_run_dir
from samebits.checkpoint import list_commits, load_commit
from samebits.checkpoint._listing import prune
from samebits.checkpoint._remote.remote_commits import staging_folder
from samebits.checkpoint._remote.writer_claim import WRITER
from samebits.checkpoint._store import CommitStore
from samebits.errors import (
    CommitError,
    CorruptCommitError,
    InvalidArgumentError,
    RemoteStorageError,
    RunDirectoryError,
)
from url_storages import (
    FACTS,
    UnreliableFileSystem,
    commit,
    files,
    get,
    names,
    newest,
    put,
    state_at,
    steps,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("machine")


@pytest.mark.parametrize("name", ["manifest.json", "tensors.safetensors"])
@pytest.mark.parametrize("keep", [0, 100])
def test_a_file_that_is_half_written_is_skipped(url, machine, name, keep):
    """A storage that writes in place, killed in the middle: another machine reads the commit before; a commit of the same bits mends it."""
    with CommitStore(url) as store:
        for step in (1, 2):
            commit(store, step)
    path = f"commits/{list_commits(url)[0].folder.name}/{name}"
    put(url, path, get(url, path)[:keep])
    machine("b")
    with CommitStore(url) as store:
        manifest, state = store.newest()
        assert (manifest.step, len(store.skipped)) == (1, 1)
        assert digest.of_value(state) == digest.of_value(state_at(1))
        assert names(url) == [(2, "damaged"), (1, "valid")]
        commit(store, 2)
        assert names(url) == [(2, "valid"), (1, "valid")]


def test_the_machine_that_has_a_commit_whole_mends_its_half_written_manifest(url):
    """The newest manifest is half-written at the URL, and whole in the staging folder: it is read there, and uploaded again."""
    with CommitStore(url) as store:
        for step in (1, 2):
            commit(store, step)
    path = f"commits/{list_commits(url)[0].folder.name}/manifest.json"
    put(url, path, get(url, path)[:100])
    with CommitStore(url) as store:
        assert store.newest()[0].step == 2
        store.publish(wait=True)
    assert names(url) == [(2, "valid"), (1, "valid")]


@pytest.mark.parametrize("other", ["a", "b"])
def test_commits_come_back_bit_for_bit_and_old_ones_go(url, machine, other):
    """Five commits: the last two stay, with values, strides and the chain of parents, on every machine; others' files are not touched."""
    with CommitStore(url) as store:
        assert store.newest() is None
        put(url, "commits/notes.txt", b"mine")
        made = [commit(store, step) for step in range(5)]
        assert [m.parent for m in made] == [None, *(m.digest for m in made[:4])]
        assert commit(store, 4) == made[4]
        with pytest.raises(InvalidArgumentError, match="which is at step 4"):
            commit(store, 3)
    assert steps(url) == [4, 3]
    assert "commits/notes.txt" in files(url)
    machine(other)
    with CommitStore(url) as store:
        manifest, state = store.newest()
        assert manifest == made[4] == commit(store, 4)
        assert commit(store, 5).parent == made[4].digest
    assert digest.of_value(state) == digest.of_value(state_at(4)) == digest.of_value(load_commit(url, 4))
    assert state["c"].stride() == state_at(0)["c"].stride()
    assert prune(url, 1)[1][0].step == 4
    assert names(url) == [(5, "valid")]


def test_what_has_no_manifest_is_no_commit_and_is_swept(url):
    """Tensors without a manifest are neither read nor reported, and gone after a commit of a later step; later ones may be another's."""
    with CommitStore(url) as store:
        commit(store, 1)
    for step in (2, 9):
        put(url, f"commits/{step:012d}-0123abcd/tensors.safetensors", b"half")
    with CommitStore(url) as store:
        assert store.newest()[0].step == 1
        assert store.skipped == []
        commit(store, 3)
    assert [name for name in files(url) if "0123abcd" in name] == [
        "commits/000000000009-0123abcd/tensors.safetensors"
    ]


def test_a_place_with_other_things_is_refused_and_nothing_is_written(url):
    """A URL below which other files lie: RunDirectoryError; with our marker beside them (control) it opens."""
    put(url, "thesis.tex", b"x")
    with pytest.raises(RunDirectoryError, match=r"not empty and not a run directory.*'thesis.tex'"):
        CommitStore(url).open()
    assert files(url) == ["thesis.tex"]
    assert not staging_folder(url).exists()
    put(url, "samebits-run.json", b"{}")
    with CommitStore(url) as store:
        commit(store, 1)


def test_when_all_commits_are_damaged_it_is_an_error(url, machine):
    """Commits, and none valid: CorruptCommitError with each and its reason, never a start from the first step."""
    with CommitStore(url) as store:
        commit(store, 1)
    put(url, f"commits/{list_commits(url)[0].folder.name}/manifest.json", b"{")
    machine("b")
    with (
        CommitStore(url) as store,
        pytest.raises(
            CorruptCommitError, match=rf"(?s)no commit in {url} is valid:.*000000000001-.*not JSON"
        ),
    ):
        store.newest()


def test_links_behind_a_file_url_are_not_followed(tmp_path):
    """A link or a pipe in place of a file: skipped, as in a folder."""
    url = f"file://{tmp_path}/r"
    with CommitStore(url) as store:
        for step in (1, 2):
            commit(store, step)
    path = tmp_path / "r" / "commits" / list_commits(url)[0].folder.name / "manifest.json"
    copy = path.rename(tmp_path / "copy")
    path.symlink_to(copy)
    assert newest(url)[0] == 1
    path.unlink()
    os.mkfifo(path)
    assert newest(url)[0] == 1
    path.unlink()
    copy.rename(path)
    assert newest(url)[0] == 2
    moved = path.parent.rename(tmp_path / "moved")
    path.parent.symlink_to(moved)
    assert newest(url)[0] == 1
    with CommitStore(url) as store:
        commit(store, 3)
    assert len(os.listdir(moved)) == 2


def test_a_lost_connection_never_looks_like_missing_commits(machine):
    """Whichever call of opening and reading fails: RemoteStorageError with the cure, nothing skipped; with the connection back, it reads."""
    url = "unreliable://runs/a"
    with CommitStore(url) as store:
        for step in (1, 2):
            commit(store, step)
    for calls in range(200):
        machine(f"b{calls}")
        UnreliableFileSystem.left = calls
        store = CommitStore(url)
        try:
            store.open()
            assert store.newest()[0].step == 2
            break
        except RemoteStorageError as error:
            assert "Check the connection" in str(error)
            assert "connection reset by peer" in str(error)
        finally:
            store.close()
    assert calls > 20
    UnreliableFileSystem.left = None
    assert steps(url) == [2, 1]


@pytest.mark.parametrize("other", ["a", "b"])
def test_a_connection_lost_in_any_part_of_a_commit_loses_no_commit(machine, other):
    """Whichever call of committing fails: CommitError (or a warning, when only old ones could not go), step 1 or 2 is whole there, and 2 here."""
    failed = 0
    for calls in range(100):
        url = f"unreliable://runs/{calls}"
        machine("a")
        with CommitStore(url, keep=1) as store, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old commits that cannot be deleted
            commit(store, 1)
            UnreliableFileSystem.left = calls
            try:
                commit(store, 2)
                ended = "durable"
            except CommitError as error:
                ended, failed = "failed", failed + 1
                assert "The commit of step 1 is safe" in str(error)
                assert "Check the connection, the credentials and the URL, then run again" in str(error)
            left, UnreliableFileSystem.left = UnreliableFileSystem.left, None
        step, state, _ = newest(url)
        assert digest.of_value(state) == digest.of_value(state_at(step))
        assert step == 2 if ended == "durable" else step in (1, 2)
        machine(other)
        with CommitStore(url) as store:
            assert store.newest()[0].step == (2 if other == "a" else step)
            store.publish(wait=True)
        assert newest(url)[0] == (2 if other == "a" else step)
        if left >= 0:
            break
    assert failed > 3


def test_of_the_commits_that_wait_the_newest_and_the_best_are_uploaded():
    """Eight commits during a slow upload: what a newer one has replaced is skipped, what keep_best keeps is not; the oldest go then."""
    url = "unreliable://runs/a"
    with CommitStore(url, keep=2, keep_best=1) as store:
        commit(store, 0)
        UnreliableFileSystem.gate.clear()
        try:
            for step, value in enumerate((8.0, 7.0, 1.0, 2.0, 3.0, None, 4.0, 5.0), 1):
                # As the writer process does: without waiting for the upload
                facts = {**FACTS, "value": value}
                store.write_here(store.prepare(state_at(step), step=step, **facts))
                store.publish()
                assert store.durable_step == 0
        finally:
            UnreliableFileSystem.gate.set()
        store.publish(wait=True)
        assert store.durable_step == 8
        assert steps(url) == [8, 3]  # here 8, 7 and 3
        assert sorted(v for v in store.values().values() if v) == [1.0, 4.0, 5.0]
        commit(store, 9)
        assert steps(url) == [9, 8, 3]


def test_two_stores_of_one_process_do_not_write_one_run(url):
    """The second open() raises; after close() (control) it may."""
    first = CommitStore(url)
    with first, pytest.raises(RunDirectoryError, match="already open in this process"):
        CommitStore(url).open()
    with CommitStore(url) as second:
        commit(second, 1)
    assert "samebits-upload" not in str(threading.enumerate())


def test_a_forked_child_neither_commits_nor_releases_the_directory(forked, tmp_path):
    """In a child that was forked from the owner: commit() raises, close() leaves the directory to its owner."""
    url = f"file://{tmp_path}/r"
    with CommitStore(url) as store:
        commit(store, 1)

        def in_child():
            with pytest.raises(RunDirectoryError, match="has not opened"):
                commit(store, 2)
            store.close()

        assert forked(in_child).code == 0
        assert b'"ended": false' in get(url, WRITER)
        commit(store, 2)
    assert b'"ended": true' in get(url, WRITER)


def test_a_staging_folder_that_cannot_be_used_names_the_url_and_the_variable(tmp_path, monkeypatch):
    """A file where the staging folder would be: RunDirectoryError with the URL and SAMEBITS_CACHE_DIR; another place (control) works."""
    url = f"file://{tmp_path}/r"
    (tmp_path / "file").touch()
    monkeypatch.setenv("SAMEBITS_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(
        RunDirectoryError, match=rf"{url}.*SAMEBITS_CACHE_DIR.*Something in the path is a file"
    ):
        CommitStore(url).open()
    assert not (tmp_path / "r").exists()
    monkeypatch.setenv("SAMEBITS_CACHE_DIR", str(tmp_path / "cache"))
    with CommitStore(url) as store:
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

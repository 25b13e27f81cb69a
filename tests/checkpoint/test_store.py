"""The store and its manifest: order, retention, every flipped byte, foreign folders."""

import json
import os
import shutil

import numpy as np
import pytest
import safetensors
import torch

from samebits.checkpoint import _manifest as manifests
from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._manifest import Manifest
from samebits.checkpoint._store import CommitStore
from samebits.errors import CorruptCommitError, InvalidArgumentError, RunDirectoryError, UnsavableStateError
from store_commits import in_memory, write_commit  # noqa: F401

FACTS = {"position": {"epoch": 1}, "program": {"seed": [1, 2]}, "environment": {"torch": "2"}}


def commit(store, step, finished=False, **state):
    state = state or {"model": {"w": torch.arange(6.0) + step, "n": torch.tensor(step)}, "best": step / 3}
    return write_commit(store, step, state, finished=finished, **FACTS)


def folders(run_dir):
    return sorted(path.name for path in (run_dir / "commits").iterdir())


@pytest.fixture
def store(tmp_path):
    with CommitStore(tmp_path / "run") as store:
        yield store


def test_an_empty_store_has_no_newest(store):
    """Without commits newest() is None and nothing is skipped."""
    assert store.newest() is None
    assert store.skipped == []


def test_the_newest_commit_is_read_and_the_last_two_are_kept(store):
    """After five commits the folder holds the last two, and newest() gives the last one's state and facts."""
    made = [commit(store, step) for step in range(5)]
    manifest, state = CommitStore(store.run_dir).newest()
    assert manifest == made[4]
    assert manifest.digest == made[4].digest
    assert (state["model"]["n"], state["best"]) == (4, 4 / 3)
    assert (manifest.position, manifest.program, manifest.environment) == tuple(FACTS.values())
    assert [name[:12] for name in folders(store.run_dir)] == ["000000000003", "000000000004"]
    assert [m.parent for m in made] == [None, *(m.digest for m in made[:4])]


def test_keep_says_how_many_commits_stay(tmp_path):
    """keep=1 and keep=4 leave one and four folders; keep=0 is refused."""
    for keep in (1, 4):
        with CommitStore(tmp_path / str(keep), keep=keep) as store:
            for step in range(6):
                commit(store, step)
            assert len(folders(store.run_dir)) == keep
    with pytest.raises(InvalidArgumentError, match="keep=0"):
        CommitStore(tmp_path, keep=0)


def test_an_equal_commit_is_not_written_again_and_another_of_its_step_replaces_it(store):
    """Same step, same content: the same manifest. Same step, other content (finished): one folder, the new one."""
    first = commit(store, 3)
    assert commit(store, 3) == first
    last = commit(store, 3, finished=True)
    assert (last.parent, last.finished) == (first.digest, True)
    assert folders(store.run_dir) == [f"000000000003-{last.digest[9:17]}"]
    assert CommitStore(store.run_dir).newest()[0] == last


def test_of_two_commits_of_one_step_the_child_is_the_newest(store, tmp_path):
    """A kill between writing the replacement and deleting the replaced leaves both; the later one is read."""
    for number in range(4):  # whichever digest sorts first
        first = commit(store, number, best=number)
        shutil.copytree(store.run_dir / "commits", tmp_path / f"kept{number}")
        last = commit(store, number, best=-1)
        shutil.copytree(tmp_path / f"kept{number}", store.run_dir / "commits", dirs_exist_ok=True)
        assert CommitStore(store.run_dir).newest()[0] == last != first
        store.newest()


def test_a_commit_before_the_last_one_is_refused(store):
    """Going back in steps raises, also for a process that has not called newest(): what is ahead would win again."""
    commit(store, 5)
    store.close()
    again = CommitStore(store.run_dir)
    with again, pytest.raises(InvalidArgumentError, match="which is at step 5"):
        commit(again, 4)


def test_a_store_that_is_not_open_cannot_commit(tmp_path):
    """commit() before open() and after close() raises RunDirectoryError."""
    store = CommitStore(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=r"Call open\(\) first"):
        commit(store, 0)
    with store:
        commit(store, 0)
    with pytest.raises(RunDirectoryError, match=r"Call open\(\) first"):
        commit(store, 1)


@pytest.mark.parametrize(("facts", "words"), [
    ({"program": {"shape": (1, 2)}}, 'program["shape"] is an object of type builtins.tuple'),
    ({"position": {"loss": float("nan")}}, 'position["loss"] is the float nan'),
    ({"environment": {1: "a"}}, "environment[1] is a key that is not a string"),
])  # fmt: skip
def test_facts_that_json_would_change_are_refused(store, facts, words):
    """A tuple, NaN or non-string key in position, program or environment raises, since it would come back unequal."""
    with pytest.raises(UnsavableStateError) as caught:
        write_commit(store, 0, {}, finished=False, **{**FACTS, **facts})
    assert words in str(caught.value)
    assert folders(store.run_dir) == []


def flips(size):
    """All bytes of small files, 200 evenly spread of large ones."""
    return range(0, size, max(1, size // 200))


@pytest.mark.parametrize("name", ["manifest.json", "tensors.safetensors"])
@pytest.mark.parametrize("bit", [0, 5, 7])
def test_every_flipped_bit_is_detected_and_the_commit_before_is_read(store, name, bit):
    """One bit flipped anywhere in either file: newest() skips that commit, says why, and reads the one before."""
    commit(store, 1)
    path = store.run_dir / "commits" / f"000000000002-{commit(store, 2).digest[9:17]}" / name
    good = path.read_bytes()
    for place in flips(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :])
        assert store.newest()[0].step == 1, place
        assert [skipped.path for skipped, _ in store.skipped] == [path.parent]
    path.write_bytes(good)
    assert store.newest()[0].step == 2
    assert store.skipped == []


def test_a_flipped_byte_is_loaded_when_digests_are_not_compared(store, monkeypatch):
    """Negative control: with the comparison of digests off, the flipped tensor comes back as if nothing were."""
    path = store.run_dir / "commits" / f"000000000002-{commit(store, 2).digest[9:17]}" / "tensors.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(CorruptCommitError):
        store.newest()
    monkeypatch.setattr(safetensors_file, "check_digest", lambda data, info, where: None)
    _, state = store.newest()
    assert not torch.equal(state["model"]["w"], torch.arange(6.0) + 2)


@pytest.mark.parametrize("name", ["manifest.json", "tensors.safetensors"])
def test_every_truncation_is_detected(store, name):
    """A file cut anywhere, one byte longer, or missing: the commit before is read."""
    commit(store, 1)
    path = store.run_dir / "commits" / f"000000000002-{commit(store, 2).digest[9:17]}" / name
    good = path.read_bytes()
    for length in flips(len(good)):
        path.write_bytes(good[:length])
        assert store.newest()[0].step == 1
    path.write_bytes(good + b"\n")
    assert store.newest()[0].step == 1
    path.unlink()
    assert store.newest()[0].step == 1
    assert "is missing" in store.skipped[0][1]


def test_a_corrupt_newer_commit_stays_until_a_valid_newer_one_exists(store):
    """Nothing corrupt is deleted while it is the newest; after a later commit only valid ones remain."""
    commit(store, 1)
    broken = store.run_dir / "commits" / f"000000000020-{commit(store, 20).digest[9:17]}"
    (broken / "tensors.safetensors").write_bytes(b"")
    assert store.newest()[0].step == 1
    commit(store, 10)
    commit(store, 15)
    assert broken.exists()
    assert [name[:12] for name in folders(store.run_dir)] == ["000000000010", "000000000015", "000000000020"]
    assert store.newest()[0].step == 15
    commit(store, 25)
    assert [name[:12] for name in folders(store.run_dir)] == ["000000000015", "000000000025"]


def test_replaying_to_a_corrupt_commit_makes_it_whole(store):
    """A resumed run that reaches the step of a corrupt commit with the same bits replaces that very folder."""
    commit(store, 1)
    manifest = commit(store, 2)
    path = store.run_dir / "commits" / f"000000000002-{manifest.digest[9:17]}"
    (path / "tensors.safetensors").write_bytes(b"x")
    assert store.newest()[0].step == 1
    assert commit(store, 2).digest == manifest.digest
    assert len(folders(store.run_dir)) == 2
    commit(store, 3)
    assert [name[:12] for name in folders(store.run_dir)] == ["000000000002", "000000000003"]
    shutil.rmtree(next((store.run_dir / "commits").glob("000000000003-*")))
    assert store.newest()[0] == manifest
    assert store.skipped == []


def test_no_valid_commit_is_an_error_that_names_each_and_the_cure(store):
    """If there are commits and none holds, newest() raises, with every path and reason."""
    for step in (1, 2):
        path = store.run_dir / "commits" / f"{step:012d}-{commit(store, step).digest[9:17]}"
    for path in (store.run_dir / "commits").iterdir():
        (path / "manifest.json").unlink()
    with pytest.raises(
        CorruptCommitError, match=rf"(?s)000000000002-.*000000000001-.*remove {store.run_dir}"
    ):
        store.newest()


def test_a_renamed_commit_is_not_trusted(store):
    """A folder whose name does not fit its manifest (a copy, a rename) is skipped."""
    commit(store, 1)
    path = store.run_dir / "commits" / f"000000000002-{commit(store, 2).digest[9:17]}"
    path.rename(path.with_name("000000000009-00000000"))
    assert store.newest()[0].step == 1
    assert "was renamed" in store.skipped[0][1]


@pytest.mark.parametrize("text", [
    b"[" * 100_000, b'{"schema":1,"step":1e999}', b'{"schema":1,"step":NaN}', b"[]", b"\xff\xfe", b"", b'{"schema":1}',
    b'{"schema":1,"tree":' + b"[" * 900 + b"]" * 900 + b"}", b"1" * 5000, b'{"schema":[]}',
    b'{"schema":1,"step":1,"position":1,"finished":1,"program":1,"environment":1,"tree":1,"tensors":1,"files":1,"parent":1}',
])  # fmt: skip
def test_hostile_manifests_are_corrupt_and_nothing_else(text):
    """Deep, non-finite, non-UTF-8, huge-number and half manifests raise CorruptCommitError only."""
    with pytest.raises(CorruptCommitError):
        Manifest.from_bytes(text)


@pytest.mark.parametrize(
    "tree",
    [
        {"evil": []},
        {"tensor": "x"},
        {"dict": [1]},
        {"dtype": "load"},
        {"scalar": ["O", "00"]},
        {"a": 1, "b": 2},
    ],
)
def test_a_tree_that_encode_never_made_is_corrupt(store, tree):
    """Even with a right digest, an undecodable tree raises CorruptCommitError and runs nothing."""
    made = commit(store, 1, best=1)
    forged = manifests.replace(made, tree=tree)
    path = store.run_dir / "commits" / f"000000000001-{made.digest[9:17]}"
    (path / "manifest.json").write_bytes(forged.to_bytes())
    path.rename(path.with_name(f"000000000001-{forged.digest[9:17]}"))
    with pytest.raises(CorruptCommitError, match="cannot be decoded"):
        store.newest()


def test_another_schema_names_both_versions(store):
    """A commit of a later schema says which samebits wrote it and what this one reads."""
    data = manifests.replace(commit(store, 1), schema=9, samebits="7.1").to_bytes()
    with pytest.raises(
        CorruptCommitError,
        match=r"schema version 9, written by samebits '7.1'; this samebits .* reads versions up to 2",
    ):
        Manifest.from_bytes(data)


def test_a_manifest_is_the_same_bytes_after_a_round_trip(store):
    """from_bytes(to_bytes()) is equal and writes the same file; its keys are sorted."""
    manifest = commit(store, 1)
    again = Manifest.from_bytes(manifest.to_bytes())
    assert again == manifest
    assert again.to_bytes() == manifest.to_bytes()
    assert list(json.loads(manifest.to_bytes())) == sorted(json.loads(manifest.to_bytes()))


def test_equal_states_are_equal_files_whatever_was_before(tmp_path):
    """Two runs that commit the same write the same bytes: no clock, no randomness, no process in a commit."""
    for name in ("a", "b"):
        with CommitStore(tmp_path / name) as store:
            commit(store, 1)
            commit(store, 2)
    assert folders(tmp_path / "a") == folders(tmp_path / "b")
    for path in sorted((tmp_path / "a").rglob("*.*")):
        if path.parent.parent.name == "commits":
            assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


def test_others_can_read_the_tensors(store):
    """The tensor file opens with safetensors itself, without metadata, values equal."""
    state = {
        "x": torch.rand(3, 2),
        "h": torch.rand(5).bfloat16(),
        "c": torch.rand(2, dtype=torch.complex128),
        "b": torch.tensor(True),
    }
    path = (
        store.run_dir
        / "commits"
        / f"000000000001-{commit(store, 1, **state).digest[9:17]}"
        / "tensors.safetensors"
    )
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() is None
        assert all(torch.equal(file.get_tensor(name), state[name]) for name in "xhb")
        assert file.get_tensor("c").view(torch.complex128).equal(state["c"])  # a dtype it lacks: the bytes


def test_a_folder_with_other_things_is_not_touched(tmp_path):
    """A folder that is not empty and not ours raises RunDirectoryError, and nothing is written into it."""
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunDirectoryError, match=r"not empty and not a run directory.*'thesis.tex'"):
        CommitStore(tmp_path).open()
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_run_directory_may_hold_other_things(tmp_path):
    """Once it is a run directory (the marker is there), logs and records beside the commits are welcome."""
    with CommitStore(tmp_path) as store:
        commit(store, 1)
    (tmp_path / "log.txt").write_text("x")
    with CommitStore(tmp_path) as store:
        assert store.newest()[0].step == 1


def test_a_path_through_a_file_is_an_error_with_a_cure(tmp_path):
    """A run directory that is a file, or lies below one, raises RunDirectoryError with the cure."""
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunDirectoryError, match="is a file: remove it, or choose another"):
            CommitStore(path).open()


def test_half_written_folders_are_removed_and_foreign_ones_stay(store):
    """tmp- folders of a killed process go with the next open() or commit(); other names in commits/ stay."""
    for name in ("tmp-a", "notes"):
        (store.run_dir / "commits" / name).mkdir()
    commit(store, 1)
    (store.run_dir / "commits" / "tmp-b").mkdir()
    store.close()
    store.open()
    assert [name for name in folders(store.run_dir) if not name.startswith("0")] == ["notes"]


def test_the_hook_runs_between_tensors_and_manifest(store):
    """When on_tensors_written is called the tensors are there, the manifest and the commit are not; its error ends the commit."""
    seen = []

    def hook():
        (folder,) = (store.run_dir / "commits").iterdir()
        seen.append((folder.name[:4], sorted(path.name for path in folder.iterdir())))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_commit(store, 1, {"x": torch.ones(2)}, finished=False, on_tensors_written=hook, **FACTS)
    assert seen == [("tmp-", ["tensors.safetensors"])]
    assert folders(store.run_dir) == []


def test_numpy_integers_are_steps(store):
    """step may be any integer type; the manifest holds an int."""
    assert commit(store, np.int64(3), best=1).step == 3

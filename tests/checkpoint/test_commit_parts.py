"""Commits in parts: each rank writes and reads its rows; what is damaged is an error or the commit before, and never a mixture."""

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open

import sharded_states as states
from samebits import _digest as digest
from samebits._byte_digest import of_bytes
from samebits.checkpoint import (
    DCPReader,
    _commit_parts,
    export,
    list_commits,
    load_commit,
    load_weights,
    prune,
)
from samebits.checkpoint import _manifest as manifests
from samebits.checkpoint._reading import read_manifest, verify
from samebits.checkpoint._sharded_tensors import block_digests, block_size
from samebits.checkpoint._store import CommitStore, commit_folders
from samebits.distributed._gloo_messages import GlooGroup
from samebits.errors import (
    CorruptCommitError,
    RanksError,
    RunDirectoryError,
    SamebitsError,
)
from store_commits import write_commit

pytestmark = pytest.mark.usefixtures("one_thread")
EXPECTED = {step: digest.of_value(states.whole_state(step)) for step in range(5)}


def manifest_of(run_dir, step):
    return json.loads((folder(run_dir, step) / "manifest.json").read_bytes())


def folder(run_dir, step):
    return next((run_dir / "commits").glob(f"{step:012d}-*"))


def read_twice(folders):
    """What ranks read of run directories: digests of whole states, and the bytes of tensors that each has read."""
    found = []
    for one in folders:
        manifest, state, size = states.read(one)
        found.append((manifest.step, digest.of_value(states.gathered(state)), size))
    return found


def test_ranks_write_their_rows_and_any_number_reads_them(ranks, tmp_path):
    """3 ranks write, 2, 4 and one process read: equal states; 2 ranks' tensors have equal digests; old commits are read, too."""
    three, two, old = (tmp_path / name for name in ("three", "two", "old"))
    ranks(3, states.commit, three, 1, 2)
    ranks(2, states.commit, two, 2)
    with CommitStore(old) as store:
        write_commit(store, 2, states.whole_state(2), **states.FACTS)
    digests = [
        {n: one["digest"] for n, one in manifest_of(run, 2)["tensors"].items()} for run in (three, two)
    ]
    assert digests[0] == digests[1]
    assert digest.of_value(load_commit(three)) == digest.of_value(load_commit(two)) == EXPECTED[2]
    sizes = [(folder(three, 2) / f"part-{rank:05d}.safetensors").stat().st_size for rank in range(3)]
    assert max(sizes) < 1.05 * sum(sizes) / 3
    for rank in range(3):  # no pickle, nothing but rows
        with safe_open(folder(three, 2) / f"part-{rank:05d}.safetensors", "pt") as file:
            rows = file.get_tensor("objects.model.large")
        assert torch.equal(rows, states.wholes(2)["large"].chunk(3)[rank])
    listed = list_commits(three, verify=True)
    assert [one.status for one in listed] == ["valid", "valid"]
    assert [(one["name"], one["rank"], one["bytes"]) for one in listed[0].facts()["parts"]] == [
        (f"part-{rank:05d}.safetensors", rank, sizes[rank]) for rank in range(3)
    ]
    total = sum(one.nbytes for one in states.wholes().values())
    whole = sum(one.nbytes for one in states.plain().values() if hasattr(one, "nbytes"))
    for size in (2, 4):
        values, _ = ranks(size, read_twice, [three, two, old])
        for number in range(3):
            assert {one[number][:2] for one in values} == {(2, EXPECTED[2])}
        for number in range(2):  # each row once; what is equal on all ranks, on each
            assert sum(one[number][2] for one in values) == total + size * whole


def test_a_digest_is_of_blocks_of_bytes():
    """Blocks have a size that follows from the tensor's alone; a flipped bit changes one of them."""
    data = states.wholes()["large"].numpy().reshape(-1).view("uint8")
    size = block_size(data.nbytes)
    found = block_digests([data], size)
    assert found == block_digests([data[:5000], data[5000:5001], data[5001:]], size)
    data[size] ^= 1
    changed = block_digests([data], size)
    assert [found[at : at + 16] == changed[at : at + 16] for at in (0, 16, 32)] == [True, False, True]


def test_other_programs_read_parts(ranks, tmp_path):
    """DCPReader (rows, whole, plain values), load_weights, export, prune: what load_commit gives; damage is an error."""
    ranks(3, states.commit, tmp_path / "run", 1, 2)
    model = {name: torch.zeros_like(one) for name, one in states.wholes().items()}
    state = {"model": dict(model)}
    dcp.load(state, storage_reader=DCPReader(tmp_path / "run"), no_dist=True)
    assert digest.of_value(state["model"]) == digest.of_value(states.wholes(2))
    dcp.load(model, storage_reader=DCPReader(tmp_path / "run", step=1, object="model"), no_dist=True)
    assert digest.of_value(model) == digest.of_value(states.wholes(1))
    values, _ = ranks(2, load_by_dcp, tmp_path / "run")
    assert values == [digest.of_value(states.wholes(2))] * 2
    module = torch.nn.Module()
    for name, one in states.wholes().items():
        module.register_buffer(name, torch.zeros_like(one))
    load_weights(module, tmp_path / "run")
    assert digest.of_value(dict(module.state_dict())) == digest.of_value(states.wholes(2))
    export(tmp_path / "run", tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert torch.equal(file.get_tensor("large"), states.wholes(2)["large"])
    flip(folder(tmp_path / "run", 2) / "part-00001.safetensors", -1)
    with pytest.raises(dcp.api.CheckpointException, match="does not have the digest"):
        dcp.load({"model": states.wholes()}, storage_reader=DCPReader(tmp_path / "run"), no_dist=True)
    seen = []
    found = list_commits(tmp_path / "run", verify=True, on_progress=lambda *some: seen.append(some))
    assert [one.status for one in found] == ["damaged", "valid"] and seen == sorted(seen) != []
    assert "part-00001.safetensors" in found[0].reason and "part-00000" not in found[0].reason
    prune(tmp_path / "run", keep=1)
    assert (
        len(list((tmp_path / "run" / "commits").iterdir())) == 2
    )  # what is newer than the newest valid one stays


class Meeting:
    """A commit whose parts are read at a time: the first read of each waits for that of the others."""

    def __init__(self, folder, parties):
        self.folder, self.name, self.barrier = folder, folder.name, threading.Barrier(parties, timeout=20)

    def open(self, name):
        file, size = self.folder.open(name)
        if name.startswith("part"):
            file = Met(file, self.barrier)
        return file, size


class Met:
    def __init__(self, file, barrier):
        self.file, self.barrier, self.read, self.close, self.seek = (
            file,
            barrier,
            file.read,
            file.close,
            file.seek,
        )

    def readinto(self, into):
        if self.barrier is not None:
            self.barrier.wait()
            self.barrier = None
        return self.file.readinto(into)


def commit_two_blocks(run_dir):
    store, group = CommitStore(run_dir), GlooGroup()
    with store if dist.get_rank() == 0 else contextlib.nullcontext():
        state = {"objects": {"model": {"w": states.sharded(torch.arange(2048.0))}}}
        write_parts = _commit_parts.write_parts
        write_parts(group, store, state, step=1, on_tensors_written=lambda: None, **states.FACTS)
    group.close()


def test_parts_are_verified_at_a_time(ranks, tmp_path):
    """Two parts are read in two threads; control: a third that nobody reads is waited for in vain."""
    ranks(2, commit_two_blocks, tmp_path / "run")
    (found,) = commit_folders(tmp_path / "run")
    manifest = read_manifest(found)
    verify(Meeting(found, 2), manifest)
    three = Meeting(found, 3)
    three.barrier = threading.Barrier(3, timeout=0.5)
    with pytest.raises(threading.BrokenBarrierError):
        verify(three, manifest)


def load_by_dcp(run_dir):
    state = {"model": {name: states.sharded(torch.zeros_like(one)) for name, one in states.wholes().items()}}
    dcp.load(state, storage_reader=DCPReader(run_dir), no_dist=True)
    return digest.of_value({name: one.full_tensor() for name, one in state["model"].items()})


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def forge(path, change):
    """Changes a manifest, and signs it again."""
    values = json.loads((path / "manifest.json").read_bytes())
    del values["digest"]
    change(values)
    text = manifests.canonical_json(values).encode()
    own = of_bytes(text)
    (path / "manifest.json").write_bytes(b'{"digest":"' + own.encode() + b'",' + text[1:])
    return path.rename(path.with_name(f"{path.name[:12]}-{own.split(':')[1][:8]}"))


def mutate(run_dir, other, draw):
    """Damages the newest commit in one way out of many; returns the way."""
    newest, before = folder(run_dir, 2), folder(run_dir, 1)
    parts = sorted(newest.glob("part-*"))
    part, second = draw.sample(parts, 2)
    manifest = newest / "manifest.json"
    way = draw.choice(["flip", "cut", "longer", "missing", "swapped", "of another step", "of another run", "zeros",
                       "manifest flip", "manifest cut", "manifest of another", "manifest missing",
                       "fewer parts", "part twice", "rows", "another file", "blocks", "shape", "order"])  # fmt: skip
    names = [name for name, one in manifest_of(run_dir, 2)["tensors"].items() if len(one["parts"]) > 1]

    def forged(change):
        forge(newest, lambda values: change(values["tensors"][draw.choice(names)]))

    size = part.stat().st_size
    if way == "flip":
        flip(part, draw.randrange(size))
    elif way == "cut":
        part.write_bytes(part.read_bytes()[: draw.randrange(size)])
    elif way == "longer":
        part.write_bytes(part.read_bytes() + b"\0" * draw.randrange(1, 9))
    elif way == "missing":
        part.unlink()
    elif way == "swapped":
        one, two = part.read_bytes(), second.read_bytes()
        part.write_bytes(two)
        second.write_bytes(one)
    elif way == "of another step":
        shutil.copy(before / part.name, part)
    elif way == "of another run":
        shutil.copy(folder(other, 2) / part.name, part)
    elif way == "zeros":
        part.write_bytes(part.read_bytes()[: size - size // 3] + b"\0" * (size // 3))
    elif way == "manifest flip":
        flip(manifest, draw.randrange(manifest.stat().st_size))
    elif way == "manifest cut":
        manifest.write_bytes(manifest.read_bytes()[: draw.randrange(manifest.stat().st_size)])
    elif way == "manifest of another":
        shutil.copy(draw.choice([before, folder(other, 2)]) / "manifest.json", manifest)
    elif way == "manifest missing":
        manifest.unlink()
    elif way == "fewer parts":
        forged(lambda entry: entry["parts"].pop(draw.randrange(len(entry["parts"]))))
    elif way == "part twice":
        forged(lambda entry: entry["parts"].insert(0, entry["parts"][0]))
    elif way == "rows":
        forged(
            lambda entry: entry["parts"][0].__setitem__(2, entry["parts"][0][2] + draw.choice([-1, 1, 2**40]))
        )
    elif way == "another file":
        forged(lambda entry: entry["parts"][0].__setitem__(0, draw.choice([1, 2, 3, -1])))
    elif way == "blocks":
        forged(lambda entry: entry.update(blocks=entry["blocks"][32:] + entry["blocks"][:31] + "0"))
    elif way == "shape":
        forged(lambda entry: entry.update(shape=[entry["shape"][0] + 1, *entry["shape"][1:]]))
    else:
        forged(lambda entry: entry["parts"].reverse())
    return way


def of_another_run(run_dir):
    states.commit(run_dir, 2, ahead=1)


def read_all(folders):
    """For each run directory what this rank reads: step and digest of the state, or the error."""
    group, found = GlooGroup(), []
    for one in folders:
        try:
            manifest, state, _ = states.read(one, group)
            found.append((manifest.step, digest.of_value(states.gathered(state))))
        except SamebitsError as error:
            found.append((type(error).__name__, str(error)))
    return found


@pytest.mark.parametrize("count", [pytest.param(40), pytest.param(1000, marks=pytest.mark.slow)])
def test_no_mutated_part_or_manifest_gives_wrong_bits(ranks, tmp_path, count):
    """Parts cut, swapped, mixed, missing, manifests forged: the commit before, or an error; one process and two ranks."""
    ranks(3, states.commit, tmp_path / "run", 1, 2)
    ranks(3, of_another_run, tmp_path / "other")
    draw, folders, ways = random.Random(3), [], []
    for number in range(count):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "run", copy)
        ways.append(mutate(copy, tmp_path / "other", draw))
        if number % 4 == 3:
            shutil.rmtree(folder(copy, 1))  # nothing to fall back to
        folders.append(copy)
    assert count < 1000 or len(set(ways)) == 19
    values, _ = ranks(2, read_all, folders)
    for number, one in enumerate(folders):
        try:
            manifest, state = CommitStore(one).newest()
            mine = manifest.step, digest.of_value(state)
        except SamebitsError as error:
            mine = type(error).__name__, str(error)
        for found in (mine, *(value[number] for value in values)):
            assert found == (1, EXPECTED[1]) or (number % 4 == 3 and found[0] == "CorruptCommitError"), (
                ways[number],
                found,
            )


def test_control_without_digests_a_part_of_another_step_is_a_mixture(ranks, tmp_path):
    """Negative control: the files of two commits fit to one another, so that only digests tell them apart."""
    ranks(3, states.commit, tmp_path / "run", 1, 2)
    name = "part-00001.safetensors"
    with (
        safe_open(folder(tmp_path / "run", 1) / name, "pt") as one,
        safe_open(folder(tmp_path / "run", 2) / name, "pt") as two,
    ):
        assert set(one.keys()) == set(two.keys())
        assert not torch.equal(one.get_tensor("objects.model.large"), two.get_tensor("objects.model.large"))
    shutil.copy(folder(tmp_path / "run", 1) / name, folder(tmp_path / "run", 2) / name)
    with pytest.raises(CorruptCommitError, match="does not have the digest"):
        load_commit(tmp_path / "run", step=2)
    assert digest.of_value(load_commit(tmp_path / "run")) == EXPECTED[1]


def bad_inputs(run_dir):
    """What ranks raise in four programs that commits in parts refuse, each on its own."""
    raised = []
    _commit_parts.PATIENCE = 0.3
    own = run_dir / f"machine{dist.get_rank()}"
    for where, expected in ((own, RunDirectoryError), (run_dir / "one", None)):
        try:
            states.read(where)
            raised.append(None)
        except SamebitsError as error:
            raised.append((type(error), str(error)))
            assert isinstance(error, expected)
    group, store = GlooGroup(), CommitStore(run_dir / "one")
    with store if dist.get_rank() == 0 else open(os.devnull):
        mesh = states.init_device_mesh("cpu", (2, 1))
        tensor = states.DTensor.from_local(
            torch.ones(2, 2), mesh, [states.Shard(0), states.Shard(1)], run_check=False
        )
        for state in ({"w": tensor}, {"w": states.sharded(torch.ones(4)), "later": open}):
            try:
                _commit_parts.write_parts(
                    group, store, state, step=1, on_tensors_written=lambda: None, **states.FACTS
                )
            except SamebitsError as error:
                raised.append((type(error), str(error)))
    return raised


def test_bad_input_is_one_message_on_all_ranks(ranks, tmp_path):
    """A folder that some ranks do not see, a mesh of two dimensions, a value that no commit holds; a fresh folder is fine."""
    values, _ = ranks(2, bad_inputs, tmp_path)
    for seen, fresh, mesh, unsavable in values:
        assert "rank 1 does not see the folder" in seen[1] and "shared file system" in seen[1]
        assert fresh is None
        assert "mesh of 2 dimensions" in mesh[1] and "fully_shard(model)" in mesh[1]
        assert "is a function" in unsavable[1]


FILES = ("_commit_parts.py", "commit_folder.py", "_disk.py", "_gloo_messages.py", "_store.py")


def commit_and_die(run_dir, victim, at):
    """Commits the steps 1, 2, 3; in the second, `victim` is killed at its call number `at`; returns the number of calls."""
    calls, armed = 0, False

    def on_call(frame, event, _):
        nonlocal calls
        if armed and event == "call" and Path(frame.f_code.co_filename).name in FILES:
            calls += 1
            if calls == at and dist.get_rank() == victim:
                os.kill(os.getpid(), signal.SIGKILL)

    group, store = GlooGroup(), CommitStore(run_dir, keep=3)
    if dist.get_rank() == 0:
        store.open()
    sys.setprofile(on_call)
    for step in (1, 2, 3):
        armed = step == 2
        try:
            _commit_parts.write_parts(group, store, states.sharded_state(step), step=step,
                                      on_tensors_written=lambda: None, **states.FACTS)  # fmt: skip
        except RanksError:
            return calls
    return calls


@pytest.mark.parametrize(
    "stride", [pytest.param(23, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.chaos)]
)
def test_a_kill_of_each_rank_at_each_point_leaves_a_whole_commit(ranks, tmp_path, stride):
    """Whichever rank dies in whichever call of a commit: the newest commit is whole, the others end, and the run goes on."""
    counts, _ = ranks(2, commit_and_die, tmp_path / "calm", 0, 0)
    found = set()
    for victim in (0, 1):
        for at in range(1, counts[victim], stride):
            where = tmp_path / f"{victim}-{at}"
            _, codes = ranks(2, commit_and_die, where, victim, at, code=None)
            assert codes[victim] == -signal.SIGKILL
            state = load_commit(where)
            found.add(state["step"])
            assert digest.of_value(state) == EXPECTED[state["step"]]
            ranks(2, states.commit, where, 4)
            assert load_commit(where)["step"] == 4
            assert not list((where / "commits").glob("tmp-*"))
    assert found == {1, 2}

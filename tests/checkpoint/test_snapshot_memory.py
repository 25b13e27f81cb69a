"""Snapshots: whatever the state looks like and becomes, the writer process writes the bytes that the run itself would."""

import itertools
import mmap
import os
import tempfile
import time
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import samebits
from samebits._context import Position
from samebits.checkpoint._codec import encode
from samebits.checkpoint._manifest import canonical_json
from samebits.checkpoint._prepared_commit import (
    CommitPreparer,
    LayoutError,
    PreparedCommit,
    StateLayout,
)
from samebits.checkpoint._store import CommitStore
from samebits.checkpoint._writer.commit_folder import LARGE, write_file, write_image
from samebits.checkpoint._writer.snapshot_memory import SnapshotMemory
from samebits.checkpoint._writer.writer_process import LAG
from samebits.train._async_commits import Commits
from samebits.train._cadence import Cadence
from samebits.train._committed_state import gather

PLAIN = {
    "none": None, "yes": True, "int": 3, "huge": 2**70, "float": -0.0, "nan": float("nan"), "infinite": [1.0, float("inf")],
    "text": "a\n\ud800\u20ac", "bytes": b"\0\xff", "complex": 1 - 2j, "empty": [[], {}, (), set()], "numbers": [1, 2.5, None],
    "flags": [True, False], "pair": (1, 2), "dtype": torch.bfloat16, "size": torch.Size([2]), "scalar": np.float32(0.1),
    "set": {3, 1}, "deque": deque([1, 2], 5), "default": defaultdict(int, {"a": 1}), "count": Counter("aab"), 7: "key",
    ("a", 1): "tuple key", "big numbers": [2**63, 1], "nested": [{"a": [1, {"b": 2}]}, [3, "x"]],
}  # fmt: skip


def tensors():
    base = torch.arange(24.0).reshape(2, 3, 4)
    return {
        "plain": base, "transposed": base.transpose(0, 2), "last": torch.ones(1, 3, 4, 4).contiguous(memory_format=torch.channels_last),
        "half": torch.randn(5).bfloat16(), "eight": torch.randn(7).to(torch.float8_e4m3fn), "none": torch.empty(0, 3),
        "number": torch.tensor(3), "complex": torch.randn(3, dtype=torch.complex128), "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag, "bytes": [torch.randint(0, 255, (n,), dtype=torch.uint8) for n in (1, 7, 63, 64, 65, 200, 4097)],
        "offset": torch.arange(300, dtype=torch.int16)[3:],
        "tied": [base, base.view(24)], "bool": torch.tensor([True, False]), "parameter": nn.Parameter(torch.ones(2)),
        "array": np.arange(6).reshape(2, 3), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)), "dates": np.array(["2026-11-20"], "M8[D]"),
        "words": np.array(["a", "bcd"]), "ordered": OrderedDict(a=torch.zeros(2), b=1),
    }  # fmt: skip


def facts(step, **more):
    given = {
        "finished": False,
        "program": {"seed": 1},
        "environment": {"torch": "2"},
        "rolling": None,
        "value": None,
    }
    at = Position("train", 0, step, step)
    return at, {**given, **more}


@pytest.fixture
def both(tmp_path):
    """Commits by a writer process, from the layout of the state before; and by the run itself, encoded anew each time."""
    beside = Commits(tmp_path / "beside", Cadence("explicit"), 100, 0)
    here = Commits(tmp_path / "here", Cadence("explicit"), 100, 0)
    for commits in (beside, here):
        commits.store.open()
        commits.store.newest()
    here.store._preparer._layouts_fit = False
    yield beside, here
    for commits in (beside, here):
        commits.close()


def commit(both, step, state, **more):
    """Commits in both ways; the files of the two commits."""
    beside, here = both
    full = {"run_state": {}, "objects": {}, **state}
    assert beside.snapshot(full, *facts(step, **more), lambda: None)
    assert [position.step for position in beside.wait()] == [step]
    here.commit(full, *facts(step, **more), lambda: None, lambda: None)
    assert beside.store.last == here.store.last
    return [
        {file.name: file.read_bytes() for file in (c.store.folder.commits / c.store.last.name).iterdir()}
        for c in both
    ]


def equal(both, step, state, **more):
    """Whether both have written the same bytes, of which reading makes the state again."""
    beside, here = commit(both, step, state, **more)
    assert CommitStore(both[0].store.run_dir).newest()[0].step == step
    return beside == here


def test_every_kind_of_value_is_written_with_the_same_bytes(both):
    """Plain values, tensors of all kinds, ties, arrays: writer process and run write equal manifests and tensor files."""
    for step in range(3):
        changing = {
            "step": step,
            "loss": step / 3,
            "history": [0.1] * step,
            "weight": torch.full((3,), step / 7),
        }
        assert equal(
            both, step, {**PLAIN, **tensors(), **changing}, rolling=f"xxh3-64:{step:016x}", value=-float(step)
        )


def test_a_state_that_changes_its_structure_is_written_whole(both):
    """New, vanished, resized, retyped, untied and reordered values between two snapshots: each time the same bytes."""
    shared = torch.ones(3)
    changes = [
        {"a": shared, "b": shared},
        {"a": shared, "b": torch.ones(3)},
        {"a": shared.double(), "b": torch.ones(3)},
        {"a": torch.ones(4), "b": torch.ones(3)},
        {"a": torch.ones(1), "b": torch.ones(3)},  # would be broadcast
        {"b": torch.ones(3), "a": torch.ones(1)},
        {"b": torch.ones(3), "a": None},
        {"b": torch.ones(2, 2).T, "a": 1},
        {"b": torch.arange(4.0).reshape(2, 2).T, "a": True},
        {"b": [], "a": 1.0},
        {"b": [torch.ones(1)], "a": [1, 2]},
        {"b": [torch.ones(1), 2], "a": [1, "2"]},
        {"b": (1, 2), "a": deque([1])},
        {"b": [1, 2], "a": np.ones(2)},
        {"b": OrderedDict(x=1), "a": np.ones(2, np.float32)},
        {"b": {"x": 1}, "a": np.ones((2, 2)).T.copy("F")},
        {"big": torch.ones(100_000), "a": "x"},
    ]
    for step, state in enumerate(changes):
        assert equal(both, step, state), state


def test_optimizer_state_and_gradients_that_come_and_go(both):
    """State that Adam makes at its first step, gradients that are None, alive, and None again, a frozen layer: same bytes."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    opt = torch.optim.Adam(model.parameters(), 0.1)
    objects = {"model": model, "opt": opt}
    for step in range(6):
        assert equal(both, step, gather(objects).objects_to_dict())
        opt.zero_grad(set_to_none=step % 2 == 0)
        if step != 3:
            model(torch.randn(5, 3)).sum().backward()
            opt.step()
        if step == 4:
            model[0].requires_grad_(False)
            opt.add_param_group({"params": [torch.zeros(2, requires_grad=True)]})


def test_what_is_written_after_a_snapshot_is_not_in_it(both):
    """Tensors, lists and arrays that change as soon as `snapshot` has returned are committed as they were."""
    beside, _ = both
    state = {"w": torch.zeros(1_000_000), "n": [1, 2], "a": np.zeros(1000), "run_state": {}, "objects": {}}
    assert beside.snapshot(state, *facts(1), lambda: None)
    state["w"].fill_(1)
    state["n"][0] = 9
    state["a"][:] = 1
    beside.wait()
    _, saved = CommitStore(beside.store.run_dir).newest()
    assert not saved["w"].any() and saved["n"] == [1, 2] and not saved["a"].any()
    assert beside.snapshot(state, *facts(2), lambda: None)  # negative control: the next one has it
    beside.wait()
    assert CommitStore(beside.store.run_dir).newest()[1]["w"].all()


def test_newest_wins_and_what_was_begun_is_finished(both):
    """Of many snapshots in a row the last is durable, some are dropped, and each that is durable follows the one before."""
    beside, _ = both
    last = -1
    while beside.written < 3:
        last += 1
        beside.poll()
        assert beside.snapshot(
            {"w": torch.full((200_000,), float(last)), "run_state": {}, "objects": {}},
            *facts(last),
            lambda: None,
        )
    beside.wait()
    store = CommitStore(beside.store.run_dir)
    manifest, state = store.newest()
    made = sorted(store.folder.commits.iterdir())
    assert len(made) == beside.written < last
    assert manifest.step == max(int(path.name[:12]) for path in made) and state["w"][0] == manifest.step
    assert last - manifest.step <= 2  # every slot was in use
    assert manifest.parent.split(":")[1].startswith(made[-2].name.split("-")[1])


def test_a_plan_reads_only_what_it_was_made_of():
    """`StateLayout.read` gives None for a state of another structure: also where only a shape, stride, dtype or tie differs."""
    base = torch.ones(2, 3)
    plan = StateLayout({"a": base, "b": [base, 1], "c": {"x": 1.0}})
    same = {"a": base, "b": [base, 5], "c": {"x": 2.0}}
    values = plan.read(same)
    assert plan.text(values) == canonical_json(encode(same)[0])
    for other in (
        {**same, "a": torch.ones(2, 3)},  # tied no more
        {**same, "a": base.double(), "b": [base, 5]},
        {**same, "a": base.T},
        {**same, "c": {"y": 2.0}},
        {**same, "c": {"x": 2}},
        {**same, "b": [base, 5, 6]},
        {**same, "b": (base, 5)},
        {"b": [base, 5], "a": base, "c": {"x": 2.0}},
        {**same, "a": base.to_sparse()},
        {**same, "a": nn.Parameter(base)},
    ):
        assert plan.read(other) is None


def test_tensors_in_a_deque_are_committed_by_the_writer_process_too(both, capfd):
    """No layout covers them (LayoutError): such states are encoded anew each time, and written with the same bytes."""
    with pytest.raises(LayoutError):
        StateLayout({"d": deque([torch.ones(1)])})
    for step in range(3):
        assert equal(
            both, step, {"d": deque([torch.full((2,), float(step))]), "w": torch.ones(3).cumsum(0).flip(0)}
        )
    assert not capfd.readouterr().err


def test_nothing_is_left_when_a_run_has_closed(tmp_path):
    """After 6 runs with a writer process each: no child, no descriptor and no shared memory more than before."""

    def there():
        children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        return len(os.listdir("/proc/self/fd")), len(children)

    def snapshots():
        return open("/proc/self/maps").read().count("samebits-snapshot")

    before = there()
    for number in range(6):
        commits = Commits(tmp_path / str(number), Cadence("explicit"), 2, 0)
        commits.store.open()
        commits.snapshot({"w": torch.ones(1000), "run_state": {}, "objects": {}}, *facts(1), lambda: None)
        assert there() != before and snapshots()  # negative control: one is seen
        assert [position.step for position in commits.close()] == [1]
    del commits
    assert there() == before
    assert snapshots() == 0


def test_the_writer_leaves_out_what_the_lag_allows(both):
    """Of 100 snapshots (a slow disk: more), 2 ms apart, at most one in half the lag is written; who waits gets the last."""
    beside, _ = both
    assert beside.snapshot({"run_state": {}, "objects": {}, "step": 0}, *facts(0), lambda: None)
    beside.wait()
    began = time.monotonic()
    for step in itertools.takewhile(lambda step: step < 100 or beside.written < 2, itertools.count(1)):
        assert beside.snapshot({"run_state": {}, "objects": {}, "step": step}, *facts(step), lambda: None)
        beside.poll()
        time.sleep(0.002)
    passed = time.monotonic() - began
    assert 2 <= beside.written <= passed / (LAG / 2) + 2
    assert beside.wait()[-1].step == step
    assert beside.store.newest()[1]["step"] == step


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, (1 << 20) + 3])
def test_an_image_of_any_size_is_written_whole(tmp_path, size):
    """What goes past the page cache by whole pages, and the rest of it, are the bytes that were given."""
    with mmap.mmap(-1, size + 1) as memory:
        memory[:size] = os.urandom(size)
        write_image(tmp_path / "image", memoryview(memory)[:size])
        assert (tmp_path / "image").read_bytes() == memory[:size]


@pytest.mark.parametrize("where", ["disk", "/dev/shm"])
@pytest.mark.parametrize(
    "sizes", [(10, LARGE), (LARGE, 0, LARGE), (3, 4096, 2 * LARGE + 5, 1), (LARGE - 1, 1), (LARGE + 4096,)]
)
def test_a_large_file_of_any_blocks_is_written_whole(tmp_path, monkeypatch, where, sizes):
    """Past the page cache, and where the file system refuses that: the bytes of the blocks, one after another; not executable."""
    with tempfile.TemporaryDirectory(dir=tmp_path if where == "disk" else where) as folder:
        blocks = [np.random.default_rng(size).bytes(size) for size in sizes]
        for flag in (os.O_DIRECT, 0):  # without it as on a file system that refuses it
            monkeypatch.setattr(os, "O_DIRECT", flag)
            path = Path(folder) / str(flag)
            write_file(path, list(map(memoryview, blocks)))
            assert path.read_bytes() == b"".join(blocks) and not path.stat().st_mode & 0o111


class Runtime:
    """Stands in for CUDA's: which memory it holds for pinned, with CUDA's own errors."""

    def __init__(self):
        self.pinned = {}

    def cudaHostRegister(self, address, size, flags):
        if address in self.pinned:
            return 712  # cudaErrorHostMemoryAlreadyRegistered, which torch raises at the next kernel
        self.pinned[address] = size
        return 0

    def cudaHostUnregister(self, address):
        return 0 if self.pinned.pop(address, None) else 713


class OnCuda(PreparedCommit):
    """A commit that takes its tensors for a GPU's."""

    on_cuda = True


PREPARER = CommitPreparer()


def prepared(preparer, state):
    at, given = facts(1)
    return preparer.prepare(state, step=1, position=at.to_dict(), **given)


def on_cuda(state):
    return OnCuda(*vars(prepared(PREPARER, state)).values())


def test_memory_is_pinned_once_and_let_go_before_it_moves(monkeypatch):
    """A slot's memory is pinned once for all plans that fit in it, and unpinned before it is given back or moved."""
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    slot = SnapshotMemory()
    for count, pinned in ((1000, 1), (1001, 1), (100_000, 1), (100_001, 1)):
        state = {"w": torch.randn(count)}
        slot.copy(on_cuda(state))
        slot.copy(on_cuda(state))
        assert len(runtime.pinned) == pinned
        assert runtime.pinned == {slot._pinned: len(slot._memory)}
    slot.close()
    assert not runtime.pinned


def test_a_forked_child_lets_go_of_pinned_memory_without_cuda(monkeypatch):
    """A child that was forked after CUDA's start closes a slot with pinned memory, and asks nothing of CUDA, which would raise."""
    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    slot, state = SnapshotMemory(), {"w": torch.randn(10)}
    slot.copy(on_cuda(state))
    asked = []
    monkeypatch.setattr(torch.cuda, "cudart", lambda: asked.append("cudart") or runtime)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    slot.close()
    assert not asked and len(runtime.pinned) == 1 and not slot._pinned


def shared_memory():
    """Bytes of shared memory whose pages this process has."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssShmem"))


@pytest.mark.parametrize("megabytes, taken", [(96, True), (8, False)])
def test_the_memory_of_the_first_snapshot_is_there_before_it(tmp_path, megabytes, taken):
    """After its first step a run takes the pages beside the training, where the state is large; and the commit holds its bytes."""
    samebits.set_random_seed(1)
    model = nn.Linear(1024, megabytes * 256, bias=False)
    loader = samebits.data.Pipeline.range(3).batch(1)
    begun = shared_memory()
    expected = (megabytes - 1) << 20  # Linux counts pages for each CPU, and adds them up late
    with samebits.Run(tmp_path / "run", model=model, save="1000s", check_complete=False) as run:
        for step, _ in run.steps(loader):
            with torch.no_grad():
                model.weight.add_(1)
            if step.number == 1:
                until = time.monotonic() + 60
                while taken and shared_memory() - begun < expected and time.monotonic() < until:
                    time.sleep(0.01)
                assert (shared_memory() - begun >= expected) == taken
                run.commit()
    trained = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.zero_()
    with samebits.Run(tmp_path / "run", model=model, check_complete=False, allow_changes=["script"]) as run:
        assert run.resumed and model.weight.equal(trained)


def test_a_snapshot_waits_for_its_memory_and_a_lack_of_it_is_met_there(monkeypatch):
    """A copy right after `reserve` has all bytes; where `reserve` found no memory, the copy raises."""
    commit = prepared(CommitPreparer(), {"x": torch.arange(1 << 20)})
    for _ in range(3):
        memory = SnapshotMemory()
        memory.reserve(commit.layout.size)
        memory.copy(commit)
        with mmap.mmap(memory.fd, commit.layout.size) as image:
            begin, end = commit.layout.spans[0]
            assert image[begin:end] == torch.arange(1 << 20).numpy().tobytes()
        memory.close()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    memory = SnapshotMemory()
    memory.reserve(commit.layout.size)
    with pytest.raises(OSError, match="No space"):
        memory.copy(commit)
    memory.close()

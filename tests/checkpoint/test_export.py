"""Commits to and from other programs' formats: every bit, and nothing that a file holds is executed."""

import argparse
import contextlib
import io
import json
import os
import pickle
import shutil
import sys
import traceback
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import samebits
from samebits import _digest as digest
from samebits.checkpoint import export, load_commit, load_weights
from samebits.checkpoint._commit_parts import write_parts
from samebits.checkpoint._store import CommitStore
from samebits.distributed._gloo_messages import GlooGroup
from samebits.errors import (
    CorruptCommitError,
    InvalidArgumentError,
    RunDirectoryError,
    UnsavableStateError,
    WeightsFileError,
    WeightsMismatchError,
)
from sharded_states import sharded
from store_commits import write_commit

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {}}
FORMATS = ["w.safetensors", "w.pt", "folder"]


class Odd(nn.Module):
    """Weights of many kinds: tied, channels_last, 16 and 8 bits, empty, without dimensions, NaN with a payload."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(3, 4)
        self.two.weight = self.one.weight
        self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.sixteen = nn.Parameter(torch.randn(5).bfloat16())
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("eight", torch.randn(7).to(torch.float8_e4m3fn))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("scale", torch.tensor(-0.0))
        self.register_buffer("nan", torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32))
        self.register_buffer("mask", torch.tensor([True, False]))


@pytest.fixture
def saved(tmp_path):
    """A run directory with two commits of an `Odd` and its optimizer, and the model of the newest."""
    torch.manual_seed(3)
    model = Odd()
    optimizer = torch.optim.Adam(model.parameters())
    with CommitStore(tmp_path / "run") as store:
        for step in (1, 2):
            (model.one.weight.sum() + model.sixteen.sum()).backward()
            optimizer.step()
            objects = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            write_commit(store, step, {"objects": objects, "run_state": {"best": 0.5}}, **FACTS)
    return tmp_path / "run", model


def bits(module):
    return digest.of_value(module.state_dict())


@pytest.mark.parametrize("name", FORMATS)
def test_weights_go_out_and_come_back_bit_for_bit(saved, tmp_path, name):
    """Exported and loaded into a fresh module: every bit, stride and tie; the older commit (control) gives other bits."""
    run_dir, model = saved
    for step, equal in ((None, True), (2, True), (1, False)):
        fresh = Odd()
        assert bits(fresh) != bits(model)
        path = export(run_dir, tmp_path / f"{step}{name}", step=step)
        assert load_weights(fresh, path).missing_keys == []
        assert (bits(fresh) == bits(model)) == equal
        assert fresh.conv.weight.stride() == model.conv.weight.stride()
        assert fresh.one.weight is fresh.two.weight
    assert sorted(os.listdir(tmp_path)) == sorted(["run", *(f"{step}{name}" for step in (None, 1, 2))])


def test_a_large_model_is_written_in_shards_with_an_index(saved, tmp_path):
    """Past max_shard_size: files of at most that size (a larger tensor alone) and Hugging Face's index; equal bits; no size is an error."""
    run_dir, model = saved
    whole = safetensors.torch.load_file(export(run_dir, tmp_path / "one.safetensors", max_shard_size="1KB"))
    (tmp_path / "m.safetensors").touch()  # readers would prefer it
    index = export(run_dir, tmp_path / "m.safetensors", max_shard_size=100)
    assert index == tmp_path / "m.safetensors.index.json" and not (tmp_path / "m.safetensors").exists()
    listed = json.loads(index.read_bytes())
    assert listed["metadata"] == {"total_size": sum(one.nbytes for one in whole.values())}
    found, count = {}, len(set(listed["weight_map"].values()))
    for number in range(1, count + 1):
        name = f"m-{number:05d}-of-{count:05d}.safetensors"
        tensors = safetensors.torch.load_file(tmp_path / name)
        assert sum(one.nbytes for one in tensors.values()) <= 100 or len(tensors) == 1
        assert {listed["weight_map"][one] for one in tensors} == {name}
        found |= tensors
    assert count > 2 and found.keys() == listed["weight_map"].keys()
    assert bits_of(found) == bits_of(whole) == bits_of(model.state_dict())
    assert export(run_dir, tmp_path / "m.safetensors", max_shard_size="5 gb").name == "m.safetensors"
    for size in (0, "5 apples", -1, "1.5GB"):
        with pytest.raises(InvalidArgumentError, match="max_shard_size"):
            export(run_dir, tmp_path / "n.safetensors", max_shard_size=size)


def bits_of(tensors):
    return digest.of_value(dict(sorted(tensors.items())))


PEAK = """
import re, sys, torch
from pathlib import Path
from samebits.checkpoint import export, load_commit
def peak():  # getrusage would give that of the parent
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
before = peak()
for run_dir in sys.argv[1:]:
    export(run_dir, run_dir + ".safetensors", max_shard_size="100MB")
    print(peak() - before)
load_commit(sys.argv[1])
print(peak() - before)
"""


@pytest.mark.slow
def test_an_export_does_not_hold_the_state(tmp_path, python, ranks):
    """Of 256 MB, in one file and in parts, exports take less than a fifth of memory; load_commit (control) all. Equal files."""
    with CommitStore(tmp_path / "whole") as store:
        write_commit(store, 1, {"objects": {"model": many()}}, **FACTS)
    ranks(2, commit_many, tmp_path / "parts")
    *exports, load = python(PEAK, tmp_path / "whole", tmp_path / "parts").stdout.split()
    assert max(map(int, exports)) < 50e6 and int(load) > 250e6
    for number in range(1, 4):
        one, two = (tmp_path / f"{name}-0000{number}-of-00003.safetensors" for name in ("whole", "parts"))
        assert one.read_bytes() == two.read_bytes()
        tensors = safetensors.torch.load_file(one)
        assert tensors and all(torch.equal(value, many()[name]) for name, value in tensors.items())


def many():
    """32 tensors of 8 MB each."""
    return {f"w{number}": torch.arange(2.0**21).view(1024, -1) + number for number in range(32)}


def commit_many(run_dir):
    store, group = CommitStore(run_dir), GlooGroup()
    with store if group.rank == 0 else contextlib.nullcontext():
        state = {"objects": {"model": {name: sharded(one) for name, one in many().items()}}}
        write_parts(group, store, state, step=1, on_tensors_written=lambda: None, **FACTS)
    group.close()


def test_a_new_run_starts_from_the_weights_of_another(saved, tmp_path):
    """load_weights takes a run_dir or a URL, of any step; a damaged newest commit is passed over for the one before."""
    run_dir, model = saved
    fresh = Odd()
    load_weights(fresh, run_dir)
    assert bits(fresh) == bits(model)
    load_weights(fresh, f"file://{run_dir}", step=1)
    first = bits(fresh)
    assert first != bits(model)
    next((run_dir / "commits").glob("*2-*/manifest.json")).write_text("{")
    load_weights(fresh, run_dir)
    assert bits(fresh) == first
    with pytest.raises(CorruptCommitError):
        load_weights(fresh, run_dir, step=2)


def test_others_read_what_is_exported(saved, tmp_path):
    """safetensors, torch.load(weights_only=True) and torch.distributed.checkpoint themselves read equal bits."""
    run_dir, model = saved
    state = load_commit(run_dir)
    found = safetensors.torch.load_file(export(run_dir, tmp_path / "a.safetensors"))
    assert digest.of_value(dict(sorted(found.items()))) == digest.of_value(
        dict(sorted(model.state_dict().items()))
    )
    whole = torch.load(export(run_dir, tmp_path / "a.pt"), weights_only=True)
    assert digest.of_value(whole) == digest.of_value(state)
    one = torch.load(export(run_dir, tmp_path / "b.pt", object="optimizer"), weights_only=True)
    assert digest.of_value(one) == digest.of_value(state["objects"]["optimizer"])
    fresh = Odd()
    into = {"model": fresh.state_dict()}
    dcp.load(into, checkpoint_id=export(run_dir, tmp_path / "a"), no_dist=True)
    fresh.load_state_dict(into["model"])
    assert bits(fresh) == bits(model)


def test_files_of_others_are_read(saved, tmp_path):
    """A plain state_dict, one below a name, and a DCP folder that torch itself wrote."""
    _, model = saved
    torch.save(model.state_dict(), tmp_path / "plain.pt")
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "named.pth")
    dcp.save({"net": model.state_dict(), "step": 3}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for source, name in (("plain.pt", "model"), ("named.pth", "state_dict"), ("dcp", "net")):
        fresh = Odd()
        load_weights(fresh, tmp_path / source, name)
        assert bits(fresh) == bits(model), source


def test_weights_that_do_not_fit_change_nothing(saved):
    """Another shape or other names: WeightsMismatchError, the module has its old bits; strict=False says what it left out."""
    run_dir, _ = saved
    wrong = Odd()
    wrong.norm = nn.BatchNorm1d(4)
    more = Odd()
    more.extra = nn.Linear(1, 1)
    for module, words in ((wrong, "size mismatch for norm.weight"), (more, "extra.weight")):
        before = bits(module)
        with pytest.raises(WeightsMismatchError, match=words):
            load_weights(module, run_dir)
        assert bits(module) == before
    assert load_weights(more, run_dir, strict=False).missing_keys == ["extra.weight", "extra.bias"]


def test_what_a_format_cannot_hold_is_an_error_and_leaves_no_file(saved, tmp_path):
    """An optimizer as safetensors, an array for weights_only, a format nobody knows, a folder that is there: no file."""
    run_dir, _ = saved
    with CommitStore(tmp_path / "arrays") as store:
        write_commit(
            store, 1, {"objects": {"model": {"w": torch.ones(1)}}, "run_state": {"a": np.ones(3)}}, **FACTS
        )
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(InvalidArgumentError, match="safetensors cannot hold"):
        export(run_dir, tmp_path / "o.safetensors", object="optimizer")
    with pytest.raises(UnsavableStateError, match="Export one object"):
        export(tmp_path / "arrays", tmp_path / "o.pt")
    with pytest.raises(InvalidArgumentError, match="must end in"):
        export(run_dir, tmp_path / "o.onnx")
    with pytest.raises(InvalidArgumentError, match="it is there already"):
        export(run_dir, run_dir)
    assert sorted(os.listdir(tmp_path)) == before
    export(tmp_path / "arrays", tmp_path / "o.pt", object="model")  # the cure


def test_what_is_not_there_is_named(saved, tmp_path):
    """No run directory, no such step, object, rank or file: each error says what there is."""
    run_dir, model = saved
    with pytest.raises(RunDirectoryError, match="no run directory"):
        load_commit(tmp_path / "nothing")
    with pytest.raises(InvalidArgumentError, match="those of steps 1, 2"):
        load_commit(run_dir, 7)
    with pytest.raises(InvalidArgumentError, match="made by 1 process"):
        load_commit(run_dir, rank=1)
    with pytest.raises(InvalidArgumentError, match="no object 'ema'. It has 'model', 'optimizer'"):
        load_weights(model, run_dir, "ema")
    with pytest.raises(FileNotFoundError):
        load_weights(model, tmp_path / "nothing.pt")
    with CommitStore(tmp_path / "empty"):
        pass
    with pytest.raises(InvalidArgumentError, match="not committed anything yet"):
        load_commit(tmp_path / "empty")


class Bomb:
    """Unpickled, it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def bombs(tmp_path, run_dir):
    """Files and folders that execute something when they are unpickled."""
    bomb = Bomb(tmp_path / "fired")
    torch.save({"model": bomb}, tmp_path / "bomb.pt")
    yield tmp_path / "bomb.pt"
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(bomb))
    yield tmp_path / "bare.pt"
    (tmp_path / "bomb.safetensors").write_bytes(pickle.dumps(bomb))
    yield tmp_path / "bomb.safetensors"
    folder = export(run_dir, tmp_path / "metadata")
    (folder / ".metadata").write_bytes(pickle.dumps(bomb))
    yield folder
    folder = export(run_dir, tmp_path / "part")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    buffer = io.BytesIO()
    torch.save(bomb, buffer)
    (folder / "evil").write_bytes(buffer.getvalue())
    for place in metadata.storage_data.values():
        place.relative_path, place.offset, place.length = "evil", 0, len(buffer.getvalue())
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    yield folder


def test_nothing_in_a_file_is_executed(saved, tmp_path):
    """Pickles that make a folder, in torch.save files and in DCP folders: WeightsFileError, and no folder; pickle itself
    (control) makes it."""
    run_dir, model = saved
    before = bits(model)
    for source in bombs(tmp_path, run_dir):
        with pytest.raises(WeightsFileError):
            load_weights(model, source)
        assert not (tmp_path / "fired").exists(), source
    assert bits(model) == before
    pickle.loads(pickle.dumps(Bomb(tmp_path / "fired")))
    assert (tmp_path / "fired").exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_refused_file_is_told_what_it_holds_and_never_to_be_executed(tmp_path, zipped):
    """A file with an object of a class is refused with the class and a way to save it; torch's advice (control) appears nowhere."""
    module, path = nn.Linear(2, 2), tmp_path / "w.pt"
    content = {"model": module.state_dict(), "args": argparse.Namespace(lr=0.1)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsFileError, match="w.pt .*holds argparse.Namespace, .*save_file") as caught:
        load_weights(module, path)
    shown = "".join(traceback.format_exception(caught.value))
    assert "weights_only` set to `False" not in shown and "WeightsUnpickler" not in shown
    with pytest.raises(pickle.UnpicklingError, match="weights_only` set to `False"):
        torch.load(path, weights_only=True)
    safetensors.torch.save_file(module.state_dict(), tmp_path / "w.safetensors")  # the cure
    assert not load_weights(module, tmp_path / "w.safetensors").missing_keys


def test_a_compiled_model_in_a_file_is_told_with_its_path(tmp_path):
    """A file of torch.jit.save is refused with its path and what to save instead."""
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "w.pt")
    with pytest.raises(WeightsFileError, match="w.pt is compressed.*Save the state_dict"):
        load_weights(nn.Linear(2, 2), tmp_path / "w.pt")


@pytest.mark.parametrize("path", ["a\0b", 3, b"runs/x", ["runs/x"], "~no-such-user/x"])
def test_what_no_path_can_be_is_named_with_its_argument(path):
    """A NUL character, a number, bytes, an unknown home: Run, load_weights and load_commit name the argument."""
    module = nn.Linear(2, 2)
    with pytest.raises(InvalidArgumentError, match="Run: run_dir=.*(Leave it out|Give )"):
        samebits.Run(path, model=module)
    with pytest.raises(InvalidArgumentError, match="run_dir=.*(Leave it out|Give )"):
        load_commit(path)
    with pytest.raises(InvalidArgumentError, match="=.*(Leave it out|Give )"):
        load_weights(module, path)
    with pytest.raises(InvalidArgumentError, match="first argument is the module"):
        load_weights("runs/x", "runs/y")


def test_a_forged_metadata_changes_no_class_of_this_process(saved, tmp_path):
    """A DCP metadata that sets attributes of the classes it names leaves those classes as they are."""
    run_dir, model = saved
    kind = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    forged = b"\x80\x02" + kind + b"(N}X\x05\x00\x00\x00hello" + b"K\x01stb."
    folder = export(run_dir, tmp_path / "dcp")
    (folder / ".metadata").write_bytes(forged)
    with pytest.raises(WeightsFileError):
        load_weights(model, folder)
    assert not hasattr(sys.modules["torch.distributed.checkpoint.metadata"].Metadata, "hello")


def changed(folder, change):
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def place(**fields):
    def change(metadata):
        vars(next(p for i, p in metadata.storage_data.items() if i.fqn == "model.one.weight")).update(fields)

    return change


def size(*shape):
    return lambda metadata: vars(metadata.state_dict_metadata["model.one.weight"]).update(
        size=torch.Size(shape)
    )


def one_part_twice(metadata):
    """Two parts that both cover the first half."""
    ((index, place),) = [(i, p) for i, p in metadata.storage_data.items() if i.fqn == "model.one.weight"]
    metadata.state_dict_metadata["model.one.weight"].size = torch.Size([8, 3])
    metadata.storage_data[type(index)("model.one.weight", torch.Size([0, 0]), 7)] = place


FORGED_DCP = {
    "a part twice": one_part_twice,
    "a parent path": place(relative_path="../run/samebits-run.json"),
    "an absolute path": place(relative_path="/etc/passwd"),
    "a pipe": place(relative_path="pipe"),
    "a link": place(relative_path="link"),
    "beyond the end": place(length=2**62),
    "before the start": place(offset=-5),
    "2^62 elements": size(2**62),
    "negative": size(-4, -3),
    "more elements than parts": size(5, 3),
    "fewer elements than parts": size(3, 3),
    "no parts": lambda metadata: metadata.storage_data.clear(),
}


@pytest.mark.parametrize("change", [None, *FORGED_DCP.values()], ids=["nothing", *FORGED_DCP])
def test_a_forged_dcp_folder_is_an_error(saved, tmp_path, change):
    """Parts elsewhere, sizes that are not there, pipes and links: WeightsFileError; unchanged (control) it loads."""
    run_dir, model = saved
    folder = export(run_dir, tmp_path / "dcp")
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(next(folder.glob("*.distcp")))
    changed(folder, change or (lambda metadata: None))
    if change is None:
        load_weights(Odd(), folder)
        return
    before = bits(model)
    with pytest.raises((WeightsFileError, CorruptCommitError)):
        load_weights(model, folder)
    assert bits(model) == before


def test_a_dcp_folder_of_an_older_python_is_read(saved, tmp_path, monkeypatch):
    """Python before 3.11.4 pickles a member of an enumeration as getattr(class, name): read, and no attribute of anything else."""
    run_dir, model = saved

    def by_name(self, _protocol):
        return getattr, (type(self), self.name)

    monkeypatch.setattr(torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING, "__reduce_ex__", by_name)
    folder = export(run_dir, tmp_path / "dcp")
    assert b"getattr" in (folder / ".metadata").read_bytes()
    loaded = Odd()
    load_weights(loaded, folder)
    assert bits(loaded) == bits(model)

    class Attribute:
        def __reduce__(self):
            return getattr, (torch.float32, "itemsize")

    changed(folder, lambda metadata: setattr(metadata, "planner_data", Attribute()))
    with pytest.raises(WeightsFileError, match="asks for attribute 'itemsize'"):
        load_weights(Odd(), folder)


def test_damaged_files_are_errors(saved, tmp_path):
    """Cut, compressed (whose size nobody knows before), a pipe, a folder of nothing, a number: WeightsFileError."""
    run_dir, model = saved
    good = export(run_dir, tmp_path / "good.pt")
    (tmp_path / "cut.pt").write_bytes(good.read_bytes()[:-100])
    with (
        zipfile.ZipFile(good) as old,
        zipfile.ZipFile(tmp_path / "small.pt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    safe = export(run_dir, tmp_path / "good.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(safe[:-1])
    (tmp_path / "long.safetensors").write_bytes((2**62).to_bytes(8, "little") + safe[8:])
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "folder").mkdir()
    torch.save(7, tmp_path / "number.pt")
    for name in (
        "cut.pt",
        "small.pt",
        "cut.safetensors",
        "long.safetensors",
        "pipe.pt",
        "folder",
        "number.pt",
    ):
        with pytest.raises(WeightsFileError):
            load_weights(model, tmp_path / name)


def test_a_run_that_starts_warm_resumes_with_its_own_weights(tmp_path):
    """A run that calls load_weights at its start, stopped and started again, ends as uninterrupted: its commit wins."""

    def train(run_dir, stop_at=None):
        samebits.set_random_seed(1)
        model = nn.Linear(3, 2)
        load_weights(model, tmp_path / "warm.safetensors")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        loader = samebits.data.DataLoader([(torch.rand(3), torch.rand(2)) for _ in range(6)], batch_size=2)
        with samebits.Run(run_dir, model=model, optimizer=optimizer) as run:
            for step, (x, y) in run.steps(loader, epochs=2):
                optimizer.zero_grad()
                (model(x) - y).square().sum().backward()
                optimizer.step()
                run.commit()
                if step.number == stop_at:
                    raise KeyboardInterrupt
        return bits(model), run.resumed

    safetensors.torch.save_file(nn.Linear(3, 2).state_dict(), tmp_path / "warm.safetensors")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "r", stop_at=3)
    expected, _ = train(None)
    shutil.move(tmp_path / "warm.safetensors", tmp_path / "old.safetensors")
    # it does not matter any more
    safetensors.torch.save_file(nn.Linear(3, 2).state_dict(), tmp_path / "warm.safetensors")
    assert train(tmp_path / "r") == (expected, True)
    assert train(None)[0] != expected  # the control: at a start it does

"""Commits that were damaged or forged: the one before is read, or the error is clear; nothing runs, hangs or is allocated."""

import json
import os
import shutil
import socket
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits
from samebits import _digest as digest
from samebits._byte_digest import of_bytes
from samebits.checkpoint import _manifest as manifests
from samebits.checkpoint import list_commits
from samebits.checkpoint._listing import prune
from samebits.checkpoint._store import CommitStore
from samebits.errors import (
    CommitError,
    NewerCommitError,
    RunDirectoryError,
    RunMismatchError,
    SamebitsError,
)
from store_commits import in_memory, write_commit  # noqa: F401

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {}}
TENSORS, MANIFEST = "tensors.safetensors", "manifest.json"


def state_at(step):
    return {"w": torch.arange(300.0) + step, "e": torch.empty(0, 3), "n": torch.tensor(step), "best": step / 3,
            "a": torch.arange(6).numpy() + step}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A run directory with the commits of steps 1 and 2, both valid."""
    with CommitStore(tmp_path / "run") as store:
        for step in (1, 2):
            write_commit(store, step, state_at(step), **FACTS)
    assert read(tmp_path / "run") == 2
    return tmp_path / "run"


def read(run_dir):
    """The step that is read; its state must be exactly the one that was committed."""
    manifest, state = CommitStore(run_dir).newest()
    assert digest.of_value(state) == digest.of_value(state_at(manifest.step))
    return manifest.step


def folder(run_dir, step=2):
    return next((run_dir / "commits").glob(f"{step:012d}-*"))


def forge(run_dir, change=None, text=None, step=2):
    """Rewrites the manifest of the commit, with digests and a folder name that hold; returns the folder."""
    path = folder(run_dir, step)
    if text is None:
        values = json.loads((path / MANIFEST).read_bytes())
        del values["digest"]
        change(values)
        text = manifests.canonical_json(values).encode()
    own = of_bytes(text)
    (path / MANIFEST).write_bytes(b'{"digest":"' + own.encode() + b'",' + text[1:])
    return path.rename(path.with_name(f"{path.name[:12]}-{own.split(':')[1][:8]}"))


def tensor(**fields):
    return lambda values: values["tensors"]["w"].update(fields)


def field(**fields):
    return lambda values: values.update(fields)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


FORGED = {
    "absolute path": field(files={"/etc/passwd": {"bytes": os.path.getsize("/etc/passwd")}}),
    "parent path": field(files={"../../samebits-run.json": {"bytes": 1}}),
    "hidden file": field(files={".bashrc": {"bytes": 1}}),
    "control characters": field(files={"a\x1b[2Jb": {"bytes": 1}}),
    "no file": field(files={}, tensors={"w": {"dtype": "float32", "shape": [9], "digest": "x"}}),
    "negative file size": field(files={TENSORS: {"bytes": -1}}),
    "file size 2^63": field(files={TENSORS: {"bytes": 2**63}}),
    "negative shape": tensor(shape=[-300]),
    "two negative shapes": tensor(shape=[-30, -10]),
    "shape 2^63": tensor(shape=[2**63]),
    "shape 2^62": tensor(shape=[2**62]),
    "shape 2^40 x 2^40": tensor(shape=[2**40, 2**40]),
    "shape 0 x 2^62 x 2^62": tensor(shape=[0, 2**62, 2**62]),
    "a million dimensions": tensor(shape=[1] * 10**6),
    "fractional shape": tensor(shape=[300.0]),
    "bool shape": tensor(shape=[True] * 3),
    "shape as text": tensor(shape="300"),
    "huge stride": tensor(shape=[2, 150], stride=[2**50, 1]),
    "overlapping stride": tensor(shape=[2, 150], stride=[0, 1]),
    "negative stride": tensor(shape=[300], stride=[-1]),
    "stride of another length": tensor(stride=[1, 1]),
    "dtype that is a function": tensor(dtype="load"),
    "dtype that is a module": tensor(dtype="nn"),
    "dtype that nobody has": tensor(dtype="float7"),
    "no digest": lambda values: values["tensors"]["w"].pop("digest"),
    "tensor that is a list": field(tensors={"w": [1]}),
    "tensors that are a list": field(tensors=[]),
    "step as text": field(step="2"),
    "negative step": field(step=-2),
    "step 2^63": field(step=2**63),
    "fractional step": field(step=2.5),
    "finished as number": field(finished=1),
    "position as list": field(position=[]),
    "parent as number": field(parent=7),
    "a rolling digest that is none": field(rolling="xxh3-64:" + "z" * 16),
    "a value beyond all floats": field(value=10**400),
    "a field more": field(extra=1),
    "a field less": lambda values: values.pop("tree"),
    "a tree without end": field(tree=nested(900)),
    "a tree that is no dict": field(tree=[1]),
    "a tensor that is not there": field(tree={"dict": ["w", {"tensor": "x"}]}),
    "objects from bytes": field(tree={"dict": ["w", {"array": ["w", "|O", [150], "C"]}]}),
    "objects in a structure": field(tree={"dict": ["w", {"array": ["w", "O,O", [75], "C"]}]}),
    "array of another size": field(tree={"dict": ["w", {"array": ["w", "<f8", [151], "C"]}]}),
    "array of negative shape": field(tree={"dict": ["w", {"array": ["w", "<f4", [-1], "C"]}]}),
    "strings of no length": field(tree={"dict": ["w", {"array": ["e", "|S0", [2**40], "F"]}]}),
    "a scalar object": field(tree={"dict": ["w", {"scalar": ["|O", "00" * 8]}]}),
    "a generator outside of its words": field(tree={"dict": ["g", {"dict": ["bit_generator", "MT19937", "state", {"dict": ["pos", 625]}]}]}),
    "a generator before its buffer": field(tree={"dict": ["g", {"dict": ["bit_generator", "Philox", "state", {"dict": []}, "buffer_pos", -1]}]}),
    "a legacy generator": field(tree={"dict": ["g", {"tuple": ["MT19937", [1], -1, 0, 0.0]}]}),
    "a number that stands for nothing": field(tree={"dict": ["g", {"same": 7}]}),
    "an unknown kind": field(tree={"dict": ["w", {"eval": "1"}]}),
    "older schema": field(schema=0),
    "schema as text": field(schema="1"),
}  # fmt: skip


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_forged_manifest_is_skipped_although_its_digests_hold(run, change):
    """Whatever a manifest says that samebits would not write: that commit is skipped with a reason, the one before is read."""
    forge(run, change)
    started = time.process_time()
    store = CommitStore(run)
    assert store.newest()[0].step == 1
    assert len(store.skipped) == 1
    assert time.process_time() - started < 5  # nobody counted to 2^62


def test_a_forger_who_changes_nothing_is_believed(run):
    """Negative control: the same rewriting without a change, and with another value, is read."""
    forge(run, lambda values: None)
    assert read(run) == 2
    forge(run, field(samebits="9.9"))
    assert read(run) == 2


def test_duplicate_keys_are_no_manifest(run):
    """A key twice, with digests of that very text: skipped, whichever of the two a parser would take."""
    path = folder(run)
    text = (path / MANIFEST).read_bytes().partition(b",")[2]
    forge(run, text=b'{"step":1,' + text)
    assert read(run) == 1


@pytest.mark.parametrize("depth", [100_000, 900, 0])
def test_deep_nesting_ends_in_a_reason(run, depth):
    """100,000 brackets, with right digests: skipped, no crash; 0 brackets (the control) is read."""
    text = b"{" + (folder(run) / MANIFEST).read_bytes().partition(b",")[2]
    forge(
        run,
        text=text.replace(b'"program":{}', b'"program":{"a":' + b"[" * depth + b"]" * depth + b"}")
        if depth
        else text,
    )
    assert read(run) == 1 if depth > 900 else 2


@pytest.mark.parametrize(
    "text", [b'{"a":NaN}', b'{"a":1e999}', b'{"a":-Infinity}', b'{"a":' + b"9" * 5000 + b"}"]
)
def test_numbers_that_json_does_not_have_are_no_manifest(run, text):
    """NaN, infinities and numbers without end: skipped."""
    forge(run, text=text)
    assert read(run) == 1


def cuts(size, head):
    """One place in each class of bytes: nothing, inside the length, the header, its end, a tensor, the last byte."""
    return {0, 1, 7, 8, head // 2, head - 1, head, head + 1, (head + size) // 2, size - 1}


@pytest.mark.parametrize("name", [TENSORS, MANIFEST])
def test_a_file_cut_anywhere_is_skipped(run, name):
    """Cut in the length, the header, a tensor, the manifest: the one before is read; whole again (control), it is read."""
    path = folder(run) / name
    good = path.read_bytes()
    head = 8 + int.from_bytes(good[:8], "little") if name == TENSORS else 50
    for place in cuts(len(good), head):
        path.write_bytes(good[:place])
        assert read(run) == 1, place
    path.write_bytes(good)
    assert read(run) == 2


BYTES = {}


@settings(max_examples=150)
@given(
    name=st.sampled_from([TENSORS, MANIFEST]),
    place=st.floats(0, 1, exclude_max=True),
    kind=st.sampled_from(["flip", "zeros", "drop", "repeat", "swap"]),
    length=st.integers(1, 64),
)
def test_damage_never_gives_another_state(name, place, kind, length):
    """Bits flipped, a block of zeros, bytes dropped, repeated or swapped: exactly step 2's state, or exactly step 1's."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as where:
        run_dir = Path(where) / "run"
        if not BYTES:
            with CommitStore(run_dir) as store:
                for step in (1, 2):
                    write_commit(store, step, state_at(step), **FACTS)
            BYTES.update(
                (str(p.relative_to(run_dir)), p.read_bytes()) for p in run_dir.rglob("*") if p.is_file()
            )
        for file, content in BYTES.items():
            (run_dir / file).parent.mkdir(parents=True, exist_ok=True)
            (run_dir / file).write_bytes(content)
        path = folder(run_dir) / name
        good = path.read_bytes()
        at = int(place * len(good))
        part = good[at : at + length]
        new = {"flip": bytes([part[0] ^ 1 << length % 8]) + part[1:], "zeros": bytes(len(part)), "drop": b"",
               "repeat": part + part, "swap": part[::-1]}[kind]  # fmt: skip
        damaged = good[:at] + new + good[at + length :]
        path.write_bytes(damaged)
        assert read(run_dir) == (2 if damaged == good else 1)


def replaced(path, make):
    path.unlink()
    make(path)


def fifo(path):
    os.mkfifo(path)


def unix_socket(path):
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(path.parent)  # names of sockets are short
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


NO_FILES = {
    "a pipe": fifo,
    "a socket": unix_socket,
    "a folder": os.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a link to an equal file": lambda path: path.symlink_to(
        path.parents[3] / "copy" / path.parent.name / path.name
    ),
    "nothing": lambda path: None,
}


@pytest.mark.parametrize("name", [TENSORS, MANIFEST])
@pytest.mark.parametrize("make", NO_FILES.values(), ids=NO_FILES)
def test_what_is_no_file_is_neither_opened_nor_followed(run, tmp_path, name, make):
    """A pipe (which would hang), a device, a folder or a link in place of a file: skipped, also when the link's target fits."""
    shutil.copytree(run / "commits", tmp_path / "copy")
    replaced(folder(run) / name, make)
    assert read(run) == 1


def test_a_device_is_not_opened(run):
    """The device of zeros in place of the manifest is skipped (needs the right to make devices)."""
    path = folder(run) / MANIFEST
    path.unlink()
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))
    except OSError:
        pytest.skip("this user may not make devices")
    assert read(run) == 1


def test_a_linked_folder_is_no_commit(run, tmp_path):
    """A commit's folder that is a link is skipped; pruning removes the link and not what it leads to."""
    moved = shutil.move(folder(run), tmp_path / "elsewhere")
    (run / "commits" / "000000000002-00000000").symlink_to(moved)
    name = json.loads((Path(moved) / MANIFEST).read_bytes())["digest"].split(":")[1][:8]
    (run / "commits" / f"000000000002-{name}").symlink_to(moved)
    assert read(run) == 1
    with CommitStore(run) as store:
        store.newest()
        write_commit(store, 3, state_at(3), **FACTS)
    assert sorted(os.listdir(moved)) == [MANIFEST, TENSORS]
    assert [path.name[:12] for path in sorted((run / "commits").iterdir())] == [
        "000000000001",
        "000000000003",
    ]


@pytest.mark.parametrize("name", ["lock", ".samebits-probe"])
@pytest.mark.parametrize("kind", ["link", "second name"])
def test_opening_a_run_writes_through_no_link(run, tmp_path, name, kind):
    """A lock or probe that is a link (or a second name) of a file elsewhere: that file is as it was."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim) if kind == "link" else os.link(victim, run / name)
    try:
        with CommitStore(run) as store:
            store.newest()
            write_commit(store, 3, state_at(3), **FACTS)
    except RunDirectoryError as error:
        assert name == "lock" and "emove" in str(error)
    assert victim.read_text() == "precious"


def test_commits_of_another_folder_are_not_pruned_through_a_link(run, tmp_path):
    """A `commits` that is a link is refused: pruning there would delete another run's commits."""
    (tmp_path / "mine").mkdir()
    shutil.copy(run / "samebits-run.json", tmp_path / "mine")
    (tmp_path / "mine" / "commits").symlink_to(run / "commits")
    with pytest.raises(RunDirectoryError, match="is a symbolic link"):
        CommitStore(tmp_path / "mine").open()
    assert read(run) == 2


def test_a_newer_commit_is_refused_and_never_lost(run):
    """A whole commit of a later schema is no damage: reading stops, prune keeps it; damaged, it is skipped (control)."""
    path = forge(run, field(schema=99, samebits="9.1"))
    with pytest.raises(NewerCommitError, match=r"schema version 99, written by samebits '9.1'.*Read it with"):
        CommitStore(run).newest()
    assert {listed.status for listed in list_commits(run)} == {"newer", "whole"}
    kept, deleted = prune(run, 1)
    assert (len(kept), deleted) == (2, [])
    text = (path / MANIFEST).read_bytes()
    (path / MANIFEST).write_bytes(text.replace(b'"9.1"', b'"9.2"'))
    assert read(run) == 1


def test_files_of_two_commits_do_not_mix(run):
    """The tensors of one commit under the manifest of another are skipped; so is the manifest in the other's folder."""
    shutil.copy(folder(run, 1) / TENSORS, folder(run, 2) / TENSORS)
    assert read(run) == 1
    shutil.copy(folder(run, 1) / MANIFEST, folder(run, 2) / MANIFEST)
    assert read(run) == 1


MEMORY = """
import resource, sys, torch
from samebits.checkpoint._store import CommitStore
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (300 << 20),) * 2)
for run_dir in sys.argv[1:]:
    print(CommitStore(run_dir).newest()[0].step, flush=True)
try:
    torch.empty(1 << 29)
except RuntimeError:
    print("limited")
"""


def test_memory_is_bounded_by_the_files(run, tmp_path, python):
    """Under a limit of 300 MB, manifests that ask for 2^62 bytes, 4 GB by strides or a sparse 1 TB are skipped; the limit bites."""
    runs = []
    for number, change in enumerate([tensor(shape=[2**62]), tensor(shape=[2, 150], stride=[2**30, 1])]):
        runs.append(shutil.copytree(run, tmp_path / f"{number}"))
        forge(runs[-1], change)
    runs.append(shutil.copytree(run, tmp_path / "sparse"))
    os.truncate(folder(runs[-1]) / TENSORS, 1 << 40)
    runs.append(shutil.copytree(run, tmp_path / "long"))
    os.truncate(folder(runs[-1]) / MANIFEST, 1 << 40)
    runs.append(run)
    assert python(MEMORY, *runs).stdout.split() == ["1", "1", "1", "1", "2", "limited"]


def train(run_dir, seed=5, width=8, keep=2, act=lambda step: None):
    samebits.set_random_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Dropout(0.2), torch.nn.Linear(width, 3))
    optimizer = torch.optim.Adam(model.parameters())
    data = [(torch.full((6,), i / 22), i % 3) for i in range(12)]
    loader = samebits.data.DataLoader(data, batch_size=4, shuffle=True)
    with samebits.Run(run_dir, keep=keep, model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.commit()
            act(step.number)
    return digest.of_value(model.state_dict())


class Stopped(Exception):
    pass


def stopped_at(number):
    def act(step):
        if step == number:
            raise Stopped

    return act


@pytest.mark.filterwarnings("ignore:skipped the damaged commit")
@pytest.mark.parametrize("damage", ["none", "newest", "newest two"])
def test_a_run_over_damaged_commits_ends_with_the_same_bits(tmp_path, damage):
    """Stopped, its newest commits damaged, resumed: the bits of the uninterrupted run, and only whole commits stay."""
    with pytest.raises(Stopped):
        train(tmp_path / "r", keep=3, act=stopped_at(6))
    names = sorted(path.name for path in (tmp_path / "r" / "commits").iterdir())
    assert len(names) == 3
    for name in names[{"none": 3, "newest": 2, "newest two": 1}[damage] :]:
        with (tmp_path / "r" / "commits" / name / TENSORS).open("r+b") as file:
            file.truncate(file.seek(0, 2) - 1)
    assert train(tmp_path / "r") == train(None)
    assert {listed.status for listed in list_commits(tmp_path / "r", verify=True)} == {"valid"}


@pytest.mark.parametrize("other", [{"seed": 6}, {"width": 9}], ids=["another seed", "another model"])
def test_a_commit_of_another_run_is_not_resumed(tmp_path, other):
    """The newest commit of another run, copied beside ours: RunMismatchError; of an equal run (control) it is resumed."""
    for name, options in (("ours", {}), ("theirs", other), ("equal", {})):
        with pytest.raises(Stopped):
            train(tmp_path / name, act=stopped_at(3 if name == "ours" else 6), **options)
    for name in ("theirs", "equal"):
        shutil.copytree(tmp_path / "ours", tmp_path / f"with {name}")
        for path in (tmp_path / name / "commits").iterdir():
            shutil.copytree(path, tmp_path / f"with {name}" / "commits" / path.name)
    with pytest.raises(RunMismatchError):
        train(tmp_path / "with theirs")
    assert train(tmp_path / "with equal") == train(None)


def test_a_commit_that_no_run_made_is_a_clear_error(run):
    """A folder whose newest commit is whole and holds no run: RunMismatchError, nothing is changed."""
    with pytest.raises(SamebitsError):
        train(run)
    assert read(run) == 2


def test_a_run_directory_that_is_removed_is_an_error(tmp_path):
    """Removed while it runs: CommitError that says so, and no word of commits that are safe."""

    def act(step):
        if step == 3:
            shutil.rmtree(tmp_path / "r")

    with pytest.raises(CommitError, match="was removed") as caught:
        train(tmp_path / "r", act=act)
    assert "safe" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_file_that_may_not_be_read_is_skipped(run):
    """A file without read permission is skipped with that reason, and the one before is read."""
    (folder(run) / TENSORS).chmod(0)
    assert read(run) == 1

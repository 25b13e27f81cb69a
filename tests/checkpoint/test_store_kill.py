"""SIGKILL at random instants: what was reported durable is there, whole, and goes on."""

import json
import subprocess
import sys

import pytest

DRIVER = '''
import itertools, json, os, random, signal, sys, time
from pathlib import Path
import torch
from samebits.checkpoint._store import CommitStore

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {}}
run_dir, side, mode = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
least, hits = map(int, sys.argv[4:])  # so many kills, and more (400 at most) until so many hit a commit in the middle
chance = random.Random(5)

def state_at(step):
    return {"w": torch.arange(20_000) * 31 + step, "step": step, "small": [torch.tensor(float(step))] * 3}

def whole(step, state):
    return state["step"] == step and all(torch.equal(a, b) for a, b in zip(
        [state["w"], *state["small"]], [state_at(step)["w"], *state_at(step)["small"]]))

def images():
    """The folders of two commits, to copy from."""
    for step in (0, 1):
        with CommitStore(side / str(step)) as store:
            store.write(store.prepare(state_at(step), step=step, **FACTS))
    return [next((side / str(step) / "commits").glob("0*")) for step in (0, 1)]

def write_in_place(report, images):
    """What many programs do: the files of the one checkpoint are overwritten, here with an fsync each."""
    (run_dir / "commits").mkdir(parents=True, exist_ok=True)
    for image in itertools.cycle(images):
        for target in (run_dir / "commits").glob("0*"):
            break
        else:
            target = run_dir / "commits" / image.name
            target.mkdir()
        for name in ("manifest.json", "tensors.safetensors"):
            with open(target / name, "wb") as file:
                file.write((image / name).read_bytes())
                file.flush()
                os.fsync(file.fileno())
        target.rename(target.with_name(image.name))
        os.write(report, b"0\\n")

def write(report):
    """Resumes, then commits step after step, and reports each when commit() has returned."""
    with CommitStore(run_dir) as store:
        found = store.newest()
        step = found[0].step + 1 if found else 0
        while True:
            store.write(store.prepare(state_at(step), step=step, **FACTS))
            os.write(report, b"%d\\n" % step)
            step += 1

def killed_after(seconds):
    """Steps that a writer reported before it was killed, `seconds` after its first report."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            write(writer) if mode == "atomic" else write_in_place(writer, made)
        finally:
            os._exit(9)
    os.close(writer)
    first = os.read(reader, 100)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    rest = b"".join(iter(lambda: os.read(reader, 4096), b""))
    _, status = os.waitpid(child, 0)
    os.close(reader)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    return [int(line) for line in (first + rest).split(b"\\n")[:-1]]

made = images()
bad, partial, last, kills = [], 0, -1, 0
while kills < least or (partial < hits and kills < 400 and not bad):
    kills += 1
    last = max(last, *killed_after(chance.uniform(0, 0.012)))
    partial += any((run_dir / "commits").glob("tmp-*"))
    store = CommitStore(run_dir)
    try:
        manifest, state = store.newest()
        problem = store.skipped or (not last <= manifest.step <= last + 1) or not whole(manifest.step, state)
    except Exception as error:
        problem = error
    if problem:
        bad.append(repr(problem))
print(json.dumps({"bad": bad, "partial": partial, "last": last}))
'''


def drive(tmp_path, mode, least, hits):
    command = [sys.executable, "-c", DRIVER, tmp_path / "run", tmp_path / "side", mode, str(least), str(hits)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_no_kill_loses_a_durable_commit_or_leaves_an_unreadable_one(tmp_path):
    """40 SIGKILLs or more of a committing process: each time newest() is whole, skips nothing, and is not before the last report."""
    told = drive(tmp_path, "atomic", 40, 5)
    assert told["bad"] == []
    assert told["last"] >= 39
    assert told["partial"] >= 5  # the kills did hit commits in the middle


@pytest.mark.slow
def test_the_same_kills_break_a_store_that_writes_in_place(tmp_path):
    """Negative control: overwriting one folder, without rename, is found broken by the same kills."""
    told = drive(tmp_path, "in-place", 10, 5)
    assert told["bad"]


INSIDE = """
import os, signal, sys
import torch
from samebits.checkpoint._store import CommitStore

FACTS = {"position": {}, "finished": False, "program": {}, "environment": {}}
with CommitStore(sys.argv[1]) as store:
    store.write(store.prepare({"x": torch.ones(3)}, step=1, **FACTS))
    store.write(store.prepare({"x": torch.zeros(3)}, step=2, **FACTS), lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_a_kill_between_tensors_and_manifest_leaves_the_commit_before(tmp_path):
    """SIGKILL at the hook: the tensors of step 2 are on disk, and newest() is step 1."""
    from samebits.checkpoint._store import CommitStore

    done = subprocess.run([sys.executable, "-c", INSIDE, tmp_path / "run"], check=False)
    assert done.returncode == -9
    (half,) = (tmp_path / "run" / "commits").glob("tmp-*")
    assert [path.name for path in half.iterdir()] == ["tensors.safetensors"]
    with CommitStore(tmp_path / "run") as store:
        assert store.newest()[0].step == 1
        assert store.skipped == []
        assert not half.exists()

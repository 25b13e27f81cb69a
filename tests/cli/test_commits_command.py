"""`samebits commits`: what it lists, finds, deletes and writes, and the exit codes that scripts rely on."""

import json
import os
import shutil
import signal
import sys

import pytest
import safetensors.torch
import torch

from samebits._byte_digest import of_bytes
from samebits.checkpoint import _manifest as manifests
from samebits.checkpoint import list_commits, load_commit
from samebits.checkpoint._store import CommitStore
from samebits.cli import main
from store_commits import write_commit

FACTS = {
    "position": {"loop": "train", "epoch": 3, "batch_index": 7, "step": 0, "phase": "train"},
    "finished": False,
    "program": {},
    "environment": {},
}


@pytest.fixture
def run(tmp_path):
    """A run directory with the commits of steps 1 to 4."""
    with CommitStore(tmp_path / "run", keep=9) as store:
        for step in range(1, 5):
            commit(store, step)
    return tmp_path / "run"


def commit(store, step, **facts):
    return write_commit(
        store, step, {"objects": {"model": {"w": torch.arange(6.0) + step}}}, **{**FACTS, **facts}
    )


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `samebits commits ...` here; gives exit code, standard output and standard error."""

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["samebits", "commits", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return call


def folder(run_dir, step):
    return next((run_dir / "commits").glob(f"{step:012d}-*"))


def damage(run_dir, step, name="tensors.safetensors"):
    path = folder(run_dir, step) / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def steps(run_dir):
    return [listed.step for listed in list_commits(run_dir)]


def test_commits_are_listed_newest_first(run, command):
    """A line with the names, then one each: step, position, age, size, digest, parent, state; exit 0, no standard error."""
    code, out, err = command(run)
    assert (code, err) == (0, "")
    names, *lines = out.splitlines()
    assert names.split() == ["step", "position", "age", "size", "digest", "parent", "state"]
    assert [line.split()[0] for line in lines] == ["4", "3", "2", "1"]
    digests = [listed.manifest.digest.split(":")[1] for listed in list_commits(run)]
    assert {len(own) for own in digests} == {32}  # whole: one that is cut cannot be compared
    for line, own, parent in zip(lines, digests, ["3", "2", "1", "-"]):
        assert "train epoch 3 batch 7" in line
        assert line.split()[-3:] == [own, parent, "whole"]
        assert "MB" in line


def test_damage_is_exit_1_and_verify_finds_what_listing_cannot(run, command):
    """A flipped tensor bit: listing says whole (0), --verify says damaged (1) with the reason; a flipped manifest: both say 1."""
    code, out, _ = command(run, "--verify")
    assert (code, out.count("valid")) == (0, 4)
    damage(run, 2)
    assert command(run)[0] == 0
    code, out, _ = command(run, "--verify")
    assert (code, out.count("valid"), out.count("damaged")) == (1, 3, 1)
    assert "tensor 'objects.model.w' does not have the digest" in out
    damage(run, 3, "manifest.json")
    assert command(run)[0] == 1


def test_a_missing_file_is_named_in_words(run, command):
    """Without its tensors, or its manifest, a commit is damaged: the file is missing, with no number of an error."""
    (folder(run, 2) / "tensors.safetensors").unlink()
    (folder(run, 3) / "manifest.json").unlink()
    for more in ([], ["--verify"]):
        code, out, _ = command(run, *more)
        assert code == 1 and "Errno" not in out
        assert f"{folder(run, 2)}/tensors.safetensors is missing" in out
        assert f"{folder(run, 3)}/manifest.json is missing" in out


def test_run_state_is_exported_by_its_name(tmp_path, command):
    """--object run.state, and run.state.NAME for weights or a tensor that were kept in it; another name lists them."""
    kept = {"best": 0.5, "best_weights": {"w": torch.ones(3)}, "centre": torch.zeros(2)}
    with CommitStore(tmp_path / "run") as store:
        write_commit(store, 1, {"objects": {"model": {"w": torch.zeros(3)}}, "run_state": kept}, **FACTS)
    for name, file in (("", "a.pt"), (".best_weights", "b.safetensors"), (".centre", "c.safetensors")):
        call = ["--export", "newest", tmp_path / file, "--object", f"run.state{name}"]
        assert command(tmp_path / "run", *call)[0] == 0
    assert torch.load(tmp_path / "a.pt", weights_only=True)["best"] == 0.5
    assert safetensors.torch.load_file(tmp_path / "b.safetensors")["w"].sum() == 3
    assert safetensors.torch.load_file(tmp_path / "c.safetensors")["centre"].shape == (2,)
    code, _, err = command(tmp_path / "run", "--export", "newest", tmp_path / "d.pt", "--object", "ema")
    assert code == 2 and "'run.state.best_weights'" in " ".join(err.split())


def test_json_says_the_same_for_scripts(run, command, tmp_path):
    """--json FILE beside the table, --json - in its place: step, status, bytes, digests, position, for every commit."""
    damage(run, 4, "manifest.json")
    code, out, _ = command(run, "--json", "-")
    content = json.loads(out)
    assert code == 1
    assert content["schema"] == "samebits.commits/1"
    assert [(c["step"], c["status"]) for c in content["commits"]] == [
        (4, "damaged"),
        (3, "whole"),
        (2, "whole"),
        (1, "whole"),
    ]
    bad, good, parent, _ = content["commits"]
    assert "manifest.json" in bad["reason"]
    assert bad["digest"] is None
    assert good["parent"] == parent["digest"]
    assert good["position"] == FACTS["position"]
    assert good["bytes"] == (folder(run, 3) / "tensors.safetensors").stat().st_size
    assert abs(good["written"] - (folder(run, 3) / "manifest.json").stat().st_mtime) < 1
    assert command(run, "--json", tmp_path / "x.json")[1] != ""
    assert json.loads((tmp_path / "x.json").read_text())["commits"] == content["commits"]


def test_prune_keeps_the_newest_valid_ones(run, command):
    """--prune --keep 2 leaves two valid ones; damaged ones in between go, none newer than the newest valid is touched."""
    damage(run, 4)
    damage(run, 2)
    code, out, _ = command(run, "--prune", "--keep", "2")
    assert steps(run) == [4, 3, 1]
    assert code == 1  # the damaged newest is still there
    assert "deleted: 000000000002-" in out
    assert load_commit(run)["objects"]["model"]["w"][0] == 3
    assert command(run, "--prune", "--keep", "1")[0] == 1
    assert steps(run) == [4, 3]


def test_prune_deletes_nothing_where_nothing_is_valid(run, command):
    """All damaged: --prune --keep 1 deletes none of them and says so, exit 1."""
    for step in range(1, 5):
        damage(run, step)
    code, out, _ = command(run, "--prune", "--keep", "1")
    assert code == 1 and "nothing to delete" in out
    assert steps(run) == [4, 3, 2, 1]


def test_prune_leaves_the_best(tmp_path, command):
    """--keep-best 1 leaves the commit of the smallest value beside the newest; without (control) it goes."""
    for number, more, left in ((0, ["--keep-best", "1"], [4, 2]), (1, [], [4])):
        with CommitStore(tmp_path / f"{number}", keep=9) as store:
            for step, value in enumerate((3.0, 1.0, 2.0, None), 1):
                commit(store, step, value=value)
        assert command(tmp_path / f"{number}", "--prune", "--keep", "1", *more)[0] == 0
        assert steps(tmp_path / f"{number}") == left


def test_of_two_commits_of_one_step_prune_leaves_the_child(tmp_path, command):
    """A kill between replacing and deleting leaves two of one step: --keep 1 leaves the later, whichever name sorts first."""
    for number in range(4):
        with CommitStore(tmp_path / f"{number}") as store:
            commit(store, 1, program={"n": number})
            shutil.copytree(tmp_path / f"{number}" / "commits", tmp_path / "kept")
            last = commit(store, 1, program={"n": -1})
            shutil.copytree(tmp_path / "kept", tmp_path / f"{number}" / "commits", dirs_exist_ok=True)
        shutil.rmtree(tmp_path / "kept")
        assert len(steps(tmp_path / f"{number}")) == 2
        assert command(tmp_path / f"{number}", "--prune", "--keep", "1")[0] == 0
        assert [listed.manifest.digest for listed in list_commits(tmp_path / f"{number}")] == [last.digest]


def test_prune_refuses_while_a_process_writes_there(run, command):
    """A live process holds the lock: exit 2, one line, nothing deleted; listing works; killed (control), prune works."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            CommitStore(run).open()
            os.write(writer, b"1")
            signal.pause()
        finally:
            os._exit(1)
    try:
        os.read(reader, 1)
        code, out, err = command(run, "--prune")
        assert (code, out) == (2, "")
        assert f"in use by process {child}" in err
        assert command(run)[0] == 0
        assert steps(run) == [4, 3, 2, 1]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert command(run, "--prune")[0] == 0
    assert steps(run) == [4, 3]


def test_a_commit_of_a_later_samebits_is_listed_and_kept(run, command):
    """Of a newer schema: said so, exit 1 (it cannot be used), --prune leaves it."""
    path = folder(run, 2)
    values = json.loads((path / "manifest.json").read_bytes())
    del values["digest"]
    text = manifests.canonical_json({**values, "schema": 99}).encode()
    own = of_bytes(text)
    (path / "manifest.json").write_bytes(b'{"digest":"' + own.encode() + b'",' + text[1:])
    code, out, _ = command(run, "--prune", "--keep", "1")
    assert code == 1
    assert "schema version 99" in out
    assert steps(run) == [4, 2]


def test_export_writes_what_the_ending_says(run, command, tmp_path):
    """--export newest and STEP, as safetensors, .pt and DCP folder; the path is printed, exit 0."""
    code, out, _ = command(run, "--export", "newest", tmp_path / "a.safetensors")
    assert (code, out) == (0, f"wrote {tmp_path / 'a.safetensors'}\n")
    assert safetensors.torch.load_file(tmp_path / "a.safetensors")["w"][0] == 4
    assert command(run, "--export", "2", tmp_path / "b.pt", "--object", "model")[0] == 0
    assert torch.load(tmp_path / "b.pt", weights_only=True)["w"][0] == 2
    assert command(run, "--export", "3", tmp_path / "c")[0] == 0
    assert (tmp_path / "c" / ".metadata").exists()


@pytest.mark.parametrize(("args", "words"), [
    (["nothing"], "is no run directory of samebits"),
    (["run", "--export", "7", "o.pt"], "those of steps 1, 2, 3, 4"),
    (["run", "--export", "last", "o.pt"], "must be the step of a commit, or the word newest"),
    (["run", "--export", "newest", "o.onnx"], "must end in"),
    (["run", "--export", "newest", "o.pt", "--verify"], "goes alone"),
    (["run", "--object", "model"], "goes with --export"),
    (["run", "--keep", "1"], "go with --prune"),
    (["run", "--keep-best", "0"], "go with --prune"),
    (["run", "--export", "newest", "o.pt", "--keep", "2"], "goes alone"),
    (["run", "--keep", "0", "--prune"], "--keep '0': must be a whole number, 1 or more"),
    (["run", "--export", "newest", "no/such/o.pt"], "no/such is not there. Make it"),
    (["run", "--export", "newest", "no/such/o.safetensors"], "no/such is not there. Make it"),
    (["run", "--export", "newest", "no/such/o"], "no/such is not there. Make it"),
    (["run", "--export", "newest", "run/lock/o.pt"], "run/lock is a file"),
    (["run", "--json", "no/such/x.json"], "there is no folder"),
    (["nonsense://x"], "Protocol not known"),
])  # fmt: skip
def test_what_cannot_be_done_is_exit_2(run, command, monkeypatch, args, words):
    """A wrong argument, step, place or ending: exit 2 and the cure on standard error, nothing written."""
    monkeypatch.chdir(run.parent)
    code, _, err = command(*args)
    assert code == 2
    assert words in " ".join(err.replace("\u2502", " ").split())
    assert os.listdir(run.parent) == ["run"]


def test_urls_are_listed_and_pruned_too(command, tmp_path, monkeypatch):
    """The same for a URL: list, verify, prune."""
    monkeypatch.setenv("SAMEBITS_CACHE_DIR", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/r"
    with CommitStore(url, keep=9) as store:
        for step in (1, 2, 3):
            commit(store, step)
    assert command(url, "--verify")[0] == 0
    assert command(url, "--prune", "--keep", "1")[0] == 0
    assert [line.split()[0] for line in command(url)[1].splitlines()[1:]] == ["3"]


def test_an_empty_run_has_no_commits(command, tmp_path):
    """A run directory without commits: says so, exit 0."""
    with CommitStore(tmp_path / "run"):
        pass
    assert command(tmp_path / "run")[:2] == (0, "no commits\n")


def test_nothing_in_a_commit_steers_the_terminal(command, tmp_path):
    """Escape sequences in a position, a tensor's name and an error are shown as text."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    with CommitStore(tmp_path / "run") as store:
        write_commit(
            store,
            1,
            {"objects": {evil: {"w": torch.ones(3)}}},
            **{**FACTS, "position": {"loop": evil, "epoch": evil}},
        )
    code, out, err = command(tmp_path / "run")
    damage(tmp_path / "run", 1)
    text = out + err + "".join(command(tmp_path / "run", "--verify")[1:]) + command(tmp_path / f"no{evil}")[2]
    assert "\\x1b]0;owned" in text
    assert not {"\x1b", "\x07", "\x9b"} & set(text)

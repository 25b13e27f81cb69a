"""Commits in parts at URLs: made by several ranks in the staging folder of one machine, read anywhere by any number of them."""

import contextlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open

import sharded_states as states
from samebits import _digest as digest
from samebits.checkpoint import DCPReader, export, list_commits, load_commit
from samebits.checkpoint._commit_parts import write_parts
from samebits.checkpoint._store import CommitStore
from samebits.distributed._gloo_messages import GlooGroup
from url_storages import DyingFileSystem, names

pytestmark = pytest.mark.usefixtures("one_thread", "machine")
EXPECTED = {step: digest.of_value(states.whole_state(step)) for step in range(5)}


def read(url):
    manifest, state, _ = states.read(url)
    return manifest.step, digest.of_value(states.gathered(state))


def part_path(url, step, rank):
    commits = Path(url.removeprefix("file://")) / "commits"
    return next(commits.glob(f"{step:012d}-*")) / f"part-{rank:05d}.safetensors"


def test_parts_at_a_url_are_read_anywhere(ranks, machine, tmp_path):
    """2 ranks commit; 3 ranks, one process, an export and DCPReader on another machine read equal bits; a part that is missing or damaged there: the commit before."""
    url = f"file://{tmp_path}/run"
    ranks(2, states.commit, url, 1, 2)
    assert names(url) == [(2, "valid"), (1, "valid")]
    machine("b")
    assert ranks(3, read, url)[0] == [(2, EXPECTED[2])] * 3
    assert digest.of_value(load_commit(url)) == EXPECTED[2]
    with safe_open(export(url, tmp_path / "model.safetensors"), "pt") as file:
        assert torch.equal(file.get_tensor("large"), states.wholes(2)["large"])
    model = {name: torch.zeros_like(one) for name, one in states.wholes().items()}
    dcp.load(model, storage_reader=DCPReader(url, object="model"), no_dist=True)
    assert digest.of_value(model) == digest.of_value(states.wholes(2))
    for number, damage in enumerate(
        (lambda path: path.unlink(), lambda path: path.write_bytes(b"\0" * path.stat().st_size))
    ):
        machine(f"c{number}")
        kept = part_path(url, 2, 1).read_bytes()
        damage(part_path(url, 2, 1))
        (newest, before) = list_commits(url, verify=True)
        assert (newest.status, before.status) == ("damaged", "valid") and "part-00001" in newest.reason
        assert ranks(2, read, url)[0] == [(1, EXPECTED[1])] * 2
        part_path(url, 2, 1).write_bytes(kept)
    machine("d")
    assert ranks(2, read, url)[0] == [(2, EXPECTED[2])] * 2  # the control: put back
    ranks(4, states.commit, url, 3)
    assert names(url)[0] == (3, "valid")


def commit_and_die(url, calls):
    """Commits the steps 1 and 2; in the second, rank 0 is killed after so many calls to the storage."""
    group, store = GlooGroup(), CommitStore(url)
    with store if dist.get_rank() == 0 else contextlib.nullcontext():
        for step in (1, 2):
            DyingFileSystem.left = calls if (step, dist.get_rank()) == (2, 0) else None
            state = states.sharded_state(step)
            write_parts(group, store, state, step=step, on_tensors_written=lambda: None, **states.FACTS)
        DyingFileSystem.left = None


@pytest.mark.slow
@pytest.mark.parametrize("other", ["a", "b"])
def test_a_kill_at_any_call_of_an_upload_leaves_a_whole_commit(ranks, machine, tmp_path, other):
    """Rank 0 dies at each call to the storage: the commit there is whole, 1 or 2, here 2; 3 ranks on either machine go on."""
    there = set()
    for calls in range(100):
        machine(f"a{calls}")
        url = f"dying://{tmp_path}/{calls}"
        _, codes = ranks(2, commit_and_die, url, calls, code=None)
        if codes == [0, 0]:
            break
        assert codes[0] == -9
        state = load_commit(url)
        assert digest.of_value(state) == EXPECTED[state["step"]]
        there.add(state["step"])
        machine(f"{other}{calls}")
        step = 2 if other == "a" else state["step"]
        assert ranks(3, read, url)[0] == [(step, EXPECTED[step])] * 3
        ranks(3, states.commit, url, 3)
        assert names(url) == [(3, "valid")]
    assert calls > 5 and there == {1, 2}

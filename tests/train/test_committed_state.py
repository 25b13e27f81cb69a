"""The keys of a commit's state, and commits of before that have another one in the place of `aliases`."""

import ast
from pathlib import Path

import pytest
import torch

import samebits
from samebits.checkpoint import load_commit
from samebits.checkpoint._store import CommitStore
from samebits.errors import RunMismatchError
from samebits.train._committed_state import OF_OBJECTS, CommittedState
from tests.support.store_commits import write_commit

KEYS = [*OF_OBJECTS[:-1], "run_state", "aliases", "loops"]


def train(folder, last=9):
    """Trains up to a `break` in step `last`; returns weights, and what the program holds under other names."""
    samebits.set_random_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    with samebits.Run(folder, model=model, optimizer=optimizer, save="explicit") as run:
        run.state.losses = losses = []
        run.state.table = {"losses": losses}
        run.state.best = torch.ones(2)
        for step, x in run.steps([torch.randn(2, 3)] * 8):
            if step.number == last:
                break
            model(x).square().mean().backward()
            optimizer.step()
            losses.append(model.bias.item())
            run.state.best = run.state.best + 1
            run.commit()
        assert run.state.table["losses"] is losses and run.state.losses is losses
    return model.weight.tolist(), losses, run.state.best.tolist()


def made_before(folder, change):
    """Puts a commit into a run directory of its own, whose tree `change` has made that of an older samebits."""
    train(folder, 5)
    with CommitStore(folder) as store:
        manifest, tree = store.newest()
        change(tree)
        facts = {
            one: getattr(manifest, one)
            for one in ("position", "environment", "program", "finished", "rolling")
        }
        write_commit(store, manifest.step, tree, **facts)


def with_older_key(tree):
    """The key of 2026-11-27: the objects of the loop's begin that are still there, and pairs of places with one object."""
    tree["run_state"]["table"]["losses"] = [*tree["run_state"]["losses"]]  # an older tree had a copy
    del tree["aliases"]
    tree["in_hand"] = {
        "kept": [("losses",), ("table",), ("table", "losses")],
        "same": [(("table", "losses"), ("losses",))],
    }


def test_a_commit_of_before_resumes_to_the_same_bits(tmp_path):
    """With `in_hand` in the place of `aliases` a run ends with the bits of one that was not killed, and one list stays one."""
    made_before(tmp_path / "run", with_older_key)
    assert "aliases" not in load_commit(tmp_path / "run")
    assert train(tmp_path / "run") == train(tmp_path / "whole")
    assert "in_hand" not in load_commit(tmp_path / "run")


def test_a_commit_with_neither_is_of_no_run(tmp_path):
    """Negative control: without the key, the commit is refused by its name."""
    made_before(tmp_path / "run", lambda tree: tree.pop("aliases"))
    with pytest.raises(RunMismatchError, match=r"it lacks state\['aliases'\]"):
        train(tmp_path / "run")


def test_a_commit_has_the_keys_of_the_class(tmp_path):
    """The tree of a commit has these keys in this order, and is the same once it was read and made again."""
    train(tmp_path / "run", 5)
    tree = load_commit(tmp_path / "run")
    again = CommittedState.of(tree).to_dict()
    assert list(tree) == list(again) == KEYS
    assert samebits._digest.of_value(tree) == samebits._digest.of_value(again)


def subscripts(text):
    """The keys of a commit's state by which a program's text subscripts a name."""
    nodes = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Subscript)]
    keys = {one.slice.value for one in nodes if isinstance(one.slice, ast.Constant)}
    return keys & {*KEYS, "forward_syncs", "inside"} - {
        "param_groups"
    }  # an optimizer's state_dict has them, too


@pytest.mark.parametrize("package", ["train", "testing", "trainer"])
def test_one_module_knows_the_keys(root, package):
    """No other module subscripts a commit's state by a key. Control: the module itself does."""
    found = {
        file.name: subscripts(file.read_text()) for file in Path(root, "src/samebits", package).rglob("*.py")
    }
    assert found.pop("_committed_state.py", {"loops"}) >= {"loops"}
    assert {name: keys for name, keys in found.items() if keys} == {}

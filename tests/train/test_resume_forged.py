"""Forged commits, whose digests hold: a resume ends in an error of samebits or in a step, never in a traceback or a signal."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import tempfile
import traceback
import warnings
from collections import deque, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import samebits
from samebits._byte_digest import of_bytes
from samebits.checkpoint._manifest import canonical_json
from samebits.errors import SamebitsError
from samebits.train._object_checks import _steps

Pair = namedtuple("Pair", "left right")


class Pool:
    pass


def train(folder: Path, steps: int) -> float:
    """A run with one of everything, of two epochs of three steps; commits each step."""
    samebits.set_random_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    pool = Pool()
    pool.items, pool.rng, pool.array = [[1], 2.0], np.random.default_rng(1), np.ones((2, 3)).T
    things = {
        "model": model, "optimizer": optimizer, "pool": samebits.state.attributes(pool),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2), "mersenne": np.random.RandomState(3),
        "philox": np.random.Generator(np.random.Philox(4)), "python": random.Random(5), "torchs": torch.Generator(),
        "recent": deque([1.0], 3),
    }  # fmt: skip
    loader = samebits.data.DataLoader(torch.arange(12.0).view(6, 2), batch_size=2, shuffle=True)
    with samebits.Run(folder, save=1, check_complete=False, **things) as run:
        for step, x in run.steps(loader, epochs=2):
            model(x).square().sum().backward()
            optimizer.step()
            things["scheduler"].step()
            run.state.both = [one := [step.number], one, Pair(torch.ones(2), 1)]
            run.state.drawn = (
                things["mersenne"].random() + things["philox"].random() + things["python"].random()
            )
            run.state.rows = torch.ones(4, 6)[:, ::2]
            if step.number == steps:
                break
    return float(run.state.drawn)


ODD = [None, True, -1, 0, 1, 2**31, 2**62, 10**9, -(10**9), 1e308, "", "x", "MT19937", [], [1], {}, {"tuple": []}, {"same": 0}, {"same": 7},
       {"tensor": "x"}, {"int": hex(2**80)}, {"dict": []}, {"dict": [1, 2]}, {"complex": [1.0, 2.0]}, {"bytes": "00"}, {"float": "7ff8000000000000"},
       {"named tuple": ["os:path", ["a"], [1]]}, {"dataclass": ["subprocess:Popen", [], []]}, {"size": [-1]}, {"dtype": "load"}]  # fmt: skip


def places(node: Any) -> list[tuple[Any, Any]]:
    """Each (container, key) of a tree."""
    inner = list(
        node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    )
    return [(node, key) for key, _ in inner] + [one for _, item in inner for one in places(item)]


def mutate(values: dict[str, Any], draw: random.Random) -> None:
    """Changes one to three places of a manifest: its tree, the entries of tensors, its position."""
    for _ in range(draw.randint(1, 3)):
        part = draw.choice(["tree"] * 6 + ["tensors", "position", "program", "environment"])
        owner, key = draw.choice(places(values[part]) or [(values, part)])
        kind = draw.randrange(4)
        if kind == 0 and type(owner[key]) is int:
            owner[key] += draw.choice([-1, 1, 625, 2**40, -(2**40)])
        elif kind == 1:
            del owner[key]
        elif kind == 2:
            owner[key] = copy.deepcopy(draw.choice([one[at] for one, at in places(values[part])] or [0]))
        else:
            owner[key] = copy.deepcopy(draw.choice(ODD))


def forge(folder: Path, change: Any) -> None:
    """Changes the manifest of the newest commit; its digests and the folder's name hold."""
    path = max((folder / "commits").iterdir())
    values = json.loads((path / "manifest.json").read_bytes())
    values.pop("digest")
    change(values)
    body = canonical_json(values).encode()
    own = of_bytes(body)
    (path / "manifest.json").write_bytes(b'{"digest":"' + own.encode() + b'",' + body[1:])
    path.rename(path.with_name(f"{path.name[:12]}-{own.split(':')[1][:8]}"))


def in_child(folder: Path, steps: int, said: str = "") -> str:
    """Runs `train` in a forked process.

    Returns its number, "refused" for an error of samebits, the traceback of another error, or the signal.
    """
    end = folder.with_name(f"{folder.name}.end")
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                drawn = train(folder, steps)
            assert any(said in str(one.message) for one in caught) or not said
            end.write_text(str(drawn))
        except SamebitsError as error:
            end.write_text(f"refused: {error}")
        except BaseException:
            end.write_text(traceback.format_exc())
        finally:
            os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return f"signal {-status}" if status else end.read_text()


@pytest.fixture(scope="module")
def committed() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a team of threads does not survive a fork
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        # two commits; here, so that the children begin with what it imports and compiles
        for steps in (2, 3):
            train(Path(folder) / "run", steps)
        yield Path(folder)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def whole(committed: Path) -> float:
    """The number that the run ends with."""
    return float(in_child(committed / "whole", 99))


def bad_ends(committed: Path, seeds: range) -> dict[int, str]:
    found = {}
    for seed in seeds:
        folder = Path(shutil.copytree(committed / "run", committed / f"forged{seed}"))
        forge(folder, lambda values: mutate(values, random.Random(seed)))
        end = in_child(folder, 99)
        if "Traceback" in end or "signal" in end:
            found[seed] = end
        shutil.rmtree(folder)
    return found


def test_forged_commits_end_cleanly(committed: Path) -> None:
    """Six forged commits: each ends in an error of samebits, in the commit before, or in a step."""
    assert bad_ends(committed, range(6)) == {}


@pytest.mark.soak
def test_two_thousand_forged_commits_end_cleanly(committed: Path) -> None:
    """The same with 2,000 forged commits."""
    assert bad_ends(committed, range(2000)) == {}


def part(name: str, change: Any) -> Any:
    def changed(values: dict[str, Any]) -> None:
        pairs = values["tree"]["dict"]
        change(pairs[pairs.index(name) + 1])

    return changed


def set_positions(values: Any, position: int) -> None:
    for owner, key in places(values["tree"]):
        if owner[key] in ("pos", "buffer_pos"):
            owner[key + 1] = position


FORGED = {
    "a gradient that is a tuple": part("grads", lambda node: node["dict"].__setitem__(1, {"tuple": [1]})),
    "a key that is no name": part("objects", lambda node: node["dict"][1]["ordered"][0].__setitem__(0, {"complex": [1.0, 2.0]})),
    "a gradient that is missing": part("grads", lambda node: node["dict"].__delitem__(slice(2))),
    "modes that are none": part("training", lambda node: node["dict"].__setitem__(1, [1, 2])),
    "a position of 10^9": lambda values: set_positions(values, 10**9),
    "a position of -1": lambda values: set_positions(values, -1),
    "a position of 625": lambda values: set_positions(values, 625),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_the_commit_before_a_forged_one_is_resumed(case: str, committed: Path, whole: float) -> None:
    """What native code would believe, or no run writes: the commit is skipped with a reason, and the run ends as it should."""
    folder = Path(shutil.copytree(committed / "run", committed / case))
    forge(folder, FORGED[case])
    drawn = in_child(folder, 99, "skipped the damaged commit")
    assert not drawn.startswith("refused"), drawn
    assert float(drawn) == whole


@pytest.mark.parametrize(("name", "more"), [
    ("Adam", {}), ("Adam", {"fused": True}), ("Adam", {"amsgrad": True, "foreach": True}), ("AdamW", {"lr": torch.tensor(0.1)}), ("SGD", {}),
    ("SGD", {"momentum": 0.9}), ("Adagrad", {}), ("Adafactor", {}), ("NAdam", {}), ("Rprop", {}), ("RMSprop", {"momentum": 0.9, "centered": True}),
])  # fmt: skip
def test_the_state_of_an_optimizer_is_tried(name: str, more: dict[str, Any]) -> None:
    """A state is taken before and after a step; a rate that is a list, or a moment of another shape, is not."""
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    optimizer = getattr(torch.optim, name)(model.parameters(), **more)
    assert _steps(optimizer, optimizer.state_dict())
    model(torch.ones(2, 1, 4, 4)).square().sum().backward()
    optimizer.step()
    for other in (optimizer, getattr(torch.optim, name)(model.parameters(), **more)):
        state = copy.deepcopy(optimizer.state_dict())
        assert _steps(other, state)
        for moment in state["state"].get(0, {}):
            wrong = copy.deepcopy(state)
            wrong["state"][0][moment] = torch.ones(1, 2, 3)
            assert not _steps(other, wrong)
        state["param_groups"][0]["lr"] = [1]
        assert not _steps(other, state)

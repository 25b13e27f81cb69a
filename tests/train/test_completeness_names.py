"""Which saved object a name means is in no commit: reported in training or at the resume, and what is set anew is not."""

import os
import runpy
import signal
from pathlib import Path

import pytest
import torch

import samebits
from samebits.errors import IncompleteStateError, ResumeMismatchError
from samebits.train._completeness import commit_notes

SCRIPT = """
import os, signal, torch, numpy as np, samebits
from collections import deque
from samebits.state import attributes
samebits.set_random_seed(1)
model, other = torch.nn.Linear(4, 1), torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(model.parameters(), 0.1)
class Holder:
    def __init__(self, pool): self.pool = pool; self.best = pool[3]
    def step(self, n, at):
        if n == at: self.best = self.pool[1]
        return self.best['w']
class Turning:
    def __init__(self, pool): self.pool = pool; self.now = pool[3]
    def turn(self, n):
        self.now = self.pool[n % 4]
        return self.now['w']
class Member:
    def __init__(self): self.w, self.n = torch.randn(4), 0
class Pool:
    def __init__(self): self.members = [Member() for _ in range(6)]
class Buffer:
    def __init__(self): self.items = [torch.zeros(4)]
    def state_dict(self): return {{'items': list(self.items)}}
    def load_state_dict(self, state): self.items{slice} = list(state['items'])
held, buffer = Pool(), Buffer()
recent, group, seen = buffer.items, opt.param_groups[0], {{'w': torch.ones(4)}}
phases = [{{'w': torch.ones(4)}}, {{'w': torch.zeros(4)}}]
with samebits.Run('run', model=model, other=other, opt=opt, held=attributes(held), buffer=buffer, save=1) as run:
    pool = run.state.setdefault('pool', [{{'w': torch.randn(4)}} for _ in range(6)])
    arrays = run.state.setdefault('arrays', [np.ones(4), np.zeros(4)])
    table = run.state.setdefault('table', torch.randn(6, 4))
    memory = run.state.setdefault('memory', deque(maxlen=3))
    {before}
    for step, (x,) in run.steps(torch.randn(22, 1, 4), epochs=1):
        if str(step.number) == os.environ.get('KILL'): os.kill(os.getpid(), signal.SIGKILL)
        {body}
        loss = (model(x) - w.sum()).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
"""
LOST = {
    "a dict of a saved list": ("best = pool[3]", "best = pool[1] if step.number == 9 else best; w = best['w']"),
    "a tensor": ("best = pool[3]['w']", "best = pool[1]['w'] if step.number == 9 else best; w = best"),
    "an array": ("best = arrays[0]", "best = arrays[1] if step.number == 9 else best; w = torch.tensor(best)"),
    "a view": ("row = table[3]", "row = table[1] if step.number == 9 else row; w = row"),
    "an object of an adapter": ("best = held.members[3]", "best = held.members[1] if step.number == 9 else best; w = best.w"),
    "a model": ("best = model", "best = other[0] if step.number == 9 else best; w = best.weight"),
    "a parameter": ("best = other[0].weight", "best = other[1].weight if step.number == 9 else best; w = best"),
    "an attribute": ("h = Holder(pool)", "w = h.step(step.number, 9)"),
    "what is carried and stored": ("obs = torch.zeros(4)", "w = obs * 0.5 + x[0]; memory.append((obs, w)); obs = w"),
    "an object that the run does not save": ("which = phases[0]", "which = phases[1] if step.number == 9 else which; w = which['w'] + phases[0]['w']"),
    "None at first": ("best = None", "best = pool[1] if step.number == 9 else best; w = (best or pool[0])['w']"),
    "a copy in its place": ("best = pool[3]", "best = {'w': pool[2]['w'] + 1} if step.number == 9 else best; w = best['w']"),
}  # fmt: skip
KEPT = {
    "what each step sets": ("item = pool[0]", "item = pool[step.number % 6]; w = item['w']"),
    "an attribute that each step sets": ("h = Turning(pool)", "w = h.turn(step.number)"),
    "what never changes": ("first, row, best = pool[0], table[2], held.members[1]", "best.n += 1; first['w'].mul_(0.9); w = first['w'] + row + best.n"),
    "a name in run.state": ("run.state.setdefault('best', pool[3])", "run.state.best = pool[1] if step.number == 9 else run.state.best; w = run.state.best['w']"),
    "an index in run.state": ("run.state.setdefault('at', 3)", "run.state.at = 1 if step.number == 9 else run.state.at; best = pool[run.state.at]; w = best['w']"),
    "what is stored later": ("", "w = seen['w']; run.state.setdefault('seen', seen)"),
    "a deque under a local name": ("", "memory.append({'w': x[0]}); w = sum(one['w'] for one in memory)"),
    "an optimizer's group": ("", "group['lr'] *= 0.9; w = x"),
}  # fmt: skip


def run(before, body, *, in_place=""):
    script = Path(f"script{in_place}.py").resolve()  # a file of its own: sources are read once
    script.write_text(SCRIPT.format(before=before or "pass", body=body, slice=in_place))
    return runpy.run_path(str(script))["model"].weight.tolist()


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commit_notes, "_FIRST_SHARE", 1e9)
    monkeypatch.setattr(commit_notes, "_FIRST_SECONDS", 1e9)


def killed(kill, *parts, **options):
    """Runs the script in a fork, to a SIGKILL at a step."""
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)
            os.environ["KILL"] = str(kill)
            samebits._context.process.overrides = samebits._context.CheckOverrides(raise_incomplete=False)
            run(*parts, **options)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize("name", LOST)
def test_a_name_that_means_another_object_is_named(name):
    """Which object of those that a run saves, or holds, a name means: changed once in step 9, it is an error of the first run."""
    with pytest.raises(IncompleteStateError):
        run(*LOST[name])


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", KEPT)
def test_a_name_that_is_as_the_program_sets_it_is_not(name):
    """What each step sets, what never means another object, and what run.state says, resume without a word, and end equal."""
    killed(15, *KEPT[name])
    resumed = run(*KEPT[name])
    os.rename("run", "before")
    assert run(*KEPT[name]) == resumed


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", ["a dict of a saved list", "an attribute"])
def test_a_resume_compares_what_a_name_means(name):
    """Where the check in training raises nothing, the resume does; with the line that it says, it ends as the whole run."""
    killed(15, *LOST[name])
    with pytest.raises(
        ResumeMismatchError, match=r"was run\.state\.pool\[1\], and is run\.state\.pool\[3\]"
    ) as error:
        run(*LOST[name])
    assert "best = run.state.pool[1]" in str(error.value)


@pytest.mark.parametrize(
    "view",
    [
        "arrays.numpy()",
        *(pytest.param(f"arrays{one}", marks=pytest.mark.slow) for one in ("", "[:]", ".view(2, 2)")),
    ],
)
def test_a_write_through_an_older_name_is_not_lost_in_silence(view):
    """A view made before the run loads has other memory after a resume: what is written into it is an error then."""
    make = f"arrays = torch.zeros(4); view = {view}; arrays = arrays.clone() if run.resumed else arrays"
    body = "w = run.state.held; view[0] = step.number"
    before = f"{make}; run.state.setdefault('held', arrays)"
    killed(15, before, body)
    with pytest.raises(ResumeMismatchError, match=r"view: it was run\.state\.held"):
        run(before, body)
    os.rename("run", "before")
    before = f"arrays = run.state.setdefault('held', torch.zeros(4)); view = {view}"
    killed(15, before, body)
    resumed = run(before, body)
    os.rename("run", "killed")
    assert run(before, body) == resumed


def test_a_name_of_what_load_state_dict_replaces():
    """A second name of a list holds the old one after `self.items = ...`: an error of the resume; after `self.items[:] = ...` it is none."""
    body = "buffer.items.append(x[0]); w = recent[-1] + recent[len(recent) // 2]"
    killed(15, "", body)
    with pytest.raises(ResumeMismatchError, match=r"recent: it was buffer\.items"):
        run("", body)
    os.rename("run", "before")
    killed(15, "", body, in_place="[:]")
    resumed = run("", body, in_place="[:]")
    os.rename("run", "killed")
    assert run("", body, in_place="[:]") == resumed

"""A resumed run compares what it can reach with the note of its commit, and raises before a step is taken."""

import os
import re
import subprocess
import sys

import pytest

from samebits.train._completeness import commit_notes
from samebits.train._completeness.resume_mismatch import Note, NotedValue, encoded, parsed

LIBRARY = """
import random
calls, unique = 0, 0
rng = random.Random(3)
def count():
    global calls
    calls += 1
    return calls
def draw(): return 10 * rng.random()
def make():
    n = 0
    def called():
        nonlocal n
        n += 1
        return n
    return called
class Scaler:
    def __init__(self): self.mean, self.seen = 1.5, 0
    def __call__(self, number):
        if number >= 6: self.mean = 0.5 * self.mean + number
        return self.mean
class Lazy:
    table = None
    def __call__(self, number):
        if number >= 6 and self.table is None: self.table = [1, 2, 3]
        return 3 if self.table is None else len(self.table)
"""
SCRIPT = """
import copy, os, signal, sys, torch, samebits
from torch import nn
from samebits.train._completeness import commit_notes
commit_notes._FIRST_SHARE = commit_notes._FIRST_SECONDS = 1e9  # each commit has a note
if os.environ["KILL"] != "None":  # the check in training, which names some of these, too, raises nothing
    samebits._context.process.overrides = samebits._context.CheckOverrides(raise_incomplete=False)
sys.path.insert(0, "site-packages")
import counterlib as lib
samebits.set_random_seed(1)
x = torch.randn(64, 4)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
opt = torch.optim.SGD(model.parameters(), 0.1)
{before}
loader = samebits.data.DataLoader(data, batch_size=8, shuffle=True)
with samebits.Run("run", model=model, optimizer=opt, save=1, **eval(os.environ.get("OPTIONS", "{{}}"))) as run:
    {inside}
    for step, (a, b) in run.steps(loader, epochs=3):
        if str(step.number) == os.environ.get("KILL"): os.kill(os.getpid(), signal.SIGKILL)
        n = 0
        {body}
        loss = nn.functional.cross_entropy(model(a), b) * (1 + n / 50)
        opt.zero_grad(); loss.backward(); opt.step()
{after}
print("END", [p.tolist() for p in model.parameters()])
"""
SWITCHED = """class Data(torch.utils.data.TensorDataset):
    noisy = True
    def __getitem__(self, at):
        given, target = super().__getitem__(at)
        return given * 2 if self.noisy else given, target
data = Data(*data.tensors)"""
MASTERS = """class Masters:
    def __init__(self): self.kept = [torch.zeros(3) for _ in range(2)]; self.given = 0
    def step(self):
        for one in self.kept: one.add_(1 / 3)
        return float(self.kept[0].sum())
    def state_dict(self): return {"given": self.given}
    def load_state_dict(self, state): self.given, self.kept = state["given"], [torch.zeros(3) for _ in range(2)]
masters = Masters()"""
SAVED = """import collections
class Meter:
    def __init__(self): self.x, self.m, self.q = 0.1, torch.zeros(4), collections.deque(maxlen=5)
    def __call__(self, number):
        if number >= 9: self.x, self.m = self.x * 1.01 + 0.001234, self.m * 0.9 + 1 / 3; self.q.append(self.x)
        return self.x + float(self.m.sum()) + sum(self.q)
    def state_dict(self): return dict({state})
    def load_state_dict(self, s): {load}
meter = Meter()"""
EXACT = (
    "x=self.x, m=self.m, q=list(self.q)",
    "self.x, self.m, self.q = s['x'], s['m'], collections.deque(s['q'], maxlen=5)",
)
"""What the state_dict of the meter returns, and what its load_state_dict does."""
INEXACT = {
    "rounds in load_state_dict": ("x", "s['x']", "round(s['x'], 3)"),
    "rounds in state_dict": ("x", "x=self.x", "x=round(self.x, 3)"),
    "makes from another value": ("x", "s['x'],", "0.01 * len(s['q']),"),
    "casts in load_state_dict": ("m", "s['m']", "s['m'].bfloat16().float()"),
    "casts in state_dict": ("m", "m=self.m", "m=self.m.bfloat16().float()"),
    "drops items in load_state_dict": ("q", "s['q']", "s['q'][-2:]"),
    "drops items in state_dict": ("q", "list(self.q)", "list(self.q)[-2:]"),
    "drops an entry": ("m", "s['m']", "self.m"),
}  # fmt: skip
FIRST_LOOP = """for step, (a, b) in run.steps(loader, epochs=1, name="first"):
        loss = nn.functional.cross_entropy(model(a), b)
        opt.zero_grad(); loss.backward(); opt.step()
    """
LOST = {
    "a copy of restored weights": ("", "teacher = copy.deepcopy(model)", "n = float(teacher(a).sum())", "", "teacher.0.weight"),
    "a container that run.state held before": (
        "class Net(nn.Sequential): pass\nmodel = Net(*model)", "model.cfg = run.state.setdefault('cfg', {'w': 1.0})",
        "n = model.cfg['w'] + run.state.cfg['w']; run.state.update(cfg={'w': 0.5}) if step.number == 9 else None", "", "model.cfg",
    ),
    "a rate that is read from a restored optimizer": (
        "", "base = opt.param_groups[0]['lr']", "opt.param_groups[0]['lr'] = base * 0.9 ** step.number", "", "base",
    ),
    "an attribute that was set once": (SWITCHED, "", "data.noisy = data.noisy and step.number != 9", "", "loader.dataset.noisy"),
    "weights that only the code after the loop reads": (
        "kept = copy.deepcopy(model.state_dict())", "",
        "if step.number == 9: kept = copy.deepcopy(model.state_dict())", "model.load_state_dict(kept)", "kept['0.weight']",
    ),
    "a late statistic of a package": ("scaler = lib.Scaler()", "", "n = scaler(step.number)", "", "scaler.mean"),
    "a counter in a package's module": ("", "", "n = lib.count()", "", "counterlib.calls"),
    "a generator in a package's module": ("", "", "n = lib.draw()", "", "counterlib.rng"),
    "None in a class that became a value in an object": (
        "class Held: scale = None\nheld = Held()", "",
        "held.scale = float(a.sum()) if step.number == 9 else held.scale; n = held.scale or 0", "", "held.scale",
    ),
    "a table": (
        "import pandas\ntable = pandas.DataFrame({'a': [1.0, 2.0]})", "",
        "table.loc[0, 'a'] = 3.0 if step.number == 9 else table.loc[0, 'a']; n = float(table.a.sum())", "", "table",
    ),
    "a cell of a package's closure": ("called = lib.make()\ndef use(): return called()", "", "n = use()", "", "called.n"),
}  # fmt: skip
KEPT = {
    "an array over a parameter": ("w = model[0].weight.detach().numpy()", "", "w *= 0.99", ""),
    "a flag for a print": (
        "first = True", "", "if first:\n            print(sum(p.numel() for p in model.parameters()))\n            first = False", "",
    ),
    "a teacher from the loop before": (
        "", FIRST_LOOP + "teacher = copy.deepcopy(model)", "n = float(teacher(a).sum())", "",
    ),
    "a number that restored weights give": (
        "", FIRST_LOOP + "level = model(x).mean().item()", "n = level", "",
    ),
    "a copy of first weights": ("teacher = copy.deepcopy(model)", "", "n = float(teacher(a).sum())", ""),
    "a copy that the run has": (
        "", "teacher = copy.deepcopy(model)\n    run.add('teacher', teacher)", "n = float(teacher(a).sum())", "",
    ),
    "a clock as a number": ("", "import time; begin = time.time()", "print(time.time() - begin)", ""),
    "inputs that are drawn to look at": ("", "look = torch.randn(8, 4)", "print(float(model(look).sum()))", ""),
    "a statistic of the data": ("", "mean, part = x.mean(0), float((x > 0).float().mean())", "a = a - mean; n = part", ""),
    "a clock": ("import time\nheld = type('H', (), {})()\nheld.at = time.time()", "", "held.at = held.at; n = held.at > 0", ""),
    "a pid": ("held = type('H', (), {})()\nheld.pid = os.getpid()", "", "n = held.pid > 0", ""),
    "an id": ("held = type('H', (), {})()\nheld.own = id(object())", "", "n = held.own > 0", ""),
    "a temporary folder": ("import tempfile\nfolder = tempfile.mkdtemp()", "", "n = len(folder) > 0", ""),
    "a count that is printed": ("held = type('H', (), {})()\nheld.n = 0", "", "held.n += 1; print(held.n)", ""),
    "a memo": (
        "known = {}\ndef square(k):\n    if k not in known: known[k] = k * k\n    return known[k]", "", "n = square(step.number % 5)", "",
    ),
    "a package's cache that is filled late": ("lazy = lib.Lazy()", "", "n = lazy(step.number)", ""),
    "a value in run.state": ("", "run.state.setdefault('k', 0)", "run.state.k += 1; n = run.state.k", ""),
    "what each step sets": ("held = type('H', (), {})()\nheld.n = 0", "", "held.n = step.number; n = held.n", ""),
    "a dict that an object of the run has instead of None": (
        "class Best:\n"
        "    weights, wait = None, 0\n"
        "    def __init__(self): self.weights = None\n"
        "    def state_dict(self): return {'weights': self.weights}\n"
        "    def load_state_dict(self, s): self.weights = s['weights']\n"
        "best = Best()", "run.add('best', best)",
        "if step.number == 9: best.weights = copy.deepcopy(model.state_dict())\n"
        "        if step.number == 15: model.load_state_dict(best.weights)", "",
    ),
    "what only the start sets": (SWITCHED, "if run.resumed or True: data.noisy = False", "", ""),
}  # fmt: skip


class Program:
    """A script in a folder of its own, run in processes."""

    def __init__(self, folder, before, inside, body, after):
        (folder / "site-packages").mkdir()
        (folder / "site-packages/counterlib.py").write_text(LIBRARY)
        self.folder, self._parts = (
            folder,
            {"before": before, "inside": inside or "pass", "body": body or "pass", "after": after},
        )

    def start(self, *, kill=None, options=None, **parts):
        """A finished process of the script."""
        (self.folder / "script.py").write_text(SCRIPT.format(**self._parts | parts))
        given = {"KILL": str(kill), "OPTIONS": repr(options or {}), "PYTHONWARNINGS": "ignore"}
        return subprocess.run(
            [sys.executable, "script.py"],
            cwd=self.folder,
            env={**os.environ, **given},
            capture_output=True,
            text=True,
        )

    def files(self):
        return {
            file: file.read_bytes()
            for file in sorted((self.folder / "run/commits").rglob("*"))
            if file.is_file()
        }


QUICK = (
    "a teacher from the loop before",
    "a copy that the run has",
)


def cases(table):
    marks = {name: () if name in QUICK else (pytest.mark.slow,) for name in table}
    return [pytest.param(name, id=name, marks=marks[name]) for name in table]


@pytest.mark.parametrize("name", cases(LOST))
def test_a_lost_value_ends_the_resume_before_its_first_step(name, tmp_path):
    """Killed after the change, the run raises at its loop with the path, changes no commit, and goes on with `ignore`."""
    *parts, path = LOST[name]
    program = Program(tmp_path, *parts)
    assert program.start(kill=15).returncode == -9
    resumed = program.start()
    assert "ResumeMismatchError" in resumed.stderr, resumed.stderr
    before = program.files()  # the killed run's writer may have ended after the run
    assert "ResumeMismatchError" in program.start().stderr
    assert re.search(rf"^  - {re.escape(path)}: it was .*, and is ", resumed.stderr, re.MULTILINE), (
        resumed.stderr
    )
    assert program.files() == before
    root = re.split(r"[\[.]", path)[0] if "[" in path or ".0." in path else path
    ignored = program.start(options={"ignore": [root]})
    assert "ResumeMismatchError" not in ignored.stderr  # the check in training may name it by another path


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", cases(KEPT))
def test_what_no_resume_loses_is_no_mismatch(name, tmp_path):
    """Negative control: what differs by process, is computed again, only printed, or saved ends no resume."""
    program = Program(tmp_path, *KEPT[name])
    assert program.start(kill=15).returncode == -9
    resumed = program.start()
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.slow
def test_the_lines_for_a_plain_value_go_on_from_the_commit(tmp_path):
    """The assignment that the error shows, pasted before the loop, gives the weights of the run that nobody killed."""
    *parts, _ = LOST["an attribute that was set once"]
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
    whole, killed = (Program(folder, *parts) for folder in folders)
    killed.start(kill=15)
    said = killed.start().stderr
    lines = re.search(r"before the loop:\n(    if run\.resumed:\n        .*\n)", said)[1]
    resumed = killed.start(inside=lines.strip())
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == whole.start(options={"check_complete": False}).stdout


@pytest.mark.slow
def test_a_load_state_dict_that_builds_anew_is_seen_inside_an_object_of_the_run(tmp_path):
    """What `load_state_dict` makes anew instead of restoring it is named, where the first steps did not see it."""
    body = "n = masters.step() if step.number >= 9 else 0"
    program = Program(tmp_path, MASTERS, "run.add('masters', masters)", body, "")
    program.start(kill=15)
    assert "masters.kept[0]" in program.start().stderr


def with_meter(folder, state, load):
    """The script with the meter as an object of its run, killed after the meter has changed."""
    program = Program(
        folder, SAVED.format(state=state, load=load), "run.add('meter', meter)", "n = meter(step.number)", ""
    )
    assert program.start(kill=15).returncode == -9
    return program


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name == "rounds in state_dict" else (pytest.mark.slow,)) for name in INEXACT
])  # fmt: skip
def test_an_object_whose_state_comes_back_as_another_is_named(name, tmp_path):
    """A state_dict that has a value and a load_state_dict that sets another one end the resume with its path alone."""
    attribute, exact, inexact = INEXACT[name]
    program = with_meter(tmp_path, *(one.replace(exact, inexact) for one in EXACT))
    resumed = program.start()
    assert "ResumeMismatchError" in resumed.stderr, resumed.stderr
    assert re.findall(r"^  - meter\.(\w)", resumed.stderr, re.MULTILINE)[0] == attribute
    assert len(set(re.findall(r"^  - meter\.(\w)", resumed.stderr, re.MULTILINE))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("load", [
    EXACT[1], EXACT[1].replace("s['x']", "torch.tensor(s['x'], dtype=torch.float64).item()"), "self.x, self.m = s['x'], s['m'].clone(); self.q.extend(s['q'])",
])  # fmt: skip
def test_an_object_whose_state_comes_back_as_it_was_ends_no_resume(load, tmp_path):
    """Negative control: the same object, restored by assignment, by conversion, or in place."""
    resumed = with_meter(tmp_path, EXACT[0], load).start()
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.slow
def test_a_finished_run_compares_what_the_code_after_its_loop_reads(tmp_path):
    """Ended between its last commit and its end, a run that has lost what comes after the loop raises, too."""
    *parts, path = LOST["weights that only the code after the loop reads"]
    program = Program(tmp_path, *parts)
    whole = program.start(
        after="os._exit(1) if os.environ['KILL'] == 'end' else model.load_state_dict(kept)", kill="end"
    )
    assert whole.returncode == 1
    again = program.start()
    assert "ResumeMismatchError" in again.stderr
    assert path in again.stderr


@pytest.mark.slow
def test_commits_without_a_note_resume_as_ever(tmp_path):
    """With `check_complete=False` no commit has a note, and a resume from it compares nothing."""
    *parts, _ = LOST["an attribute that was set once"]
    program = Program(tmp_path, *parts)
    program.start(kill=15, options={"check_complete": False})
    assert b"mosaic" not in b"".join(program.files().values())
    assert program.start(options={"check_complete": False}).returncode == 0


def test_a_note_of_another_form_is_none():
    """A text that no run wrote is read as no note, and runs nothing; that of a run is read back whole."""
    noted = Note(
        "train", 3, {"h.k": NotedValue(b"12345678", b"87654321", "4", 2)}, {"best": ["run.state.pool[1]"]}
    )
    text = commit_notes.json.dumps({"steps": encoded(noted)})
    assert parsed(text) == {False: noted}
    assert parsed(None) == parsed("") == parsed("[1") == parsed("3") == {}
    assert parsed(text.replace("train", "x").replace('"at": 3', '"at": []')) == {}
    assert parsed(text.replace("3132", "zz")) == {}
    assert parsed(text.replace('{"best": ["run.state.pool[1]"]}', "[1]")) == {}


def test_notes_keep_within_their_share():
    """Counted: with commits a second apart nearly each has a note of 5 ms; with 100 a second, after 0.2 s one in a hundred."""
    for every, least, most in ((1.0, 0.95, 1.0), (10.0, 0.95, 1.0), (0.01, 0.0, 0.02)):
        spent = taken = 0
        for number in range(1, 20_001):
            if commit_notes.affordable(spent, 0.005, number * every):
                spent, taken = spent + 0.005, taken + 1
            assert spent <= 0.005 * number * every + 0.2
        assert least <= taken / 20_000 <= most

"""State in objects of installed packages is found like that in the user's own, and what does no harm is left alone."""

import contextlib
import importlib
import subprocess
import sys
import time

import pytest
import torch

import carried_state
import installed_state
import samebits
from samebits._context import Position
from samebits.errors import IncompleteStateError, IncompleteStateWarning, InvalidArgumentError
from samebits.train._completeness.completeness import Completeness

PLACES = [pytest.param(True, id="installed"), pytest.param(False, id="beside", marks=pytest.mark.slow)]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("installed", PLACES)
@pytest.mark.parametrize("name", installed_state.STATE)
def test_state_in_a_librarys_object_is_named(name, installed, tmp_path):
    """A counter, a generator, a buffer, wherever it hangs, ends the loop with an error, whether or not its class is installed."""
    lines = installed_state.script(*installed_state.STATE[name], tmp_path, installed=installed)
    _, text = carried_state.whole(*lines, tmp_path)
    assert carried_state.end(text) is None
    assert "IncompleteStateError" in text, text


@pytest.mark.slow
@pytest.mark.first_case_quick
@pytest.mark.parametrize("installed", PLACES)
@pytest.mark.parametrize("name", installed_state.HARMLESS)
def test_what_does_no_harm_stops_no_run_and_a_resume_misses_nothing(name, installed, tmp_path):
    """A printed meter, a progress counter, a writer, a cache: no error, and equal weights after a kill."""
    lines = installed_state.script(*installed_state.HARMLESS[name], tmp_path, installed=installed)
    assert carried_state.verdict(*lines, tmp_path) == "equal"


def test_what_is_only_printed_is_a_warning_with_its_name(tmp_path):
    """A meter of a package is named once in a warning, which says that the weights stay the same."""
    lines = installed_state.script(
        *installed_state.HARMLESS["a meter that prints a mean"], tmp_path, installed=True
    )
    script, _ = carried_state.whole(*lines, tmp_path)
    process = subprocess.run(
        [sys.executable, script, tmp_path / "again"], capture_output=True, text=True, check=True
    )
    assert process.stderr.count("IncompleteStateWarning") == 1, process.stderr
    assert "Run: h: only printed" in process.stderr


def test_the_lines_of_the_error_make_the_run_resume(tmp_path):
    """Pasted before the loop, what the error offers for a counter and a generator makes a killed run end with equal weights."""
    before, inside = installed_state.script(
        "c, r = lib.Counter(), lib.Noise()", "n = c() + r()", tmp_path, installed=True
    )
    assert resumed_with_its_lines(before, inside, tmp_path, 2) == "equal"


def test_the_line_for_a_list_of_objects_makes_the_run_resume(tmp_path):
    """Objects of a package in a list and in a dict of the user's: the lines of the error save what is inside."""
    before, inside = installed_state.script(
        "h, k = [lib.Counter()], {'a': lib.Noise()}", "n = h[0]() + k['a']()", tmp_path, installed=True
    )
    assert resumed_with_its_lines(before, inside, tmp_path, 2) == "equal"


@pytest.mark.slow
def test_an_environment_in_a_users_object_has_a_line_of_its_own(tmp_path):
    """Its adapter saves what has not changed yet, too; the user's own attributes are named beside it."""
    pytest.importorskip("gymnasium")
    before = (
        "import gymnasium\nclass Agent:\n    def __init__(self):\n"
        "        self.env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make('CartPole-v1'))\n"
        "        self.obs = self.env.reset(seed=3)[0]\n"
        "    def act(self):\n"
        "        self.obs, _, over, cut, _ = self.env.step(int(self.obs[2] > 0))\n"
        "        if over or cut: self.obs, _ = self.env.reset()\n        return float(self.obs[3])\nagent = Agent()"
    )
    _, text = carried_state.whole(before, "n = agent.act()", tmp_path)
    assert 'run.add("agent_env", agent.env)\n' in text, text
    assert 'run.add("agent", samebits.state.attributes(agent, "obs"))\n' in text, text
    assert resumed_with_its_lines(before, "n = agent.act()", tmp_path, 2) == "equal"


def test_a_class_whose_attribute_counts_has_a_line_that_names_it(tmp_path):
    """`Hyper.k *= 0.95`: the line of the error saves `k`, and a class without names is refused, as it would save nothing."""
    before = "class Hyper: k = 1.0"
    assert resumed_with_its_lines(before, "Hyper.k *= 0.95; n = Hyper.k", tmp_path, 1) == "equal"
    with pytest.raises(InvalidArgumentError, match=r'attributes\(Hyper, "counter"\)'):
        samebits.state.attributes(type("Hyper", (), {"k": 1.0}))


def test_a_value_put_on_the_run_is_refused(tmp_path):
    """`run.best = 1.0` would be in no commit: the error says run.state.best; run.state.best (control) is saved."""
    with samebits.Run(tmp_path / "run") as run:
        with pytest.raises(InvalidArgumentError, match=r"run.state.best = "):
            run.best = 1.0
        run.state.best = 1.0
    assert run.best != 1.0


def test_a_dict_may_be_added_by_any_name():
    """run.add("best", {...}) is no misspelt option; as an argument of Run (control) it is."""
    run = samebits.Run(None)
    run.add("bst", {"loss": 1.0})
    with pytest.raises(InvalidArgumentError, match="best has"):
        samebits.Run(None, bst={"loss": 1.0})
    with pytest.raises(InvalidArgumentError, match="run.state.n = 5"):
        run.add("n", 5)


def test_an_alarm_says_that_the_commits_lack_the_state(tmp_path):
    """After a commit, the error has a note that they lack what it names; before the first one (control) it has none."""
    for save, noted in ((1, 1), ("explicit", 0)):
        samebits.set_random_seed(1)
        k = 1.0
        with pytest.raises(IncompleteStateError) as caught:
            with samebits.Run(tmp_path / str(save), save=save) as run:
                for step, _ in run.steps([0] * 4, epochs=9):
                    run.state.total = k
                    if step.number > 3:
                        k = 0.5 * k
        notes = getattr(caught.value, "__notes__", [])
        assert (
            sum("lack this state: give the changed program another run directory" in one for one in notes)
            == noted
        )


@pytest.mark.parametrize("loop", ["epochs", "steps"])
def test_a_change_in_a_short_run_is_seen_after_the_first_epochs(loop, tmp_path):
    """A value that is set once, in the fourth epoch or at the hundredth step of a run of a second, is named."""
    epochs, data, at = (12, [0] * 4, 15) if loop == "epochs" else (1, [0] * 200, 100)
    k = 1.0
    with pytest.raises(IncompleteStateError, match="k .a local variable"):
        with samebits.Run(tmp_path / "run") as run:
            run.state.total = 0.0
            for step, _ in run.steps(data, epochs=epochs):
                run.state.total += k
                if step.number == at:
                    k = 0.2


def test_a_number_in_the_range_of_a_clock_is_no_time_unless_the_program_reads_that_clock(tmp_path):
    """A number between two readings of process_time is named; in a program that reads process_time (control) it is not."""
    before = "import time\nk = 0.5"
    body = "n = k; t = time.time()\n        while time.time() < t + 0.03: pass\n        k = {}"
    for number, (reading, named) in enumerate(
        {"sum(os.times()[:2])": True, "time.process_time()": False}.items()
    ):
        (folder := tmp_path / str(number)).mkdir()
        _, text = carried_state.whole(before, body.format(reading), folder)
        assert ('run.state.setdefault("k", k)' in text) == named, text


def resumed_with_its_lines(before, inside, folder, number):
    """The verdict of a script with the lines of its error pasted before the loop."""
    _, text = carried_state.whole(before, inside, folder)
    pasted = [line.strip() for line in text.splitlines() if line.startswith("    run.add(")]
    assert len(pasted) == number, text
    lines = "".join(f"    {line}\n" for line in pasted).replace("{", "{{").replace("}", "}}")
    script = carried_state.SCRIPT.replace("    for step,", lines + "    for step,")
    return carried_state.verdict(before, inside, folder, script=script)


def test_the_line_for_a_closure_saves_what_is_in_its_cell(tmp_path):
    """State in a variable of a function is named, and the pasted line saves it: equal weights after a kill."""
    lines = installed_state.script(*installed_state.STATE["in a closure"], tmp_path, installed=True)
    assert resumed_with_its_lines(*lines, tmp_path, 1) == "equal"


BAR = "import tqdm\nbar = tqdm.tqdm(total=64, file=open(os.devnull, 'w'))"
RICH = "from rich.progress import Progress\np = Progress()\ntask = p.add_task('x', total=64)"
FRAME = "import pandas as pd\nframe = pd.DataFrame({'x': [0.0]})"
BY_OUTPUT = {
    "a bar's count": (BAR, "bar.update(); n = 5 if bar.n > 4 else 0"),
    "in a function": (f"{BAR}\ndef f(p): return 5 if p.n > 4 else 0", "bar.update(); n = f(bar)"),
    "a task's count": (RICH, "p.advance(task); n = p.tasks[0].completed"),
    "a table's length": (FRAME, "frame.loc[len(frame)] = [1.0]; n = len(frame)"),
    "a table's mean": (FRAME, "n = frame.x.mean(); frame.loc[step.number] = [a.sum().item()]"),
    "a new table": (FRAME, "n = frame.x.iloc[-1]; frame = pd.concat([frame, pd.DataFrame({'x': [n + 1]})])"),
}
ONLY_OUTPUT = {
    "a bar": (BAR, "bar.update(); bar.set_postfix(n=bar.n)"),
    "a printed count": (BAR, "bar.update()\n        if bar.n % 5 == 0: print(bar.n, bar.total)"),
    "a printed task": (RICH, "p.advance(task); print(p.tasks[0].completed)"),
    "a table to a file": (FRAME, "frame.loc[len(frame)] = [a.sum().item()]; frame.to_csv(os.devnull)"),
    "a table of constants": (FRAME, "n = frame.x.mean()"),
    "another object's n": (
        f"{BAR}\nclass Own:\n    n = 3\nown = Own()",
        "bar.update(); n = own.n",
    ),
}
QUICK = {"a bar's count", "a table's mean", "a printed count", "a table to a file", "another object's n"}


def _names(scripts):
    return [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in scripts]


@pytest.mark.parametrize("name", _names(BY_OUTPUT))
def test_what_a_decision_reads_of_a_bar_or_a_table_is_named(name, tmp_path):
    """A progress bar's count and a table of pandas that reach the loss end the loop with an error."""
    pytest.importorskip("pandas" if "pandas" in BY_OUTPUT[name][0] else "tqdm")
    _, text = carried_state.whole(*BY_OUTPUT[name], tmp_path)
    assert carried_state.end(text) is None
    assert "IncompleteStateError" in text, text


@pytest.mark.parametrize("name", _names(ONLY_OUTPUT))
def test_bars_and_tables_that_only_show_stop_no_run(name, tmp_path):
    """Bars that are moved and printed, a table that is only written or read: no error."""
    pytest.importorskip("pandas" if "pandas" in ONLY_OUTPUT[name][0] else "tqdm")
    _, text = carried_state.whole(*ONLY_OUTPUT[name], tmp_path)
    assert carried_state.end(text) is not None, text


def test_what_is_ignored_covers_what_is_reached_by_another_path(tmp_path):
    """`ignore=["h"]` covers the object `h`, also as an attribute of the model; the model's own attributes are still looked at."""
    before, inside = installed_state.script(
        "h = lib.Counter()\nmodel.own = h", "n = h()", tmp_path, installed=True
    )
    script = carried_state.SCRIPT.replace("model=model", "ignore=['h'], model=model")
    _, text = carried_state.whole(before, inside, tmp_path, script=script)
    assert carried_state.end(text) is not None, text
    other = before.replace("model.own = h", "model.own = lib.Counter()"), "n = h() + model.own()"
    (tmp_path / "other").mkdir()
    _, text = carried_state.whole(*other, tmp_path / "other", script=script)
    assert "model.own" in text.partition("IncompleteStateError")[2], text


def test_the_first_steps_alarms_come_in_one_error(tmp_path):
    """What changes in step 1, in step 2 and only at the epoch's end is in one message, with a line to paste for each."""
    before = "first, second, last = 0, 0, 0"
    inside = (
        "first += 1\n        if step.number == 1: second += 1\n        if step.ends_epoch: last = last + 1\n"
        "        n = first + second + last"
    )
    _, text = carried_state.whole(before, inside, tmp_path)
    for name in ("first", "second", "last"):
        assert f'run.state.setdefault("{name}", {name})' in text, text


def test_transforms_whose_generators_are_set_for_each_element_raise_no_alarm(tmp_path):
    """MONAI's transforms in a loader's dataset, read in this process: what they keep from call to call is no lost state."""
    transforms = pytest.importorskip("monai.transforms")
    samebits.set_random_seed(1)
    noise = transforms.Compose(
        [transforms.RandGaussianNoise(prob=0.5), transforms.RandScaleIntensity(0.3, prob=0.5)]
    )
    noise.set_random_state(7)

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return torch.as_tensor(noise(torch.full((1, 4, 4), float(index))))

    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with samebits.Run(tmp_path / "run", model=model, optimizer=optimizer) as run:
        for _step, images in run.steps(samebits.data.DataLoader(Images(), batch_size=2), epochs=2):
            optimizer.zero_grad()
            model(images.flatten(1)).square().mean().backward()
            optimizer.step()
    assert run.finished


def test_a_look_is_taken_whenever_the_steps_have_doubled_however_dear_it_was():
    """After steps 8, 16, 32, ... and epochs 4, 8, ..., also when the first looks took an hour; at no other step (control)."""
    for loop in ("steps", "epochs"):
        check = Completeness(enabled=True)
        check._looks, check._spent = 4, 3600.0
        places = [(n, 0) if loop == "epochs" else (0, n) for n in range(1, 600)]
        due = [
            number
            for number, (epoch, batch) in enumerate(places, 1)
            if check._is_due(Position("train", epoch, batch, number), time.perf_counter())
        ]
        assert due == [1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 512]


@pytest.mark.parametrize(("at", "named"), [(2, False), (300, True)])
def test_an_installed_object_that_changes_late_counts_at_once(at, named, tmp_path, monkeypatch):
    """A change in the first steps (control) may be a cache; the first one after hundreds of steps is state."""
    (packages := tmp_path / "site-packages").mkdir()
    (packages / "late_library.py").write_text(
        "class Rate:\n    k = 1.0\n    def __init__(self): self.k = 1.0\n    def set(self, k): self.k = k\n"
        "    def get(self): return self.k\n"
    )
    monkeypatch.syspath_prepend(packages)
    rate = importlib.import_module("late_library").Rate()
    samebits.set_random_seed(1)
    with pytest.raises(IncompleteStateError, match=r"rate\.k") if named else contextlib.nullcontext():
        with samebits.Run(tmp_path / "run") as run:
            run.state.total = 0.0
            for step, _ in run.steps([0] * 600):
                run.state.total += rate.get()
                if step.number == at:
                    rate.set(0.5)
    sys.modules.pop("late_library")


@pytest.mark.parametrize("package", ["kornia", "other"])
def test_what_an_augmentation_keeps_of_its_last_call_raises_no_alarm(package, tmp_path, monkeypatch):
    """kornia's `_params` are set by each call, and their reader cannot know it; another package's (control) are named."""
    (packages := tmp_path / "site-packages").mkdir()
    (packages / f"{package}.py").write_text(
        "import torch\nclass _BasicAugmentationBase(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self._params = {}\n"
        "    def forward(self, x, params=None):\n"
        "        known = self._params if params is None else params\n"
        "        self._params = {'p': torch.rand(3) + len(known), 'flip': (torch.rand(()) > 0.5).item()}\n"
        "        return x * self._params['p'].mean()\n"
    )
    monkeypatch.syspath_prepend(packages)
    aug = importlib.import_module(package)._BasicAugmentationBase()
    model = torch.nn.Linear(3, 1)
    samebits.set_random_seed(1)
    named = pytest.raises(IncompleteStateError, match="  - aug ")
    with named if package == "other" else contextlib.nullcontext():
        with samebits.Run(tmp_path / "run", model=model) as run:
            for _, x in run.steps([torch.ones(2, 3)] * 12):
                model(aug(x)).sum().backward()
                model.zero_grad()
    sys.modules.pop(package)


EXPERTS = """
import torch
class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.dropped, self.kept = torch.nn.Linear(3, 1), 0, 0
    def forward(self, x):
        self.dropped += 1
        self.kept += 1
        return self.layer(x) * (1 + self.kept / 100)
def train(run, model):
    for _, x in run.steps([torch.ones(2, 3)] * 6):
        model(x).sum().backward()
        model.zero_grad()
    print(model.dropped)
"""


@pytest.mark.parametrize("name", ["dropped", "kept"])
def test_a_modules_number_that_is_only_printed_is_a_warning(name, tmp_path, monkeypatch):
    """`model.dropped += 1` for a print warns; `model.kept`, which the output reads (control), stops the run."""
    (tmp_path / "experts.py").write_text(EXPERTS)
    monkeypatch.syspath_prepend(tmp_path)
    experts = importlib.import_module("experts")
    samebits.set_random_seed(1)
    model = experts.Experts()
    printed = pytest.warns(IncompleteStateWarning, match="model.dropped: only printed")
    expected = printed if name == "dropped" else pytest.raises(IncompleteStateError, match="model.kept")
    ignored = {"dropped", "kept"} - {name}
    with expected, samebits.Run(tmp_path / "run", model=model, ignore=[f"model.{ignored.pop()}"]) as run:
        experts.train(run, model)
    sys.modules.pop("experts")

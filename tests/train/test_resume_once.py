"""Objects are restored once: at `with`, at run.restore(), or at the first step; what changes in between is
not lost silently.
"""

import warnings

import pytest
import torch
from torch import nn

import samebits
from samebits._context import CheckOverrides, process
from samebits.errors import InvalidArgumentError, RunMismatchError
from samebits.integrations._adapter import OpenRun

LOADER = samebits.data.DataLoader([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], batch_size=None)


class Own:
    """An object of the program's own class that counts how often it is loaded."""

    def __init__(self):
        self.value, self.loads = 0, 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value, self.loads = state["value"], self.loads + 1


class Late(Own):
    """An adapter of a framework, say: it keeps the state until the first step, or gives it in its state_dict
    until then.
    """

    def __init__(self, *, pending):
        super().__init__()
        self.pending, self.waiting = pending, None

    def load_state_dict(self, state):
        self.waiting, self.loads = state, self.loads + 1

    def state_dict(self):
        return self.waiting if self.pending and self.waiting else {"value": self.value}

    def begin(self):
        if self.waiting is not None:
            self.value, self.waiting = self.waiting["value"], None


def train(folder, stop, *, at="with", between=lambda run, own, model: None, own=None, epochs=1):
    """Trains 6 steps, or until `stop`; returns the object, the weight and the run."""
    samebits.set_random_seed(1)
    process.overrides = CheckOverrides(commit_steps=(3,))
    model, own = nn.Linear(1, 1), own or Own()
    with samebits.Run(
        folder, model=model, check_complete=False, **({"own": own} if at == "with" else {})
    ) as run:
        if at != "with":
            run.add("own", own)
        if at == "restore":
            run.restore()
        between(run, own, model)
        steps = run.steps(LOADER, epochs=epochs)
        for step, x in steps:
            if isinstance(own, Late):
                own.begin()
            own.value += x
            with torch.no_grad():
                model.weight += own.value
            if step.number == stop:
                raise KeyboardInterrupt
    return own, model.weight.item(), run


def whole_and_resumed(folder, **options):
    expected = train(folder / "whole", None, **options)
    own = options.pop("own", None)
    with pytest.raises(KeyboardInterrupt):
        train(folder / "r", 4, own=own and type(own)(pending=own.pending), **options)
    return expected, train(folder / "r", None, own=own and type(own)(pending=own.pending), **options)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("at", ["with", "restore", "loop"])
def test_an_object_is_loaded_once(tmp_path, at):
    """At `with`, at run.restore() or at the first step: one load, equal weights; a run without a commit
    (control) loads nothing.
    """
    expected, resumed = whole_and_resumed(tmp_path, at=at)
    assert (expected[0].loads, resumed[0].loads) == (0, 1)
    assert resumed[:1] != expected[:1] and resumed[1] == expected[1] and resumed[0].value == expected[0].value


@pytest.mark.parametrize("at", ["with", "restore", "loop"])
def test_when_it_is_loaded(tmp_path, at):
    """Given to Run it is there in the block at once; added, from run.restore() on; else in the loop. A second
    call does nothing.
    """
    seen = []

    def look(run, own, model):
        seen.append(own.value)
        run.steps  # noqa: B018
        if at != "loop":
            run.restore()
            run.restore()

    _, resumed = whole_and_resumed(tmp_path, at=at, between=look)
    assert seen == [0, 0, 0 if at == "loop" else 6] and resumed[0].loads == 1


def test_a_module_that_the_program_changes_is_put_back(tmp_path):
    """Weights that are loaded between `with` and the loop are part of the beginning alone: the resumed run
    has the commit's. No warning.
    """

    def pretrained(run, own, model):
        model.load_state_dict({"weight": torch.full((1, 1), 9.0), "bias": torch.zeros(1)})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for at in ("with", "restore", "loop"):
            expected, resumed = whole_and_resumed(tmp_path / at, at=at, between=pretrained)
            assert resumed[1] == expected[1]
            assert resumed[0].loads == 1  # the module's change does not load the other object again
    assert train(tmp_path / "plain", None)[1] != expected[1]


def test_an_own_object_that_the_program_changes_is_loaded_again_with_a_warning(tmp_path):
    """Changed after `with`, an object of the program's class is loaded again: equal bits, and a line that
    says so.
    """

    def begin(run, own, model):
        own.value = 2

    expected = train(tmp_path / "whole", None, between=begin)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "r", 4, between=begin)
    with pytest.warns(UserWarning, match="own changed after it was restored.*called again.*run.restore"):
        resumed = train(tmp_path / "r", None, between=begin)
    assert (resumed[1], resumed[0].loads) == (expected[1], 2)


def test_after_run_restore_nothing_is_loaded_again(tmp_path):
    """The program asked for it: one load, a warning, and the changed state goes on; a state_dict that holds
    it back has no warning.
    """

    def begin(run, own, model):
        own.value = 2

    train(tmp_path / "whole", None, at="restore", between=begin)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "r", 4, at="restore", between=begin)
    with pytest.warns(UserWarning, match="It was not loaded again"):
        resumed = train(tmp_path / "r", None, at="restore", between=begin)
    assert (resumed[0].loads, resumed[0].value) == (1, 2 + 4 + 5 + 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, resumed = whole_and_resumed(tmp_path / "late", at="restore", own=Late(pending=True))
    assert (resumed[1], resumed[0].loads) == (expected[1], 1)


def test_where_nobody_can_type_run_add_the_message_asks_for_the_callbacks(tmp_path):
    """A library's fit that lacks a callback of the commit is told so, and not to write `run.add`."""
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "r", 4)
    opened = OpenRun(tmp_path / "r", {"check_complete": False}, "")
    with pytest.raises(
        RunMismatchError, match="'own'.* does not have yet. Give the library all callbacks"
    ) as error:
        opened.enter({"model": nn.Linear(1, 1)}).restore()
    assert "run.add" not in str(error.value)
    opened.leave(error.value)


def test_run_restore_names_what_is_missing(tmp_path):
    """run.restore() before the last run.add says what the commit holds; nothing was changed, and adding it
    (control) is enough.
    """
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "r", 4)
    samebits.set_random_seed(1)
    model, own = nn.Linear(1, 1), Own()
    before = model.weight.item()
    with samebits.Run(tmp_path / "r", model=model, check_complete=False) as run:
        with pytest.raises(
            RunMismatchError, match=r"'own', which the run does not have yet.*run.add\('own', ...\)"
        ):
            run.restore()
        assert model.weight.item() == before
        run.add("own", own)
        run.restore()
        assert model.weight.item() != before and own.value == 6
    with pytest.raises(InvalidArgumentError, match="has ended"):
        run.restore()


def test_finished_is_seen_before_the_loop_and_after_it(tmp_path):
    """run.finished: false before and in a run, true after its loop and at the next start; false where more
    epochs are wanted.
    """
    seen = []

    def look(run, own, model):
        before = run.finished
        seen.append((before, run.resumed))

    run = train(tmp_path / "r", None, between=look)[2]
    assert run.finished and seen == [(False, False)]
    run = train(tmp_path / "r", None, between=look)[2]
    assert run.finished and seen[1:] == [(True, True)]
    with samebits.Run(tmp_path / "r", model=nn.Linear(1, 1), own=Own(), check_complete=False) as run:
        steps = run.steps(LOADER, epochs=2)
        assert not run.finished
        next(steps)
        assert not run.finished


def test_wrong_calls_show_the_line_to_type():
    """run.add(model), run.steps(epochs=3) and run.restore("x") raise with the line to type; the right calls
    (control) do not.
    """
    model = nn.Linear(1, 1)
    loader = [1]
    with samebits.Run(None) as run:
        for call, text in [
            (lambda: run.add(model), r'run.add\("model", model\)'),
            (lambda: run.add(model=model), r'run.add\("model", model\)'),
            (lambda: run.add("model"), r'run.add\("model", model\)'),
            (lambda: run.steps(epochs=3), r"the loader, first. Type\n    run.steps\(loader, epochs=3\)"),
            (
                lambda: run.steps(loader, 3, "a"),
                r"follows epochs has a name. Type\n    run.steps\(loader, epochs=3\)",
            ),
            (lambda: run.steps(loader, epoch=3), r"no argument epoch. Type\n    run.steps\(loader\)"),
            (lambda: run.restore("x"), r"takes no argument. Type\n    run.restore\(\)"),
        ]:
            with pytest.raises(InvalidArgumentError, match=text) as caught:
                call()
            assert isinstance(caught.value, TypeError)
        run.add("model", model)
        run.restore()
        assert [x for _, x in run.steps(loader, 3)] == [1, 1, 1]


class ReadyLater:
    """Its library is ready in the `with` block, and not before."""

    def __init__(self):
        self.n, self.library = 0, None

    def state_dict(self):
        assert self.library is not None
        return {"n": self.n}

    def load_state_dict(self, state):
        self.n = state["n"]


def test_an_object_whose_state_cannot_be_read_yet_is_restored(tmp_path):
    """Its `state_dict` raises right after it was loaded: the run resumes, and counts on."""

    def counted(stop):
        samebits.set_random_seed(1)
        late = ReadyLater()
        with samebits.Run(tmp_path / "run", late=late, save=1) as run:
            late.library = "ready"
            for step, _ in run.steps([0] * 6):
                if step.number == stop:
                    raise KeyError(stop)
                late.n += 1
        return late.n

    with pytest.raises(KeyError):
        counted(4)
    assert counted(None) == 6

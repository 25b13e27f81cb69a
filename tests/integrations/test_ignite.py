"""Ignite with `samebits.integrations.ignite.resumable`: programs that are killed and started again."""

import signal
from pathlib import Path

import pytest

engines = pytest.importorskip("ignite.engine")
pytest.importorskip("sklearn")

import torch
from ignite.handlers import Checkpoint

import samebits
from killed_programs import SEEDS, killed, whole
from samebits.errors import IncompleteStateError, UnimplementedError
from samebits.integrations.ignite import resumable

HERE = Path(__file__).parent
PROGRAM = HERE / "ignite_program.py"
SUPPORT = {"PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent / 'support'}"}
CASES = {
    "deterministic": {"ENGINE": "deterministic", "LENGTH": "7"},
    "handled": {"HANDLED": "15", "LENGTH": "13"},
    "in_saves": {"SAVE_S": "0.1"},
}


def test_killed_once_it_ends_as_when_nobody_kills(tmp_path):
    """Weights, averages, metrics, checkpoints and the log are equal."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT)
    assert killed([PROGRAM, "resumable"], tmp_path / "killed", steps, kills=1, **SUPPORT) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed, case", [(s, "epochs") for s in SEEDS] + [(s, case) for case in CASES for s in (0, 1)]
)
def test_killed_anywhere_it_ends_as_when_nobody_kills(tmp_path, seed, case):
    """Equal, too, for DeterministicEngine, other lengths of epochs, an error that the program handles, kills in saves."""
    given = CASES.get(case, {})
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT, **given)
    found = killed([PROGRAM, "resumable"], tmp_path / "killed", steps, seed=seed, **SUPPORT, **given)
    assert found == expected


@pytest.mark.slow
def test_a_handler_of_all_errors_does_not_end_the_run(tmp_path):
    """SIGTERM ends the process with code 75 although EXCEPTION_RAISED has a handler that swallows everything."""
    given = {**SUPPORT, "HANDLED": "1000"}
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **given)
    how = {"kills": 2, "seed": 3, "how": signal.SIGTERM, "code": 75}
    assert killed([PROGRAM, "resumable"], tmp_path / "killed", steps, **how, **given) == expected


class Endless(torch.utils.data.IterableDataset):
    """Data without a length."""

    def __iter__(self):
        return iter(torch.ones(4, 2))


def trained(folder, prepare=None, data=None, epochs=2, handler=None, **options):
    """A trainer of one layer that has run; `prepare` and `handler` (after each iteration) get it."""
    samebits.set_random_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def update(engine, batch):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    trainer = engines.Engine(update)
    if handler is not None:
        trainer.add_event_handler(engines.Events.ITERATION_COMPLETED, handler)
    if prepare is not None:
        prepare(trainer)
    resumable(trainer, folder, **options)
    trainer.run(list(torch.ones(4, 3, 2)) if data is None else data, max_epochs=epochs)
    return trainer


def test_a_variable_that_only_a_handler_changes_is_an_error(tmp_path):
    """A list that a handler fills is named; given to the run it is restored."""
    seen = []
    with pytest.raises(IncompleteStateError, match="seen"):
        trained(tmp_path / "a", handler=lambda engine: seen.append(engine.state.iteration))
    seen.clear()
    trained(tmp_path / "b", handler=lambda engine: seen.append(engine.state.iteration), seen=seen)
    seen.clear()
    trained(tmp_path / "b", handler=lambda engine: seen.append(engine.state.iteration), seen=seen)
    assert seen == [*range(1, 9)]


def test_a_list_that_grows_once_an_epoch_is_named(tmp_path):
    """Its length is the number of epochs, which a commit has, too; that does not hide it."""
    history = []

    def note(engine):
        if engine.state.iteration % engine.state.epoch_length == 0:
            history.append(engine.state.iteration)

    with pytest.raises(IncompleteStateError, match=r"handler_functions\[\d\]\.history") as raised:
        trained(tmp_path / "a", handler=note, epochs=4)
    assert "resumable(trainer, run_dir, name=thing)" in "".join(raised.value.__notes__)
    history.clear()
    assert trained(tmp_path / "b", handler=note, epochs=4, history=history).state.epoch == 4


def test_a_finished_run_trains_nothing(tmp_path):
    """Started again it has its state, and with more epochs it is an error, as COMPLETED was fired."""
    first, again = trained(tmp_path), trained(tmp_path, handler=lambda engine: pytest.fail("an iteration"))
    assert (again.state.iteration, again.state.epoch) == (8, 2)
    assert again.state.max_epochs == first.state.max_epochs
    with pytest.raises(UnimplementedError, match="has ended"):
        trained(tmp_path, epochs=3)


def after_3(call):
    return lambda engine: call(engine) if engine.state.iteration == 3 else None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"handler": after_3(lambda engine: engine.terminate_epoch())}, "terminate_epoch"),
        ({"handler": after_3(lambda engine: engine.set_data([torch.ones(3, 2)]))}, "set_data"),
        ({"handler": after_3(lambda engine: engine.interrupt())}, "interrupt"),
        ({"handler": after_3(lambda engine: engine.add_event_handler(engines.Events.COMPLETED, print))}, "a handler was added"),
        ({"data": torch.utils.data.DataLoader(Endless(), 2)}, "no length"),
        ({"prepare": lambda engine: engine.load_state_dict({"epoch": 1, "max_epochs": 2, "epoch_length": 4})},
         "Leave out load_state_dict"),
    ],
    ids=["terminate_epoch", "set_data", "interrupt", "handler", "length", "state"],
)  # fmt: skip
def test_what_is_not_covered_is_an_error(tmp_path, given, says):
    """Each message names what was asked for and the cure; without it the trainer runs."""
    with pytest.raises(UnimplementedError, match=says):
        trained(tmp_path / "refused", **given)
    assert trained(tmp_path / "plain").state.iteration == 8


def test_a_second_run_is_an_error(tmp_path):
    """It would be a run of its own, in the same folder."""
    trainer = trained(tmp_path)
    with pytest.raises(UnimplementedError, match="a second time"):
        trainer.run([torch.ones(3, 2)], max_epochs=1)


def test_another_version_is_named(tmp_path, monkeypatch):
    """Without a private method that the adapter uses, the trainer is refused, with the version that has it."""
    monkeypatch.delattr(engines.Engine, "_handle_exception")
    with pytest.raises(UnimplementedError, match=r"has no Engine\._handle_exception.*pytorch-ignite=="):
        trained(tmp_path)


def test_a_file_that_a_killed_process_removed_is_no_error(tmp_path):
    """Checkpoint goes on when the file that it removes is not there; without the adapter it dies."""
    files = tmp_path / "files"

    def save_and_lose(engine):
        saver(engine)
        for path in files.glob("*.pt"):
            path.unlink()

    saver = Checkpoint({"model": torch.nn.Linear(1, 1)}, str(files), n_saved=1)
    plain = engines.Engine(lambda *_: None)
    plain.add_event_handler(engines.Events.ITERATION_COMPLETED, save_and_lose)
    with pytest.raises(FileNotFoundError):
        plain.run([0, 1])
    saver.reset()
    assert trained(tmp_path / "run", handler=save_and_lose).state.iteration == 8

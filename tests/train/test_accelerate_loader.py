"""Accelerate's prepared loaders in `samebits.Run`: programs that are killed and started again."""

import signal
from pathlib import Path

import pytest

accelerate = pytest.importorskip("accelerate")
pytest.importorskip("sklearn")

import torch
from torch.utils.data import DataLoader, TensorDataset

import samebits
from killed_programs import SEEDS, killed, whole
from samebits.errors import IncompleteStateError, InvalidArgumentError, UnimplementedError

HERE = Path(__file__).parent
PROGRAM = HERE / "accelerate_program.py"
TWO_RANKS = HERE.parent / "support" / "two_ranks.py"
SUPPORT = {"PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent / 'support'}"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in SEEDS[1:])])
def test_killed_anywhere_it_ends_as_when_nobody_kills(tmp_path, seed):
    """Weights, rates, updates and validations are equal: accumulation that ends with the epoch, clipping, 2 workers."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT)
    found = killed([PROGRAM, "resumable"], tmp_path / "killed", steps, seed=seed, **SUPPORT)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["straddle", "bf16", "seedable", "weighted", "drop", "epochs", "validate", "stream"]
)
def test_other_settings(tmp_path, case):
    """Equal, too: groups across the epoch's end; bf16; Accelerate's sampler; weights; run.epochs; run.validate; no length."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT, CASE=case)
    found = killed([PROGRAM, "resumable"], tmp_path / "killed", steps, seed=1, **SUPPORT, CASE=case)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("case", ["", "straddle", "seedable", "weighted", "split"])
def test_two_processes(tmp_path, case):
    """Each of two processes reads its share as with Accelerate, and both resume."""
    command = [TWO_RANKS, PROGRAM, "resumable"]
    expected, steps = whole(command, tmp_path / "whole", **SUPPORT, CASE=case)
    assert killed(command, tmp_path / "killed", steps, kills=3, seed=2, **SUPPORT, CASE=case) == expected


@pytest.mark.slow
def test_by_its_own_resume_a_kill_changes_the_end(tmp_path):
    """The control: save_state, load_state and skip_first_batches end with other weights."""
    expected, steps = whole([PROGRAM, "plain"], tmp_path / "whole", **SUPPORT)
    assert whole([PROGRAM, "plain"], tmp_path / "again", **SUPPORT)[0] == expected
    assert killed([PROGRAM, "plain"], tmp_path / "killed", steps, seed=3, **SUPPORT) != expected


@pytest.mark.slow
def test_workers_finished_runs_and_sigterm(tmp_path):
    """Another number of workers changes nothing, a finished run trains nothing, SIGTERM commits and exits with 75."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT)
    assert whole([PROGRAM, "resumable"], tmp_path / "none", **SUPPORT, WORKERS="0")[0] == expected
    assert whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT) == (expected, steps)
    given = {"kills": 2, "seed": 3, "how": signal.SIGTERM, "code": 75}
    assert killed([PROGRAM, "resumable"], tmp_path / "k", steps, **given, **SUPPORT) == expected
    assert (tmp_path / "k" / "progress").stat().st_size == steps


def train(folder, *, wrap=lambda loader, accelerator: loader, given=True, epochs=2, **options):
    """Trains one layer; returns its weights, the number of updates, and the accelerator."""
    accelerate.utils.set_seed(1)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2, **options)
    layer, data = torch.nn.Linear(4, 1), TensorDataset(torch.randn(28, 4))
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)
    layer, optimizer, loader = accelerator.prepare(layer, optimizer, DataLoader(data, 4, shuffle=True))
    objects = {"model": layer, "optimizer": optimizer, **({"accelerator": accelerator} if given else {})}
    ends = []
    with samebits.Run(folder / "run", save=2, ignore=["ends"], **objects) as run:
        for _, (x,) in run.steps(wrap(loader, accelerator), epochs=epochs):
            with accelerator.accumulate(layer):
                accelerator.backward(layer(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            ends.append(accelerator.sync_gradients)
    return layer.state_dict(), ends, accelerator


@pytest.mark.filterwarnings("ignore")
def test_groups_of_accumulate_end_as_with_accelerate(tmp_path):
    """Seven batches are four groups, in each epoch; after the loop no loader is active."""
    _, ends, accelerator = train(tmp_path)
    assert ends == [False, True, False, True, False, True, True] * 2
    assert accelerator.gradient_state.active_dataloader is None


@pytest.mark.filterwarnings("ignore")
def test_more_epochs_continue(tmp_path):
    """Three epochs in two starts end with the weights of three in one."""
    expected, _, _ = train(tmp_path / "one", epochs=3)
    train(tmp_path / "two", epochs=1)
    found, ends, _ = train(tmp_path / "two", epochs=3)
    assert len(ends) == 14
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.filterwarnings("ignore")
def test_the_scaler_of_fp16_is_in_the_commit(tmp_path):
    """A scale that grows is that of the run that nobody stopped; a scaler of its own starts at its first scale."""

    def scaled(folder, epochs):
        accelerate.utils.set_seed(1)
        accelerator = accelerate.Accelerator(cpu=True)
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
        layer = torch.nn.Linear(4, 1)
        layer, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 0.01))
        with samebits.Run(folder, model=layer, optimizer=optimizer, accelerator=accelerator) as run:
            for _, x in run.steps([torch.ones(4)] * 4, epochs=epochs):
                accelerator.backward(layer(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        return accelerator.scaler.get_scale()

    expected = scaled(tmp_path / "whole", 4)
    assert scaled(tmp_path / "halves", 2) == 8.0 * 4
    assert scaled(tmp_path / "halves", 4) == expected == 8.0 * 32


@pytest.mark.filterwarnings("ignore")
def test_an_accelerator_that_the_run_lacks_is_named(tmp_path):
    """Without `accelerator=` the first steps say that its counters are in no commit; with it they are."""
    with pytest.raises(IncompleteStateError, match=r"accelerator\.step"):
        train(tmp_path / "without", given=False, epochs=4)
    train(tmp_path / "with", epochs=4)


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_covered_is_an_error(tmp_path):
    """`skip_first_batches`, and a loader of samebits in `prepare`: each message names the cure."""
    with pytest.raises(InvalidArgumentError, match=r"the loader that accelerator\.prepare returned"):
        train(tmp_path, wrap=lambda loader, accelerator: accelerator.skip_first_batches(loader, 2))
    with pytest.raises(UnimplementedError, match="Prepare a DataLoader of torch"):
        accelerate.Accelerator(cpu=True).prepare(samebits.data.DataLoader(range(4)))


def test_dispatched_batches_are_replayed_with_a_warning(tmp_path):
    """`dispatch_batches=True` reads on one process for all: a resume replays the epoch, and says so."""
    config = accelerate.DataLoaderConfiguration(dispatch_batches=True)
    with pytest.warns(UserWarning, match="leave out dispatch_batches=True"):
        train(tmp_path, dataloader_config=config)


@pytest.mark.filterwarnings("ignore")
def test_another_accelerate_is_named(tmp_path, monkeypatch):
    """Without a private method that the adapter calls, `run.steps` stops and says which version has it."""
    monkeypatch.delattr("accelerate.data_loader.DataLoaderStateMixin.end")
    with pytest.raises(UnimplementedError, match=r"has no DataLoaderStateMixin\.end.*accelerate=="):
        train(tmp_path)

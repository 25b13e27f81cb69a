"""Lightning's Trainer with `samebits.integrations.lightning.Resumable`: programs that are killed and started again."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

L = pytest.importorskip("lightning")
pytest.importorskip("sklearn")

import torch
from torch.utils.data import DataLoader, TensorDataset

import samebits
from killed_programs import SEEDS, killed, lines, whole
from samebits.errors import IncompleteStateError, InvalidArgumentError, UnimplementedError
from samebits.integrations.lightning import Resumable

HERE = Path(__file__).parent
PROGRAM = HERE / "lightning_program.py"
SUPPORT = {"PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent / 'support'}"}
PRINTED = ("EPOCH", "LOG")
"""What the program prints at an epoch's end, and what a logger gets."""


def same(tmp_path, *, seed, **environment):
    """True if a program that is killed ends as one that is not, and logs the same."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT, **environment)
    found = killed([PROGRAM, "resumable"], tmp_path / "killed", steps, seed=seed, **SUPPORT, **environment)
    assert found == expected
    assert lines(tmp_path / "killed", *PRINTED) == lines(tmp_path / "whole", *PRINTED)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_killed_anywhere_it_ends_as_when_nobody_kills(tmp_path, seed):
    """Weights, rates, metrics and logs are equal: accumulation, plateau, early stopping, torchmetrics, 2 workers."""
    same(tmp_path, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["interval", "manual", "averaged", "limited", "stream", "unfreeze", "ranks"])
def test_other_settings_of_the_trainer(tmp_path, case):
    """Equal, too: several validations an epoch and max_steps; manual optimization; averaged weights; limits; gradual unfreezing; ranks."""
    same(tmp_path, seed=1, CASE=case)


@pytest.mark.slow
def test_without_the_callback_a_kill_changes_the_end(tmp_path):
    """The control: Lightning's own checkpoints and ckpt_path="last" end with other weights."""
    expected, steps = whole([PROGRAM, "plain"], tmp_path / "whole", **SUPPORT)
    again, _ = whole([PROGRAM, "plain"], tmp_path / "again", **SUPPORT)
    assert again == expected
    assert killed([PROGRAM, "plain"], tmp_path / "killed", steps, seed=2, **SUPPORT) != expected


@pytest.mark.slow
def test_workers_finished_runs_and_more_epochs(tmp_path):
    """Another number of workers, and a stop at 3 epochs of 6, change nothing; a finished run trains nothing."""
    given = {**SUPPORT, "MIN_DELTA": "0"}
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **given)
    assert whole([PROGRAM, "resumable"], tmp_path / "none", **given, WORKERS="0")[0] == expected
    assert whole([PROGRAM, "resumable"], tmp_path / "whole", **given) == (expected, steps)
    _, half = whole([PROGRAM, "resumable"], tmp_path / "more", **given, CASE="short")
    assert whole([PROGRAM, "resumable"], tmp_path / "more", **given) == (expected, steps)
    assert half == steps // 2


@pytest.mark.slow
def test_sigterm_commits_and_exits_with_75(tmp_path):
    """After SIGTERM the process exits with code 75, and the next one goes on from there."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT, CASE="short")
    given = {"kills": 2, "seed": 3, "how": signal.SIGTERM, "code": 75}
    assert killed([PROGRAM, "resumable"], tmp_path / "k", steps, **given, **SUPPORT, CASE="short") == expected
    assert (tmp_path / "k" / "progress").stat().st_size == steps


class Small(L.LightningModule):
    """One layer."""

    def __init__(self):
        super().__init__()
        self.net, self.steps = torch.nn.Linear(4, 2), 0

    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Counting(Small):
    def training_step(self, batch, index):
        self.steps += 1
        return super().training_step(batch, index) * self.steps


class Scaling(Small):
    """Scales the loss by the best metric so far, which Lightning's state has, too, under the metric's name."""

    best = 0.0

    def validation_step(self, batch, index):
        pass

    def training_step(self, batch, index):
        return super().training_step(batch, index) * (1 + self.best)

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.best = 0.5 + self.trainer.current_epoch
            self.log("accuracy", self.best)


class Halving(L.Callback):
    def __init__(self):
        self.seen = 0

    def on_train_batch_end(self, trainer, *_):
        self.seen += 1
        if self.seen % 5 == 0:
            trainer.optimizers[0].param_groups[0]["lr"] /= 2


def fit(folder, module, loader=None, *, callbacks=(), ckpt_path=None, epochs=2, **options):
    samebits.set_random_seed(1)
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[*callbacks, Resumable(folder / "run", save=2)], **options,
    )  # fmt: skip
    loader = DataLoader(TensorDataset(torch.randn(40, 4)), 4, shuffle=True) if loader is None else loader
    loaders = loader if isinstance(loader, dict) else {"train_dataloaders": loader}
    trainer.fit(module, ckpt_path=ckpt_path, **loaders)
    return trainer


@pytest.mark.filterwarnings("ignore")
def test_state_of_the_program_that_no_commit_holds_is_an_error(tmp_path):
    """An attribute of the module or of a callback that changes and is in no state_dict stops the first start."""
    with pytest.raises(IncompleteStateError, match=r"model\.steps"):
        fit(tmp_path / "module", Counting())
    with pytest.raises(IncompleteStateError, match=r"callback_Halving\.seen") as raised:
        fit(tmp_path / "callback", Small(), callbacks=[Halving()])
    assert "a callback's state_dict and load_state_dict" in "".join(raised.value.__notes__)
    rows = DataLoader(TensorDataset(torch.randn(40, 4)), 4)
    with pytest.raises(IncompleteStateError, match=r"model\.best"):
        fit(tmp_path / "metric", Scaling(), {"train_dataloaders": rows, "val_dataloaders": rows})
    assert fit(tmp_path / "neither", Small()).global_step == 20


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_covered_is_an_error(tmp_path):
    """Two loaders, loaders that are made anew, and a loader without a length: each message names the cure."""
    loader = DataLoader(TensorDataset(torch.randn(40, 4)), 4)
    with pytest.raises(UnimplementedError, match="StackDataset"):
        fit(tmp_path / "two", Small(), [loader, loader])
    with pytest.raises(UnimplementedError, match="Use WeightAveraging"):
        fit(tmp_path / "swa", Small(), callbacks=[L.pytorch.callbacks.StochasticWeightAveraging(0.1)])
    with pytest.raises(UnimplementedError, match="reload_dataloaders_every_n_epochs"):
        fit(tmp_path / "anew", Small(), reload_dataloaders_every_n_epochs=1)
    with pytest.raises(UnimplementedError, match="limit_train_batches=1000"):
        fit(tmp_path / "endless", Small(), (batch for batch in loader))


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_of_lightning_besides_a_run_without_commit_is_an_error(tmp_path):
    """`fit(ckpt_path=...)` would begin in the middle of the run's steps; with a commit, the commit is used."""
    fit(tmp_path, Small()).save_checkpoint(tmp_path / "file.ckpt")
    assert fit(tmp_path, Small(), ckpt_path=tmp_path / "file.ckpt", epochs=3).global_step == 30
    with pytest.raises(InvalidArgumentError, match="Leave ckpt_path out"):
        fit(tmp_path / "other", Small(), ckpt_path=tmp_path / "file.ckpt")


@pytest.mark.filterwarnings("ignore")
def test_another_lightning_is_named(tmp_path, monkeypatch):
    """Without a private attribute that the adapter uses, `fit` stops and says which version has it."""
    monkeypatch.delattr(type(L.Trainer(logger=False).fit_loop), "setup_data")
    with pytest.raises(UnimplementedError, match=r"has no _FitLoop\.setup_data.*lightning=="):
        fit(tmp_path, Small())


@pytest.mark.filterwarnings("ignore")
def test_fast_dev_run_opens_no_run(tmp_path):
    """One batch to try a program leaves no commit behind."""
    assert fit(tmp_path, Small(), fast_dev_run=True).global_step == 1
    assert not (tmp_path / "run").exists()


FILES = """
import lightning as L, torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset
from samebits.integrations.lightning import Resumable

class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.net(batch[0]).square().mean()
    def validation_step(self, batch, index):
        self.log("val_loss", self.net(batch[0]).square().mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

L.seed_everything(1)
loader = DataLoader(TensorDataset(torch.randn(96, 4)), 8, shuffle=True)
watch = [EarlyStopping("val_loss"), ModelCheckpoint(monitor="val_loss"), Resumable("run")]
L.Trainer(max_epochs=3, accelerator="cpu", callbacks=watch).fit(Net(), loader, loader)
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--steps", "16"]], ids=["whole", "short"])
def test_a_checkpoint_in_a_loggers_folder_and_early_stopping_are_verified(tmp_path, options):
    """The best score of before the kill is kept, though the logger has a new version; a short epoch has its validation."""
    (tmp_path / "train.py").write_text(FILES)
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        *options,
        "--checks",
        "run-again,kill-mid-epoch",
        "train.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

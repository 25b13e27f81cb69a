"""Transformers with `samebits.integrations.transformers.Trainer`: programs that are killed and started again."""

import difflib
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")

import torch

import samebits
from killed_programs import killed, whole
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.integrations.transformers import Trainer

HERE = Path(__file__).parent
PROGRAM = HERE / "transformers_program.py"
EXAMPLES = HERE.parents[1] / "examples" / "integrations"
SUPPORT = {"PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent / 'support'}"}


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, {"ACCUMULATE": "1", "MAX_STEPS": "47"}], ids=["epochs", "max_steps"])
@pytest.mark.parametrize("seed", range(3))
def test_killed_anywhere_it_ends_as_when_nobody_kills(tmp_path, seed, given):
    """Weights, rates, losses and the log are equal: accumulation, evaluation, early stopping, the best model, 2 workers."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT, **given)
    found = killed([PROGRAM, "resumable"], tmp_path / "killed", steps, seed=seed, **SUPPORT, **given)
    assert found == expected


class Rows(torch.utils.data.Dataset):
    """Rows of one number, and what a module makes of them."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"x": torch.full((4,), float(index)), "labels": torch.zeros(1)}


class Endless(torch.utils.data.IterableDataset):
    """The same, without numbers."""

    def __iter__(self):
        return iter([Rows()[index] for index in range(12)])


class Small(torch.nn.Module):
    """One layer, which computes its loss."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def forward(self, x, labels):
        return {"loss": (self.net(x) - labels).square().mean()}


def trainer(folder, data):
    samebits.set_random_seed(1)
    options = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(folder), num_train_epochs=1, max_steps=4, **options)
    return Trainer(Small(), arguments, train_dataset=data)


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_covered_is_an_error(tmp_path):
    """A checkpoint to resume from, and data without numbers: each message names the cure; without them it trains."""
    with pytest.raises(InvalidArgumentError, match="the run resumes by itself"):
        trainer(tmp_path / "a", Rows()).train(resume_from_checkpoint=True)
    with pytest.raises(UnimplementedError, match="Give a dataset that has __len__"):
        trainer(tmp_path / "b", Endless()).train()
    assert trainer(tmp_path / "c", Rows()).train().global_step == 4


@pytest.mark.filterwarnings("ignore")
def test_another_version_is_named(tmp_path, monkeypatch):
    """Without a private method that the adapter overrides, the trainer is refused, with the version that has it."""
    monkeypatch.delattr(transformers.Trainer, "_load_rng_state")
    monkeypatch.delattr(samebits.integrations.transformers.ResumableMixin, "_load_rng_state")
    with pytest.raises(UnimplementedError, match=r"has no Trainer\._load_rng_state.*transformers=="):
        trainer(tmp_path, Rows())


def test_the_example_differs_from_the_plain_one_in_one_line():
    """One line, and its import."""
    plain, ours = (
        (EXAMPLES / f"train_transformers{kind}.py").read_text().partition('"""\n\n')[2].splitlines()
        for kind in ("_plain", "")
    )
    changes = [line for line in difflib.ndiff(plain, ours) if line[0] in "+-" and line[1:].strip()]
    assert changes == [
        "+ from samebits.integrations.transformers import Trainer",
        "-     trainer = transformers.Trainer(",
        "+     trainer = Trainer(",
    ]

"""Transformers with `samebits.integrations.transformers.Trainer`: programs that are killed and started again."""

from functools import partial
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers")

import numpy as np
import torch

import samebits
from killed_programs import SEEDS, killed, whole
from samebits.errors import IncompleteStateError, InvalidArgumentError, UnimplementedError
from samebits.integrations.transformers import Trainer

HERE = Path(__file__).parent
PROGRAM = HERE / "transformers_program.py"
MAX_STEPS = {"ACCUMULATE": "1", "MAX_STEPS": "47"}
TWO_RANKS = HERE.parent / "support" / "two_ranks.py"
SUPPORT = {"PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent / 'support'}"}


@pytest.mark.slow
@pytest.mark.parametrize("seed, given", [*((seed, {}) for seed in SEEDS), (1, MAX_STEPS), (2, MAX_STEPS)])
def test_killed_anywhere_it_ends_as_when_nobody_kills(tmp_path, seed, given):
    """Weights, rates, losses and the log are equal: accumulation, evaluation, early stopping, the best model, 2 workers."""
    expected, steps = whole([PROGRAM, "resumable"], tmp_path / "whole", **SUPPORT, **given)
    found = killed([PROGRAM, "resumable"], tmp_path / "killed", steps, seed=seed, **SUPPORT, **given)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", ["2", "3"])
def test_two_processes(tmp_path, accumulate):
    """Each of two processes reads its share, and both resume: accumulation with a rest, evaluation, early stopping."""
    command, given = [TWO_RANKS, PROGRAM, "resumable"], {**SUPPORT, "ACCUMULATE": accumulate}
    expected, steps = whole(command, tmp_path / "whole", **given)
    assert killed(command, tmp_path / "killed", steps, kills=3, seed=1, **given) == expected


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


def trainer(folder, data, kind=Trainer, model=None, *, settings=None, **given):
    samebits.set_random_seed(1)
    options = {"report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
    options |= {"num_train_epochs": 1, "max_steps": 4, **(settings or {})}
    arguments = transformers.TrainingArguments(str(folder), **options)
    return kind(model or Small(), arguments, train_dataset=data, **given)


class Stop(transformers.TrainerCallback):
    """Ends the process's training in the middle of an epoch."""

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 6:
            raise KeyboardInterrupt


class CountingModel(Small):
    """Multiplies the loss by the number of calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, labels):
        self.calls += 1
        return {"loss": super().forward(x, labels)["loss"] * self.calls}


class Halving(transformers.TrainerCallback):
    """Halves the learning rate after each third step that it has seen."""

    def __init__(self):
        self.seen = 0

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        self.seen += 1
        if self.seen % 3 == 0:
            optimizer.param_groups[0]["lr"] /= 2


class ExportedHalving(Halving, transformers.trainer_callback.ExportableState):
    """Exports what it has seen, which starts anew in `on_train_begin`."""

    def on_train_begin(self, *args, **kwargs):
        self.seen = 0

    def state(self):
        return {"args": {}, "attributes": {"seen": self.seen}}


class Once(transformers.TrainerCallback):
    """Changes an argument at the third step, which it sets at the beginning, and adds others to arguments and state."""

    def on_train_begin(self, args, state, control, **kwargs):
        args.max_grad_norm = 7.0

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 3:
            args.max_grad_norm = 0.05
            args.factor, state.factors = 0.5, [0.5]

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        model.net.bias.grad *= getattr(args, "factor", 1) * sum(getattr(state, "factors", [1]))


class HalfExported(ExportedHalving):
    """Exports less than changes."""

    def __init__(self):
        super().__init__()
        self.begun = 0

    def on_step_begin(self, *args, **kwargs):
        self.begun += 3


class CountingTrainer(Trainer):
    """Multiplies the loss by the number of calls."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = 0

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        self.calls += 1
        return super().compute_loss(model, inputs, return_outputs, **kwargs) * self.calls


class SavedCountingTrainer(CountingTrainer):
    """The same, with the number in its state."""

    def state_dict(self):
        return {**super().state_dict(), "calls": self.calls}

    def load_state_dict(self, state_dict):
        self.calls = state_dict["calls"]
        super().load_state_dict(state_dict)


class PureTrainer(Trainer):
    """Has settings of its own, and no state."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.factor = 2.0

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        return super().compute_loss(model, inputs, return_outputs, **kwargs) * self.factor


class Hangs(transformers.TrainerCallback):
    """Changes an attribute of the trainer, and the learning rate by it."""

    def __init__(self):
        self.trainer = None

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        if isinstance(self.trainer.hung, int):
            self.trainer.hung += 1
            optimizer.param_groups[0]["lr"] /= self.trainer.hung
        else:
            optimizer.param_groups[0]["lr"] *= self.trainer.hung.random()


def falling(losses=()):
    """Returns a compute_metrics that remembers."""
    seen = list(losses)

    def metrics(prediction):
        seen.append(0.37 * (1 + len(seen)))
        return {"sum": sum(seen)}

    return metrics


EVALUATED = {"max_steps": -1, "num_train_epochs": 3, "eval_strategy": "epoch"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("model.calls", {"model": CountingModel()}),
        ("callback_Halving.seen", {"callbacks": [Halving()]}),
        ("callback_HalfExported.begun", {"callbacks": [HalfExported()]}),
        ("trainer.calls", {"kind": CountingTrainer}),
        (
            "trainer.compute_metrics.seen",
            {"compute_metrics": falling(), "eval_dataset": Rows(), "settings": EVALUATED},
        ),
    ],
    ids=["model", "callback", "exported", "trainer", "metrics"],
)
def test_state_of_the_program_that_no_commit_holds_is_an_error(tmp_path, path, given):
    """The first start names the attribute, and both cures: where to save it, and how to ignore it; ignored, it trains."""
    with pytest.raises(IncompleteStateError) as raised:
        trainer(tmp_path / "a", Rows(), **given).train()
    text = str(raised.value) + "".join(raised.value.__notes__)
    assert f'Run(ignore=["{path}"])' in text
    assert "ExportableState" in text
    assert 'Trainer(run_options={"ignore": [...]})' in text
    trainer(tmp_path / "b", Rows(), run_options={"ignore": [path]}, **given).train()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hung", [1, np.random.default_rng(0)], ids=["number", "generator"])
def test_an_attribute_that_was_hung_on_a_trainer_is_seen(tmp_path, hung):
    """A callback that changes it ends in an error that names it, and the cure; unchanged or ignored, it trains."""

    def train(name, callbacks, **given):
        made = trainer(tmp_path / name, Rows(), callbacks=callbacks, **given)
        made.hung = hung
        for callback in callbacks:
            callback.trainer = made
        return made.train()

    with pytest.raises(IncompleteStateError, match=r"trainer\.hung: Trainer was given to Run") as raised:
        train("a", [Hangs()])
    assert "of a trainer, keep it in such a callback" in "".join(raised.value.__notes__)
    assert train("b", []).global_step == 4
    assert train("c", [Hangs()], run_options={"ignore": ["trainer.hung"]}).global_step == 4


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kind": PureTrainer},
        {"kind": SavedCountingTrainer},
        {"callbacks": [ExportedHalving()]},
        {"callbacks": [transformers.EarlyStoppingCallback(3)], "settings": {"load_best_model_at_end": True,
            "save_strategy": "epoch", "metric_for_best_model": "loss", "disable_tqdm": False, **EVALUATED}},
        {"compute_metrics": lambda found: {"mean": float(found.label_ids.mean())}, "settings": EVALUATED},
    ],
    ids=["plain", "own", "saved", "exported", "early", "pure metrics"],
)  # fmt: skip
def test_what_the_library_keeps_is_no_alarm(tmp_path, given, recwarn):
    """Six programs train to their end without an error, and the run warns of none of their state."""
    trainer(tmp_path, Rows(), eval_dataset=Rows(), **given).train()
    assert [str(one.message) for one in recwarn if "Run" in str(one.message)] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "given", [{"kind": SavedCountingTrainer}, {"callbacks": ExportedHalving}, {"callbacks": Once}],
    ids=["trainer", "callback", "settings"],
)  # fmt: skip
def test_state_that_the_program_saves_is_restored(tmp_path, given, monkeypatch):
    """A trainer's own state_dict, an ExportableState that on_train_begin resets, and changed arguments continue after a stop."""

    def end(folder, stop=None):
        callbacks = [given["callbacks"]()] if "callbacks" in given else []
        made = trainer(
            folder, Rows(), given.get("kind", Trainer), callbacks=callbacks, settings={"max_steps": 8},
            run_options={"save": 1},
        )  # fmt: skip
        step = made.training_step

        def training_step(*args, **kwargs):
            if made.state.global_step == stop:
                raise KeyboardInterrupt
            return step(*args, **kwargs)

        monkeypatch.setattr(made, "training_step", training_step)
        if stop is None:
            made.train()
            return made.model.state_dict()
        with pytest.raises(KeyboardInterrupt):
            made.train()
        return None

    expected = end(tmp_path / "whole")
    end(tmp_path / "parts", stop=5)
    found = end(tmp_path / "parts")
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.filterwarnings("ignore")
def test_what_is_not_covered_is_an_error(tmp_path):
    """A checkpoint to resume from, and data without numbers: each message names the cure; without them it trains."""
    with pytest.raises(InvalidArgumentError, match="the run resumes by itself"):
        trainer(tmp_path / "a", Rows()).train(resume_from_checkpoint=True)
    with pytest.raises(UnimplementedError, match="Give a dataset that has __len__"):
        trainer(tmp_path / "b", Endless()).train()
    assert trainer(tmp_path / "c", Rows()).train().global_step == 4


@pytest.mark.filterwarnings("ignore")
class ByLength(torch.utils.data.Sampler):
    """Batches of rising size, in another order in each epoch."""

    def __len__(self):
        return 4

    def __iter__(self):
        groups = [[0], [1, 2], [3, 4, 5], [6, 7, 8, 9]]
        return iter([groups[at] for at in torch.randperm(4).tolist()])


class Bucketed(Trainer):
    def get_train_dataloader(self):
        return torch.utils.data.DataLoader(
            self.train_dataset, batch_sampler=ByLength(), collate_fn=self.data_collator
        )


def test_batches_of_a_batch_sampler_resume(tmp_path):
    """Killed in the middle of an epoch and started again, the weights are equal; accumulated over, it is refused with the cure."""
    ended = []
    for name in ("whole", "again"):
        settings = {"num_train_epochs": 3, "max_steps": -1, "learning_rate": 0.1}
        whole = partial(
            trainer, tmp_path / name, Rows(), Bucketed, settings=settings, run_options={"save": 1}
        )
        if name == "again":
            stopped = whole(callbacks=[Stop()])
            with pytest.raises(KeyboardInterrupt):
                stopped.train()
        last = whole()
        last.train()
        ended.append(last.model.state_dict())
    torch.testing.assert_close(*ended, rtol=0, atol=0)
    accumulated = trainer(
        tmp_path / "accumulated", Rows(), Bucketed, settings={"gradient_accumulation_steps": 2}
    )
    with pytest.raises(UnimplementedError, match=r"batch sampler of your own \(ByLength\)"):
        accumulated.train()


def test_another_version_is_named(tmp_path, monkeypatch):
    """Without a private method that the adapter overrides, the trainer is refused, with the version that has it."""
    monkeypatch.delattr(transformers.Trainer, "_load_rng_state")
    with pytest.raises(UnimplementedError, match=r"has no Trainer\._load_rng_state.*transformers=="):
        trainer(tmp_path, Rows())

"""What is wrong in a call of `Trainer` or `fit` is named, with what would be right, before anything is changed."""

import functools
import inspect

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import samebits
from samebits import _digest as digest
from samebits.errors import (
    EmptyDatasetError,
    InvalidArgumentError,
    InvalidCallError,
    NonFiniteLossError,
    RunMismatchError,
    UnimplementedError,
)

MODEL = nn.Linear(2, 3)
SGD = torch.optim.SGD(MODEL.parameters(), 0.1)
OTHER = torch.optim.SGD([torch.zeros(1)], 0.1)
LOSS = nn.functional.cross_entropy
BATCHES = [(torch.ones(2, 2), torch.tensor([0, 2]))] * 3
ENDLESS = samebits.data.Pipeline.from_source(BATCHES).repeat()
WEIGHTED = [(x, y, torch.ones(2)) for x, y in BATCHES]


class Half:
    """A metric without a state."""

    def update(self, output, target):
        pass

    def compute(self):
        return torch.zeros(2)

    def reset(self):
        pass


class Vector(Half):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def trainer(loss_fn=LOSS, **options):
    samebits.set_random_seed(1)
    return samebits.Trainer(MODEL, loss_fn, SGD, **options)


def fit(loader=BATCHES, epochs=1, loss_fn=LOSS, options=(), **arguments):
    return trainer(loss_fn, **dict(options)).fit(loader, epochs, verbose=0, **arguments)


def absolute(output, target):
    return output.abs().mean()


PLATEAU = {"scheduler": lr_scheduler.ReduceLROnPlateau(SGD)}
WRONG = [
    (lambda: samebits.Trainer(LOSS, MODEL, SGD), "the model is a function.*order swapped"),
    (lambda: samebits.Trainer(MODEL, SGD, LOSS), "the optimizer is a function.*order swapped"),
    (
        lambda: samebits.Trainer(MODEL, nn.CrossEntropyLoss, SGD),
        r"the class CrossEntropyLoss. Give a function.*nn.CrossEntropyLoss\(\)",
    ),
    (lambda: samebits.Trainer(MODEL, OTHER, SGD), "loss_fn is a SGD"),
    (lambda: trainer(accumulate=0), r"accumulate=0\): the number of batches per step"),
    (lambda: trainer(accumulate=True), "accumulate=True"),
    (lambda: trainer(clip_norm=-1.0), "clip_norm=-1.0"),
    (lambda: trainer(clip_value=float("nan")), "clip_value=nan"),
    (lambda: trainer(clip_norm=1.0, clip_value=1.0), "choose one"),
    (lambda: trainer(precision="float16"), "one of None, 'bf16', 'fp16'"),
    (lambda: trainer(ema=1.0), "usually 0.999"),
    (
        lambda: trainer(scheduler=lr_scheduler.StepLR(OTHER, 1)),
        "another optimizer.*Make it with the trainer's",
    ),
    (lambda: trainer(scheduler=0.1), "not a scheduler of torch"),
    (lambda: trainer(scheduler_step="batch"), "scheduler_step='batch'.*one of 'epoch', 'step'"),
    (lambda: trainer(scheduler_step="step"), "there is no scheduler"),
    (lambda: trainer(**PLATEAU, scheduler_step="step"), "scheduler_step='epoch'"),
    (lambda: fit(options=PLATEAU), "monitor='val_loss'.*the metrics are loss.*need validation_data"),
    (lambda: trainer(metrics={"loss": absolute}), "'loss'.*Choose another name"),
    (lambda: trainer(metrics={"val_x": absolute}), "names that begin with 'val_'"),
    (lambda: trainer(metrics=[absolute]), "give a dict from name to function"),
    (lambda: trainer(metrics={"a": 3}), "give a function"),
    (
        lambda: trainer(metrics={"a": Half()}),
        "a Half. Give an object with update, compute, reset, state_dict",
    ),
    (lambda: trainer(metrics={"a": Vector}), "the class Vector"),
    (lambda: fit(options={"metrics": {"a": Vector()}}), r"Vector.compute\(\) returned tensor.*one number"),
    (lambda: trainer(forward=absolute), "forward=..., loss_fn=...\\): the function computes loss"),
    (lambda: trainer(None, forward=3), "forward=3"),
    (
        lambda: fit(loss_fn=None, options={"forward": lambda model, batch: 0.5}),
        "forward=...\\): it returned 0.5",
    ),
    (lambda: fit(epochs=0), "epochs=0"),
    (lambda: fit(epoch=3), r"^Trainer.fit\(epoch=3\): neither.*Did you mean epochs\?"),
    (lambda: fit(steps=3), r"^Trainer.fit\(steps=3\): neither.*"),
    (lambda: fit(epochs=2, initial_epoch=2), "no epoch is left"),
    (lambda: fit(steps_per_epoch=4), r"steps_per_epoch=4\): the list has 3 batches"),
    (lambda: fit(steps_per_epoch=0), "steps_per_epoch=0"),
    (
        lambda: fit(validation_freq=2),
        r"validation_freq=2\): there is no validation_data. Pass validation_data",
    ),
    (lambda: fit(validation_steps=2), r"validation_steps=2\): there is no validation_data"),
    (lambda: fit(validation_data=BATCHES, validation_steps=4), "validation_steps=4.*has 3 batches"),
    (lambda: fit(validation_data=BATCHES, validation_freq=0), "validation_freq=0"),
    (lambda: fit(validation_data=BATCHES, validation_freq=[0]), "validation_freq: an epoch=0"),
    (lambda: fit(validation_data=BATCHES, validation_freq="2"), "validation_freq='2'"),
    (lambda: fit(validation_data=iter(BATCHES)), "validation_data=list_iterator"),
    (lambda: trainer().fit(BATCHES, verbose=3), "verbose=3"),
    (lambda: fit(class_weight={0: -1.0}), r"class_weight=\{0: -1.0\}.*at least 0"),
    (lambda: fit(class_weight={-1: 1.0}), "the class -1"),
    (lambda: fit(class_weight={"cat": 1.0}), "the class 'cat'"),
    (lambda: fit(class_weight=[1.0, 2.0]), "give a dict"),
    (lambda: fit(class_weight={3: 1.0}), "weight for class 3, the model's output has 3 classes"),
    (lambda: fit(WEIGHTED, class_weight={0: 1.0}), "Use one of the two"),
    (
        lambda: fit(class_weight={0: 1.0}, loss_fn=absolute),
        "absolute cannot return the loss of each sample",
    ),
    (
        lambda: fit(class_weight={0: 1.0}, loss_fn=nn.CrossEntropyLoss(reduction="sum")),
        "CrossEntropyLoss cannot return",
    ),
    (lambda: fit(class_weight={0: 1.0}, loss_fn=functools.partial(LOSS, reduction="sum")), "cannot return"),
    (lambda: fit(WEIGHTED, loss_fn=absolute), "the batches have weights: absolute cannot"),
    (
        lambda: fit([(x, y, torch.ones(3)) for x, y in BATCHES]),
        r"weights of a batch have shape \(3,\), its losses \(2,\)",
    ),
    (lambda: fit([(x, x, y, y) for x, y in BATCHES]), r"a tuple of 4. Give \(inputs, target\)"),
    (lambda: fit(ENDLESS), "fit.steps_per_epoch=None.: the Pipeline does not end.*Give steps_per_epoch=N"),
    (
        lambda: fit(BATCHES, validation_data=ENDLESS),
        "fit.validation_steps=None.*does not end.*Give validation_steps=N",
    ),
    (lambda: trainer().evaluate(ENDLESS), "evaluate.steps=None.*does not end"),
    (lambda: trainer().predict(ENDLESS), "predict.*does not end. Pass loader.take"),
    (lambda: trainer().evaluate(BATCHES, steps=9), "Trainer.evaluate.steps=9.*has 3 batches"),
]


@pytest.mark.parametrize(("call", "named"), WRONG, ids=[named[:30] for _, named in WRONG])
def test_a_wrong_call_is_named(call, named):
    """The error names the argument and the cure, and the weights are as they were."""
    before = digest.of_value([MODEL.state_dict(), SGD.state_dict()])
    changes = "Vector.compute" in named
    with pytest.raises(InvalidArgumentError, match=named):
        call()
    assert changes or digest.of_value([MODEL.state_dict(), SGD.state_dict()]) == before


def test_other_errors_have_their_own_class(tmp_path):
    """No batches, a loss that is NaN, an optimizer with a closure, and other epochs inside a commit's are errors of their own."""
    with pytest.raises(EmptyDatasetError, match="has no batch"):
        fit([])
    with pytest.raises(EmptyDatasetError, match="Run.validate: .*list has no batch"):
        fit(validation_data=[])
    with pytest.raises(EmptyDatasetError, match="predict"):
        trainer().predict([])
    with pytest.raises(NonFiniteLossError, match="the loss is not finite"):
        fit(loss_fn=lambda output, target: output.mean() * float("nan"))
    with pytest.raises(UnimplementedError, match="samebits.Run"):
        samebits.Trainer(MODEL, LOSS, torch.optim.LBFGS(MODEL.parameters()))
    stop = samebits.callbacks.Lambda(
        on_batch_begin=lambda trainer, step: 1 / 0 if step == 1 else trainer.commit()
    )
    for steps, error in ((3, ZeroDivisionError), (2, RunMismatchError)):
        with pytest.raises(error):
            fit(options={"callbacks": [stop]}, run_dir=tmp_path / "r", steps_per_epoch=steps)


def test_a_hook_of_keras_is_named():
    """A callback with a hook by Keras's name is refused with ours."""
    with pytest.raises(InvalidArgumentError, match="no hook on_train_batch_end. Here it is on_batch_end"):
        type("Mine", (samebits.callbacks.Callback,), {"on_train_batch_end": print})


X, Y = torch.ones(6, 2), torch.zeros(6, dtype=torch.long)
HABITS = [
    (lambda: trainer().fit(BATCHES, BATCHES), "epochs=list.*the second argument is the number of epochs"),
    (lambda: trainer().fit(X, Y), "epochs=Tensor.*takes a loader of"),
    (lambda: trainer().fit(X, Y, epochs=3), "epochs=Tensor.*takes a loader of"),
    (lambda: trainer().fit(X.numpy(), Y.numpy(), batch_size=2), "epochs=ndarray.*takes a loader of"),
    (lambda: trainer().fit(x=X, y=Y), "fit.x=....*DataLoader.torch.utils.data.TensorDataset"),
    (lambda: fit(batch_size=3), "fit.batch_size=...*loader"),
    (lambda: fit(shuffle=True), "fit.shuffle=...*loader"),
    (
        lambda: fit(callbacks=[]),
        "callbacks belong to the trainer.*Trainer.model, loss_fn, optimizer, callbacks=",
    ),
]


@pytest.mark.parametrize(("call", "named"), HABITS, ids=range(len(HABITS)))
def test_a_call_in_the_way_of_keras_is_named_with_the_line_to_type(call, named):
    """fit(x, y), fit(batch_size=...) and fit(callbacks=...) raise an error that has the line to type."""
    with pytest.raises(InvalidArgumentError, match=f"(?s){named}") as error:
        call()
    assert "\n    trainer" in str(error.value)
    fit(batch_size=Vector())  # an object to save may be called so


OTHER_TRAINERS = [
    (
        lambda: samebits.Trainer(max_epochs=3),
        r"without model, loss_fn, optimizer; max_epochs: .*fit\(epochs=...\)",
    ),
    (
        lambda: samebits.Trainer(model=MODEL, args=None, train_dataset=X),
        "no TrainingArguments.*go to fit.loader",
    ),
    (lambda: samebits.Trainer(MODEL), r"Trainer\(<Linear>\): without loss_fn, optimizer\. Type"),
    (lambda: samebits.Trainer(MODEL, LOSS, SGD, SGD), "after optimizer needs its name, as scheduler="),
    (lambda: trainer(gradient_clip_val=1.0), "gradient_clip_val: it is clip_norm"),
    (lambda: trainer(nonsense=1.0), "nonsense: there is no such argument"),
    (lambda: trainer().fit(), r"Trainer.fit\(\): the loader is missing"),
    (lambda: trainer().fit(train_dataloaders=BATCHES), "the loader is missing"),
]


@pytest.mark.parametrize(("call", "named"), OTHER_TRAINERS, ids=range(len(OTHER_TRAINERS)))
def test_a_call_in_the_way_of_another_trainer_has_the_lines_to_type(call, named):
    """Lightning's and transformers' arguments say where they belong; the error is Python's kind for such a call, too."""
    with pytest.raises(InvalidArgumentError, match=f"(?s){named}") as error:
        call()
    assert isinstance(error.value, TypeError) and "    trainer.fit(loader, epochs=" in str(error.value)


def test_the_number_of_epochs_that_was_given_is_in_the_line_to_type():
    """Trainer(max_epochs=3) shows fit(loader, epochs=3)."""
    with pytest.raises(InvalidCallError, match=r"trainer.fit\(loader, epochs=3\)"):
        samebits.Trainer(max_epochs=3)


def test_editors_see_the_trainers_own_signature():
    """inspect.signature shows the arguments, not *args: control of the check in front of the call."""
    assert [*inspect.signature(samebits.Trainer).parameters][:4] == [
        "model",
        "loss_fn",
        "optimizer",
        "scheduler",
    ]
    assert [*inspect.signature(samebits.Trainer.fit).parameters][:3] == ["self", "loader", "epochs"]


@pytest.mark.parametrize("name", ["val_data", "val_loader", "eval_data", "validation_loader"])
def test_a_loader_to_validate_with_by_another_name_is_refused(name):
    """`Run` would save it as an object, and nothing would be validated; a module, or one beside validation_data, is saved."""
    loader = samebits.data.DataLoader(BATCHES, batch_size=None)
    with pytest.raises(InvalidArgumentError, match=f"Give the loader as validation_data={name}"):
        fit(**{name: loader})
    fit(**{name: nn.Sequential(nn.Linear(2, 2))})
    fit(**{name: loader, "validation_data": BATCHES, "validation_freq": [1]})


@pytest.mark.parametrize(("verbose", "lines"), [(0, 0), (1, 2), ("auto", 2), (2, 2), (True, 2), (False, 0)])
def test_verbose_is_keras_numbers(capfd, verbose, lines):
    """0 prints nothing, 1, 2 and "auto" a line per epoch where there is no terminal."""
    samebits.set_random_seed(1)
    trainer().fit(BATCHES, 2, verbose=verbose)
    assert len(capfd.readouterr().err.splitlines()) == lines

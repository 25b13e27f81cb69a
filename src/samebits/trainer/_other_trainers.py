"""Calls of `Trainer` and `fit` as in Lightning, transformers or Keras: the error has the lines to type."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from samebits._inspect.user_call import WrongCall
from samebits.errors import InvalidArgumentError, InvalidCallError
from samebits.train import Run
from samebits.train._object_states import Stateful

P = ParamSpec("P")
T = TypeVar("T")

_LOADER_ARGUMENTS = (
    "x", "y", "batch_size", "shuffle", "sample_weight", "validation_split", "validation_batch_size",
)  # fmt: skip
_OF_VALIDATION = ("validation_data", "validation_freq", "validation_steps")
_LOADER = (
    "fit takes a loader of (x, y) batches:\n"
    "    loader = samebits.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32, "
    "shuffle=True)\n"
    "    trainer.fit(loader, epochs=..., validation_data=other_loader)"
)


def check_keras_arguments(fit: Callable[P, T]) -> Callable[P, T]:
    """Returns `fit` with a check for arguments that only Keras's `fit` takes (`InvalidArgumentError`)."""
    known = [name for one in (fit, Run) for name in inspect.signature(one).parameters]
    known = [name for name in known if name not in ("self", "stateful", "run_options")]

    @functools.wraps(fit)
    def call(*args: P.args, **named: P.kwargs) -> T:
        _check(args[1:], named)
        for name, value in named.items():
            if name not in known and isinstance(value, int | float | str | bytes):
                close = difflib.get_close_matches(name, known, 1)
                raise InvalidArgumentError(
                    f"Trainer.fit({name}={value!r:.60}): neither fit nor Run has an argument of this name. "
                    + (f"Did you mean {close[0]}?" if close else f"They have {', '.join(known)}.")
                )
        return fit(*args, **named)

    return call


def _check(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    second = args[1] if len(args) > 1 else None
    if isinstance(second, torch.Tensor) or hasattr(second, "__iter__"):
        raise InvalidArgumentError(
            f"Trainer.fit(loader, epochs={type(second).__name__}): the second argument is the number of "
            f"epochs. {_LOADER}"
        )
    for name, value in named.items():
        if _is_validation_data(name, value) and "validation_data" not in named:
            raise InvalidArgumentError(
                f"Trainer.fit({name}=...): an object by this name is saved, and nothing is validated. Give "
                f"the loader as validation_data={name}."
            )
        if isinstance(value, Stateful):  # an object to save may have any name
            continue
        if name == "callbacks":
            raise InvalidArgumentError(
                "Trainer.fit(callbacks=...): callbacks belong to the trainer, which saves their state:\n"
                "    trainer = samebits.Trainer(model, loss_fn, optimizer, callbacks=[...])"
            )
        if name in _LOADER_ARGUMENTS:
            raise InvalidArgumentError(f"Trainer.fit({name}=...): batches are made by a loader. {_LOADER}")
    if not args and "loader" not in named:
        given = ", ".join(f"{name}=..." for name in named)
        raise InvalidCallError(f"Trainer.fit({given}): the loader is missing. {_LOADER}")


def _is_validation_data(name: str, value: Any) -> bool:
    """Returns True for a loader meant as `validation_data`: `Run` would save it, as it has a state."""
    is_loader = hasattr(value, "__iter__") and not isinstance(value, torch.nn.Module)
    return is_loader and name not in _OF_VALIDATION and name.startswith(("val", "eval"))


_PARTS = ("model", "loss_fn", "optimizer")
_EPOCHS = ("epochs", "max_epochs", "num_train_epochs")
_PLACES = {
    **dict.fromkeys(_EPOCHS, "the number of epochs goes to fit(epochs=...)"),
    **dict.fromkeys(
        ("max_steps", "limit_train_batches"), "the length of an epoch goes to fit(steps_per_epoch=...)"
    ),
    "args": "there are no TrainingArguments; epochs and folder go to fit(epochs=..., run_dir=...)",
    **dict.fromkeys(("train_dataset", "train_dataloaders"), "the batches go to fit(loader)"),
    **dict.fromkeys(
        ("eval_dataset", "val_dataloaders", "validation_data"), "it goes to fit(validation_data=loader)"
    ),
    "data_collator": "it is samebits.data.DataLoader(collate_fn=...)",
    **dict.fromkeys(("loss", "criterion", "compute_loss_func"), "it is loss_fn"),
    "optimizers": "they are optimizer and scheduler",
    "compute_metrics": "it is metrics={name: function}",
    **dict.fromkeys(("accumulate_grad_batches", "gradient_accumulation_steps"), "it is accumulate"),
    **dict.fromkeys(("gradient_clip_val", "max_grad_norm"), "it is clip_norm"),
    **dict.fromkeys(("accelerator", "devices", "gpus"), "it is device"),
    **dict.fromkeys(("fp16", "bf16"), 'it is precision="bf16" or "fp16"'),
    **dict.fromkeys(("default_root_dir", "output_dir", "run_dir"), "it goes to fit(run_dir=...)"),
    **dict.fromkeys(("enable_progress_bar", "verbose"), "it goes to fit(verbose=...)"),
    "deterministic": "call samebits.enable_op_determinism() first",
    "seed": "call samebits.set_random_seed(seed) first",
}
"""Arguments of other trainers, and where each belongs here."""


def explain(call: WrongCall) -> str:
    """Returns the message for a call that does not fit the signature."""
    named = (f"{name}=..." for name in call.named)
    given = ", ".join([*(f"<{type(arg).__name__}>" for arg in call.args), *named])
    missing = [part for part in _PARTS[len(call.args) :] if part not in call.named]
    problems = [f"without {', '.join(missing)}"] if missing else []
    problems += [f"{name}: {_PLACES.get(name, 'there is no such argument')}" for name in call.unknown]
    if len(call.args) > len(_PARTS):
        problems.append("each argument after optimizer needs its name, as scheduler=scheduler")
    problems = problems or ["an argument is given twice"]
    epochs = next((call.named[name] for name in _EPOCHS if name in call.unknown), "...")
    return (
        f"samebits.Trainer({given}): {'; '.join(problems)}. Type\n"
        f"    trainer = samebits.Trainer(model, loss_fn, optimizer)\n"
        f"    trainer.fit(loader, epochs={epochs if isinstance(epochs, int) else '...'})"
    )

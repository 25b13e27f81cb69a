"""Checks of the arguments of `Run` and `Trainer`."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from samebits._arguments import is_int, is_number, require
from samebits._inspect.user_call import WrongCall, texts_of_arguments
from samebits.errors import InvalidArgumentError
from samebits.state import adapter_for
from samebits.train._object_states import Stateful

_NAMES = (
    (torch.nn.Module, "model"),
    (torch.optim.Optimizer, "optimizer"),
    (torch.optim.lr_scheduler.LRScheduler, "scheduler"),
    (torch.amp.GradScaler, "scaler"),
)


def explain_run(call: WrongCall) -> str:
    """Returns the message for `Run(run_dir, model, optimizer)`, or without a folder: the line to type."""
    folders = [arg for arg in call.args if arg is None or isinstance(arg, str | os.PathLike)]
    given = folders[0] if folders else "runs/name"
    folder = "None" if given is None else f'"{os.fspath(given)}"'
    objects = [arg for arg in call.args if not any(arg is folder for folder in folders)]
    texts = texts_of_arguments(call)
    named = [f"{name}={_typed(value, texts)}" for name, value in call.named.items()]
    unnamed = [f"{name}={text}" for name, text in _names(objects, texts, call.named)]
    line = ", ".join([folder, *unnamed, *named])
    problem = "it takes one folder, first"
    if objects:
        problem = "each object needs the name under which it is saved"
    return f"samebits.Run({_given(call)}): {problem}. Type\n    samebits.Run({line})"


def explain_add(call: WrongCall) -> str:
    texts = texts_of_arguments(call)
    given = _names([arg for arg in call.args if not isinstance(arg, str)], texts)
    given += [(name, _typed(call.named[name], texts)) for name in call.unknown]
    lines = [f'run.add("{name}", {text})' for name, text in given or [("model", "model")]]
    return f"run.add({_given(call)}): first the name under which it is saved, then the object. Type\n    " + (
        "\n    ".join(lines)
    )


def explain_steps(call: WrongCall) -> str:
    """Returns the message for `run.steps(epochs=3)`, `run.steps(loader, 3, "train")`: the line to type."""
    has_epochs = len(call.args) > 1 and "epochs" not in call.named
    epochs = [f"epochs={call.args[1]!r:.40}"] if has_epochs else []
    return _explain_loader("run.steps", call, epochs, "what follows epochs has a name")


def explain_epoch_steps(call: WrongCall) -> str:
    if "shards" in call.unknown:
        return (
            f"epoch.steps({_given(call)}): the loop of run.epochs has no shards. Type\n"
            f"    for step, shards in run.steps(loader, epochs=3, shards={call.named.get('shards')!r:.20}):"
        )
    return _explain_loader("epoch.steps", call, [], "it takes one loader")


def explain_epochs(call: WrongCall) -> str:
    numbers = [arg for arg in (*call.args, *call.named.values()) if type(arg) is int]
    return (
        f"run.epochs({_given(call)}): it takes the number of epochs; the loader goes to epoch.steps. Type\n"
        f"    for epoch in run.epochs({numbers[0] if numbers else 3}):\n"
        "        for step, batch in epoch.steps(loader):"
    )


def _explain_loader(function: str, call: WrongCall, named: list[str], problem: str) -> str:
    if not call.args and "loader" not in call.named:
        problem = "it takes the loader, first"
    elif call.unknown:
        problem = f"it has no argument {', '.join(call.unknown)}"
    known = {name: value for name, value in call.named.items() if name not in {*call.unknown, "loader"}}
    named = [*named, *(f"{name}={value!r:.40}" for name, value in known.items())]
    return f"{function}({_given(call)}): {problem}. Type\n    {function}({', '.join(['loader', *named])})"


def explain_restore(call: WrongCall) -> str:
    return (
        f"run.restore({_given(call)}): it restores all objects of the run, and takes no argument. Type\n"
        "    run.restore()"
    )


def _given(call: WrongCall) -> str:
    """Returns the arguments of a call, in short."""
    given = [f"<{type(arg).__name__}>" for arg in call.args]
    return ", ".join(given + [f"{name}=..." for name in call.named])


def _typed(value: Any, texts: Mapping[int, str]) -> str:
    """Returns the text of an argument: what the user typed, or a plain value."""
    is_plain = value is None or isinstance(value, str | int | float)
    return repr(value) if is_plain else texts.get(id(value), "...")


def _names(
    objects: Sequence[Any], texts: Mapping[int, str], taken: Iterable[str] = ()
) -> list[tuple[str, str]]:
    """Returns name and text of each object: the name of its variable or attribute, or that of its kind."""
    named = []
    for it in objects:
        usual = next((name for kind, name in _NAMES if isinstance(it, kind)), type(it).__name__.lower())
        text = _typed(it, texts)
        own = text.rpartition(".")[2]
        own = own if own.isidentifier() else usual
        named.append((text.replace(".", "_") if own in {*taken, *dict(named)} else own, text))
    return named


def check_options(keep: Any, grace: Any, ignore: Any) -> None:
    """Raises `InvalidArgumentError` for invalid options."""
    require(is_int(keep), "Run", "an int; at least one commit must be kept. Give how many", keep=keep)
    require(is_number(grace) and 0 < grace < math.inf, "Run", "seconds, a number above 0", grace=grace)
    is_list = isinstance(ignore, list | tuple | set | frozenset)  # of a str, each letter would be one
    require(is_list, "Run", 'a list of paths, ["losses"]', ignore=ignore)


def stateful(name: Any, obj: Any, options: Sequence[str]) -> Stateful:
    """Returns what a run saves under `name`: `obj`, or an adapter for it.

    Raises `InvalidArgumentError` for an object that has no state, for one whose state cannot be saved, and
    for a container whose name is nearly that of one of the `options` of `Run`.
    """
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f'Run.add({type(name).__name__}, ...): first the name, then the object: run.add("model", model).'
        )
    if isinstance(obj, type):
        raise InvalidArgumentError(
            f"Run({name}={obj.__name__}): a class. Give the object that is trained: "
            f"{name}={obj.__name__}(...)."
        )
    if obj is None:
        raise InvalidArgumentError(f"Run({name}=None): there is nothing to save. Leave it out.")
    if isinstance(obj, int | float | str | bytes):
        if not options:
            raise InvalidArgumentError(
                f'run.add("{name}", {obj!r:.60}): a value, not an object. Keep it in run.state: '
                f"run.state.{name} = {obj!r:.60}"
            )
        raise InvalidArgumentError(
            f"Run({name}={obj!r:.60}): no option of Run has this name; the options are {', '.join(options)}. "
            "A value that changes as the training goes belongs into run.state."
        )
    is_container = isinstance(obj, list | tuple | set | dict)
    if is_container and (meant := difflib.get_close_matches(name, options, 1, 0.8)):
        raise InvalidArgumentError(f"Run({name}=...): no option of Run has this name. {meant[0]} has.")
    adapter = adapter_for(obj, f"Run({name}={type(obj).__name__}(...))")
    if adapter is not None:
        return adapter
    if not isinstance(obj, Stateful):
        raise InvalidArgumentError(
            f"Run({name}={type(obj).__name__}(...)): no option of Run has this name, and as an object to "
            "save it has no state_dict and load_state_dict. Give it both, or name its attributes, "
            f'{name}=samebits.state.attributes({name}, "a", "b"), or keep its plain values in run.state.'
        )
    return obj


def check_iterable(loader: Any, call: str) -> None:
    """Raises unless `loader` is an iterable of batches. `call` names it: "Run.steps(loader"."""
    if not hasattr(loader, "__iter__") and not hasattr(loader, "__getitem__"):
        cure = f"range({loader})" if isinstance(loader, int) else "a samebits.data.DataLoader"
        raise InvalidArgumentError(f"{call}={loader!r:.80}): not iterable. Pass {cure}.")
    if isinstance(loader, Dataset) and not hasattr(loader, "__iter__"):
        raise InvalidArgumentError(
            f"{call}={type(loader).__name__}): a dataset gives one sample at a time. Pass "
            "samebits.data.DataLoader(dataset, batch_size=32), or batch_size=None where an item is a batch."
        )


def check_batches(loader: Any, call: str) -> None:
    """Raises for samples, or one batch, in the place of batches; `call` as for `check_iterable`."""
    check_iterable(loader, call)
    arrays = torch.Tensor | np.ndarray
    several = isinstance(loader, tuple) and bool(loader) and all(isinstance(x, arrays) for x in loader)
    if several or isinstance(loader, arrays | Mapping | str):
        given = "(x, y)" if several else f"<{type(loader).__name__}>"
        raise InvalidArgumentError(
            f"{call}={given}): it is read as batches. Pass "
            "samebits.data.DataLoader(torch.utils.data.TensorDataset("
            f"{'x, y' if several else 'x'}), batch_size=32), or a list of batches."
        )


def check_number(value: Any, what: str) -> None:
    """Raises unless `value` is one number. `what` names it: "run.log(loss". Waits for no GPU."""
    if isinstance(value, torch.Tensor):
        if value.numel() == 1:
            return
        given = f"<a tensor of shape {tuple(value.shape)}>"
    else:
        try:
            if not isinstance(value, str):
                float(value)
                return
        except (TypeError, ValueError):
            pass
        given = f"{value!r:.60}"
    raise InvalidArgumentError(f"{what}={given}): give a number, or a tensor of one element: its mean, say.")

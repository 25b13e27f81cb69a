"""Keras on torch: `fit(..., callbacks=[Resumable("runs/x")])` resumes to the same bits, in an epoch, too."""

from __future__ import annotations

import copy
import functools
import os
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from samebits import _digest as digest
from samebits._inspect.user_code import is_library, is_user_type, outwards
from samebits._objects.parts import own_names
from samebits._program import names_of_library
from samebits.data._keyed_loader import keyed_loader
from samebits.data._pipeline import PipelineDataset
from samebits.errors import UnimplementedError
from samebits.integrations._adapter import Batches, OpenRun, library_modules
from samebits.state._parts import is_plain
from samebits.train._framework_privates import require_attributes

(keras,) = library_modules("keras", "keras", "keras")

_CURES = (
    "Resumable(ignore=[...]). To save it: make it a number, a string, an array or a list of them in a "
    "callback, model, layer or metric; or give the callback or metric state_dict and load_state_dict, the "
    "model or layer get_extra_state and set_extra_state"
)
_NO_STATE = {"min_delta", "built", "compiled", "stop_training", "stop_evaluating", "stop_predicting"}
"""Attributes that `fit` sets itself; a callback's `min_delta` changes its sign when it is first used."""


class Resumable(keras.callbacks.Callback):
    """Makes `model.fit` resume to the same bits: started again after a kill, it continues in the epoch.

    ```python
    model.fit(x, y, epochs=30, callbacks=[samebits.integrations.keras.Resumable("runs/digits"), ...])
    ```

    A commit holds the variables of model (with seed generators), optimizers and metrics, the history, and the
    attributes that are numbers, text, arrays or lists of them: of callbacks (`wait`, `best`, `best_weights`),
    models, layers (`rate`) and metrics. What else changes in those of your own is an `IncompleteStateError`
    in the first steps: give a callback `state_dict` and `load_state_dict`, a model or layer `get_extra_state`
    and `set_extra_state`, which are then used. Arrays and torch DataLoaders become a
    `samebits.data.DataLoader`, so that a batch does not depend on workers. Commits are made between two
    batches; a validation that is killed begins anew.

    Not covered: PyDatasets and generators, `initial_epoch`, `steps_per_execution` above 1, a second optimizer
    that is not built before `fit`, and files that another callback writes (`CSVLogger` begins a new one,
    unless it has `append=True`).

    Args:
        run_dir: folder of this run alone.
        options: those of `samebits.Run`: `save=`, `keep=`, ...

    Raises:
        UnimplementedError: (in `fit`) the backend is not torch, or the data or an argument is not covered.
    """

    def __init__(self, run_dir: str | os.PathLike[str], **options: Any) -> None:
        super().__init__()
        self._open = OpenRun(run_dir, options, _CURES)
        self._batches: Any = None
        self._state: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Opens the run, restores, and gives fit the batches of the run."""
        fit = _locals_of_fit()
        iterator, epochs, model = fit["epoch_iterator"], fit["epochs"], self.model
        _check(fit, model)
        loader = keyed_loader(_numbered(iterator))
        if isinstance(getattr(loader, "dataset", None), PipelineDataset):
            loader = loader.dataset.pipeline  # which has a position of its own
        elif not hasattr(loader, "dataset") or isinstance(loader.dataset, IterableDataset):
            raise _refused(
                "fit got data that has no numbered elements",
                "Give arrays, a torch DataLoader, or "
                "DataLoader(pipeline.as_iterable_dataset(), batch_size=None).",
            )
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._open.leave(RuntimeError("an earlier fit ended by an error"))
        run = self._open.enter({})
        self._batches = Batches(run, loader, epochs, steps_per_epoch=iterator.steps_per_epoch)
        others = [one for one in fit["callbacks"].callbacks if one is not self]
        parts = _parts_of(model, others, resumed=run.resumed)
        self._state = _FitState(model, parts)
        run.add("keras", self._state, complete=True)
        for name, part in parts.items():
            if part.is_programs:
                run.add(name, part.for_run())
        run.restore()
        if run.resumed:
            model._initial_epoch = epochs if run.finished else self._state.epoch
        iterator._enumerate_iterator = self._steps

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch."""
        if not self._state.is_pending:
            self._state.epoch, self._state.batches = epoch, 0

    def _steps(self) -> Iterator[tuple[int, int, Iterator[Any]]]:
        # All callbacks have begun the epoch: what they set then is part of the commit.
        self._state.apply()
        batches = self._batches_of_epoch()
        for step in range(self._state.batches, len(self._batches)):
            yield step, step, batches

    def _batches_of_epoch(self) -> Iterator[Any]:
        try:
            yield from self._batches
        except Exception as error:
            self._open.leave(error)
            raise

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the batch."""
        self._state.batches += 1
        try:
            self._state.check()
        except UnimplementedError as error:
            self._open.leave(error)
            raise

    def on_train_end(self, logs: Any = None) -> None:
        """Commits the last boundary, and closes the run. A finished run gets its final state here."""
        self._state.apply()
        self._batches.end()
        self._open.leave()
        self.model._initial_epoch = None


def _numbered(iterator: Any) -> Any:
    """Returns the torch DataLoader of an epoch's iterator; that of arrays reads their numbers, and slices."""
    loader = iterator._get_iterator()
    if type(iterator.data_adapter).__name__ != "ArrayDataAdapter":
        return loader
    # Keras's own dataset has no length that its loader could be asked for.
    numbers = range(iterator.data_adapter._num_samples)
    slices = loader.dataset.__getitems__
    return DataLoader(numbers, batch_sampler=loader.batch_sampler, collate_fn=slices)  # type: ignore[arg-type]


def _locals_of_fit() -> dict[str, Any]:
    """Returns the variables of the `fit` that called the callbacks: no hook hands them over."""
    for frame in outwards(sys._getframe(1)):
        if frame.f_code.co_name == "fit" and "epoch_iterator" in frame.f_locals:
            return dict(frame.f_locals)
    raise _refused("no fit of Keras on torch is under way", "Set KERAS_BACKEND=torch, and call model.fit.")


def _check(fit: dict[str, Any], model: Any) -> None:
    for thing in (fit["epoch_iterator"], model):
        require_attributes("keras", thing)
    if keras.backend.backend() != "torch":
        raise _refused(f"the backend is {keras.backend.backend()}", "Set KERAS_BACKEND=torch.")
    if model.steps_per_execution != 1:
        raise _refused("compile(steps_per_execution=...) is above 1", "Leave it out.")
    if fit["initial_epoch"]:
        raise _refused("fit(initial_epoch=...) is given", "Leave it out: the run knows its epoch.")


def _refused(what: str, cure: str) -> UnimplementedError:
    return UnimplementedError(f"samebits.integrations.keras.Resumable: {what}. {cure}")


class _FitState:
    """All that `fit` changes: variables, the position in the epoch, and when the parts are restored."""

    def __init__(self, model: Any, parts: Mapping[str, _FitPart]) -> None:
        self._model, self._parts = model, list(parts.values())
        self._others = {name: part for name, part in parts.items() if not part.is_programs}
        self.epoch = self.batches = 0
        self._restored: dict[str, Any] | None = None
        held = _optimizers(model)
        self._optimizers = [one for one in held if one.built]
        self._unbuilt = {one: name for one, name in held.items() if not one.built}

    @property
    def is_pending(self) -> bool:
        """True from a restore until `apply`."""
        return self._restored is not None

    def __saved_objects__(self) -> list[Any]:
        """Returns what the state is of: the check for lost state does not look into it."""
        return [*_layers(self._model), *_metrics(self._model), *self._optimizers, *self._variables()]

    def check(self) -> None:
        """Raises `UnimplementedError` for an optimizer that was built in training."""
        for one, name in self._unbuilt.items():
            if one.built:
                raise _refused(
                    f"the optimizer {name} had no variables when fit began, into which a commit is restored",
                    "Before fit, call its build(variables) with those that it trains.",
                )

    def _variables(self) -> list[Any]:
        model = self._model
        found = [*model.variables, *model.metrics_variables]
        return found + [one for optimizer in self._optimizers for one in optimizer.variables]

    def _buffers(self) -> list[torch.Tensor]:
        """Returns the buffers of torch's modules in the model: they are no variables of Keras."""
        return [buffer for module in _torch_modules(self._model) for buffer in module.buffers(recurse=False)]

    def state_dict(self) -> dict[str, Any]:
        """Returns it; before `apply`, that of the restore."""
        if self._restored is not None:
            return self._restored
        return {
            "variables": [one.value.detach().clone() for one in self._variables()],
            "buffers": [one.clone() for one in self._buffers()],
            "trainable": [one.trainable for one in _layers(self._model)],
            "attributes": {name: part.state_dict() for name, part in self._others.items()},
            "epoch": self.epoch,
            "batches": self.batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps it for `apply`: when fit begins, it sets metrics and callbacks back."""
        self._restored = state
        self.epoch, self.batches = state["epoch"], state["batches"]

    def apply(self) -> None:
        state, self._restored = self._restored, None
        if state is None:
            return
        for variable, value in zip(self._variables(), state["variables"], strict=True):
            variable.assign(value)
        for buffer, value in zip(self._buffers(), state["buffers"], strict=True):
            buffer.copy_(value)
        for layer, value in zip(_layers(self._model), state["trainable"], strict=True):
            if layer.trainable != value:
                layer.trainable = value
        for name, part in self._others.items():
            part.load_state_dict(state["attributes"][name])
        for part in self._parts:
            part.apply()


def _layers(model: Any) -> list[Any]:
    return list(model._flatten_layers())


def _metrics(model: Any) -> list[Any]:
    return [one for metric in model.metrics for one in (metric, *getattr(metric, "metrics", ()))]


def _torch_modules(model: Any) -> list[torch.nn.Module]:
    wrapped = [one.module for one in _layers(model) if isinstance(one, keras.layers.TorchModuleWrapper)]
    return [inner for module in wrapped for inner in module.modules()]


def _optimizers(model: Any) -> dict[Any, str]:
    """Returns the optimizers that a model and its layers hold, each with the attribute; the model's first."""
    found = {model.optimizer: "model.optimizer"}
    for layer in _layers(model):
        for name, value in vars(layer).items():
            held = value.values() if isinstance(value, dict) else value
            for one in held if isinstance(value, dict | list) else [value]:
                if isinstance(one, keras.optimizers.Optimizer):
                    found.setdefault(one, f"{type(layer).__name__}.{name}")
    return found


def _parts_of(model: Any, callbacks: Sequence[Any], *, resumed: bool) -> dict[str, _FitPart]:
    """Returns what has attributes of the program, by the names that messages give them."""
    groups = {
        "layer": [one for one in _layers(model) if one is not model],
        "module": _torch_modules(model),
        "metric": _metrics(model),
        "optimizer": list(_optimizers(model)),
        "callback": callbacks,
    }
    named = {"model": _FitPart(model, resumed=resumed)}
    for group, things in groups.items():
        for thing in {id(thing): thing for thing in things}.values():
            name = f"{group}_{type(thing).__name__}"
            name = name if name not in named else f"{name}_{len(named)}"
            named[name] = _FitPart(thing, resumed=resumed, is_callback=group == "callback")
    return named


class _FitPart:
    """A model, layer, metric, optimizer or callback: plain attributes are saved, a run sees the others."""

    def __init__(self, thing: Any, *, resumed: bool, is_callback: bool = False) -> None:
        kind = type(thing)
        self._thing, self._of_keras = thing, _names_of_keras(kind)
        self._is_callback = is_callback
        is_module = isinstance(thing, torch.nn.Module)
        self._save = "get_extra_state" if is_module else "state_dict"
        self._load = "set_extra_state" if is_module else "load_state_dict"
        if getattr(kind, self._save, None) in (None, torch.nn.Module.get_extra_state):
            self._save = ""
        self._begun = {name: digest.of_value(one) for name, one in self._plain().items()}
        self._first = copy.deepcopy(self._plain()) if resumed else {}
        self._restored: dict[str, Any] | None = None
        self.is_programs = isinstance(thing, keras.Model) or is_user_type(kind) or bool(self.shown())
        """True if a run looks into it: it may have attributes that are not saved."""

    def _plain(self) -> dict[str, Any]:
        held = {name: _untracked(one) for name, one in vars(self._thing).items() if self._may_save(name)}
        return {name: one for name, one in held.items() if is_plain(one)}

    def _may_save(self, name: str) -> bool:
        # What Keras's callbacks count is private, too; of a layer that a callback changes (`rate`) is public.
        private = name.startswith("_") and not self._is_callback
        return name not in _NO_STATE and not (private and name in self._of_keras)

    def shown(self) -> dict[str, Any]:
        """Returns the attributes of the program that are not saved."""
        saved = self._plain()
        return {
            name: one
            for name, one in vars(self._thing).items()
            if (_is_programs(one) if name in self._of_keras else name not in saved)
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns the attributes that have changed, and what the program saves; before `apply`, as loaded."""
        if self._restored is not None:
            return self._restored
        plain = self._plain()
        changed = [name for name, one in plain.items() if digest.of_value(one) != self._begun.get(name)]
        own = getattr(self._thing, self._save)() if self._save else {}
        return {"attributes": {name: copy.deepcopy(plain[name]) for name in changed}, "own": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps it for `apply`."""
        self._restored = state

    def apply(self) -> None:
        state, self._restored = self._restored, None
        if state is None:
            return
        now = self._plain()
        unchanged = {name: one for name, one in self._first.items() if name in now}
        for name, one in {**unchanged, **copy.deepcopy(state["attributes"])}.items():
            if name not in now or digest.of_value(now[name]) != digest.of_value(one):
                setattr(self._thing, name, one)
        self._first = {}
        if self._save:
            getattr(self._thing, self._load)(copy.deepcopy(state["own"]))

    def for_run(self) -> Any:
        """Returns an object that stands for it in a run, which looks into what is `shown`."""
        kind = type(self._thing)
        methods = {
            name: item
            for base in filter(is_user_type, reversed(kind.__mro__))
            for name, item in vars(base).items()
            if isinstance(item, types.FunctionType | property) and not name.startswith("__")
        }
        if self._save:
            methods["get_extra_state"] = getattr(kind, self._save)  # what it names is saved
        return object.__new__(
            type(
                kind.__name__,
                (),
                {
                    **methods,
                    "__module__": "__main__",  # the run takes it for the program's, a layer of Keras, too
                    "__dict__": property(lambda _: self.shown()),
                    "state_dict": self.state_dict,
                    "load_state_dict": self.load_state_dict,
                },
            )
        )


@functools.cache
def _names_of_keras(kind: type) -> frozenset[str]:
    own = own_names(torch.nn.Module) | {"history"} if issubclass(kind, torch.nn.Module) else frozenset()
    return names_of_library(kind) | own


def _untracked(value: Any) -> Any:
    """Returns a value with Python's containers in place of Keras's, which are made of them."""
    kind = type(value)
    if kind.__module__.startswith("keras."):
        kind = next((base for base in (OrderedDict, dict, list, set) if isinstance(value, base)), kind)
    if kind in (dict, OrderedDict):
        return kind((key, _untracked(one)) for key, one in value.items())
    return kind(map(_untracked, value)) if kind in (list, tuple, set) else value


def _is_programs(value: Any) -> bool:
    function = value.__func__ if isinstance(value, types.MethodType) else value
    if isinstance(function, types.FunctionType):
        return not is_library(function.__code__.co_filename)
    return is_user_type(type(value))

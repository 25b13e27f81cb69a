"""Keras on torch: `fit(..., callbacks=[Resumable("runs/x")])` resumes to the same bits, in an epoch, too."""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from samebits.data._keyed_loader import keyed_loader
from samebits.errors import UnimplementedError
from samebits.integrations._adapter import Batches, OpenRun, program_callbacks
from samebits.state._parts import is_plain
from samebits.train._library_attributes import require_attributes

try:
    keras: Any = importlib.import_module("keras")
except ImportError as error:
    raise ImportError("samebits.integrations.keras needs keras: pip install 'samebits[keras]'") from error

_CURES = (
    "Resumable(ignore=[...]). To save it: make it a number, a string, an array or a list of them, or "
    "give the callback state_dict and load_state_dict"
)
_SETTINGS = {"min_delta", "params"}
"""Attributes of callbacks that are no state; `min_delta` changes its sign when it is first used."""


class Resumable(keras.callbacks.Callback):
    """Makes `model.fit` resume to the same bits: started again after a kill, it continues in the epoch.

    ```python
    model.fit(x, y, epochs=30, callbacks=[samebits.integrations.keras.Resumable("runs/digits"), ...])
    ```

    A commit holds the variables of model (with seed generators), optimizer and metrics, the history, and what
    the other callbacks count (`wait`, `best`, `best_weights`, and any attribute that is a number, text, array
    or a list of them). What else changes in a callback of your own is an `IncompleteStateError` in the first
    steps: give it `state_dict` and `load_state_dict`, which are then used. Arrays and torch DataLoaders
    become a `samebits.data.DataLoader`, so that a batch does not depend on workers. Commits are made between
    two batches; a validation that is killed begins anew.

    Not covered: PyDatasets and generators, `initial_epoch`, `steps_per_execution` above 1, and files that
    another callback writes (`CSVLogger` begins a new one, unless it has `append=True`).

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
        if not hasattr(loader, "dataset") or isinstance(loader.dataset, IterableDataset):
            raise _refused("fit got data that has no numbered elements", "Give arrays or a torch DataLoader.")
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self._open.leave(RuntimeError("an earlier fit ended by an error"))
        run = self._open.enter({})
        self._batches = Batches(run, loader, epochs, steps_per_epoch=iterator.steps_per_epoch)
        others = [one for one in fit["callbacks"].callbacks if one is not self]
        self._state = _FitState(model, others)
        run.add("keras", self._state, complete=True)
        # what it counts is restored by `_FitState`, when fit has begun
        for name, callback in program_callbacks(others, _callback_state, lambda *_: None).items():
            run.add(name, callback)
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
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fit" and "epoch_iterator" in frame.f_locals:
            return dict(frame.f_locals)
        frame = frame.f_back  # type: ignore[assignment]
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
    """All that `fit` changes: variables, callbacks' counts, and the position in the epoch."""

    def __init__(self, model: Any, callbacks: Sequence[Any]) -> None:
        self._model, self._callbacks = model, callbacks
        self.epoch = self.batches = 0
        self._restored: dict[str, Any] | None = None

    @property
    def is_pending(self) -> bool:
        """True from a restore until `apply`."""
        return self._restored is not None

    def _variables(self) -> list[Any]:
        model = self._model
        return [*model.variables, *model.optimizer.variables, *model.metrics_variables]

    def state_dict(self) -> dict[str, Any]:
        """Returns it; before `apply`, that of the restore."""
        if self._restored is not None:
            return self._restored
        return {
            "variables": [one.value.detach().clone() for one in self._variables()],
            "callbacks": [_counts(one) for one in self._callbacks],
            "epoch": self.epoch,
            "batches": self.batches,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps it for `apply`: when fit begins, it sets metrics and callbacks back."""
        self._restored = state
        self.epoch, self.batches = state["epoch"], state["batches"]

    def apply(self) -> None:
        """Restores what was loaded, once."""
        state, self._restored = self._restored, None
        if state is None:
            return
        for variable, value in zip(self._variables(), state["variables"], strict=True):
            variable.assign(value)
        for callback, counts in zip(self._callbacks, state["callbacks"], strict=True):
            vars(callback).update(counts)


def _callback_state(self: Any) -> dict[str, Any]:
    # A state_dict that reads `vars` itself would count as one of all attributes.
    return _counts(self)


def _counts(callback: Any) -> dict[str, Any]:
    return {
        name: copy.deepcopy(value)
        for name, value in vars(callback).items()
        if name not in _SETTINGS and is_plain(value)
    }

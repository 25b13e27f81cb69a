"""`Trainer.fit`: the usual loop, on top of `Run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from samebits.callbacks import Callback, ProgressBar, TerminateOnNaN
from samebits.context import Observer, Position, notify, observed, process
from samebits.errors import InvalidArgumentError
from samebits.train.run import Run
from samebits.train.steps import Step

Metric = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
History = dict[str, list[float]]


class Trainer:
    """Trains `model` on batches `(input, target)`; killed anywhere, `fit` ends with the same weights.

    Args:
        model: called as `model(input)`.
        loss_fn: `loss_fn(output, target)`, a mean over the batch.
        optimizer: steps once per batch.
        scheduler: a torch LR scheduler, stepped once per epoch.
        callbacks: called in order; their state is part of every commit.
        metrics: by name, `f(output, target)`, a mean over the batch; logged per epoch, and with `val_` before it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: Callable[[Any, Any], torch.Tensor],
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        callbacks: Sequence[Callback] = (),
        metrics: Mapping[str, Metric] | None = None,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgumentError(
                f"Trainer(model, loss_fn, optimizer): the optimizer is a {type(optimizer).__name__}. Was the order swapped?"
            )
        if isinstance(callbacks, Callback):
            raise InvalidArgumentError("Trainer(callbacks=...): give a list of callbacks, [callback].")
        for callback in callbacks:
            if isinstance(callback, type):
                raise InvalidArgumentError(
                    f"Trainer(callbacks=[{callback.__name__}]): a class. Give an instance, {callback.__name__}(...)."
                )
            if not isinstance(callback, Callback):
                raise InvalidArgumentError(
                    f"Trainer(callbacks=[{callback!r:.60}]): not a samebits.callbacks.Callback. Derive it from that "
                    "class, so that it has a state."
                )
        self.model = model
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.callbacks = list(callbacks)
        self.metrics = dict(metrics or {})
        self.epochs = 0
        self.steps_per_epoch: int | None = None
        self.validates = False
        self._run: Run | None = None

    def fit(
        self,
        loader: Iterable[Any],
        epochs: int = 1,
        *,
        validation_data: Iterable[Any] | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        verbose: bool = True,
        **run_options: Any,
    ) -> History:
        """Trains for `epochs` epochs in all and returns the history: per name, one value per epoch.

        Args:
            loader: a `samebits.data.DataLoader` (or any iterable that starts anew at each `iter()`).
            epochs: how many in all, those before a resume counted in.
            validation_data: batches to evaluate after each epoch.
            run_dir: where commits go, and where training is resumed from; None: nothing is saved.
            verbose: show progress.
            run_options: further arguments of `Run`.

        Raises:
            NonFiniteLossError: the loss became NaN or infinite, and there is no `TerminateOnNaN`.
        """
        self.epochs = epochs
        self.validates = validation_data is not None
        self.steps_per_epoch = len(loader) if hasattr(loader, "__len__") else None  # type: ignore[arg-type]
        callbacks = [*self.callbacks, ProgressBar()] if verbose else self.callbacks
        if any(isinstance(callback, TerminateOnNaN) for callback in callbacks):
            run_options.setdefault("check_loss", False)  # what is raised cannot be stopped at
        with Run(run_dir, **self._stateful(), **run_options) as run, observed(_Commits(self, run, callbacks)):
            self._run = run
            run.state.setdefault("history", {})
            try:
                for callback in callbacks:
                    callback.on_train_begin(self)
                for step, batch in run.steps(loader, epochs=epochs):
                    self._step(run, step, batch, callbacks)
                    if step.ends_epoch:
                        self._end_epoch(run, step, validation_data, callbacks)
                for callback in callbacks:
                    callback.on_train_end(self)
            finally:
                self._run = None
                for callback in callbacks:
                    callback.on_exit(self)
            return {name: list(values) for name, values in run.state.history.items()}

    def evaluate(self, loader: Iterable[Any]) -> dict[str, float]:
        """Mean loss and metrics over the samples of `loader`, in eval mode and without gradients."""
        sums: dict[str, float] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.no_grad():
            for inputs, target in loader:
                output = self.model(inputs)
                _add(sums, self._measured(output, target, self.loss_fn(output, target)), len(target))
        self.model.train(was_training)
        return _means(sums)

    @property
    def run_dir(self) -> Path | str | None:
        """Where the commits of the fit under way go."""
        return None if self._run is None else self._run.run_dir

    @property
    def resumed(self) -> bool:
        """Whether the fit under way goes on from a commit."""
        return self._run is not None and self._run.resumed

    def stop_training(self) -> None:
        """Ends training after this step (for callbacks)."""
        if self._run is not None:
            self._run.stop()

    def commit(self) -> None:
        """Asks for a commit between this step and the next (for callbacks)."""
        if self._run is not None:
            self._run.commit()

    def _stateful(self) -> dict[str, Any]:
        named = {f"callback_{i}_{type(c).__name__}": c for i, c in enumerate(self.callbacks)}
        scheduler = {} if self.scheduler is None else {"scheduler": self.scheduler}
        return {"model": self.model, "optimizer": self.optimizer, **scheduler, **named}

    def _step(self, run: Run, step: Step, batch: Any, callbacks: Sequence[Callback]) -> None:
        inputs, target = batch
        if step.batch_index == 0:
            for callback in callbacks:
                callback.on_epoch_begin(self, step.epoch)
        self.model.train()
        output = self.model(inputs)
        loss = self.loss_fn(output, target)
        run.log(loss=loss)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        sums = run.state.setdefault("sums", {})
        _add(sums, self._measured(output, target, loss), len(target))
        for callback in callbacks:
            callback.on_batch_end(self, step.number, {"loss": float(loss.detach())})

    def _end_epoch(
        self, run: Run, step: Step, validation: Iterable[Any] | None, callbacks: Sequence[Callback]
    ) -> None:
        logs = _means(run.state.pop("sums"))
        if validation is not None:
            notify("validation_begins", run, process.position)
            logs |= {f"val_{name}": value for name, value in self.evaluate(validation).items()}
        if self.scheduler is not None:
            self.scheduler.step()
        for callback in callbacks:
            callback.on_epoch_end(self, step.epoch, logs)
        for name, value in logs.items():
            run.state.history.setdefault(name, []).append(value)

    def _measured(self, output: Any, target: Any, loss: torch.Tensor) -> dict[str, float]:
        measured = {name: float(metric(output, target)) for name, metric in self.metrics.items()}
        return {"loss": float(loss.detach()), **measured}


class _Commits(Observer):
    """Tells the callbacks of a fit what is durable."""

    def __init__(self, trainer: Trainer, run: Run, callbacks: Sequence[Callback]) -> None:
        self._trainer, self._run, self._callbacks = trainer, run, callbacks

    def committed(self, run: Run, step: Position) -> None:
        if run is self._run:
            for callback in self._callbacks:
                callback.on_commit(self._trainer, step.step)


def _add(sums: dict[str, float], values: dict[str, float], count: int) -> None:
    """Adds batch means, weighted by their number of samples."""
    sums["samples"] = sums.get("samples", 0) + count
    for name, value in values.items():
        sums[name] = sums.get(name, 0.0) + value * count


def _means(sums: dict[str, float]) -> dict[str, float]:
    return {name: value / sums["samples"] for name, value in sums.items() if name != "samples"}

"""`Trainer.fit`: the usual loop, on top of `Run`."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from samebits._arguments import can_be_called
from samebits._context import observed
from samebits._inspect.user_call import explain_wrong_calls
from samebits.callbacks import Callback, TerminateOnNaN
from samebits.callbacks._commit_notifier import CommitNotifier
from samebits.callbacks._progress_bar import progress_bars
from samebits.distributed import Shards
from samebits.distributed._shards import added
from samebits.errors import InvalidArgumentError
from samebits.train import Run, Step
from samebits.train._boundary_commits import BestCommits
from samebits.train._loop.loop_positions import check_steps, epoch_length, is_endless
from samebits.train._run_arguments import check_batches
from samebits.trainer import _other_trainers as other_trainers
from samebits.trainer import _trainer_arguments as trainer_arguments
from samebits.trainer._batch import device_of
from samebits.trainer._forward import Evaluation, Forward, ForwardHook, evaluating
from samebits.trainer._history import History, Logbook
from samebits.trainer._loss import Loss, LossFunction
from samebits.trainer._metrics import Metric, Metrics, SumOverRanks, mean_over_ranks
from samebits.trainer._optimizer_step import (
    AccumulationGroup,
    OptimizerStep,
    SchedulerSteps,
    accumulation_group,
    averaged_model,
)

_COUNT = "/count"
"""Key of the number of samples among the values of a shard; no metric has this name."""


class Trainer:
    """Trains `model` on batches; killed anywhere, `fit` ends with the same weights and the same history.

    ```python
    trainer = samebits.Trainer(model, cross_entropy, optimizer, accumulate=4, clip_norm=1.0, ema=0.999)
    history = trainer.fit(loader, epochs=10, validation_data=val, run_dir="runs/digits")
    ```

    A batch is `(inputs, target)`, `(inputs, target, weight)`, or a dict (`model(**inputs)`, the target is
    "labels"); inputs that are a tuple or a dict are the model's arguments. docs/how-to/trainer.md shows each.

    Args:
        model: called as `model(inputs)`.
        loss_fn: `loss_fn(output, target)`, a mean over the batch. None: the model computes it, as
            `output.loss`, from the whole batch, `model(**batch)` or `model(*batch)`.
        optimizer: steps after every `accumulate` batches.
        scheduler: a torch LR scheduler of this optimizer.
        scheduler_step: "epoch": after each epoch's validation; "step": after each step of the optimizer.
        monitor: name in the epoch's logs, for torch's ReduceLROnPlateau.
        callbacks: called in order; their state is part of every commit.
        metrics: by name, `f(output, target)`, a mean over the batch, or objects with update, compute, reset
            and a state_dict; logged per epoch, and of a validation with `val_` before the name.
        accumulate: batches per step of the optimizer; the gradient is that of the mean of their losses. An
            epoch's last group may be smaller: it is stepped, as the mean over its batches, as transformers.
        clip_norm: the gradient's largest norm, over all parameters together.
        clip_value: the largest absolute value of its elements.
        precision: "bf16" or "fp16" for `torch.autocast`, with "fp16" a GradScaler too; None for neither.
        ema: decay of an exponential moving average of the weights (0.999, say). It begins with the weights
            after the first step; buffers are the model's. Validation, `evaluate` and `predict` use the
            average, `eval_model`.
        forward: `forward(model, batch)` in place of all of the above about batches, loss and metrics: returns
            the loss, or the loss and a dict of metrics.
        device: the device of model and batches; None: batches are moved to the model's device.
        shards: logical shards of each batch, for the same bits on any number of processes up to it
            (`Run.steps`). The loss is a mean over a shard, and metrics are functions.

    Raises:
        InvalidArgumentError: an argument is invalid; the message names the valid ones.

    Example:
        >>> samebits.set_random_seed(1)
        >>> model = torch.nn.Linear(2, 1)
        >>> trainer = samebits.Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1))
        >>> batches = [(torch.ones(4, 2), torch.zeros(4, 1))] * 3
        >>> history = trainer.fit(batches, epochs=2, run_dir="run", verbose=0)
        >>> trainer.fit(batches, epochs=3, run_dir="run", verbose=0).epoch  # trains the third epoch only
        [0, 1, 2]
    """

    __holds_user_objects__ = True

    epochs: int
    """Epochs of the fit under way, those before a resume or `initial_epoch` counted in."""
    initial_epoch: int
    """The number of the training's first epoch, from 0."""
    steps_per_epoch: int | None
    """Batches of an epoch of the fit under way; None: not known before."""
    validates: bool
    """True if the fit under way has validation data."""

    @explain_wrong_calls(other_trainers.explain)
    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: LossFunction | None,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: LRScheduler | None = None,
        scheduler_step: str = "epoch",
        monitor: str = "val_loss",
        callbacks: Sequence[Callback] = (),
        metrics: Mapping[str, Metric] | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        precision: str | None = None,
        ema: float | None = None,
        forward: ForwardHook | None = None,
        device: torch.device | str | None = None,
        shards: int | None = None,
    ) -> None:
        trainer_arguments.check_parts(model, loss_fn, optimizer)
        trainer_arguments.check_callbacks(callbacks)
        trainer_arguments.check_scheduler(scheduler, scheduler_step, optimizer)
        trainer_arguments.check_update(accumulate, clip_norm, clip_value, precision, ema)
        trainer_arguments.check_hook(forward, loss_fn, metrics)
        self._metrics = Metrics(metrics or {})
        trainer_arguments.check_shards(shards, self._metrics.objects)
        self.shards = shards
        self.model = model if device is None else model.to(device)
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.callbacks = list(callbacks)
        self.accumulate = accumulate
        self.forward = forward
        self.scaler = torch.amp.GradScaler(device_of(model).type) if precision == "fp16" else None
        self.ema = None if ema is None else averaged_model(model, ema)
        self.epochs = 0
        self.initial_epoch = 0
        self.steps_per_epoch = None
        self.validates = False
        self.metrics = self._metrics.functions | self._metrics.objects
        self._validation_metrics = self._metrics.copy()
        self._dtype = trainer_arguments.PRECISIONS[precision]
        measuring = Forward(Loss(loss_fn), self._validation_metrics, self._dtype, forward)
        self._evaluation = Evaluation(self.eval_model, measuring)
        self._schedule = SchedulerSteps(scheduler, scheduler_step, monitor)
        self._update = OptimizerStep(
            model, optimizer, clip_norm, clip_value, self.scaler, self.ema, self._schedule
        )
        self._run: Run | None = None
        self._logbook = Logbook()

    @other_trainers.check_keras_arguments
    def fit(
        self,
        loader: Iterable[Any],
        epochs: int = 1,
        *,
        verbose: str | int = "auto",
        validation_data: Iterable[Any] | None = None,
        class_weight: Mapping[int, float] | None = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_freq: int | Collection[int] = 1,
        run_dir: str | os.PathLike[str] | None = None,
        **run_options: Any,
    ) -> History:
        """Trains up to epoch number `epochs` and returns the history of all epochs, from before a resume too.

        A finished run in `run_dir` trains nothing and returns its history; a larger `epochs` continues it.

        Args:
            loader: a `samebits.data.DataLoader` (or any iterable that starts anew at each `iter()`).
            epochs: how many in all, those before a resume, and before `initial_epoch`, counted in.
            verbose: 0: nothing. 1 or "auto": a progress bar on a terminal, a line per epoch. 2: lines alone.
            validation_data: batches to evaluate after an epoch.
            class_weight: by class; each sample's loss is multiplied by that of its target (see `Loss` for the
                mean, and its requirements on `loss_fn`). Not for validation.
            initial_epoch: the number of a new training's first epoch; a resumed one continues.
            steps_per_epoch: batches per epoch, at most those of the loader: each epoch continues in the
                loader where the last one ended. None: an epoch is one pass.
            validation_steps: batches per validation; each begins with the first one.
            validation_freq: the number of epochs from one validation to the next, or a list of the epochs to
                validate after (the first is 1).
            run_dir: folder of the commits, from which training is resumed; None: nothing is saved.
            run_options: further arguments of `Run`: its options, and further objects to save. `best` is a
                name in the epochs' logs ("val_loss", "max:val_accuracy").

        Raises:
            InvalidArgumentError: the arguments contradict each other or the loaders.
            NonFiniteLossError: the loss became NaN or infinite, and there is no `TerminateOnNaN`.
        """
        plan = trainer_arguments.FitPlan(
            loader, epochs, initial_epoch, steps_per_epoch, validation_data, validation_freq, validation_steps
        )
        if self.forward is None:  # the names of a hook's metrics are unknown before
            self._schedule.check(self._metrics.names(validates=validation_data is not None))
        forward = Forward(Loss(self.loss_fn, class_weight), self._metrics, self._dtype, self.forward)
        callbacks = [*self.callbacks, *progress_bars(verbose)]
        if any(isinstance(callback, TerminateOnNaN) for callback in callbacks):
            run_options.setdefault("check_loss", False)  # TerminateOnNaN cannot stop at an error
        self._logbook = Logbook()
        best = BestCommits(run_options.get("keep_best", 0), run_options.pop("best", None))
        with self._running(Run(run_dir, **self._stateful(), **run_options), plan, callbacks) as run:
            epochs = plan.epochs - self._logbook.initial_epoch
            for step, batch in run.steps(loader, epochs, steps_per_epoch=steps_per_epoch, shards=self.shards):
                self._step(run, forward, step, batch, callbacks)
                # as in Keras, an epoch that is cut short has all of its end
                if step.ends_epoch or self.stop_training:
                    logs = self._end_epoch(run, plan, callbacks)
                    if (value := best.select(logs)) is not None:
                        run.best(value, everywhere=True)
            logs = {name: values[-1] for name, values in self._logbook.history.history.items()}
            for callback in callbacks:
                hook: Any = callback.on_train_end
                hook(self, dict(logs)) if can_be_called(hook, self, logs) else hook(self)
        best.names.update(self._logbook.history.history)
        if best.never_logged:
            best.warn("Trainer.fit")
        return copy.deepcopy(self._logbook.history)

    def evaluate(self, loader: Iterable[Any], steps: int | None = None) -> dict[str, float]:
        """Returns the means of loss and metrics over the samples of `loader` (of its first `steps` batches).

        In eval mode and without gradients; with `ema` of the average.

        Raises:
            InvalidArgumentError: `loader` is not a loader, or has fewer than `steps` batches.
            EmptyDatasetError: there is no batch.
        """
        check_batches(loader, "Trainer.evaluate(loader")
        check_steps(loader, steps, "Trainer.evaluate(steps")
        return self._evaluation.measure(islice(loader, steps), loader)

    def predict(self, loader: Iterable[Any]) -> Any:
        """Returns the model's outputs for all batches of `loader`, joined along dimension 0, on the CPU.

        Only the inputs of a batch are used, as in `fit`: `(inputs,)`, `(inputs, target)`, a dict, or the
        input itself. In eval mode and without gradients; with `ema` of the average. Outputs may be tensors,
        or tuples, lists and dicts of them.

        Raises:
            InvalidArgumentError: `loader` is not a loader.
            EmptyDatasetError: there is no batch.
        """
        check_batches(loader, "Trainer.predict(loader")
        if is_endless(loader):
            raise InvalidArgumentError(
                f"Trainer.predict(loader={type(loader).__name__}): it does not end. Pass loader.take(N)."
            )
        return self._evaluation.predict(loader)

    @property
    def eval_model(self) -> torch.nn.Module:
        """The model that validation measures: with `ema` the average, else `model`."""
        return self.model if self.ema is None else self.ema.module

    @property
    def run_dir(self) -> Path | str | None:
        """The folder of the commits of the fit under way; None without one."""
        return None if self._run is None else self._run.run_dir

    @property
    def resumed(self) -> bool:
        """True if the fit under way resumes from a commit."""
        return self._run is not None and self._run.resumed

    @property
    def stop_training(self) -> bool:
        """True if training ends after this step; callbacks set it, as in Keras.

        An epoch cut short is validated, has its `on_epoch_end` and its history. `fit` begins with False.
        """
        return self._run is not None and self._run.parts.stop_requested

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        if self._run is not None:
            self._run.parts.stop_requested = bool(value)

    def commit(self) -> None:
        """Requests a commit between this step and the next (for callbacks)."""
        if self._run is not None:
            self._run.commit()

    def _stateful(self) -> dict[str, Any]:
        named = {_name_of(number, one): one for number, one in enumerate(self.callbacks)}
        named |= {f"metric_{name}": metric for name, metric in self._metrics.objects.items()}
        named |= {f"val_metric_{name}": metric for name, metric in self._validation_metrics.objects.items()}
        parts = {
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "ema": self.ema,
            "logbook": self._logbook,
        }
        given = {name: part for name, part in parts.items() if part is not None}
        return {"model": self.model, "optimizer": self.optimizer, **given, **named}

    @contextmanager
    def _running(self, run: Run, plan: trainer_arguments.FitPlan, callbacks: list[Callback]) -> Iterator[Run]:
        """Runs a fit: prepares the attributes for callbacks, and calls their first and last hooks."""
        self.epochs, self.validates = plan.epochs, plan.validation_data is not None
        self.steps_per_epoch = epoch_length(plan.loader, plan.steps_per_epoch)
        with run, observed(CommitNotifier(self, run, callbacks)):
            self._run = run
            if self.shards is not None:
                run.parts.saving.ranks.of_rank_zero = frozenset(
                    _name_of(number, one) for number, one in enumerate(self.callbacks) if not one.every_rank
                )
            if run.rank:
                callbacks[:] = [callback for callback in callbacks if callback.every_rank]
            if not run.resumed:
                self._logbook.initial_epoch = plan.initial_epoch
                self._metrics.reset()
                self.optimizer.zero_grad()
                self.model.train()
            self.initial_epoch = self._logbook.initial_epoch
            try:
                for callback in callbacks:
                    callback.on_train_begin(self)
                yield run
            finally:
                self._run = None
                for callback in callbacks:
                    callback.on_exit(self)

    def _step(
        self, run: Run, forward: Forward, step: Step, batch: Any, callbacks: Sequence[Callback]
    ) -> None:
        for callback in callbacks if step.batch_index == 0 else ():
            callback.on_epoch_begin(self, self.initial_epoch + step.epoch)
        for callback in callbacks:
            callback.on_batch_begin(self, step.number)
        group = accumulation_group(
            step.batch_index, self.accumulate, self.steps_per_epoch, ends_epoch=step.ends_epoch
        )
        if step.shards is None:
            with self._update.gradient_sync(group):
                result = forward(self.model, batch)
                run.log(loss=result.loss)
                self._update.backward(result.loss, group)
                self._update(group)
            self._logbook.means.add(forward.measure(result), result.count)
        else:
            self._shards_step(run, forward, step.shards, batch, group)
        logs = self._logbook.means.so_far()
        if any(isinstance(callback, TerminateOnNaN) for callback in callbacks):
            logs = mean_over_ranks(logs, run.sum_over_ranks)  # all ranks stop, or none
        for callback in callbacks:
            callback.on_batch_end(self, step.number, logs)

    def _shards_step(
        self, run: Run, forward: Forward, count: int, shards: Shards, group: AccumulationGroup
    ) -> None:
        """Does one step by the shards of its batch; the values are those of all shards, on all ranks."""
        own = []
        for batch in shards:
            result = forward(self.model, batch)
            self._update.backward(result.loss, group, count)
            own.append({**forward.measure(result), _COUNT: result.count})
        of_all = shards.gather(own)
        run.log(loss=added(one["loss"] for one in of_all) / count)
        self._update(group)
        for one in of_all:
            self._logbook.means.add(one, int(one.pop(_COUNT)))

    def _end_epoch(
        self, run: Run, plan: trainer_arguments.FitPlan, callbacks: Sequence[Callback]
    ) -> dict[str, float]:
        epoch = self._logbook.initial_epoch + len(self._logbook.history.epoch)
        over = run.sum_over_ranks
        logs = self._logbook.means.take(over) | mean_over_ranks(self._metrics.take(), over)
        if plan.validates_after(epoch):
            logs |= {f"val_{name}": value for name, value in self._validate(run, plan, callbacks).items()}
        self._schedule.after_epoch(logs, validates=self.validates)
        for callback in callbacks:
            callback.on_epoch_end(self, epoch, logs)
        self._logbook.end_epoch(epoch, logs)
        return logs

    def _validate(
        self, run: Run, plan: trainer_arguments.FitPlan, callbacks: Sequence[Callback]
    ) -> dict[str, float]:
        assert plan.validation_data is not None
        for callback in callbacks:
            callback.on_validation_begin(self)
        self._logbook.validation.sums.clear()
        self._validation_metrics.reset()
        with evaluating(self.eval_model):
            over = self._validate_shared(run, plan) if self.shards else self._validate_all(run, plan)
        logs = self._evaluation.take_means(self._logbook.validation, plan.validation_data, over)
        for callback in callbacks:
            callback.on_validation_end(self, logs)
        return logs

    def _validate_all(self, run: Run, plan: trainer_arguments.FitPlan) -> SumOverRanks:
        """Measures this rank's batches; returns the function that adds the sums of all ranks."""
        assert plan.validation_data is not None
        # A kill inside is resumed inside: no local variable carries a sum
        for batch in run.validate(plan.validation_data):
            self._evaluation.add(batch, self._logbook.validation)
            if self._logbook.validation.batches == plan.validation_steps:
                break
        return run.sum_over_ranks

    def _validate_shared(self, run: Run, plan: trainer_arguments.FitPlan) -> SumOverRanks:
        """Measures every W-th batch; the sums are those of all batches, in their order, on all ranks."""
        assert plan.validation_data is not None
        own, batches = [], run.validate(plan.validation_data)
        for batch in batches:
            if plan.validation_steps and run.rank + len(own) * run.world_size >= plan.validation_steps:
                break
            values, count = self._evaluation.values(batch)
            own.append({**values, _COUNT: count})
        for one in batches.gather(own):
            self._logbook.validation.add(one, int(one.pop(_COUNT)))
        return dict


def _name_of(number: int, callback: Callback) -> str:
    return f"callback_{number}_{type(callback).__name__}"

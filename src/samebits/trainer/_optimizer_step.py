"""From the loss of a batch to new weights: backward, the optimizer's step, and the steps of its scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from samebits._dtensors import is_dtensor
from samebits.errors import InvalidArgumentError
from samebits.nn.utils import clip_grad_norm_


@dataclass(frozen=True)
class SchedulerSteps:
    """A scheduler, stepped after each step of the optimizer or after each epoch. It has no other state."""

    scheduler: LRScheduler | None
    per: str
    """"epoch" or "step"."""
    monitor: str
    """Name in the epoch's logs, for a ReduceLROnPlateau."""

    def check(self, names: Iterable[str]) -> None:
        """Raises `InvalidArgumentError` when no epoch's logs will hold the metric of a ReduceLROnPlateau."""
        if isinstance(self.scheduler, ReduceLROnPlateau) and self.monitor not in names:
            raise InvalidArgumentError(
                f"Trainer(scheduler=ReduceLROnPlateau(...), monitor={self.monitor!r}): the metrics are "
                f"{', '.join(sorted(names))}. Choose one of them; those of a validation need validation_data."
            )

    def after_step(self) -> None:
        if self.scheduler is not None and self.per == "step":
            self.scheduler.step()

    def after_epoch(self, logs: Mapping[str, float], *, validates: bool) -> None:
        """Steps the scheduler after an epoch. Without a validation a plateau's metric may be missing."""
        if self.scheduler is None or self.per != "epoch":
            return
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        elif self.monitor in logs:
            self.scheduler.step(logs[self.monitor])
        elif not (validates and self.monitor.startswith("val_")):
            self.check(logs)


@dataclass(frozen=True)
class AccumulationGroup:
    """The batches between two steps of the optimizer: those of `accumulate` steps, or an epoch's rest."""

    planned: int
    """Divisor of the losses."""
    count: int
    """Number of batches so far, with this one."""
    ends: bool


def accumulation_group(
    batch_index: int, accumulate: int, length: int | None, *, ends_epoch: bool
) -> AccumulationGroup:
    """Returns the group of batch `batch_index` of an epoch of `length` batches (None: unknown)."""
    count = batch_index % accumulate + 1
    left = accumulate if length is None else length - (batch_index - count + 1)
    return AccumulationGroup(max(1, min(accumulate, left)), count, ends_epoch or count == accumulate)


@dataclass(frozen=True)
class OptimizerStep:
    """The step of a trainer after a loss. Its state is in objects that every commit has."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    clip_norm: float | None = None
    clip_value: float | None = None
    scaler: torch.amp.GradScaler | None = None
    ema: AveragedModel | None = None
    schedule: SchedulerSteps | None = None

    def gradient_sync(self, group: AccumulationGroup) -> AbstractContextManager[None]:
        """Wraps forward and backward: the ranks sum their gradients in a group's last backward only.

        A static graph repeats its first backward, so its gradients are summed every time.
        """
        if group.ends or not isinstance(self.model, DistributedDataParallel) or self.model.static_graph:
            return nullcontext()
        return self.model.no_sync()

    def backward(self, loss: torch.Tensor, group: AccumulationGroup, shards: int = 1) -> None:
        """Adds the gradient of a batch, or of one of its shards, of the group's mean loss."""
        if group.planned * shards > 1:
            loss = loss / (group.planned * shards)
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def __call__(self, group: AccumulationGroup) -> None:
        """Steps after a group's last batch, and frees the gradients.

        A step that the scaler skips, since a gradient overflowed, is none for scheduler and EMA either.
        """
        if not group.ends:
            return
        if group.count != group.planned:  # an epoch's unforeseen end: losses were divided by a larger group
            for parameter in self._parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(group.planned / group.count)
        if self._step():
            if self.schedule is not None:
                self.schedule.after_step()
            if self.ema is not None:
                self.ema.update_parameters(self.model)
        self.optimizer.zero_grad()

    def _step(self) -> bool:
        """Steps the optimizer; returns True if the weights have changed."""
        if self.scaler is None:
            self._clip()
            self.optimizer.step()
            return True
        self.scaler.unscale_(self.optimizer)
        self._clip()
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= before

    def _clip(self) -> None:
        if self.clip_norm is not None:
            own = self._parameters()
            by_rows = any(map(is_dtensor, own))
            clip = clip_grad_norm_ if by_rows else torch.nn.utils.clip_grad_norm_
            clip(own, self.clip_norm)
        if self.clip_value is not None:
            torch.nn.utils.clip_grad_value_(self._parameters(), self.clip_value)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def averaged_model(model: torch.nn.Module, decay: float) -> AveragedModel:
    """Returns an exponential moving average of the weights, without a process group: all ranks are equal."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    ema = AveragedModel(inner, multi_avg_fn=get_ema_multi_avg_fn(decay))
    ema.requires_grad_(False)
    return ema.eval()

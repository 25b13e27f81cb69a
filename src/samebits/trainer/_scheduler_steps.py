"""The steps of a trainer's learning-rate scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from samebits.errors import InvalidArgumentError


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
        """Steps the scheduler after a step of the optimizer."""
        if self.scheduler is not None and self.per == "step":
            self.scheduler.step()

    def after_epoch(self, logs: Mapping[str, float], *, validates: bool) -> None:
        """Steps the scheduler after an epoch. The metric of a plateau may be missing in an epoch without validation."""
        if self.scheduler is None or self.per != "epoch":
            return
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        elif self.monitor in logs:
            self.scheduler.step(logs[self.monitor])
        elif not (validates and self.monitor.startswith("val_")):
            self.check(logs)

"""`TensorBoard`: event files that show each step exactly once, however often the training was killed."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from samebits.callbacks._base import AttributeState, Callback, TrainerView
from samebits.callbacks._callback_errors import check


class TensorBoard(AttributeState, Callback):
    """Writes the logs as scalars, through `torch.utils.tensorboard` (needs the package `tensorboard`).

    Each process writes its own file, which begins with a purge: entries of earlier files from the first step
    of this process on were not part of the commit, and TensorBoard omits them. It compares step numbers, so
    all scalars are on one axis, the run's steps: an epoch's at its last step.

    Entries are flushed before the commit that counts them, so no kill loses them. A loss of power may.

    Args:
        log_dir: folder of this run alone. A training that starts at step 0 purges all of it.
        update_freq: "epoch": the epochs' logs, by their names. "batch": each step's too, as `batch/loss`.

    Raises:
        InvalidArgumentError: an argument is invalid.
        ModuleNotFoundError: the package `tensorboard` is not installed.

    Example:
        >>> samebits.set_random_seed(1)
        >>> model, loss = torch.nn.Linear(2, 1), torch.nn.MSELoss()
        >>> board = samebits.callbacks.TensorBoard("logs")
        >>> trainer = samebits.Trainer(model, loss, torch.optim.SGD(model.parameters()), callbacks=[board])
        >>> history = trainer.fit([(torch.ones(4, 2), torch.ones(4, 1))], epochs=2, verbose=0)
        >>> [file.name for file in board.log_dir.iterdir()]
        ['events.out.tfevents...']
    """

    _state = ("_step",)

    every_rank = False

    def __init__(self, log_dir: str | os.PathLike[str], update_freq: str = "epoch") -> None:
        check("TensorBoard", log_dir=log_dir, update_freq=update_freq)
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 (an optional package)
        except ImportError as error:
            raise ModuleNotFoundError(
                f"TensorBoard({os.fspath(log_dir)!r}): the package tensorboard is not installed ({error}). "
                "pip install tensorboard, or use CSVLogger.",
                name="tensorboard",
            ) from error
        self.log_dir = Path(log_dir)
        self.update_freq = update_freq
        self._open: Any = SummaryWriter
        self._writer: Any = None
        self._step = 0

    def on_batch_end(self, trainer: TrainerView, step: int, logs: dict[str, float]) -> None:
        """Purges from the first step of this process on; writes the step's logs with update_freq="batch"."""
        self._step = step
        if self._writer is None:
            _wait_for_next_second(self.log_dir)
            self._writer = self._open(str(self.log_dir), purge_step=step)
        if self.update_freq == "batch":
            self._write({f"batch/{name}": value for name, value in logs.items()})

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Writes the epoch's logs."""
        self._write(logs)

    def on_exit(self, trainer: TrainerView) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _before_state(self) -> None:
        """Flushes the entries that the commit counts."""
        if self._writer is not None:
            self._writer.flush()

    def _write(self, logs: dict[str, float]) -> None:
        for name, value in logs.items():
            self._writer.add_scalar(name, value, self._step)


def _wait_for_next_second(folder: Path) -> None:
    """Waits until the next second: TensorBoard reads files by name, and the name holds the second."""
    while any(folder.glob(f"events.out.tfevents.{int(time.time())}.*")):
        time.sleep(0.02)

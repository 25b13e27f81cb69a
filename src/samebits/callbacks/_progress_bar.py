"""`ProgressBar`: a rich bar on a terminal, one plain line per epoch elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from samebits._arguments import require
from samebits.callbacks._base import Callback, TrainerView
from samebits.callbacks._callback_errors import check


class ProgressBar(Callback):
    """Shows epoch, step, and the logs. It holds no state: after a resume it continues at the run's position.

    Args:
        file: the output; None: stderr.
        bar: False for the line per epoch alone, on a terminal too.

    Example:
        >>> import sys
        >>> samebits.set_random_seed(1)
        >>> model, loss = torch.nn.Linear(2, 1, bias=False), torch.nn.MSELoss()
        >>> lines = samebits.callbacks.ProgressBar(sys.stdout, bar=False)
        >>> trainer = samebits.Trainer(model, loss, torch.optim.SGD(model.parameters()), callbacks=[lines])
        >>> history = trainer.fit([(torch.zeros(4, 2), torch.ones(4, 1))], epochs=2, verbose=0)
        epoch 1/2: loss 1
        epoch 2/2: loss 1
    """

    every_rank = False

    def __init__(self, file: TextIO | None = None, *, bar: bool = True) -> None:
        check("ProgressBar", file=file)
        self._file = file
        self._bar = bar
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Starts the bar, on a terminal."""
        console = Console(file=self._file or sys.stderr)
        if not self._bar or not console.is_terminal:
            return
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[logs]}"), console=console, transient=True,
        )  # fmt: skip
        self._progress.start()

    def on_batch_end(self, trainer: TrainerView, step: int, logs: dict[str, float]) -> None:
        """Moves the bar to the step."""
        if self._progress is None:
            return
        # Begins at the run's position: steps of earlier processes are no part of the speed
        if self._task is None:
            epochs = trainer.epochs - trainer.initial_epoch
            total = None if trainer.steps_per_epoch is None else trainer.steps_per_epoch * epochs
            self._task = self._progress.add_task("training", total=total, completed=step, logs="")
        self._progress.update(self._task, completed=step + 1, logs=_text(logs))

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Prints the epoch's line."""
        line = f"epoch {epoch + 1}/{trainer.epochs}: {_text(logs)}"
        if self._progress is not None:
            self._progress.console.print(line, highlight=False)
        else:
            print(line, file=self._file or sys.stderr, flush=True)

    def on_exit(self, trainer: TrainerView) -> None:
        """Removes the bar."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None


def progress_bars(verbose: str | int) -> list[ProgressBar]:
    """Returns the bars for `fit(verbose=...)`, as Keras: 0 nothing, 1 or "auto" a bar, 2 a line per epoch."""
    require(verbose in ("auto", 0, 1, 2), "fit", "one of 'auto', 0, 1, 2", verbose=verbose)
    return [ProgressBar(bar=verbose != 2)] if verbose else []


def _text(logs: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in logs.items())

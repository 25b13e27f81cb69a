"""`ProgressBar`: a rich bar on a terminal, a line that changes in a notebook; one plain line per epoch."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from samebits._arguments import require
from samebits.callbacks._base import Callback, TrainerView
from samebits.callbacks._callback_errors import check


class ProgressBar(Callback):
    """Shows epoch, step, and the logs. It holds no state: after a resume it continues at the run's position.

    Args:
        file: the output; None: stderr, in a notebook stdout, which has no red background.
        bar: False for the line per epoch alone, on a terminal and in a notebook too.

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
        self._cell: Any = None
        """The output of a notebook's cell: a line that changes."""
        self._line, self._changed = "training", 0.0

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Starts the bar, on a terminal, or the line in a notebook."""
        console = Console(file=self._output())
        if self._bar and self._file is None and console.is_jupyter:  # where rich's bar needs ipywidgets
            display = sys.modules["IPython"].display.display
            self._cell = display({"text/plain": self._line}, raw=True, display_id=True)
        if not self._bar or not console.is_terminal:
            return
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[logs]}"), console=console, transient=True,
        )  # fmt: skip
        self._progress.start()

    def on_batch_end(self, trainer: TrainerView, step: int, logs: dict[str, float]) -> None:
        """Moves the bar to the step."""
        if self._cell is None and self._progress is None:
            return
        epochs = trainer.epochs - trainer.initial_epoch
        total = None if trainer.steps_per_epoch is None else trainer.steps_per_epoch * epochs
        self._line = f"step {step + 1}{'' if total is None else f'/{total}'}: {_text(logs)}"
        if self._cell is not None and time.monotonic() > self._changed + 0.2:
            self._changed = time.monotonic()
            self._cell.update({"text/plain": self._line}, raw=True)
        if self._progress is None:
            return
        # Begins at the run's position: steps of earlier processes are no part of the speed
        if self._task is None:
            self._task = self._progress.add_task("training", total=total, completed=step, logs="")
        self._progress.update(self._task, completed=step + 1, logs=_text(logs))

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Prints the epoch's line."""
        line = f"epoch {epoch + 1}/{trainer.epochs}: {_text(logs)}"
        if self._progress is not None:
            self._progress.console.print(line, highlight=False)
        else:
            print(line, file=self._output(), flush=True)

    def on_exit(self, trainer: TrainerView) -> None:
        """Removes the bar; a notebook keeps the last line."""
        if self._cell is not None:
            self._cell.update({"text/plain": self._line}, raw=True)
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None
        self._cell = None

    def _output(self) -> TextIO:
        return self._file or (sys.stdout if Console().is_jupyter else sys.stderr)


def progress_bars(verbose: str | int) -> list[ProgressBar]:
    """Returns the bars for `fit(verbose=...)`, as Keras: 0 nothing, 1 or "auto" a bar, 2 a line per epoch."""
    require(verbose in ("auto", 0, 1, 2), "fit", "one of 'auto', 0, 1, 2", verbose=verbose)
    return [ProgressBar(bar=verbose != 2)] if verbose else []


def _text(logs: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in logs.items())

"""`CSVLogger`: a text file with each epoch, or each step, exactly once, however often training was killed."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from samebits._disk import sync_folder
from samebits._inspect import user_code
from samebits.callbacks._base import AttributeState, Callback, TrainerView
from samebits.callbacks._callback_errors import check, translate_disk_errors

_TAIL_BYTES = 1 << 14


class CSVLogger(AttributeState, Callback):
    """Writes one row per epoch (or step) as soon as it is there; the columns are those of Keras's CSVLogger.

    A commit keeps the last rows themselves and how many bytes of the file precede them, which are on disk for
    good. A resume truncates the file to those bytes and writes the rows again: it needs neither the rows
    after the commit, which come again, nor the bytes that the system had not written yet when it lost power.

    Args:
        filename: made with its folders; a new training starts it anew.
        separator: one character.
        append: a new training appends to the file.
        update_freq: "epoch": `epoch` (from 0) and the logs, sorted; a metric that an epoch lacks is NA.
            "batch": `step` (of the whole run, from 0) and the batch's logs.

    Raises:
        InvalidArgumentError: an argument is invalid.
        RecordError: the disk refuses the file.

    Example:
        >>> from pathlib import Path
        >>> samebits.set_random_seed(1)
        >>> model, loss = torch.nn.Linear(2, 1), torch.nn.MSELoss()
        >>> log = samebits.callbacks.CSVLogger("log.csv")
        >>> trainer = samebits.Trainer(model, loss, torch.optim.SGD(model.parameters()), callbacks=[log])
        >>> history = trainer.fit([(torch.ones(4, 2), torch.ones(4, 1))], epochs=2, verbose=0)
        >>> Path("log.csv").read_text().split()
        ['epoch,loss', '0,...', '1,...']
    """

    _state = ("_fields", "_base", "_tail")

    every_rank = False

    def __init__(
        self,
        filename: str | os.PathLike[str],
        separator: str = ",",
        append: bool = False,
        update_freq: str = "epoch",
    ) -> None:
        check("CSVLogger", filename=filename, separator=separator, update_freq=update_freq)
        self.path = Path(filename)
        self.separator = separator
        self.append = append
        self.update_freq = update_freq
        self._file: BinaryIO | None = None
        self._fields: list[str] | None = None
        self._base = 0
        """Bytes of the file that precede `_tail`, and are durable."""
        self._tail = ""

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Opens the file with the content that the commit has."""
        with translate_disk_errors(self._call):
            self._begin(trainer)

    def _begin(self, trainer: TrainerView) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not trainer.resumed:
            self._fields, self._tail = None, ""
            self._base = self.path.stat().st_size if self.append and self.path.exists() else 0
            if self._base:
                trainer.commit()  # before the first row: a restart must tell our rows from earlier ones
        self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        sync_folder(self.path.parent)
        size = os.fstat(self._file.fileno()).st_size
        if size < self._base:
            user_code.warn(
                f"{self._call}: the commit has {self._base} bytes, the file has {size}. Somebody "
                "has shortened it; the log continues after the rest."
            )
            self._base = size
        self._file.truncate(self._base)
        self._file.seek(self._base)
        self._put(self._tail)

    def on_batch_end(self, trainer: TrainerView, step: int, logs: dict[str, float]) -> None:
        """Writes the step's row, with update_freq="batch"."""
        if self.update_freq == "batch":
            self._write("step", step, logs, sorted(logs))

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Writes the epoch's row, with update_freq="epoch"."""
        if self.update_freq == "epoch":
            names = sorted(logs)
            if trainer.validates and not any(name.startswith("val_") for name in names):
                names += [f"val_{name}" for name in names]  # Keras's: the first validation may come later
            self._write("epoch", epoch, logs, names)

    def on_exit(self, trainer: TrainerView) -> None:
        """Closes the file."""
        if self._file is not None:
            # a row that the disk refused is still in the buffer; the error was raised before
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _write(self, counter: str, number: int, logs: dict[str, Any], names: list[str]) -> None:
        assert self._file is not None
        text = ""
        if self._fields is None:
            self._fields = names
            if self._base == 0:
                text = self._line([counter, *names])
        text += self._line([number, *(logs.get(name, "NA") for name in self._fields)])
        with translate_disk_errors(self._call):
            if len(self._tail) > _TAIL_BYTES:
                os.fsync(self._file.fileno())
                self._base, self._tail = self._base + len(self._tail.encode()), ""
            self._tail += text
            self._put(text)

    def _put(self, text: str) -> None:
        assert self._file is not None
        self._file.write(text.encode())
        self._file.flush()  # survives a kill of this process, though not a loss of power

    @property
    def _call(self) -> str:
        return f"CSVLogger({str(self.path)!r})"

    def _line(self, cells: Sequence[Any]) -> str:
        line = io.StringIO()
        csv.writer(line, delimiter=self.separator, lineterminator="\n").writerow(cells)
        return line.getvalue()

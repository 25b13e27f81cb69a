"""`ModelCheckpoint`: files of weights for other programs; after a resume they are those of the commit."""

from __future__ import annotations

import math
import os
import shutil
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import Any

from samebits._inspect import user_code
from samebits.callbacks._base import TrainerView
from samebits.callbacks._callback_errors import check, translate_disk_errors
from samebits.callbacks._monitored_metric import Monitored
from samebits.checkpoint._export import SUFFIXES, save_weights
from samebits.errors import InvalidArgumentError


class ModelCheckpoint(Monitored):
    """Writes the state_dict of `trainer.eval_model` after epochs; each file appears whole, by a rename.

    It does not take part in resuming (commits do that). But its files are as exact as the rest: a file that
    is replaced or dropped is in a hidden folder until the change is committed; a resume restores it.

    Args:
        filepath: ends in .safetensors, or in .pt or .pth (`torch.load(..., weights_only=True)` reads it). It
            may hold `{epoch}` (from 1, as in Keras) and names of metrics:
            `"best/{epoch:02d}-{val_loss:.3f}.safetensors"`.
        monitor: name in the epoch's logs; used with `save_best_only` and `keep_best` only.
        mode: "min", "max", or "auto" (by the name: losses and errors are to fall, accuracies to rise).
        save_best_only: write only when the metric is better than in all epochs before; Keras's rule.
        keep_best: keep the files of this many best epochs only (of equal ones the earlier, a NaN last). It
            may not go with `save_best_only`.
        initial_value_threshold: with `save_best_only`, the value that the first file must improve on.

    Raises:
        InvalidArgumentError: an argument is invalid.
        RecordError: the disk refuses the file.

    Example:
        >>> samebits.set_random_seed(1)
        >>> model, loss = torch.nn.Linear(2, 1), torch.nn.MSELoss()
        >>> save = samebits.callbacks.ModelCheckpoint("epoch-{epoch}.pt")
        >>> trainer = samebits.Trainer(model, loss, torch.optim.SGD(model.parameters()), callbacks=[save])
        >>> history = trainer.fit([(torch.ones(4, 2), torch.ones(4, 1))], epochs=2, verbose=0)
        >>> torch.equal(torch.load("epoch-2.pt")["weight"], model.weight)
        True
    """

    _state = ("best", "kept", "_step")

    every_rank = False

    def __init__(
        self,
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        mode: str = "auto",
        save_best_only: bool = False,
        keep_best: int | None = None,
        initial_value_threshold: float | None = None,
    ) -> None:
        check(
            self._call,
            filepath=filepath,
            keep_best=keep_best,
            initial_value_threshold=initial_value_threshold,
        )
        self._watches = save_best_only or keep_best is not None
        if mode == "auto" and not self._watches:
            mode = "min"  # nothing is compared, so the name may be ambiguous
        super().__init__(monitor, mode, 0.0)
        self.filepath = os.fspath(filepath)
        _check(self.filepath, save_best_only, keep_best)
        self.save_best_only = save_best_only
        self.keep_best = keep_best
        self.initial_value_threshold = initial_value_threshold
        self.best = initial_value_threshold
        self.kept: dict[str, list[Any]] = {}
        """Epoch and metric of each file, by its path below the folder that all have in common."""
        fixed = self.filepath.split("{")[0]
        self._folder = Path(fixed if fixed.endswith("/") else os.path.dirname(fixed) or ".")
        self._superseded = self._folder / f".{Path(self.filepath).name}.superseded"
        """Folder of files that only older commits have, named by epoch and the step that replaced them."""
        self._step = 0

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Restores the files of the commit, and removes the other superseded files."""
        if not trainer.resumed:
            self.best, self.kept = self.initial_value_threshold, {}
        with translate_disk_errors(f"ModelCheckpoint({self.filepath!r})"):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._restore_files()

    def _restore_files(self) -> None:
        for name, (epoch, _) in self.kept.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for hidden in self._superseded.glob(f"{epoch}-*"):
                hidden.replace(path)
            if not path.exists():
                user_code.warn(
                    f"ModelCheckpoint: {path}, written after epoch {epoch + 1}, is gone. Training continues "
                    "to the same weights; the file counts as written, and comes again only in its turn. Stop "
                    "and put a copy of it back if you need it, or write the weights of a commit: samebits "
                    "commits RUN_DIR --export newest FILE."
                )
        shutil.rmtree(self._superseded, ignore_errors=True)

    def on_batch_end(self, trainer: TrainerView, step: int, logs: dict[str, float]) -> None:
        """Notes the step."""
        self._step = step

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Writes the weights if they are wanted, and drops the file that is no longer wanted."""
        value = self._value(trainer, logs) if self._watches else None
        if self._watches and (value is None or not self._should_save(value)):
            return
        with translate_disk_errors(f"ModelCheckpoint({self.filepath!r})"):
            self._save(trainer, epoch, value, self._name(epoch, logs))

    def _save(self, trainer: TrainerView, epoch: int, value: float | None, name: str) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in self.kept:
            self._supersede(trainer, name, replaced=True)
        save_weights(trainer.eval_model.state_dict(), path)
        if self.keep_best is not None and len(self.kept) >= self.keep_best:
            self._supersede(trainer, self._worst())
        self.kept[name] = [epoch, value]
        if self.save_best_only:
            self.best = value

    def on_commit(self, trainer: TrainerView, step: int) -> None:
        """Deletes the files that were superseded before this commit: no resume needs them any more."""
        for path in self._superseded.glob("*-*"):
            if int(path.stem.split("-")[1]) < step:
                path.unlink(missing_ok=True)
        with suppress(OSError):  # missing, or not empty
            self._superseded.rmdir()

    def _should_save(self, value: float) -> bool:
        if self.keep_best is None:
            return self._improves(value, self.best)
        if len(self.kept) < self.keep_best:
            return True
        worst = self.kept[self._worst()][1]
        return self._improves(value, worst) or (math.isnan(worst) and not math.isnan(value))

    def _worst(self) -> str:
        def badness(name: str) -> tuple[bool, float, int]:
            epoch, value = self.kept[name]
            if math.isnan(value):
                return True, 0.0, epoch
            return False, -value if self._rises else value, epoch

        return max(self.kept, key=badness)

    def _name(self, epoch: int, logs: dict[str, float]) -> str:
        try:
            path = self.filepath.format(epoch=epoch + 1, **logs)
        except (KeyError, IndexError, ValueError) as error:
            raise InvalidArgumentError(
                f"ModelCheckpoint(filepath={self.filepath!r}): cannot be filled in ({error!r}). "
                f"Names are epoch, {', '.join(sorted(logs))}."
            ) from error
        return os.path.relpath(path, self._folder)

    def _supersede(self, trainer: TrainerView, name: str, *, replaced: bool = False) -> None:
        """Removes a file: at once where nothing is ever resumed, else when the removal is committed."""
        path, epoch = self._folder / name, self.kept.pop(name)[0]
        if trainer.run_dir is None:
            if not replaced:
                path.unlink(missing_ok=True)
            return
        hidden = self._superseded / f"{epoch}-{self._step}{path.suffix}"
        hidden.parent.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):
            if replaced:  # readers find the old file until the new one is there
                _link(path, hidden)
            else:
                path.replace(hidden)


def _link(path: Path, other: Path) -> None:
    other.unlink(missing_ok=True)
    try:
        os.link(path, other)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, other)


def _check(filepath: str, save_best_only: bool, keep_best: int | None) -> None:
    call = f"ModelCheckpoint(filepath={filepath!r}"
    if not filepath.endswith(SUFFIXES):
        raise InvalidArgumentError(f"{call}): must end in one of {', '.join(SUFFIXES)}.")
    try:
        list(Formatter().parse(filepath))
    except ValueError as error:
        raise InvalidArgumentError(f"{call}): cannot be filled in ({error}).") from error
    if keep_best is None:
        return
    if save_best_only:
        raise InvalidArgumentError(
            f"{call}, keep_best={keep_best}, save_best_only=True): choose one. save_best_only keeps every "
            "file that was the best when it was written."
        )
    if keep_best > 1 and "{epoch" not in filepath:
        raise InvalidArgumentError(
            f"{call}, keep_best={keep_best}): the files need names of their own. Put {{epoch}} into the path."
        )

"""Lightning: `Trainer(callbacks=[Resumable("runs/x")])` resumes to the same bits, wherever it was killed."""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from samebits.errors import UnimplementedError
from samebits.integrations._adapter import Batches, OpenRun, keyed_loader, require_attributes

try:
    Callback: Any = importlib.import_module("lightning.pytorch").Callback
except ImportError as error:
    raise ImportError(
        "samebits.integrations.lightning needs lightning: pip install 'samebits[lightning]'"
    ) from error

_WITHOUT_END = 1 << 40
"""Epochs of a fit that something else ends: `max_steps`, `max_time`."""


class Resumable(Callback):
    """Makes `Trainer.fit` resume to the same bits: started again after a kill, it continues.

    ```python
    trainer = L.Trainer(max_epochs=30, callbacks=[samebits.integrations.lightning.Resumable("runs/digits")])
    trainer.fit(model, train_loader, val_loader)
    ```

    A commit holds the module, what Lightning's own checkpoint has (optimizers, schedulers, loops, callbacks,
    the data module), and what it leaves out: gradients that are alive in an accumulation, means of the
    running epoch (`self.log(on_epoch=True)`), a plateau's step in the epoch of the resume. A torch DataLoader
    becomes a `samebits.data.DataLoader` with its arguments, so that a batch does not depend on workers.
    Commits are made between two batches; a validation that is killed begins anew.

    Not covered: other trainers than `fit`, several training loaders at once, and
    `reload_dataloaders_every_n_epochs`.

    Args:
        run_dir: folder of this run alone.
        options: those of `samebits.Run`: `save=`, `keep=`, `ignore=`, ...

    Raises:
        UnimplementedError: (in `fit`) this version of Lightning is not as it was, or the trainer is set up in
            a way that is not covered.
    """

    def __init__(self, run_dir: str | os.PathLike[str], **options: Any) -> None:
        self._open = OpenRun(run_dir, options)
        self._batches: Batches | None = None
        self._state: _TrainerState | None = None

    @property
    def run(self) -> Any:
        """The `samebits.Run`, inside of `fit`."""
        return self._open.run

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Opens the run, and puts its batches in place of the loader's, once there is one."""
        if stage != "fit":
            return
        require_attributes("lightning", trainer)
        loops = trainer.fit_loop, trainer.fit_loop.epoch_loop
        for thing in (*loops, trainer._checkpoint_connector, trainer._logger_connector):
            require_attributes("lightning", thing)
        if trainer.reload_dataloaders_every_n_epochs:
            raise UnimplementedError(
                "samebits.integrations.lightning: Trainer(reload_dataloaders_every_n_epochs=...) makes other "
                "loaders in the middle of a run. Leave it out."
            )
        self._open.enter({}, ["model._trainer", "trainer"])
        loop = trainer.fit_loop
        epochs = trainer.max_epochs if trainer.max_epochs not in (None, -1) else _WITHOUT_END
        loop._data_source = _Source(loop._data_source, lambda loader: self._batches_of(loader, epochs))

    def _batches_of(self, loader: Any, epochs: int) -> Batches:
        if not hasattr(loader, "__iter__") or isinstance(loader, dict | list | tuple):
            raise UnimplementedError(
                "samebits.integrations.lightning: fit was given several training loaders. Give one, of a "
                "dataset that holds what they hold (torch.utils.data.StackDataset, ConcatDataset)."
            )
        self._batches = _Loader(self.run, keyed_loader(loader), epochs)
        return self._batches

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Restores module and trainer; optimizers and loops follow by Lightning's own functions."""
        run = self.run
        if self._batches is None:
            trainer.fit_loop.setup_data()
        self._state = _TrainerState(trainer, pl_module)
        run.add("model", pl_module)
        run.add("trainer", self._state, complete=True)
        run.restore()
        self._state.restore()
        if run.finished:
            trainer.should_stop = True

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Adds what Lightning leaves out in the epoch of a resume."""
        if self._state is not None:
            self._state.complete()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends what was added in the epoch of a resume."""
        if self._state is not None:
            self._state.end_epoch()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends the loop of the run: its last commit is made."""
        if self._batches is not None:
            self._batches.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Closes the run; nothing more is committed."""
        self._open.leave(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Closes the run."""
        source = trainer.fit_loop._data_source
        if isinstance(source, _Source):
            trainer.fit_loop._data_source = source.given
        self._open.leave()


class _Loader(Batches):
    """Has the methods that Lightning asks a loader for; the position is the run's."""

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: without the method Lightning warns that the loader cannot be resumed."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing."""


class _Source:
    """Lightning's source of the training loader, whose loader becomes the run's batches."""

    def __init__(self, source: Any, make: Any) -> None:
        self.given, self._make = source, make

    def dataloader(self) -> Any:
        """Returns the batches."""
        return self._make(self.given.dataloader())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)


_KEPT_BY_MODULE = "state_dict"
"""The weights are those of the module, which is an object of the run."""


class _TrainerState:
    """The state of a trainer: its checkpoint, and what that leaves out."""

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer, self._module = trainer, module
        self._restored: dict[str, Any] | None = None
        self._before: dict[str, dict[str, torch.Tensor]] = {}
        """The values of the running epoch from before a resume that were not logged again since."""

    def state_dict(self) -> dict[str, Any]:
        """Returns it; before the first batch after a resume, that of the resume."""
        if self._restored is not None:
            return self._restored
        trainer = self._trainer
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        checkpoint.pop(_KEPT_BY_MODULE)
        values = {
            key: {name: getattr(metric, name).clone() for name in metric._defaults}
            for key, metric in trainer.fit_loop.epoch_loop._results.items()
            if metric.meta.on_epoch and metric.is_tensor and not metric.has_reset
        }
        return {
            "checkpoint": checkpoint,
            "epoch_values": {**self._before, **values},
            "callback_metrics": dict(trainer.callback_metrics),
            "should_stop": trainer.should_stop,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps it for `restore`."""
        self._restored = state

    def restore(self) -> None:
        """Hands the checkpoint to Lightning, which restores from it what exists so far."""
        if self._restored is None:
            return
        trainer, connector = self._trainer, self._trainer._checkpoint_connector
        weights = self._module.state_dict()
        connector._loaded_checkpoint = {**self._restored["checkpoint"], _KEPT_BY_MODULE: weights}
        connector.restore_datamodule()
        connector.restore_model()
        connector.restore_callbacks()
        trainer.should_stop = self._restored["should_stop"]
        trainer._logger_connector._callback_metrics.update(self._restored["callback_metrics"])

    def complete(self) -> None:
        """Adds, after a batch, what Lightning leaves out in the epoch of a resume."""
        if self._restored is not None:
            self._before, self._restored = dict(self._restored["epoch_values"]), None
            # Until the end of the epoch fit_loop would be `restarting`, and leave out the plateau's step.
            self._trainer.fit_loop.restarting = False
        results = self._trainer.fit_loop.epoch_loop._results
        for key in self._before.keys() & results.keys():
            metric = results[key]
            for name, before in self._before.pop(key).items():
                setattr(metric, name, _combined(metric.meta, getattr(metric, name), before))

    def end_epoch(self) -> None:
        """Forgets values that were not logged again in their epoch."""
        self._before = {}


def _combined(meta: Any, now: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """Returns an epoch's value so far, of that before a resume and that since."""
    before = before.to(now.device)
    if meta.is_min_reduction:
        return torch.minimum(before, now)
    return torch.maximum(before, now) if meta.is_max_reduction else before + now

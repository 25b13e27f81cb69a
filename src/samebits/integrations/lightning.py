"""Lightning: `Trainer(callbacks=[Resumable("runs/x")])` resumes to the same bits, wherever it was killed."""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any

import torch

from samebits._context import process
from samebits.data._keyed_loader import keyed_loader
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.integrations._adapter import Batches, OpenRun, library_modules, program_callbacks
from samebits.train._framework_privates import require_attributes

(callbacks,) = library_modules("lightning", "lightning", "lightning.pytorch.callbacks")

Callback: Any = callbacks.Callback
_WITHOUT_END = 1 << 40
"""Epochs of a fit that something else ends: `max_steps`, `max_time`."""


class Resumable(Callback):
    """Makes `Trainer.fit` resume to the same bits: started again after a kill, it continues.

    ```python
    trainer = L.Trainer(max_epochs=30, callbacks=[samebits.integrations.lightning.Resumable("runs/digits")])
    trainer.fit(model, train_loader, val_loader)
    ```

    A commit holds the module, what Lightning's own checkpoint has (optimizers, schedulers, loops, callbacks,
    the data module), and what it leaves out: gradients that are alive in an accumulation, values of the
    running epoch (`self.log(on_epoch=True)`, torchmetrics), a plateau's step in the epoch of the resume. A
    torch DataLoader becomes a `samebits.data.DataLoader` with its arguments, so that a batch does not depend
    on workers. Commits are made between two batches; a validation that is killed begins anew.

    Not covered: `validate`, `test` and `predict` (they run anew), several training loaders at once,
    `reload_dataloaders_every_n_epochs`, `overfit_batches`, training loaders without a length, `max_time`,
    `StochasticWeightAveraging`, and the files of loggers. A fit that `max_steps` or a callback has ended does
    not go on with a larger limit. `fast_dev_run` opens no run.

    Args:
        run_dir: folder of this run alone.
        options: those of `samebits.Run`: `save=`, `keep=`, `ignore=`, ...

    Raises:
        UnimplementedError: (in `fit`) this version of Lightning is not as it was, or the trainer is set up in
            a way that is not covered.
        InvalidArgumentError: (in `fit`) `ckpt_path` was given, too, and the run has no commit yet.
    """

    def __init__(self, run_dir: str | os.PathLike[str], **options: Any) -> None:
        cures = "Resumable(ignore=[...]). To save a value: a callback's state_dict and load_state_dict"
        self._open = OpenRun(run_dir, options, cures)
        self._batches: _Loader | None = None
        self._state: _CheckpointState | None = None

    @property
    def run(self) -> Any:
        """The `samebits.Run`, inside of `fit`."""
        return self._open.run

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Opens the run, and puts its batches in place of the loader's, once there is one."""
        if stage != "fit" or trainer.fast_dev_run or trainer.limit_train_batches == 0:
            return
        _check(trainer)
        self._batches = self._state = None
        self._open.enter({}, ["model._trainer"])
        loop = trainer.fit_loop
        loop._data_source = _LoaderSource(loop._data_source, lambda loader: self._batches_of(loader, trainer))

    def _batches_of(self, loader: Any, trainer: Any) -> _Loader:
        epochs = trainer.max_epochs if trainer.max_epochs not in (None, -1) else _WITHOUT_END
        loader = _training_loader(loader, trainer)
        length = min(len(loader), process.overrides.batches_per_epoch or len(loader))
        self._batches = _Loader(self.run, loader, epochs, length=length)
        return self._batches

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Restores module and trainer; optimizers and loops follow by Lightning's own functions."""
        run = self.run
        if run is None:
            return
        if trainer._checkpoint_connector._ckpt_path and not run.resumed:
            raise InvalidArgumentError(
                f"samebits.integrations.lightning: fit(ckpt_path=...) would begin in the middle, and the run "
                f"in {run.run_dir} has no commit yet. Leave ckpt_path out: the run knows where to continue. "
                "To start from weights of a file, load them into the module."
            )
        if self._batches is None:
            trainer.fit_loop.setup_data()
        self._state = _CheckpointState(trainer, pl_module)
        for name in [name for name, _ in _metrics(pl_module)] + ["_metric_attributes"]:
            run.ignore(f"model.{name}")  # values of metrics are in the trainer's state
        if trainer.world_size > 1:
            run.ignore("model.forward")  # DDP's call of training_step sets it for a moment
        run.add("model", pl_module)
        others = [one for one in trainer.callbacks if not isinstance(one, Resumable)]
        for name, callback in program_callbacks(others).items():
            run.add(name, callback)  # so that attributes which its state_dict leaves out are found
        run.add("trainer", self._state, complete=True)
        run.restore()
        self._state.restore()
        _leave_sigterm_to_the_run(trainer._signal_connector)
        if run.finished:
            trainer.should_stop = True

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """Notes that the state of the resume is not that of the trainer any more."""
        if self._state is not None:
            self._state.restored = None

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends the loop of the run, after what callbacks do when training ends: its last commit is made."""
        if self._batches is not None:
            self._batches.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Closes the run; nothing more is committed."""
        self._close(trainer, exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Closes the run."""
        self._close(trainer)

    def _close(self, trainer: Any, error: BaseException | None = None) -> None:
        source = trainer.fit_loop._data_source
        if isinstance(source, _LoaderSource):
            trainer.fit_loop._data_source = source.given
        self._open.leave(error)


def _leave_sigterm_to_the_run(connector: Any) -> None:
    """Keeps Lightning from ending the fit after SIGTERM before the run has committed the running batch."""
    notify = connector._sigterm_notifier_fn  # it tells other processes of the job

    def notify_without_an_end(number: int, frame: Any) -> None:
        notify(number, frame)
        connector.received_sigterm = False

    connector._sigterm_notifier_fn = notify_without_an_end


def _check(trainer: Any) -> None:
    """Raises `UnimplementedError` for another Lightning, or a trainer that is not covered."""
    require_attributes("lightning", trainer)
    loops = trainer.fit_loop, trainer.fit_loop.epoch_loop
    connectors = trainer._checkpoint_connector, trainer._logger_connector, trainer._signal_connector
    for thing in (*loops, *connectors):
        require_attributes("lightning", thing)
    if any(isinstance(one, callbacks.StochasticWeightAveraging) for one in trainer.callbacks):
        raise UnimplementedError(
            "samebits.integrations.lightning: StochasticWeightAveraging changes schedulers and loops at an "
            "epoch's start, and Lightning restores neither in its middle. Use WeightAveraging."
        )
    for name in ("reload_dataloaders_every_n_epochs", "overfit_batches"):
        if getattr(trainer, name):
            raise UnimplementedError(
                f"samebits.integrations.lightning: Trainer({name}=...) makes other loaders in the middle of "
                "a run. Leave it out."
            )


def _training_loader(loader: Any, trainer: Any) -> Any:
    """Returns the loader as the run reads it: that of this rank, position-keyed, ended by the limit."""
    if not hasattr(loader, "__iter__") or isinstance(loader, dict | list | tuple):
        raise UnimplementedError(
            "samebits.integrations.lightning: fit was given several training loaders. Give one, of a "
            "dataset that holds what they hold (torch.utils.data.StackDataset, ConcatDataset)."
        )
    loader = trainer._data_connector._prepare_dataloader(loader, shuffle=True, mode=trainer.state.stage)
    limit = trainer.limit_train_batches
    try:
        length = len(loader)
    except TypeError:
        if isinstance(limit, int):
            return _First(loader, limit)
        raise UnimplementedError(
            "samebits.integrations.lightning: the training loader has no length. Say how many batches an "
            "epoch has: Trainer(limit_train_batches=1000)."
        ) from None
    batches = min(length, limit) if isinstance(limit, int) else int(length * limit)
    return keyed_loader(loader) if batches == length else _First(loader, batches)


class _First:
    """The first batches of a loader, in each epoch."""

    def __init__(self, loader: Any, batches: int) -> None:
        self.loader, self.batches = loader, batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.loader), self.batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class _Loader(Batches):
    """Has the methods that Lightning asks a loader for; the position is the run's."""

    def state_dict(self) -> dict[str, Any]:
        """Returns nothing: without the method Lightning warns that the loader cannot be resumed."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing."""


class _LoaderSource:
    """Lightning's source of the training loader, whose loader becomes the run's batches."""

    def __init__(self, source: Any, make: Callable[[Any], Any]) -> None:
        self.given, self._make = source, make

    def dataloader(self) -> Any:
        """Returns the batches."""
        return self._make(self.given.dataloader())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.given, name)


_SHOWN = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
"""The values that the trainer shows: `trainer.callback_metrics`, ..."""
_PLACE = ("_first_loop_iter", "_current_fx")
"""The values by which Lightning knows that a hook logs for the first time in an epoch."""


class _CheckpointState:
    """The state of a trainer: its checkpoint, and what that leaves out."""

    def __init__(self, trainer: Any, module: Any) -> None:
        self._trainer, self._module = trainer, module
        self.restored: dict[str, Any] | None = None
        """The state of the resume, before the first batch."""

    def state_dict(self) -> dict[str, Any]:
        """Returns it; before the first batch after a resume, that of the resume."""
        if self.restored is not None:
            return self.restored
        trainer, connector = self._trainer, self._trainer._logger_connector
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        if _is_own(checkpoint["state_dict"], self._module):
            del checkpoint["state_dict"]  # the module is an object of the run
        results = trainer.fit_loop.epoch_loop._results
        return {
            "checkpoint": checkpoint,
            "results": {key: _result_state(one) for key, one in results.items() if not one.has_reset},
            "metrics": {name: _values(metric) for name, metric in _metrics(self._module)},
            "shown": {name: dict(getattr(connector, name)) for name in _SHOWN},
            "place": {name: getattr(connector, name) for name in _PLACE},
            "should_stop": trainer.should_stop,
        }

    def __saved_objects__(self) -> list[Any]:
        """Returns what else the state is of."""
        return list(self._trainer.optimizers)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps it for `restore`."""
        self.restored = state

    def restore(self) -> None:
        """Hands the checkpoint to Lightning, which restores from it what exists so far."""
        if self.restored is None:
            return
        trainer, connector = self._trainer, self._trainer._checkpoint_connector
        weights = copy.deepcopy(self._module.state_dict())
        connector._loaded_checkpoint = {"state_dict": weights, **self.restored["checkpoint"]}
        connector.restore_datamodule()
        connector.restore_model()
        saved = self.restored["checkpoint"].get("callbacks", {})
        of_logger = os.path.abspath(f"{trainer.log_dir}/checkpoints")  # a new folder at each start
        for one in trainer.checkpoint_callbacks:  # at another place than the saved one it forgets the best
            folder = saved.get(one.state_key, {}).get("dirpath") or ""
            if os.path.isdir(folder) and os.path.abspath(one.dirpath or "") == of_logger:
                one.dirpath = folder
        connector.restore_callbacks()
        for one in trainer.checkpoint_callbacks:  # a ModelCheckpoint saves it, and leaves it as it is
            if "current_score" in saved.get(one.state_key, {}):
                one.current_score = saved[one.state_key]["current_score"]
        self._module.load_state_dict(weights)  # a checkpoint of averaged weights has set those
        trainer.should_stop = self.restored["should_stop"]
        trainer.num_sanity_val_steps = 0  # it would reset what is restored here, and tell callbacks
        for name, metric in _metrics(self._module):
            _set_values(metric, self.restored["metrics"][name])
        for name, values in self.restored["shown"].items():
            getattr(trainer._logger_connector, name).update(values)
        loop, on_run_start = trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_loop.on_run_start

        def begin(data_fetcher: Any) -> None:
            del loop.on_run_start
            on_run_start(data_fetcher)
            self._continue_epoch()

        loop.on_run_start = begin  # the last moment before the first batch

    def _continue_epoch(self) -> None:
        """Goes on in the epoch of the resume as if there had been none."""
        restored = self.restored
        assert restored is not None
        trainer, loop = self._trainer, self._trainer.fit_loop.epoch_loop
        # A loop that is `restarting` leaves out the plateau's step at the epoch's end, and may count a batch
        # twice. The property does not set it with max_steps.
        trainer.fit_loop._restarting = loop.restarting = False
        for name, value in restored["place"].items():
            setattr(trainer._logger_connector, name, value)
        for key, state in restored["results"].items():
            loop._results[key] = _result(state, loop._results, trainer, self._module)


def _is_own(weights: dict[str, Any], module: torch.nn.Module) -> bool:
    """Returns False if a hook has put other weights in place of the module's (an average, a part)."""
    own = module.state_dict()
    return weights.keys() == own.keys() and all(
        not isinstance(value, torch.Tensor) or value.data_ptr() == own[name].data_ptr()
        for name, value in weights.items()
    )


def _metrics(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """Returns the metrics of torchmetrics in a module, whose values are in no state_dict."""
    kind = importlib.import_module("torchmetrics").Metric
    return [(name, metric) for name, metric in module.named_modules() if isinstance(metric, kind)]


def _values(metric: Any) -> dict[str, Any]:
    states = {name: _copy(getattr(metric, name)) for name in metric._defaults}
    return {"states": states, **{name: getattr(metric, name) for name in _CACHES}}


_CACHES = ("_update_count", "_computed", "_forward_cache")


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else list(value)


def _set_values(metric: Any, state: dict[str, Any]) -> None:
    for name, value in {**state["states"], **{name: state[name] for name in _CACHES}}.items():
        setattr(metric, name, value)
    metric.to(metric.device)


_REDUCTIONS = (torch.mean, torch.sum, torch.min, torch.max, sum, min, max)
"""The functions that `self.log(reduce_fx=...)` can be."""


def _result_state(result: Any) -> dict[str, Any]:
    """Returns a value that was logged in the running epoch, and how it was logged."""
    meta = {field.name: getattr(result.meta, field.name) for field in fields(result.meta)}
    sync, meta["reduce_fx"] = meta.pop("_sync"), _REDUCTIONS.index(meta["reduce_fx"])
    meta["sync"] = {"_should": sync.should, "rank_zero_only": sync.rank_zero_only}
    return {"meta": meta, "is_tensor": result.is_tensor, **_values(result)}


def _result(state: dict[str, Any], results: Any, trainer: Any, module: Any) -> Any:
    """Returns the logged value with this state."""
    library = importlib.import_module(type(results).__module__)
    meta = dict(state["meta"])
    sync = library._Sync(fn=trainer.strategy.reduce, **meta.pop("sync"))
    made = library._Metadata(**{**meta, "reduce_fx": _REDUCTIONS[meta["reduce_fx"]]})
    made.sync = sync
    result = library._ResultMetric(made, state["is_tensor"])
    _set_values(result, state)
    if not result.is_tensor:
        result.value = module.get_submodule(made.metric_attribute)
    return result

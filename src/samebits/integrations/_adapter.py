"""The parts that adapters share: a run's batches for a library's loop, its loader, and names to rely on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any

import torch.utils.data as torch_data

from samebits.data import DataLoader
from samebits.errors import IncompleteStateError, UnimplementedError
from samebits.train._loop.steps import Step
from samebits.train._run import Run

TESTED = {
    "accelerate": "1.15.0",
    "lightning": "2.6.6",
    "transformers": "5.24.0",
    "keras": "3.15.1",
    "pytorch-ignite": "0.5.5",
    "stable-baselines3": "2.9.2",
}
"""The version of each library that its adapter was last tested with."""
PRIVATE: dict[str, dict[str, tuple[str, ...]]] = {
    "accelerate": {
        "DataLoaderAdapter": ("base_dataloader",),
        "DataLoaderShard": ("device", "_non_blocking", "skip_batches", "iteration", "end_of_dataloader"),
        "DataLoaderDispatcher": ("skip_batches", "iteration"),
        "DataLoaderStateMixin": ("begin", "end"),
        "BatchSamplerShard": ("batch_sampler", "num_processes", "process_index"),
    },
    "lightning": {
        "Trainer": (
            "fit_loop",
            "_checkpoint_connector",
            "_logger_connector",
            "_data_connector",
            "_signal_connector",
        ),
        "_FitLoop": ("_data_source", "epoch_loop", "_restarting", "setup_data"),
        "_TrainingEpochLoop": ("_results", "on_run_start", "restarting"),
        "_SignalConnector": ("_sigterm_notifier_fn", "received_sigterm"),
        "_LoggerConnector": (
            *("_callback_metrics", "_logged_metrics", "_progress_bar_metrics"),
            *("_first_loop_iter", "_current_fx"),
        ),
        "_CheckpointConnector": (
            *("_ckpt_path", "_loaded_checkpoint", "dump_checkpoint"),
            *("restore_datamodule", "restore_model", "restore_callbacks"),
        ),
    },
    "transformers": {
        "Trainer": (
            *("_init_training_state", "_run_epoch", "_load_rng_state", "_finalize_training"),
            *("_created_lr_scheduler", "callback_handler", "control"),
        ),
        "CallbackHandler": ("callbacks",),
    },
    "keras": {"TorchEpochIterator": ("_get_iterator", "_enumerate_iterator"), "Trainer": ("_initial_epoch",)},
    "pytorch-ignite": {
        "Engine": (
            *("_process_function", "_event_handlers", "_dataloader_iter", "_init_iter"),
            *("_handle_exception", "_internal_run_generator"),
        )
    },
    "stable-baselines3": {
        "BaseAlgorithm": ("_total_timesteps", "_episode_num", "_update_current_progress_remaining"),
        "OffPolicyAlgorithm": ("_sample_action",),
    },
}
"""Attributes that the adapters use and no documentation promises, by library and class."""


def require_attributes(library: str, thing: Any) -> None:
    """Checks that an object has all that `PRIVATE` lists for its class, or for one that it derives from.

    Raises:
        UnimplementedError: it has not: the library has changed.
    """
    for kind in type(thing).__mro__:
        for name in PRIVATE[library].get(kind.__name__, ()):
            if not hasattr(thing, name):
                raise UnimplementedError(
                    f"samebits.integrations: {library} {version(library)} has no {kind.__name__}.{name}, by "
                    f"which a run resumes to the same bits. Install the version that this was tested with: "
                    f"pip install '{library}=={TESTED[library]}'."
                )


class Batches:
    """The batches of a run's loop: each `iter()` gives those of the next epoch; after a resume, its rest.

    It does not ask for the step after an epoch's last one, so that the boundary is committed when the next
    epoch begins: after what a library does at an epoch's end.
    """

    def __init__(
        self,
        run: Run,
        loader: Any,
        epochs: int,
        *,
        steps_per_epoch: int | None = None,
        length: int | None = None,
    ) -> None:
        """`length`: what `len()` says, where an epoch of the library is no epoch of the loader."""
        self.loader = loader
        self._length = length or steps_per_epoch or len(loader)
        self._run, self._epochs = run, epochs
        self._steps = run.steps(loader, epochs=epochs, steps_per_epoch=steps_per_epoch)
        self._last: Step | None = None

    @property
    def dataset(self) -> Any:
        """The loader's."""
        return self.loader.dataset

    @property
    def batch_size(self) -> Any:
        """The loader's."""
        return self.loader.batch_size

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        for step, batch in self._steps:
            self._last = step
            yield batch
            if step.ends_epoch:
                return

    def end(self) -> None:
        """Ends the loop, and commits its last boundary; a loop with batches left is a finished one, too."""
        last = self._last
        if last is not None:
            if not last.ends_epoch or last.epoch + 1 < self._epochs:
                self._run.stop()
            next(self._steps, None)


class OpenRun:
    """A run that callbacks of a library enter and leave, in place of a `with` block."""

    def __init__(
        self, run_dir: Any, options: Mapping[str, Any], ignore: str = "Resumable(ignore=[...])."
    ) -> None:
        """`ignore` is the text by which the user has a path ignored, and of what else helps."""
        self.run_dir, self.options, self._ignore = run_dir, dict(options), ignore
        self.run: Run | None = None

    def enter(self, objects: Mapping[str, Any], ignore: Iterable[str] = ()) -> Run:
        """Opens the run of these objects."""
        chosen: dict[str, Any] = {**self.options, "ignore": [*self.options.get("ignore", ()), *ignore]}
        self.run = Run(self.run_dir, **chosen, **objects).__enter__()
        return self.run

    def leave(self, error: BaseException | None = None) -> None:
        """Closes it, if it is open; with an error, nothing more is committed."""
        run, self.run = self.run, None
        if run is not None:
            if isinstance(error, IncompleteStateError):
                error.add_note(f"Here Run(ignore=[...]) is {self._ignore}")
            run.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


_ARGUMENTS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "persistent_workers"),
)


def keyed_loader(loader: Any, **changes: Any) -> Any:
    """Returns a `samebits.data.DataLoader` with the arguments of a torch DataLoader, but for some.

    What it cannot do (an IterableDataset, a loader of another class) stays as it is: a run replays it.
    """
    if type(loader).__module__.partition(".")[0] not in {"torch", "torchdata"}:
        return loader
    if isinstance(loader.dataset, torch_data.IterableDataset) or not getattr(loader, "in_order", True):
        return loader
    kept = {name: getattr(loader, name) for name in _ARGUMENTS}
    return DataLoader(loader.dataset, **{**kept, **_order(loader), **changes})


def _order(loader: torch_data.DataLoader[Any]) -> dict[str, Any]:
    """Returns the arguments that say in which order a loader reads, and in which batches."""
    sampler, batches = loader.sampler, {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_size is None and loader.batch_sampler is not None:
        given = loader.batch_sampler
        if type(given) is not torch_data.BatchSampler:
            return {"batch_sampler": given}
        sampler, batches = given.sampler, {"batch_size": given.batch_size, "drop_last": given.drop_last}
    if type(sampler) is torch_data.SequentialSampler:
        return batches
    is_random = type(sampler) is torch_data.RandomSampler and not sampler.replacement
    if is_random and sampler.num_samples == len(loader.dataset):  # type: ignore[arg-type]
        return {**batches, "shuffle": True}
    return {**batches, "sampler": sampler}

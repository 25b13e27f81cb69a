"""The attributes of other libraries that no documentation promises, and the check that they are there."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from samebits.errors import UnimplementedError

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
            "fit_loop", "_checkpoint_connector", "_logger_connector", "_data_connector", "_signal_connector",
        ),
        "_FitLoop": ("_data_source", "epoch_loop", "_restarting", "setup_data"),
        "_TrainingEpochLoop": ("_results", "on_run_start", "restarting"),
        "_SignalConnector": ("_sigterm_notifier_fn", "received_sigterm"),
        "_LoggerConnector": (
            "_callback_metrics", "_logged_metrics", "_progress_bar_metrics", "_first_loop_iter",
            "_current_fx",
        ),
        "_CheckpointConnector": (
            "_ckpt_path", "_loaded_checkpoint", "dump_checkpoint", "restore_datamodule", "restore_model",
            "restore_callbacks",
        ),
    },
    "transformers": {
        "Trainer": (
            "_init_training_state", "_run_epoch", "_load_rng_state", "_finalize_training",
            "_created_lr_scheduler", "callback_handler", "control",
        ),
        "CallbackHandler": ("callbacks",),
    },
    "keras": {
        "TorchEpochIterator": ("_get_iterator", "_enumerate_iterator"),
        "Trainer": ("_initial_epoch",),
        "Layer": ("_flatten_layers",),
    },
    "pytorch-ignite": {
        "Engine": (
            "_process_function", "_event_handlers", "_dataloader_iter", "_init_iter", "_handle_exception",
            "_internal_run_generator",
        ),
    },
    "stable-baselines3": {
        "BaseAlgorithm": ("_total_timesteps", "_episode_num", "_update_current_progress_remaining"),
        "OffPolicyAlgorithm": ("_sample_action",),
    },
}  # fmt: skip
"""Attributes that the adapters use and no documentation promises, by library and class."""


def require_attributes(library: str, thing: Any) -> None:
    """Raises UnimplementedError unless an object has all that `PRIVATE` lists for its class or a base of it.

    What a class of samebits overrides there counts only if the library has it, too, and so calls it.
    """
    theirs = [kind for kind in type(thing).__mro__ if not kind.__module__.startswith("samebits.")]
    for kind in theirs:
        for name in PRIVATE[library].get(kind.__name__, ()):
            if name not in vars(thing) and not any(name in vars(one) for one in theirs):
                raise UnimplementedError(
                    f"samebits.integrations: {library} {version(library)} has no {kind.__name__}.{name}, by "
                    f"which a run resumes to the same bits. Install the version that this was tested with: "
                    f"pip install '{library}=={TESTED[library]}'."
                )

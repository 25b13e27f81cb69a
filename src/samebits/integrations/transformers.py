"""Transformers: `samebits.integrations.transformers.Trainer` trains and resumes to the same bits."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from samebits.data._resumable import Resumable as KeyedLoader
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.integrations._adapter import Batches, OpenRun, keyed_loader, require_attributes
from samebits.train._run import Run

try:
    transformers: Any = importlib.import_module("transformers")
    _trainer: Any = importlib.import_module("transformers.trainer")
except ImportError as error:
    raise ImportError(
        "samebits.integrations.transformers needs transformers and accelerate: pip install "
        "'samebits[transformers]'"
    ) from error

_WITHOUT_END = 1 << 40
"""Epochs of a training that `max_steps` ends."""
_OWN = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""Attributes in which `train` counts, and begins anew."""


class ResumableMixin:
    """Makes a class that derives from `transformers.Trainer` resume to the same bits: put it first.

    `class MyTrainer(ResumableMixin, SFTTrainer)`; the keywords are those of `Trainer` below.
    """

    def __init__(
        self,
        *args: Any,
        run_dir: str | os.PathLike[str] | None = None,
        run_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        require_attributes("transformers", self)
        own: Any = self
        ignore = 'Trainer(run_options={"ignore": [...]})'
        self._open = OpenRun(run_dir or Path(own.args.output_dir) / "samebits", run_options or {}, ignore)
        self._batches: Any = None
        self._fit_state: Any = None
        self._resumed_epoch = -1

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains, from where the run was if it was killed; a finished run trains nothing.

        Raises:
            InvalidArgumentError: `resume_from_checkpoint` is given: the run knows where it was.
        """
        if resume_from_checkpoint:
            raise InvalidArgumentError(
                "samebits.integrations.transformers: train(resume_from_checkpoint=...): the run resumes by "
                "itself. Leave it out, or load those weights into the model and give a new run_dir."
            )
        error = None
        try:
            return super().train(None, *args, **kwargs)  # type: ignore[misc]
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._open.leave(error)

    def get_train_dataloader(self) -> Any:
        """Returns the batches of the run."""
        own: Any = self
        accelerator, args = own.accelerator, own.args
        if args.world_size > 1:
            raise UnimplementedError(
                "samebits.integrations.transformers: several processes are not covered. Train with one, or "
                "move the loop into samebits.Run, which knows DDP."
            )
        accelerator.prepare = lambda loader: loader  # it would make another loader of it
        try:
            loader = super().get_train_dataloader()  # type: ignore[misc]
        finally:
            del accelerator.prepare
        run = self._open.enter({})
        epochs = _WITHOUT_END if args.max_steps > 0 else -(-args.num_train_epochs // 1)
        self._batches = _MicroBatches(run, loader, int(epochs), args.gradient_accumulation_steps)
        return self._batches

    def _init_training_state(self, max_steps: int, steps_per_epoch: int, *args: Any) -> tuple[int, int]:
        result = super()._init_training_state(max_steps, steps_per_epoch, *args)  # type: ignore[misc]
        own: Any = self
        own.create_optimizer()
        own.create_scheduler(num_training_steps=max_steps)
        own._created_lr_scheduler = False  # or train() makes another one
        run, self._fit_state = self._open.run, _TrainState(own)
        assert run is not None
        for name in ("model", "optimizer", "lr_scheduler"):
            run.add(name, getattr(own, name))
        if own.accelerator.scaler is not None:
            run.add("scaler", own.accelerator.scaler)
        run.add("trainer", self._fit_state, complete=True)
        run.ignore("trainer")
        run.restore()
        if not run.resumed:
            return result
        self._fit_state.begin()
        if run.finished:
            return result[0] + _WITHOUT_END, 0  # no epoch is left
        self._resumed_epoch = own.state.global_step // steps_per_epoch
        steps = own.state.global_step % steps_per_epoch
        return self._resumed_epoch, steps * own.args.gradient_accumulation_steps

    def _run_epoch(self, **arguments: Any) -> None:
        if arguments["epoch"] == self._resumed_epoch:
            self._resumed_epoch = -1
            arguments["resume_from_checkpoint"] = str(self._open.run_dir)  # so that it counts from there
            _skip_nothing_once()
            self._fit_state.apply()
        super()._run_epoch(**arguments)  # type: ignore[misc]

    def _load_rng_state(self, checkpoint: Any) -> None:
        """Does nothing: draws are a function of the step."""

    def _finalize_training(self, *args: Any) -> Any:
        self._fit_state.apply()
        self._batches.end()
        return super()._finalize_training(*args)  # type: ignore[misc]


class Trainer(ResumableMixin, transformers.Trainer):
    """`transformers.Trainer` that resumes to the same bits: started again after a kill, it continues.

    ```python
    from samebits.integrations.transformers import Trainer

    trainer = Trainer(model, args, train_dataset=train, eval_dataset=val)
    trainer.train()
    ```

    A commit holds model, optimizer, scheduler, the trainer's state with its log history, the losses since the
    last log, and the state of callbacks. A batch is a function of (dataset, seed, epoch, step), not of
    workers. Checkpoints of `save_strategy` are made as ever, and are not needed for resuming. Commits are
    made between two steps of the optimizer; an evaluation that is killed begins anew.

    Not covered: several processes, IterableDatasets, DeepSpeed and FSDP, `train_sampling_strategy=
    "batch_rebalance"`, and `train(resume_from_checkpoint=...)`.

    Args:
        args, kwargs: those of `transformers.Trainer`.
        run_dir: folder of this run alone; without, "samebits" in `args.output_dir`.
        run_options: those of `samebits.Run`: {"save": "30s"}.
    """


class _MicroBatches(Batches):
    """The micro-batches of an accumulation are one step of the run: the trainer fetches them all ahead."""

    def __init__(self, run: Run, loader: Any, epochs: int, accumulate: int) -> None:
        size = getattr(loader, "batch_size", None)
        keyed = None
        if size is not None:
            split = _Split(loader.collate_fn, size, drop_last=loader.drop_last)
            keyed = keyed_loader(loader, batch_size=size * accumulate, collate_fn=split)
        if not isinstance(keyed, KeyedLoader):
            raise UnimplementedError(
                "samebits.integrations.transformers: the training data has no numbered elements, or batches "
                "of its own (batch_rebalance). Give a dataset that has __len__ and __getitem__."
            )
        super().__init__(run, keyed, epochs)
        self._micro_batches = len(loader)

    def __len__(self) -> int:
        return self._micro_batches

    def __iter__(self) -> Iterator[Any]:
        for parts in super().__iter__():
            yield from parts


class _Split:
    """Collates the elements of a step in micro-batches."""

    def __init__(self, collate: Callable[[list[Any]], Any], size: int, *, drop_last: bool) -> None:
        self._collate, self._size, self._drop_last = collate, size, drop_last

    def __call__(self, elements: list[Any]) -> list[Any]:
        parts = [elements[start : start + self._size] for start in range(0, len(elements), self._size)]
        return [self._collate(part) for part in parts if not self._drop_last or len(part) == self._size]


def _skip_nothing_once() -> None:
    """Lets the trainer skip no batches when it next wants to: those of the run begin where they must."""
    skip = _trainer.skip_first_batches

    def skip_nothing(loader: Any, number: int) -> Any:
        _trainer.skip_first_batches = skip
        return loader

    _trainer.skip_first_batches = skip_nothing


class _TrainState:
    """All that `train` begins anew: its state, that of callbacks, and its counts."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._restored: dict[str, Any] | None = None

    def _stateful(self) -> list[Any]:
        trainer = self._trainer
        every = [*trainer.callback_handler.callbacks, trainer.control]
        return [one for one in every if hasattr(one, "state") and callable(one.state)]

    def state_dict(self) -> dict[str, Any]:
        """Returns it; before `apply`, that of the restore."""
        if self._restored is not None:
            return self._restored
        trainer = self._trainer
        state = dataclasses.asdict(dataclasses.replace(trainer.state, stateful_callbacks={}))
        return {
            "state": state,
            "callbacks": [copy.deepcopy(one.state()["attributes"]) for one in self._stateful()],
            "own": {name: copy.copy(getattr(trainer, name, 0)) for name in _OWN},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps it for `begin` and `apply`."""
        self._restored = state

    def begin(self) -> None:
        """Restores what the trainer reads before its first step."""
        assert self._restored is not None
        for name, value in self._restored["state"].items():
            if name != "stateful_callbacks":
                setattr(self._trainer.state, name, value)
        for one, attributes in zip(self._stateful(), self._restored["callbacks"], strict=True):
            vars(one).update(attributes)

    def apply(self) -> None:
        """Restores what `train` has set to zero since, once."""
        if self._restored is not None:
            for name, value in self._restored["own"].items():
                setattr(self._trainer, name, value)
            self._restored = None

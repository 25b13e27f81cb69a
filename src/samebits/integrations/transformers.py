"""Transformers: `samebits.integrations.transformers.Trainer` trains and resumes to the same bits."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch.utils.data as torch_data

from samebits import _digest as digest
from samebits._inspect.user_code import owner_of_module
from samebits._program import names_of_library, names_set_by
from samebits.data._keyed_loader import keyed_loader
from samebits.data._resumable import Resumable as KeyedLoader
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.integrations._adapter import Batches, OpenRun, library_modules, program_callbacks
from samebits.state import attributes
from samebits.state._parts import is_plain
from samebits.train import Run
from samebits.train._ddp_buckets import fix_buckets
from samebits.train._framework_privates import require_attributes
from samebits.train._loop.accelerate_loader import shard_of

transformers, _callbacks, _trainer = library_modules(
    "transformers",
    "transformers and accelerate",
    "transformers",
    "transformers.trainer_callback",
    "transformers.trainer",
)
_ExportableState: Any = _callbacks.ExportableState
_WITHOUT_END = 1 << 40
"""Epochs of a training that `max_steps` ends."""
_CURES = (
    'Trainer(run_options={"ignore": [...]}). To save an attribute: of a callback, derive it from '
    "ExportableState, whose state() returns it; of a trainer, keep it in such a callback, or in a class of "
    "your own that overrides state_dict (add it to super().state_dict()) and load_state_dict; of a "
    "compute_metrics, keep it in one of these"
)
_OF_THE_PROGRAM = frozenset(
    (
        *("compute_metrics", "compute_loss_func", "preprocess_logits_for_metrics", "data_collator"),
        *("train_dataset", "eval_dataset"),
    )
)
"""Attributes that the library sets, to objects of the program."""
_OWN = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""Attributes in which `train` counts, and begins anew."""


class ResumableMixin:
    """Makes a class that derives from `transformers.Trainer` resume to the same bits: put it first.

    `class MyTrainer(ResumableMixin, SFTTrainer)`; the keywords are those of `Trainer` below.
    """

    __holds_user_objects__ = True

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
        self._open = OpenRun(run_dir or Path(own.args.output_dir) / "samebits", run_options or {}, _CURES)
        self._batches: Any = None
        self._fit_state: Any = None
        self._resumed_epoch, self._has_buckets = -1, False

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains, from where the run was if it was killed; a finished run trains nothing.

        Raises `InvalidArgumentError` for a `resume_from_checkpoint`: the run knows where it was.
        """
        if resume_from_checkpoint:
            raise InvalidArgumentError(
                "samebits.integrations.transformers: train(resume_from_checkpoint=...): the run resumes by "
                "itself. Leave it out, or load those weights into the model and give a new run_dir."
            )
        error = None
        try:
            vars(self)["get_train_dataloader"] = self._batches_of_run
            return super().train(None, *args, **kwargs)  # type: ignore[misc]
        except BaseException as raised:
            error = raised
            raise
        finally:
            vars(self).pop("get_train_dataloader", None)
            self._open.leave(error)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the trainer, without model, optimizer and scheduler."""
        return self._fit_state.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state of `state_dict`."""
        self._fit_state.load_state_dict(state_dict)

    @classmethod
    def __names_of_library__(cls) -> frozenset[str]:
        """Returns the attributes that are not the program's: the check for lost state passes over them."""
        return names_of_library(cls) - _OF_THE_PROGRAM

    def _batches_of_run(self) -> Any:
        """Returns the batches of the run, of the loader that the trainer or its subclass makes."""
        own: Any = self
        accelerator, args = own.accelerator, own.args
        del own.get_train_dataloader
        if args.world_size == 1:
            accelerator.prepare = lambda loader: loader  # it would make another loader of it
        try:
            loader = own.get_train_dataloader()
        finally:
            vars(accelerator).pop("prepare", None)
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
        run.add("trainer", self)
        callbacks = own.callback_handler.callbacks
        for name, callback in program_callbacks(callbacks, _callback_state, _load_callback_state).items():
            run.add(name, callback)
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
        if not self._has_buckets:
            self._has_buckets = True
            fix_buckets(self._open.run.objects.values())  # type: ignore[union-attr]
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
    last log, and what callbacks export (`ExportableState`). Other state of your callbacks, of the trainer (an
    attribute of your own), of `compute_metrics` or of the model that changes is an `IncompleteStateError` in
    the first steps. A batch is a function of (dataset, seed, epoch, step), not of workers. Checkpoints of
    `save_strategy` are made as ever, and are not needed for resuming. Commits are made between two steps of
    the optimizer; an evaluation that is killed begins anew.

    Under torchrun each process reads its share (DDP). Not covered: IterableDatasets, DeepSpeed and FSDP,
    `train_sampling_strategy="batch_rebalance"`, and `train(resume_from_checkpoint=...)`.

    Args:
        args, kwargs: those of `transformers.Trainer`.
        run_dir: folder of this run alone; without, "samebits" in `args.output_dir`.
        run_options: those of `samebits.Run`: {"save": "30s"}.
    """


class _MicroBatches(Batches):
    """The micro-batches of an accumulation are one step of the run: the trainer fetches them all ahead."""

    def __init__(self, run: Run, loader: Any, epochs: int, accumulate: int) -> None:
        keyed = None
        if (share := shard_of(loader)) is not None:
            loader, groups = loader.base_dataloader, _Groups(share, accumulate)
            split = _Split(loader.collate_fn, groups.batch_size, drop_last=False)
            keyed = keyed_loader(loader, batch_sampler=groups, collate_fn=split)
        elif (size := getattr(loader, "batch_size", None)) is not None:
            split = _Split(loader.collate_fn, size, drop_last=loader.drop_last)
            keyed = keyed_loader(loader, batch_size=size * accumulate, collate_fn=split)
        elif accumulate == 1:  # the batches of a batch sampler
            keyed = keyed_loader(loader, collate_fn=_Split(loader.collate_fn, sys.maxsize, drop_last=False))
        elif not isinstance(getattr(loader, "dataset", None), torch_data.IterableDataset):
            raise UnimplementedError(
                f"samebits.integrations.transformers: gradient_accumulation_steps={accumulate} with a batch "
                f"sampler of your own ({type(loader.batch_sampler).__name__}), whose batches have any size. "
                "Use gradient_accumulation_steps=1 and larger batches."
            )
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


class _Groups(torch_data.Sampler[list[int]]):
    """The micro-batches of this process, those of an accumulation together."""

    def __init__(self, share: Any, accumulate: int) -> None:
        self._share, self._accumulate = share, accumulate
        self.num_replicas, self.rank, self.sampler = share.num_replicas, share.rank, share.sampler
        self.batch_size = share.batch_size

    def __len__(self) -> int:
        return math.ceil(len(self._share) / self._accumulate)

    def __iter__(self) -> Iterator[list[int]]:
        group: list[int] = []
        for number, batch in enumerate(self._share, 1):
            group += batch
            if number % self._accumulate == 0:
                yield group
                group = []
        if group:
            yield group


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


def _without_times(logged: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logged values with NaN for times: equal runs have equal commits."""
    times = ("_runtime", "_per_second")
    return {name: math.nan if name.endswith(times) else value for name, value in logged.items()}


def _callback_state(self: Any) -> dict[str, Any]:
    # By no `getattr`: a state_dict that calls it counts as one that saves every attribute.
    return copy.deepcopy(self.state()["attributes"]) if isinstance(self, _ExportableState) else {}


def _load_callback_state(self: Any, state_dict: dict[str, Any]) -> None:
    vars(self).update(copy.deepcopy(state_dict))


class _TrainState:
    """All that `train` begins anew: its state, that of callbacks, and its counts."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._restored: dict[str, Any] | None = None
        kinds = [kind for kind in type(trainer).__mro__ if issubclass(kind, transformers.Trainer)]
        kinds = [one for one in kinds if owner_of_module(one.__module__) == "installed"]
        names = set[str]().union(*map(names_set_by, kinds)) - names_set_by(transformers.Trainer)
        fields = {one.name for one in dataclasses.fields(trainer.state)}
        self._besides: dict[str, tuple[Any, Callable[[str], bool]]] = {
            "besides": (trainer, names.__contains__),
            "args": (trainer.args, vars(trainer.args).__contains__),
            "added": (trainer.state, lambda name: name not in fields),
        }
        """Plain attributes of trainers of other packages (TRL's), of the arguments, and what a program adds
        to the state: a commit has those that change."""
        self._begun = {key: self._digests(key) for key in self._besides}

    def _digests(self, key: str) -> dict[str, str]:
        target, has = self._besides[key]
        return {name: digest.of_value(v) for name, v in vars(target).items() if has(name) and is_plain(v)}

    def _changed(self, key: str) -> list[Any]:
        """Returns the names of what has changed since the training began, and their state."""
        begun, (target, _) = self._begun[key], self._besides[key]
        names = sorted(name for name, now in self._digests(key).items() if begun.get(name) != now)
        return [names, attributes(target, *names).state_dict()] if names else []

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
        state["log_history"] = [_without_times(one) for one in state["log_history"]]
        return {
            "state": state,
            "callbacks": [copy.deepcopy(one.state()["attributes"]) for one in self._stateful()],
            "own": {name: copy.copy(getattr(trainer, name, 0)) for name in _OWN},
            **{key: self._changed(key) for key in self._besides},
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
        self._restore_program(self._restored)

    def _restore_program(self, restored: Mapping[str, Any]) -> None:
        for key, (target, _) in self._besides.items():
            names, values = restored.get(key) or [[], {}]
            for name in names:
                vars(target).setdefault(name)  # one that a callback adds
            if names:
                attributes(target, *names).load_state_dict(values)
        for one, values in zip(self._stateful(), restored["callbacks"], strict=True):
            vars(one).update(copy.deepcopy(values))

    def apply(self) -> None:
        """Restores what `train` has set to zero since, once."""
        if self._restored is not None:
            for name, value in self._restored["own"].items():
                setattr(self._trainer, name, value)
            self._restore_program(self._restored)  # on_train_begin may have reset them
            self._restored = None

"""Ignite: `resumable(trainer, "runs/x")` makes `trainer.run` resume to the same bits, in an epoch, too."""

from __future__ import annotations

import functools
import inspect
import os
import re
import types
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch

from samebits._context import process
from samebits._inspect.user_code import is_library, is_user_type
from samebits._objects.parts import attributes_of, globals_of, nearest_first, variables_of
from samebits._objects.rng_states import RESTORABLE
from samebits.data._keyed_loader import keyed_loader
from samebits.errors import UnimplementedError
from samebits.integrations._adapter import Batches, OpenRun, library_modules
from samebits.state._attributes import Attributes
from samebits.train import Run
from samebits.train._framework_privates import require_attributes

base, distributed, engine, handlers = library_modules(
    "ignite", "pytorch-ignite", "ignite.base", "ignite.distributed", "ignite.engine", "ignite.handlers"
)

_CALL = "samebits.integrations.ignite.resumable"
_CURES = (
    "resumable(trainer, run_dir, ignore=[...]), and run.add(name, thing) is "
    "resumable(trainer, run_dir, name=thing), or name=samebits.state.attributes(thing); "
    "handler_functions[i] is the i-th handler of the trainer, and its __self__ the object that has it"
)
_OF_A_STEP = {"output", "batch", "dataloader", "times"}
"""Attributes of an engine's state that each step sets anew, and clocks."""
_LIMITS = ("max_epochs", "max_iters", "epoch_length")
"""Attributes that are arguments of `trainer.run`."""
_WITHOUT_END = 1 << 40
"""Epochs of a loader without a length."""
_WITHOUT_STATE = re.compile(
    r"ignite\.handlers\.(\w+_logger|time_\w+|timing|lr_finder|stores|utils|terminate_on_nan)|ignite\.engine\.events"
)
"""Modules of handlers that change nothing in training: clocks, and what writes logs."""
_OPTIONS = set(inspect.signature(Run).parameters) - {"stateful", "run_dir"}
_MOST_ITEMS = 64


def resumable(trainer: Any, run_dir: str | os.PathLike[str], **options: Any) -> None:
    """Makes `trainer.run` resume to the same bits: started again after a kill, it continues.

    ```python
    trainer = Engine(update)
    ...
    samebits.integrations.ignite.resumable(trainer, "runs/digits")
    trainer.run(loader, max_epochs=30)
    ```

    A commit holds what the update function and the handlers of the trainer, and of engines that these run,
    use: modules, optimizers, schedulers and other objects with a `state_dict`, Ignite's metrics and handlers
    (Checkpoint, EarlyStopping, RunningAverage, EMAHandler, ...), and the state of the engines. They are found
    by the variables of these functions. What else changes from step to step is an `IncompleteStateError` in
    the first steps: give it by name. A torch DataLoader becomes a `samebits.data.DataLoader`. Commits are
    made between two iterations; an evaluation that is killed begins anew. At a start the handlers of STARTED
    run, and those of EPOCH_STARTED once; then everything is restored.

    Not covered: several processes, `terminate_epoch`, `set_data`, `interrupt`, a second `trainer.run`,
    handlers that are added or removed in training, and more epochs for a run that has ended. Leave out
    Ignite's own resume (`load_state_dict`).

    Args:
        trainer: the engine.
        run_dir: folder of this run alone.
        options: those of `samebits.Run`, and objects by name, as there: `losses=losses`.

    Raises:
        UnimplementedError: (also in `trainer.run`) this version of Ignite is not as it was, or what is asked
            for is not covered.
        InvalidArgumentError: (in `trainer.run`) an object cannot be saved.
    """
    require_attributes("pytorch-ignite", trainer)
    given = {name: options.pop(name) for name in set(options) - _OPTIONS}
    opened = OpenRun(run_dir, options, _CURES)
    trainer.run = _EngineRun(trainer, opened, given).run


class _EngineRun:
    """One call of `trainer.run`."""

    def __init__(self, trainer: Any, opened: OpenRun, given: dict[str, Any]) -> None:
        self._trainer, self._open, self._given = trainer, opened, given
        self._begun = False
        self.in_epoch = 0
        """The iterations that the engine has done in its epoch."""
        self._failure: BaseException | None = None
        self._began_with = self._handlers = 0
        self._limits: dict[str, Any] = {}
        self.ends = False
        """True once the engine has run to its end."""
        self.error: BaseException | None = None
        """An error of the run itself; a handler of the program may have taken it for one of its own."""

    def run(self, *args: Any, **named: Any) -> Any:
        """Runs the engine from where the run was; takes the arguments of `Engine.run`."""
        trainer = self._trainer
        given = inspect.signature(type(trainer).run).bind(trainer, *args, **named).arguments
        data, length = given.get("data"), given.get("epoch_length")
        limits = {name: given[name] for name in ("max_epochs", "max_iters") if name in given}
        self._check()
        self._begun = True
        run = self._open.enter(self._given)
        try:
            batches = self._batches(run, data, limits, length)
            for name, thing in _objects(trainer, self._given).items():
                run.add(name, thing, complete=isinstance(thing, Attributes))
            if run.resumed and run.parts.loops.saved is None and not run.finished:
                raise _refused(
                    f"the run in {run.run_dir} has ended, and this is one of more iterations",
                    "Use another folder, or as many iterations as the run has.",
                )
            if run.finished:
                run.restore()
                trainer.state.dataloader = data
            else:
                self._train(run, batches, limits)
        except BaseException as error:
            self._open.leave(error)
            raise
        self._open.leave(self._failure)
        return trainer.state

    def _check(self) -> None:
        if self._begun:
            raise _refused(
                "trainer.run was called a second time", "Call resumable again, with another folder."
            )
        if distributed.get_world_size() > 1:
            raise _refused("several processes are not covered", "Use samebits.Run, which knows DDP.")
        if self._trainer.state.iteration or self._trainer.state.max_epochs:
            raise _refused(
                "the trainer has a state", "Leave out load_state_dict: the run knows where it was."
            )

    def _batches(self, run: Run, data: Any, limits: dict[str, int], length: int | None) -> _Data:
        if data is None:
            data = [None] * (length or 0)
        loader = keyed_loader(data)
        if loader is not data:
            loader._given_seed = loader._seed()  # handlers may call manual_seed, as DeterministicEngine does
        try:
            whole = len(loader)
        except TypeError:
            whole = 0
        limit = process.overrides.batches_per_epoch
        length = min(length or whole, limit or length or whole)
        if not length:
            raise _refused(
                "the data has no length", "Say how many batches an epoch has: run(epoch_length=100)."
            )
        iterations = limits.get("max_iters") or length * (limits.get("max_epochs") or 1)
        epochs = -(-iterations // min(whole, limit or whole)) if whole else _WITHOUT_END
        return _Data(run, loader, epochs, length, self)

    def _train(self, run: Run, batches: _Data, limits: dict[str, int]) -> None:
        trainer = self._trainer
        handle = trainer._handle_exception
        counts = trainer.add_event_handler(engine.Events.EPOCH_STARTED, self._begin_epoch)

        def note_exception(error: BaseException) -> None:
            self._failure = error  # until the next batch: a handler of the program may go on
            handle(error)

        def set_data(data: Any) -> None:
            raise _refused("set_data changes the data in the middle", "Give run() one loader.")

        trainer._handle_exception, trainer.set_data = note_exception, set_data
        trainer.state.dataloader = batches
        trainer._dataloader_iter = iter(batches)
        trainer._init_iter = self._began_with = _place_in_epoch(run)
        if isinstance(trainer, engine.DeterministicEngine):
            trainer._dataloader_len = len(batches)  # its handlers read it
        try:
            type(trainer).run(trainer, batches, **limits, epoch_length=len(batches))
        finally:
            del trainer._handle_exception, trainer.set_data
            counts.remove()
        if self.error is not None:
            raise self.error
        if trainer._internal_run_generator is not None:
            raise _refused("interrupt() was called", "Use terminate(), or two trainers.")
        if self._failure is None:
            batches.finish()

    @functools.cached_property
    def functions(self) -> tuple[Any, list[Any]]:
        entries = [entry for every in self._trainer._event_handlers.values() for entry in every]
        others = [one for one, _, _ in entries if getattr(one, "__self__", None) is not self]
        return self._trainer._process_function, others

    def _begin_epoch(self) -> None:
        self.in_epoch, self._began_with = self._began_with, 0

    def begin_step(self) -> None:
        """Notes what a resume must not change; raises `UnimplementedError` if handlers are others now."""
        state = vars(self._trainer.state)
        self._limits = {name: state[name] for name in _LIMITS if name in state}
        number = sum(map(len, self._trainer._event_handlers.values()))
        self._handlers = self._handlers or number
        if number != self._handlers and not self.ends:
            raise _refused(
                "a handler was added or removed in training, which no commit holds",
                "Attach it before trainer.run, with a filter: Events.ITERATION_COMPLETED(once=100).",
            )

    def note_step(self) -> None:
        self._failure = None
        self.in_epoch += 1
        vars(self._trainer.state).update(self._limits)

    def stop(self) -> None:
        """Stops the engine: the run has no batch left."""
        if not self.ends:
            self._trainer.terminate()


def _place_in_epoch(run: Run) -> int:
    """Returns how many iterations the engine had done in the epoch of the resume."""
    saved = run.parts.resuming.saved
    return saved.run_state["in_epoch"] if saved is not None else 0


def _refused(what: str, cure: str) -> UnimplementedError:
    return UnimplementedError(f"{_CALL}: {what}. {cure}")


class _Data(Batches):
    """The batches of the run, for an engine, whose epochs may be shorter or longer than the loader's."""

    def __init__(self, run: Run, loader: Any, epochs: int, length: int, training: _EngineRun) -> None:
        super().__init__(run, loader, epochs, length=length)
        self._training = training

    def __iter__(self) -> Iterator[Any]:
        if self._last is not None and not self._last.ends_epoch:
            raise _refused("terminate_epoch() begins the data anew", "Give run(epoch_length=...).")
        return self._rest()

    def finish(self) -> None:
        """Ends the loop, and commits its last boundary, from where the others were."""
        if self._last is not None:
            if not self._last.ends_epoch or self._last.epoch + 1 < self._epochs:
                self._run.stop()
            self._training.ends = True
            next(self._rest(), None)

    def _rest(self) -> Iterator[Any]:
        training, steps, run = self._training, self._steps, self._run
        # Variables that the check for forgotten state looks into: their names stand in its messages.
        update, handler_functions = training.functions
        while True:
            run.state.in_epoch = training.in_epoch
            try:
                training.begin_step()
                found = next(steps, None)
            except BaseException as error:
                training.error = error
                raise
            if found is None:
                training.stop()
                return
            training.note_step()
            self._last, batch = found
            yield batch
            if self._last.ends_epoch:
                return
            _carry(update, handler_functions)


def _carry(*functions: Any) -> None:
    """Is where a loop reads these variables again: what they hold has to be in a commit."""


def _objects(trainer: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Returns what a trainer uses, by names for the run: as it is, or an adapter with its state."""
    objects: dict[str, Any] = {}
    known = {id(getattr(thing, "target", thing)) for thing in given.values()}
    names = set(given)
    for path, thing in nearest_first([("trainer", trainer)], _inside, leaves=()):
        if id(thing) not in known and (saved := _saved(thing)) is not None:
            known.add(id(thing))
            name = re.sub(r"\W+", "_", path).strip("_") or type(thing).__name__.lower()
            while name in names or name in _OPTIONS:
                name += "_"
            names.add(name)
            objects[name] = saved
            if isinstance(thing, handlers.Checkpoint) and isinstance(thing.save_handler, handlers.DiskSaver):
                _survive_missing_files(thing.save_handler)
    return objects


def _saved(thing: Any) -> Any:
    """Returns an object that a commit holds, or the adapter for it; None for what is no object of the run."""
    if _has_state_dict(thing) or isinstance(thing, RESTORABLE):
        return thing
    if not _is_ignites(thing) and not _has_methods(thing):
        return None
    return Attributes(thing, (), _CALL, is_state=_is_state, find=_state_names)


def _state_names(thing: Any) -> list[str]:
    """Returns the attributes of a metric or handler: its state_dict may leave some out. Of an engine, one."""
    if isinstance(thing, engine.Engine):
        return ["state"]
    return [name for name, item in attributes_of(thing).items() if _is_state(thing, name, item)]


def _has_state_dict(thing: Any) -> bool:
    kind = type(thing)
    own = getattr(kind, "state_dict", None), getattr(kind, "load_state_dict", None)
    is_loader = isinstance(thing, torch.utils.data.DataLoader) or hasattr(kind, "_iter_at")
    is_whole = _has_methods(thing) or (_is_ignites(thing) and not isinstance(thing, handlers.Checkpoint))
    return not is_whole and all(own) and own[0] is not base.Serializable.state_dict and not is_loader


def _is_ignites(thing: Any) -> bool:
    """Returns True for metrics and handlers of Ignite, and of classes that are made from them."""
    kinds = [kind.__module__ for kind in type(thing).__mro__ if kind.__module__.startswith("ignite.")]
    return bool(kinds) and not any(map(_WITHOUT_STATE.match, kinds)) and not isinstance(thing, type)


def _has_methods(thing: Any) -> bool:
    """Returns True for a scheduler of torch that Ignite has given a method, which its state_dict returns."""
    return isinstance(thing, torch.optim.lr_scheduler.LRScheduler) and any(
        isinstance(item, types.MethodType) for item in vars(thing).values()
    )


def _is_state(owner: Any, name: str, item: Any) -> bool:
    if isinstance(owner, engine.State):
        return name not in _OF_A_STEP
    return not hasattr(type(item), "load_state_dict")  # that is an object of its own


def _survive_missing_files(saver: Any) -> None:
    """Lets a saver remove a file that a killed process has removed after the last commit."""
    remove = type(saver).remove

    def remove_if_there(filename: str) -> None:
        with suppress(FileNotFoundError):
            remove(saver, filename)

    saver.remove = remove_if_there


def _inside(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yields what an object holds, or a function uses, each with a name that leads to it."""
    for name, one in _held(path, thing):
        yield name, one() if isinstance(one, weakref.ref) else one


def _held(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, engine.Engine):
        yield "update", thing._process_function
        for entries in thing._event_handlers.values():
            yield from (
                (path, part) for function, args, kwargs in entries for part in (function, args, kwargs)
            )
    elif isinstance(thing, types.MethodType):
        yield path, thing.__self__
        yield path, thing.__func__
    elif isinstance(thing, functools.partial):
        yield path, (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, types.FunctionType):
        yield from variables_of(thing)
        if not is_library(thing.__code__.co_filename):
            yield from globals_of(thing)
    elif isinstance(thing, list | tuple):
        yield from ((path, item) for item in thing[:_MOST_ITEMS])
    elif isinstance(thing, dict):
        yield from ((str(key), item) for key, item in list(thing.items())[:_MOST_ITEMS])
    elif isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
        yield "optimizer", thing.optimizer
    elif _is_ignites(thing) or (is_user_type(type(thing)) and not _has_state_dict(thing)):
        yield from attributes_of(thing).items()

"""The parts that adapters share: a run's batches for a library's loop, the run, the program's callbacks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from samebits._inspect.user_code import is_user_type
from samebits.errors import IncompleteStateError
from samebits.train import Run, Step


def library_modules(adapter: str, packages: str, *names: str) -> list[Any]:
    """Imports modules of an adapter's library. Raises `ImportError` with the line that installs it."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        extra = adapter.replace("_", "-")
        raise ImportError(
            f"samebits.integrations.{adapter} needs {packages}: pip install 'samebits[{extra}]'"
        ) from error


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
        return self.loader.dataset

    @property
    def batch_size(self) -> Any:
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

    def __init__(self, run_dir: Any, options: Mapping[str, Any], cures: str) -> None:
        """`cures` says how the user has a path ignored, and what else helps."""
        self.run_dir, self.options, self._cures = run_dir, dict(options), cures
        self.run: Run | None = None

    def enter(self, objects: Mapping[str, Any], ignore: Iterable[str] = ()) -> Run:
        chosen: dict[str, Any] = {**self.options, "ignore": [*self.options.get("ignore", ()), *ignore]}
        self.run = Run(self.run_dir, **chosen, **objects).__enter__()
        self.run.parts.resuming.cure_of_missing = "Give the library all callbacks that it had then"
        self.run.parts.cures = f"Here there is no run.state, and Run(ignore=[...]) is {self._cures}."
        return self.run

    def leave(self, error: BaseException | None = None) -> None:
        """Closes it, if it is open; with an error, nothing more is committed."""
        run, self.run = self.run, None
        if run is not None:
            if isinstance(error, IncompleteStateError):
                error.add_note(run.parts.cures)
            run.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)


def program_callbacks(
    callbacks: Iterable[Any],
    save: Callable[[Any], dict[str, Any]] | None = None,
    load: Callable[[Any, dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Returns the callbacks of the program that have attributes, by the names that messages give them.

    Given to a run, they are looked into by the check for forgotten state. One without `load_state_dict` is
    returned as an object with the same attributes, and with `save` and `load` as its methods.
    """
    named: dict[str, Any] = {}
    for callback in callbacks:
        kind = type(callback)
        if not is_user_type(kind) or not getattr(callback, "__dict__", None):
            continue
        given = callback
        if not hasattr(kind, "load_state_dict"):
            methods = {"state_dict": save, "load_state_dict": load}
            names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
            given = object.__new__(type(kind.__name__, (kind,), {**methods, **names}))
            given.__dict__ = callback.__dict__  # the very same attributes
        name = f"callback_{kind.__name__}"
        named[name if name not in named else f"{name}_{len(named)}"] = given
    return named

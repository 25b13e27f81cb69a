"""The program around a loop of a run: the functions that it may call, and the questions about its values."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from samebits._inspect.words import words
from samebits._program import assigned_attributes
from samebits._program.functions import NameUse, UserFunctions, methods
from samebits._program.loop_frames import LoopFrames
from samebits._program.made_once import DataDependence
from samebits._program.output_only import OutputFlow
from samebits._program.written_first import ReadBeforeWrite

_FETCHES = words("__getitem__ __getitems__ __iter__ __next__ __call__ __len__ set_epoch")
_KEPT = 8
"""Searches that are kept: more code than before makes the old ones useless."""
T = TypeVar("T")


class Reached(Protocol):
    """The classes and names that a walk over the objects of a loop has met."""

    kinds: set[type]
    installed_kinds: set[type]
    callables: set[str]
    """Names that hold the user's callable objects (a model)."""
    fetching: set[type | types.CodeType]
    """Classes, and functions by their code, that the loader uses to fetch a batch."""
    samplers: set[type]
    steps: set[str]
    """Names that hold a step of `run.steps`."""


class Order(NamedTuple):
    """The order of reads and writes in a loop, and the use of names in it."""

    written_first: ReadBeforeWrite
    uses: NameUse


class Program(UserFunctions):
    """A program, with one search for each question; it is made once for as much code as is known.

    `LoopFrames` says what a loop carries. Of what changes between two iterations, `order` says what an
    iteration writes before it reads it, and which functions draw; `only_output` what only a print or a log
    gets; `made_once` what is made from constants alone. `driver`: the package whose loops call the functions.
    """

    def __init__(self, frames: LoopFrames, driver: str) -> None:
        super().__init__(frames.user[0], driver)  # not a progress bar around the loop
        self._searches: dict[Any, Any] = {}

    def only_output(self, committed: Collection[str]) -> OutputFlow:
        """Returns the search for values that flow only into output; `committed`: names in a commit."""
        names = frozenset(committed)
        return self._once(("only output", self.size, names), lambda: OutputFlow(self.codes, names))

    def made_once(self) -> DataDependence:
        """Returns the search for what values are made from."""
        return self._once(("made once", self.size), lambda: DataDependence(self.codes))

    def assigned_attributes(self, frames: LoopFrames) -> dict[str, Any]:
        """Returns attributes of modules and classes that user code assigns: the values by path."""
        return assigned_attributes.values(frames.user, self)

    def order(self, frames: LoopFrames, reached: Reached, *, installed: bool = False) -> Order:
        """Returns the order of reads and writes, and the use of names, of the loop.

        `installed`: with the methods of the installed packages' objects: for values of these alone, since
        functions are found by name, and a package's `reset` is not the user's.
        """
        for kind in reached.kinds:
            self.add_class(kind)
        kinds = frozenset(reached.installed_kinds) if installed else frozenset()
        made_from = (
            "order", self.size, installed, tuple(frames.fetching), tuple(frames.calling), kinds,
            *map(frozenset, (reached.callables, reached.fetching, reached.samplers, reached.steps)),
        )  # fmt: skip

        def make() -> Order:
            functions = self.with_classes(kinds)
            fetches = [] if installed else fetch_methods(reached.fetching)
            samplers = fetch_methods(reached.samplers)
            if not any("set_epoch" in code.co_names for code in functions.everywhere()):
                samplers = fetches  # a library calls it, before each epoch
            written_first = ReadBeforeWrite(
                functions,
                frames.fetching,
                frames.calling,
                reached.callables,
                fetches,
                reached.steps,
                samplers=samplers,
            )
            return Order(written_first, NameUse(functions, frames.fetching[-1][0]))

        return self._once(made_from, make)

    def _once(self, question: Any, make: Callable[[], T]) -> T:
        if question not in self._searches:
            while len(self._searches) >= _KEPT:
                self._searches.pop(next(iter(self._searches)))
            self._searches[question] = make()
        return self._searches[question]


def fetch_methods(fetching: Iterable[type | types.CodeType]) -> list[types.CodeType]:
    """Returns the functions that fetch a batch: of the classes that the loader uses for it their methods."""
    found = [one for one in fetching if isinstance(one, types.CodeType)]
    bases = (base for one in fetching if isinstance(one, type) for base in one.__mro__)
    return found + [code for base in bases for code in methods(base) if code.co_name in _FETCHES]

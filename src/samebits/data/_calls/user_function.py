"""Calls of a user's function, with random numbers made from the element's place in the epoch's stream."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from operator import itemgetter, length_hint
from typing import Any

import numpy as np
import torch

from samebits._arguments import can_be_called
from samebits._context import Words
from samebits._native import kernel
from samebits._objects.budget import Budget
from samebits._program import effects
from samebits.data._calls import process_generators
from samebits.data._calls.own_generators import OwnGenerators
from samebits.data._calls.remembered_draws import (
    DrawRememberedError,
    Memos,
    OrderDependentError,
    UnsetGeneratorError,
)
from samebits.errors import InvalidArgumentError, PipelineError
from samebits.random._cpu.philox import fold

Place = int | tuple[int, ...]
"""The place of an element: its ordinal, or its group's ordinal and its number in the group."""
Places = Sequence[Place] | np.ndarray
COMPARED = 4
"""Elements of a `DataLoader` that each process checks; a memo is nearly always filled by the first."""


class Function:
    """A user's function in a stage.

    A parameter named `key` gets a `samebits.random` key, one named `rng` a `numpy.random.Generator`; without
    either the process's torch, NumPy and Python generators are set for each call (see `process_generators`).
    All of it is a function of (stage's key, place), and of no worker, thread or order of calls.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        stage: str,
        *,
        stateful: bool | None = None,
        of: Any = None,
        is_known: bool = False,
    ) -> None:
        """`stateful`: True if a call leaves a change; None: reading and running it tell.

        `of`: the dataset of a loader. `is_known`: it is ours, and need not be checked.
        """
        if not callable(function):
            raise InvalidArgumentError(
                f"Pipeline.{stage}: takes a function, got {function!r:.80} ({type(function).__name__})"
            )
        self.call = function
        self.stage = stage
        self.draws = _parameter(function)
        self.stateful = stateful
        self._of = of
        self.budget = Budget()
        self._iterated = False
        self._left = 0 if is_known else COMPARED
        """Elements of this process that are still to be called with a check, in the first epoch."""
        self.noticed: list[effects.Finding] = []
        """Side effects that were seen while it ran."""

    @property
    def where(self) -> str:
        """The name of its caller, and its own."""
        if self._of is not None:
            return f"samebits.data.DataLoader: {type(self._of).__name__}"
        if self.stage == "DataLoader":
            return f"samebits.data.DataLoader: collate_fn ({self.name})"
        return f"Pipeline.{self.stage}({self.name})"

    @property
    def name(self) -> str:
        return getattr(self.call, "__qualname__", type(self.call).__name__)

    @cached_property
    def reading(self) -> effects.Reading:
        """The findings of reading its code."""
        return effects.read(self.call, self.budget)

    @cached_property
    def memos(self) -> Memos:
        """The memories where it may keep its draws, in this process."""
        return Memos(
            self.call, lambda: self.own, effects=self._all_findings, repeatable=not self.stateful,
            is_read=self.reading.complete, compares_effects=self.stage == "DataLoader"
        )  # fmt: skip

    @cached_property
    def own(self) -> OwnGenerators:
        """The generators that belong to objects which it reaches, in this process."""
        return OwnGenerators(self._roots)

    def _roots(self) -> list[list[tuple[str, Any]]]:
        root = (self.name, self.call) if self._of is None else ("dataset", self._of)
        return [[root], sorted(self.reading.state.items(), key=itemgetter(0))]

    def begin_iteration(self) -> None:
        """Forgets the generators that were found: other objects may have taken their places."""
        vars(self).pop("own", None)
        self._left, self._iterated = 0 if self._iterated else self._left, True
        if self.stage == "DataLoader" and not self.noticed:
            found = self.reading.findings.values()
            self.noticed += [one for one in found if one.kind == "iterator advanced"]

    def forget_findings(self) -> None:
        """Forgets what was read: the program has changed something that it reaches."""
        for name in ("reading", "memos", "own"):
            vars(self).pop(name, None)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without findings: these refer to all that the function refers to."""
        return {name: value for name, value in vars(self).items() if name not in ("reading", "memos", "own")}

    @property
    def effects(self) -> list[effects.Finding]:
        """The lasting side effects of a call, as declared, read or noticed."""
        if self.stateful is not None:
            return [effects.Finding(self.name, "declared with stateful=True", 0)] if self.stateful else []
        return self._all_findings

    @property
    def _all_findings(self) -> list[effects.Finding]:
        return [*self.reading.findings.values(), *self.noticed]

    def call_each(self, key: Words, places: Places, elements: list[Any]) -> list[Any]:
        results: list[Any] = []
        reading: Iterator[Any] | None = None
        try:
            has_own = self.own.enter()
            if self.draws is not None:
                rows = key_words(key, places)
                own = self.own.set_each(rows) if has_own else repeat(None)
                if self.draws == "rng":
                    call_with_generators(self.call, elements, rows, results, own)
                else:
                    keys = torch.from_numpy(rows).unbind(0)  # 0.5 us each; made one at a time, each costs 2.6
                    for each, element, _ in zip(keys, elements, own, strict=False):
                        results.append(self.call(element, key=each))
            elif has_own or process_generators.is_filling():
                rows = key_words(key, places)
                filled = process_generators.fill_each(self.own if has_own else None, rows)
                for each, element, _ in zip(rows.tolist(), elements, filled, strict=False):
                    results.append(self.memos.call(element, (each[0], each[1])))
            else:
                call, reading = self.call, iter(elements)
                return [call(element) for element in reading]
        except (DrawRememberedError, UnsetGeneratorError) as error:
            done = len(results)
            raise self.memo_error(error, places[done], elements[done]) from None
        except Exception as error:
            done = len(results) if reading is None else len(elements) - length_hint(reading) - 1
            raise self._error(places[done], error, elements[done]) from error
        return results

    def is_to_check(self) -> bool:
        """Returns True for the first elements or batches, of a function that may draw or leaves something."""
        if self._left <= 0:
            return False
        is_filled = process_generators.is_filling() and self.reading.may_draw is not None
        return bool(is_filled or self.own.enter() or self.reading.findings)

    def call_checked(self, element: Any, place: Place, key: Words) -> Any:
        """Returns the result for one of the first elements; it may be called twice with the same generators.

        One that counts its calls is noted as such. Raises PipelineError if the results differ, or the second
        call drew differently.
        """
        self._left -= 1
        try:
            return self.memos.call(element, key)
        except OrderDependentError as error:
            self.noticed += self.reading.findings.values()
            return error.args[0]
        except (DrawRememberedError, UnsetGeneratorError) as error:
            raise self.memo_error(error, place, element) from None

    def memo_error(
        self, error: DrawRememberedError | UnsetGeneratorError, place: Place, element: Any
    ) -> PipelineError:
        """Returns the error for a function that remembers draws, or that draws from what cannot be set."""
        called = "batch" if self.stage == "DataLoader" and self._of is None else "element"
        which = place if called == "batch" else f"{element!r:.40}"
        if isinstance(error, DrawRememberedError):
            where = " and in ".join(error.args[0]) or "something that was not found"
            return PipelineError(
                f"{self.where}: {called} {place} drew from the process's generators, and the draw is "
                f"remembered in {where}: called for this element again, with the same generators, it drew "
                f"differently. {process_generators.CURE}"
            )
        return PipelineError(
            f"{self.where}: two calls for {called} {which} with the same random generators gave "
            "different arrays, so other workers, or a resume, would give different batches. It draws from a "
            "generator that cannot be set (in C++ code, of the system, behind an object without attributes), "
            "or counts its calls. Draw from torch's, NumPy's or Python's generators, or seed its generator "
            "at the beginning of each call: seed=int(torch.randint(2**31, ()))"
        )

    def call_with_key(self, place: Place, element: Any, key: torch.Tensor) -> Any:
        try:
            return self.call(element, key=key)
        except Exception as error:
            raise self._error(place, error, element) from error

    def _error(self, place: Place, error: Exception, element: Any) -> PipelineError:
        takes_one = can_be_called(self.call, None, **({self.draws: None} if self.draws else {}))
        whole = isinstance(error, TypeError) and isinstance(element, tuple) and not takes_one
        cure = f". The element is one tuple of {len(element)}: take it as one parameter" if whole else ""
        return PipelineError(
            f"Pipeline.{self.stage}({self.name}): element {place} raised {type(error).__name__}: "
            f"{error}{cure}"
        )


def _parameter(function: Callable[..., Any]) -> str | None:
    """Returns the `key` or `rng` that the function takes as a parameter besides the element; else None."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [parameter.name for parameter in parameters[1:] if parameter.kind in named]
    return next((name for name in ("key", "rng") if name in names), None)


def key_words(key: Words, places: Places) -> np.ndarray:
    """Returns `int_keys.fold(key, *place)` of every place: uint64, of shape (places, 2)."""
    paths = np.ascontiguousarray(places, np.int64).reshape(len(places), -1)
    rows = np.empty((len(places), 2), np.uint64)
    _fold_paths(*key, paths, rows)
    return rows


@kernel("void(uint64, uint64, int64[:, ::1], uint64[:, ::1])")
def _fold_paths(seed: Any, offset: Any, paths: Any, rows: Any) -> None:
    for row in range(paths.shape[0]):
        own_seed, own_offset = seed, offset
        for part in range(paths.shape[1]):
            own_seed, own_offset = fold(own_seed, own_offset, np.uint64(paths[row, part]))
        rows[row, 0] = own_seed
        rows[row, 1] = own_offset


def generator_states(rows: np.ndarray) -> np.ndarray:
    """Returns the state of a `numpy.random.SFC64` for every key, uint64 of shape (keys, 4); no two are equal.

    The key's words and 0 are its three words of seed, followed by 12 rounds, as NumPy seeds it (Chris
    Doty-Humphrey, PractRand). It draws 1.3 times as fast as Philox and 1.1 times as fast as PCG64.
    """
    states = np.empty((len(rows), 4), np.uint64)
    _seed_sfc64(rows, states)
    return states


@kernel("void(uint64[:, ::1], uint64[:, ::1])")
def _seed_sfc64(rows: Any, states: Any) -> None:
    for row in range(rows.shape[0]):
        a, b, c = rows[row, 0], rows[row, 1], np.uint64(0)
        for counter in range(1, 13):
            following = a + b + np.uint64(counter)
            a = b ^ (b >> np.uint64(11))
            b = c + (c << np.uint64(3))
            c = ((c << np.uint64(24)) | (c >> np.uint64(40))) + following
        states[row, 0], states[row, 1], states[row, 2], states[row, 3] = a, b, c, np.uint64(13)


_spare = threading.local()
"""An unused generator, one for each thread: to set one costs 0.6 us, to make one 8."""


def call_with_generators(
    call: Callable[..., Any],
    elements: Sequence[Any],
    rows: np.ndarray,
    results: list[Any],
    before: Iterable[None],
) -> None:
    """Appends `call(element, rng=...)` of every element: its generator is an SFC64, seeded by the row's key.

    `before` is advanced before each call. The generator is one object, set anew for each call; one that the
    user has kept is left alone, and replaced.
    """
    generator = getattr(_spare, "generator", None)
    _spare.generator = None  # a call within a call makes its own
    inner: dict[str, Any] = {}
    state = {"bit_generator": "SFC64", "state": inner, "has_uint32": 0, "uinteger": 0}
    for element, words, _ in zip(elements, generator_states(rows), before, strict=False):
        if generator is None:
            generator = np.random.Generator(np.random.SFC64(0))
        inner["state"] = words
        generator.bit_generator.state = state
        results.append(call(element, rng=generator))
        if _references(generator) != _UNKEPT_REFERENCES:
            generator = None
    _spare.generator = generator


def _references(generator: np.random.Generator) -> tuple[int, int]:
    """Returns the reference counts of it and of its bits: compared, as they depend on the Python version."""
    return sys.getrefcount(generator), sys.getrefcount(generator.bit_generator)


def _unkept_references() -> tuple[int, int]:
    generator = np.random.Generator(np.random.SFC64(0))
    return _references(generator)


_UNKEPT_REFERENCES = _unkept_references()

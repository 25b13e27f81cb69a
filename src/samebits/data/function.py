"""Calls of a user's function: with random numbers of their own, made from the element's place in the epoch's stream."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from samebits.context import Words
from samebits.data import scope
from samebits.errors import InvalidArgumentError, PipelineError
from samebits.random import words

Place = int | tuple[int, ...]
"""Where an element is: its ordinal, or its group's ordinal and its number therein."""


class Function:
    """A user's function in a stage.

    A parameter named `key` gets a `samebits.random` key, one named `rng` a `numpy.random.Generator`; without either
    the process's torch, NumPy and Python generators are set for each call (see `scope`). All of it is a function of
    (stage's key, place): of no worker, no thread, no order of calls.
    """

    def __init__(self, function: Callable[..., Any], stage: str) -> None:
        if not callable(function):
            raise InvalidArgumentError(
                f"Pipeline.{stage}: takes a function, got {function!r:.80} ({type(function).__name__})"
            )
        self.call = function
        self.stage = stage
        self.draws = _parameter(function)

    @property
    def name(self) -> str:
        """As it is called in messages."""
        return getattr(self.call, "__qualname__", type(self.call).__name__)

    def over(self, key: Words, places: Iterable[Place], elements: Sequence[Any]) -> list[Any]:
        """The results for elements at these places, in their order."""
        if self.draws is None and not scope.filling():
            call = self.call
            results: list[Any] = []
            try:
                for element in elements:  # a list's `append` costs less than what a try per element would
                    results.append(call(element))  # noqa: PERF401
            except Exception as error:
                raise self._error(list(places)[len(results)], error) from error
            return results
        return [self._one(key, place, element) for place, element in zip(places, elements, strict=True)]

    def _one(self, key: Words, place: Place, element: Any) -> Any:
        own = words.fold(key, *place) if isinstance(place, tuple) else words.fold(key, int(place))
        if self.draws == "key":
            return self.with_key(place, element, words.to_tensor(own))
        try:
            if self.draws == "rng":
                return self.call(element, rng=numpy_generator(own))
            scope.fill(own)
            return self.call(element)
        except Exception as error:
            raise self._error(place, error) from error

    def with_key(self, place: Place, element: Any, key: torch.Tensor) -> Any:
        """The result for one element with this key."""
        try:
            return self.call(element, key=key)
        except Exception as error:
            raise self._error(place, error) from error

    def _error(self, place: Place, error: Exception) -> PipelineError:
        return PipelineError(
            f"Pipeline.{self.stage}({self.name}): element {place} raised {type(error).__name__}: {error}"
        )


def numpy_generator(key: Words) -> np.random.Generator:
    """A NumPy generator of its own for a key: Philox with the key's 128 bits as cipher key."""
    return np.random.Generator(np.random.Philox(key=key[0] | key[1] << 64))


def key_rows(key: Words, places: Iterable[Place]) -> torch.Tensor:
    """One key per row, of shape (rows, 2): what `_one` would give each element alone."""
    rows = [
        words.fold(key, *place) if isinstance(place, tuple) else words.fold(key, int(place))
        for place in places
    ]
    return torch.tensor(rows, dtype=torch.uint64).view(-1, 2)


def _parameter(function: Callable[..., Any]) -> str | None:
    """`key` or `rng` if the function takes, besides the element, a parameter of that name."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = [parameter.name for parameter in parameters[1:] if parameter.kind in named]
    return next((name for name in ("key", "rng") if name in names), None)

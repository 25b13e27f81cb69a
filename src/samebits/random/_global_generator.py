"""The global generator: one `Generator` for code that gets none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from samebits._context import Position, Words, process
from samebits._objects import rng_states
from samebits._unseeded import no_seed
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random._generator import Generator
from samebits.random._process import draw_counts, seeds

_STREAM = int_keys.as_uint64("samebits.random.global_generator")


class OfTheProcess(Generator):
    """The global generator, where `set_global_generator` was not called.

    In each step of a `Run` it draws from a key of the step, as the process's generators of torch, NumPy and
    Python do: a resumed run has not made the draws of earlier steps. Outside of steps it continues where it
    was.
    """

    def __init__(self, key: torch.Tensor, *, device: torch.device | str | None = None) -> None:
        super().__init__(key, device=device)
        self._position: Position | None = None
        self._outside = self._words, 0

    def position_state(self) -> tuple[Any, ...]:
        """Returns its position, for `restore_position`."""
        return self._position, self._outside, self._words, self._draws

    def restore_position(self, where: tuple[Any, ...]) -> None:
        """Continues from a position."""
        self._position, self._outside, key, draws = where
        self._set(key, draws, self.device)

    def _find(self) -> Words:
        here = process.position
        if here is not self._position and here != self._position:  # a copy's is equal, and not the same
            if self._position is None:
                self._outside = self._words, self._draws
            self._position = here
            self._set(*(self._outside if here is None else (_step_key(here), 0)), self.device)
        return self._words


def _step_key(position: Position) -> Words:
    return int_keys.fold(
        process.run_key or (0, 0), _STREAM, position.loop, position.step, *position.inside, *process.rank_key
    )


def get_global_generator() -> Generator:
    """Returns the generator of `set_global_generator`; without one, a generator of the process's seed.

    That seed is `set_random_seed`'s, else the one given to `torch.manual_seed`; its generator follows the
    steps of a `Run`: its draws depend on the step, not on the draws of earlier ones. Without any seed it is
    non-deterministic. `set_random_seed` drops the generator, so that the next call makes a new one. Raises
    `UnseededError` under op determinism when there is neither a generator nor a seed.

    Example:
        >>> samebits.set_random_seed(7)
        >>> samebits.random.get_global_generator().randint(5, high=100)
        tensor([ 1, 20, 36, 51, 88])
        >>> samebits.set_random_seed(7)
        >>> samebits.random.get_global_generator().randint(5, high=100)
        tensor([ 1, 20, 36, 51, 88])
        >>> samebits.set_random_seed(7)  # forgets the generator
    """
    if process.generator is None:
        process.generator = _make_generator()
    return process.generator


def set_global_generator(generator: Generator) -> None:
    """Makes `generator` the one that `get_global_generator` returns, until `set_random_seed` is called.

    Its state is yours: give it to the `Run`, by itself or inside a model, for a resumed run to continue with
    it. Raises `InvalidArgumentError` for anything but a `Generator`.

    Example:
        >>> mine = samebits.random.Generator.from_seed(7)
        >>> samebits.random.set_global_generator(mine)
        >>> samebits.random.get_global_generator() is mine
        True
        >>> samebits.set_random_seed(1)
        >>> samebits.random.get_global_generator() is mine
        False
        >>> samebits.set_random_seed(1)
    """
    if not isinstance(generator, Generator):
        raise InvalidArgumentError(
            f"set_global_generator takes a samebits.random.Generator, got {generator!r} "
            f"({type(generator).__name__}); for example Generator.from_seed(1)"
        )
    process.generator = generator


def _make_generator() -> Generator:
    seed = seeds.root_seed()
    if seed is not None:
        return OfTheProcess(
            int_keys.to_tensor(int_keys.fold(int_keys.root(seed), _STREAM), "cpu"),
            device=torch.get_default_device(),
        )
    if process.op_determinism:
        raise no_seed(
            "get_global_generator() makes a generator under op determinism",
            instead="set_global_generator(Generator.from_seed(seed))",
        )
    return Generator.from_non_deterministic_state()


# Preserves a step's draws while other code runs inside the step, such as a validation.


def preserve_rng_state() -> Callable[[], None]:
    """Saves the states of the process's generators and the count of draws; the result restores them."""
    states, counted = rng_states.of_process(), draw_counts.snapshot()
    own = process.generator
    here = own.position_state() if isinstance(own, OfTheProcess) else None

    def restore() -> None:
        states.restore()
        draw_counts.restore(counted)
        if here is not None and process.generator is own:
            own.restore_position(here)

    return restore

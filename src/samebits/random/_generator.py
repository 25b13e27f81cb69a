"""`Generator`: an object that counts its draws, for code where passing keys is not worth the effort.

Modelled on `tf.random.Generator`. Draw number n is a function of `fold_in(generator.key, n)`, so the state is
a key and a small integer, and it is saved, moved and copied with the module that holds the generator.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from samebits._context import Words, process
from samebits._objects.rng_states import HasRngState
from samebits._unseeded import from_entropy
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.random import _int_keys as int_keys
from samebits.random import _keys as keys
from samebits.random._cpu import philox
from samebits.random._draws import choices, exponential_gumbel, integers, uniform_normal
from samebits.random._draws.dropout_function import dropout

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_SPLIT = int_keys.as_uint64("split")


def _method(
    function: Callable[Concatenate[torch.Tensor, _Arguments], _Result],
) -> Callable[Concatenate[Generator, _Arguments], _Result]:
    """Turns the function into a method that uses the generator's next key; a call that raises uses none."""

    def eager(self: Generator, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        result = function(self._next_key(), *args, **kwargs)
        self._advance()
        return result

    # A graph would keep one count, or be compiled for each. (torch.compiler.disable imports Dynamo: 2.5 s.)
    outside = torch._disable_dynamo(eager)

    @functools.wraps(function)
    def draw(self: Generator, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        call = outside if torch.compiler.is_dynamo_compiling() else eager
        return call(self, *args, **kwargs)

    signature = inspect.signature(function)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [own, *list(signature.parameters.values())[1:]]
    draw.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return draw


class Generator(torch.nn.Module, HasRngState):
    """Draws one after another, each from a separate key: `fold_in(key, draws)`, then `draws` goes up by one.

    A module, so that `self.noise = Generator.from_seed(1)` puts `noise.key` (uint64, (2,)) and `noise.draws`
    (int64, ()) into the state_dict of the module that holds it. It is copied and pickled with that module,
    and moved by `.to(device)`, which leaves the stream as it is. A copy draws the same numbers as its
    original; independent ones come from `split`.

    Do not draw from the key of a generator, nor from `key(seed)` beside `from_seed(seed)`: draws are folded
    into it. One generator belongs to one thread: two that draw at the same time may get the same number. In a
    dataset the number of draws depends on the workers: use the process-wide generators there, or fold the
    index into a key.

    Example:
        >>> generator = samebits.random.Generator.from_seed(7)
        >>> generator.randint(5, high=100), generator.randint(5, high=100)
        (tensor([ 5, 84, 55, 51, 32]), tensor([95, 62, 39, 24, 66]))
        >>> generator
        Generator(key=(7, 0), draws=2, device='cpu')
        >>> generator.reset_from_seed(7)
        >>> generator.randint(5, high=100)
        tensor([ 5, 84, 55, 51, 32])
    """

    # The state is on the host and not in buffers: DistributedDataParallel would overwrite every rank's with
    # that of rank 0 (gloo refuses uint64), and to read a count back from CUDA is to wait for all that is
    # queued.

    def __init__(self, key: torch.Tensor, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        self._set(int_keys.from_tensor(key), 0, key.device if device is None else device)

    @classmethod
    def from_seed(cls, seed: int, *, device: torch.device | str | None = None) -> Generator:
        """Returns the generator of `key(seed)`. Raises `InvalidArgumentError` unless 0 <= seed < 2**64."""
        return cls._on(_check_seed("Generator.from_seed", seed), device)

    @classmethod
    def from_key(cls, key: torch.Tensor) -> Generator:
        """Returns the generator of a key, on its device. Raises `InvalidArgumentError` for another tensor."""
        return cls(key)

    @classmethod
    def from_non_deterministic_state(cls, *, device: torch.device | str | None = None) -> Generator:
        """Returns a generator of 128 bits of the system. Raises `UnseededError` under op determinism."""
        if process.op_determinism:
            raise from_entropy(
                "Generator.from_non_deterministic_state() seeds from the operating system; op determinism is "
                "on",
                "Generator.from_seed(seed)",
            )
        seed, offset = np.frombuffer(os.urandom(16), np.uint64).tolist()
        return cls._on((seed, offset), device)

    @classmethod
    def _on(cls, key: Words, device: torch.device | str | None) -> Generator:
        return cls(
            int_keys.to_tensor(key, "cpu"), device=torch.get_default_device() if device is None else device
        )

    @property
    def key(self) -> torch.Tensor:
        """The key that draws are folded into: uint64 of shape (2,), on the generator's device; a copy."""
        self._find()
        return self._key.clone()

    @property
    def draws(self) -> int:
        """The number of draws (and splits) so far."""
        self._find()
        return self._draws

    @property
    def device(self) -> torch.device:
        """The device where draws are made."""
        return self._key.device

    def reset_from_seed(self, seed: int) -> None:
        """Starts again as `from_seed(seed)`, on the same device."""
        self._find()
        self._set(_check_seed("Generator.reset_from_seed", seed), 0, self.device)

    def reset_from_key(self, key: torch.Tensor) -> None:
        """Starts again as `from_key(key)`, on the device where the generator is."""
        self._find()
        self._set(int_keys.from_tensor(key), 0, self.device)

    def split(self, count: int) -> list[Generator]:
        """Returns `count` generators, independent of each other and of this one's draws and other splits.

        Counts as one draw. Raises `InvalidArgumentError` unless `count` is a positive int.
        """
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count <= 0:
            raise InvalidArgumentError(f"Generator.split takes a positive int, got {count!r}")
        parent = int_keys.fold(self._find(), _SPLIT, self._draws)
        children = [Generator._on(int_keys.fold(parent, number), self.device) for number in range(count)]
        self._advance()
        return children

    bits = _method(uniform_normal.bits)
    uniform = _method(uniform_normal.uniform)
    uniform_ = _method(uniform_normal.uniform_)
    normal = _method(uniform_normal.normal)
    normal_ = _method(uniform_normal.normal_)
    bernoulli = _method(uniform_normal.bernoulli)
    bernoulli_ = _method(uniform_normal.bernoulli_)
    dropout = _method(dropout)
    truncated_normal = _method(exponential_gumbel.truncated_normal)
    exponential = _method(exponential_gumbel.exponential)
    gumbel = _method(exponential_gumbel.gumbel)
    randint = _method(integers.randint)
    permutation = _method(integers.permutation)
    choice = _method(choices.choice)
    categorical = _method(choices.categorical)

    def extra_repr(self) -> str:
        """Returns the text that `print` shows for a generator inside a model."""
        return f"key={self._find()}, draws={self._draws}, device={str(self.device)!r}"

    def _set(self, key: Words, draws: int, device: torch.device | str) -> None:
        self._words, self._draws = key, draws
        self._key = int_keys.to_tensor(key, device)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_key": self.device}  # torch 2.13 cannot unpickle a uint64 tensor

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._set(self._words, self._draws, state["_key"])

    def _rng_state(self) -> tuple[Words, int]:
        return vars(self)["_words"], vars(self)["_draws"]

    def _find(self) -> Words:
        """Returns the current key; all reads and changes of the state call it first."""
        return self._words

    def _next_key(self) -> torch.Tensor:
        """Returns the key of the next draw."""
        _check_not_repeated()
        own = self._find()
        if self._key.is_cpu:
            return torch.from_numpy(np.array(philox.fold(*own, self._draws), np.uint64))
        return keys.fold_in(self._key, self._draws)

    def _advance(self) -> None:
        object.__setattr__(self, "_draws", self._draws + 1)  # torch.nn.Module's takes a microsecond

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Generator:
        """Follows a move to another device. The key is made anew: `to_empty` would leave it unwritten."""
        super()._apply(fn, recurse)
        self._key = int_keys.to_tensor(self._words, fn(self._key).device)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}key"] = int_keys.to_tensor(self._find(), "cpu")
        destination[f"{prefix}draws"] = torch.tensor(self._draws, dtype=torch.int64, device="cpu")

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = [f"{prefix}key", f"{prefix}draws"]
        rest = {name: value for name, value in state_dict.items() if name not in own}
        super()._load_from_state_dict(
            rest, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        missing = [name for name in own if name not in state_dict]
        missing_keys.extend(missing)
        if missing:
            return
        key, draws = (state_dict[name] for name in own)
        try:
            self._find()
            self._set(int_keys.from_tensor(key), _checked_draws(draws), self.device)
        except InvalidArgumentError as error:
            error_msgs.append(f"{prefix.rstrip('.') or 'Generator'}: {error}")


def _check_not_repeated() -> None:
    if torch._C._current_graph_task_id() != -1:
        raise UnimplementedError(
            "samebits.random.Generator: a draw inside backward. Activation checkpointing repeats a forward "
            "there, and the generator has counted on since, so that it would draw different numbers: give "
            "the forward a key (samebits.random.normal(key, ...)), or use a samebits.nn layer."
        )
    if torch._C._is_tracing() or get_proxy_mode() is not None:
        raise UnimplementedError(
            "samebits.random.Generator: a draw while torch.export, make_fx or torch.jit.trace records its "
            "caller: the graph would repeat one number forever. Use torch.compile, which breaks the graph "
            "for it."
        )
    if torch._C._are_functorch_transforms_active():
        raise UnimplementedError(
            "samebits.random.Generator: a draw inside torch.vmap or another transform of torch.func: all "
            "samples would get the same numbers. Give each sample a key: vmap(lambda x, key: x + "
            "samebits.random.normal(key, 2))(batch, keys)."
        )


def _check_seed(caller: str, seed: int) -> Words:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
        raise InvalidArgumentError(f"{caller} takes an int with 0 <= seed < 2**64, got {seed!r}")
    return int_keys.root(int(seed))


def _checked_draws(draws: Any) -> int:
    if (
        not isinstance(draws, torch.Tensor)
        or draws.dtype is not torch.int64
        or draws.shape != ()
        or draws < 0
    ):
        raise InvalidArgumentError(
            f"draws must be an int64 tensor of shape () that is not negative, got {draws!r}"
        )
    return int(draws)

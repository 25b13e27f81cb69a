"""What the layers that own their randomness share: where the key of a call comes from.

A layer asks for one key per call, and draws from it; what it draws then depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from samebits import random
from samebits._context import Words, process
from samebits.errors import DuplicateNameError, InvalidArgumentError, UnseededError
from samebits.nn import _activation_checkpointing as activation_checkpointing
from samebits.nn._tracing import check_traceable, mapped, untraced
from samebits.random import _int_keys as int_keys
from samebits.random._process import seeds

_LAYER = int_keys.as_uint64("samebits.nn")
_STEP = int_keys.as_uint64("samebits.nn.set_step")
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_DRAWN = int_keys.as_uint64("samebits.nn.drawn")
_UNKNOWN = (
    "samebits.nn.{0} in a run that does not know it: give its model to Run(model=model), so that the layer is keyed by "
    "its path, or name it: {0}(..., name='head')."
)
_COPIED = (
    "samebits.nn.{0} is a copy of a layer that set_step or own_randomness gave a key to, and would draw the same masks. "
    "Say set_step(model, step), or own_randomness(model, key=...) with another key, to the model that holds the copy."
)


@dataclass(eq=False)
class LayerCalls:
    """The calls of one layer in one place (a step of a run, or since it was told a key), and the key of that place."""

    key: Words
    place: object
    number: int = 0

    def next(self) -> Words:
        """The key of the next call, counted from 1."""
        self.number += 1
        return int_keys.fold(self.key, self.number)

    def here(self) -> Words:
        """The key under which a count from 1 continues this one: what is folded in is added to the offset."""
        seed, offset = self.key
        return seed, (offset + self.number) % 2**64


@dataclass(eq=False)
class CompiledCalls(LayerCalls):
    """The calls of one layer in one forward of a compiled model, counted under the key that it was handed."""

    tensor: torch.Tensor = field(kw_only=True)
    taken_from: LayerCalls = field(kw_only=True)

    def next_tensor(self) -> torch.Tensor:
        """`next`, for a graph: the key is an input, the number of the call a constant."""
        self.number += 1
        return random.fold_in(self.tensor, self.number)


class OwnsRandomness(torch.nn.Module):
    """Mixin of every layer in `samebits.nn` that draws: a call's key is a function of where the call is.

    | where | key of a call |
    |---|---|
    | in the loop of a `samebits.Run` that has the model | (run's key, path in the run, step, call within the step) |
    | else, after `set_step(model, step)` | (seed, path in the model, step, call within the step) |
    | else, after `own_randomness(model, key=key)` | (key, path in the model, calls since then) |
    | else | drawn from torch's default generator, as torch's own layers do |

    "Path" is the layer's `name` where it has one. Of `set_step` and `own_randomness(key=...)` the later one counts.
    In the first two rows the masks of a resumed program are those of the uninterrupted one. In the third nobody else's
    draws matter, but the count of calls is in no state_dict: a resumed program needs one of the first two, or torch's
    RNG state in the fourth.

    Under torch.compile a key that is asked for breaks the graph; `samebits.nn.compiled` makes it an input.
    Activation checkpointing (both kinds, nested too) repeats a call with its own key; `samebits.nn._activation_checkpointing` says how.

    Args:
        name: what keys the layer instead of its path; no two layers of a model may have the same.
    """

    _given_name: str | None = None
    _run_path: tuple[int, str] | None = None
    _running: LayerCalls | None = None
    _told: LayerCalls | None = None
    _handed: CompiledCalls | None = None

    def __init__(self, *args: Any, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._given_name = name

    @property
    def layer_name(self) -> str | None:
        """The user's `name`, else the path in the `Run` that the layer (not: the layer that it is a copy of) was given to."""
        if self._given_name is not None or self._run_path is None:
            return self._given_name
        owner, path = self._run_path
        return path if owner == id(self) else None

    def extra_repr(self) -> str:
        """As torch's, and the name."""
        own = [] if self.layer_name is None else [f"name={self.layer_name!r}"]
        return ", ".join([part for part in (super().extra_repr(),) if part] + own)

    def next_key(self, device: torch.device) -> torch.Tensor:
        """The key of this call, uint64 of shape (2,), on `device` (on the CPU unless that is a CUDA device).

        Raises:
            InvalidArgumentError: the layer is called in the loop of a run that does not know it.
            UnimplementedError: a call that cannot be told is repeated inside backward, or the call is being traced.
        """
        return self.next_keys(device, 1)[0]

    def next_keys(self, device: torch.device, number: int) -> list[torch.Tensor]:
        """Several keys of one call, for a layer that draws in several places; as `next_key`."""
        if torch.compiler.is_dynamo_compiling() and self._handed is not None and not mapped():
            call = self._handed.next_tensor().to(device if device.type == "cuda" else "cpu")
            return [random.fold_in(call, place) for place in range(number)]
        return untraced(self._keys, device, number)

    def hand_key(self) -> CompiledCalls | None:
        """For `compiled`: the next forward counts its calls under a key that is known now. None where there is none."""
        calls = None if self._handed else self._calls()
        if calls is None:
            return None
        if activation_checkpointing.in_backward():
            key = activation_checkpointing.recall(self)
        else:
            key = calls.here()
            if activation_checkpointing.possible():
                activation_checkpointing.remember(self, key)
        self._handed = CompiledCalls(key, calls.place, tensor=int_keys.to_tensor(key), taken_from=calls)
        return self._handed

    def take_back(self) -> None:
        """After that forward: goes on counting where it ended."""
        if self._handed is not None and not activation_checkpointing.in_backward():
            self._handed.taken_from.number += self._handed.number
        self._handed = None

    def _keys(self, device: torch.device, number: int) -> list[torch.Tensor]:
        call = self._next_words()
        on = device if device.type == "cuda" else None
        return [int_keys.to_tensor(int_keys.fold(call, place), on) for place in range(number)]

    def _next_words(self) -> Words:
        check_traceable(self)
        calls = self._calls()
        if calls is None:  # checkpointing restores the generator, and with it this key
            return int_keys.fold(int_keys.root(int(torch.randint(2**63 - 1, (1,)))), _DRAWN)
        if activation_checkpointing.in_backward():
            return activation_checkpointing.recall(self)
        key = calls.next()
        if activation_checkpointing.possible():
            activation_checkpointing.remember(self, key)
        return key

    def _calls(self) -> LayerCalls | None:
        if self._handed is not None:
            return self._handed
        position, run_key = process.position, process.run_key
        if position is None or run_key is None:
            if self._told is not None and self._told.place != id(self):
                raise InvalidArgumentError(_COPIED.format(type(self).__name__))
            return self._told
        if self._running is None or self._running.place is not position:
            name = self.layer_name
            if name is None:
                raise InvalidArgumentError(_UNKNOWN.format(type(self).__name__))
            self._running = LayerCalls(
                int_keys.fold(run_key, _LAYER, name, position.step, *position.inside, *process.rank_key),
                position,
            )
        return self._running


def plain_path(path: str) -> str:
    """The path without what torch's wrappers put into it: a compiled model draws the masks of the plain one."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def layers(module: torch.nn.Module) -> Iterator[tuple[str, OwnsRandomness]]:
    """Every layer of `module` that owns its randomness, once, with its (first) path."""
    for path, layer in module.named_modules():
        if isinstance(layer, OwnsRandomness):
            yield plain_path(path), layer


def set_step(module: torch.nn.Module, step: int, *, seed: int | None = None) -> None:
    """Tells the layers of `module` which step comes, so that a plain loop's masks are a function of (seed, path, step).

    Call it before each step, also after a resume. The loop of a `samebits.Run` says the step itself, and goes first.

    Args:
        module: the model; a layer is keyed by its path in it, so give the same one each time.
        step: number of the step in the whole training, as in a checkpoint.
        seed: of the masks; without it, that of `samebits.set_random_seed` (or what torch was seeded with).

    Raises:
        UnseededError: no seed is given, and nobody has set one.
        DuplicateNameError: two layers have the same name.
    """
    seed = seeds.root_seed() if seed is None else seed
    if seed is None:
        raise UnseededError(
            "samebits.nn.set_step: there is no seed. Call samebits.set_random_seed(seed) at the top of the program, or "
            "give set_step(module, step, seed=...)."
        )
    tell(module, int_keys.fold(int_keys.root(seed), _STEP), step)


def tell(module: torch.nn.Module, key: Words, *position: int) -> None:
    """Outside a run, the layers of `module` count their calls from here, under (key, name or path, position)."""
    found = list(layers(module))
    _check_names(found)
    for path, layer in found:
        name = path if layer._given_name is None else layer._given_name
        layer._told = LayerCalls(int_keys.fold(key, _LAYER, name, *position), id(layer))


def name_layers(module: torch.nn.Module, prefix: str) -> None:
    """For `Run`: gives every layer of `module` that has no name its path as name. A shared layer keeps its first.

    Raises `DuplicateNameError` when two layers have the same name, before anything is changed.
    """
    found = [(f"{prefix}.{path}" if path else prefix, layer) for path, layer in layers(module)]
    _check_names(found)
    for path, layer in found:
        if layer.layer_name is None:
            layer._run_path = id(layer), path
        layer._running = None


def set_aside(modules: Iterable[torch.nn.Module]) -> Callable[[], None]:
    """Notes how often the layers of `modules` were called in this step; what it returns makes them count on from there."""
    counted = [(layer, layer._running) for module in modules for _, layer in layers(module)]

    def put_back() -> None:
        for layer, calls in counted:
            layer._running = calls

    return put_back


def _check_names(found: list[tuple[str, OwnsRandomness]]) -> None:
    """No two layers may go by the same name; copies of a layer that was given one do."""
    holders: dict[str, str] = {path: path for path, layer in found if layer._given_name is None}
    for path, layer in found:
        name = layer._given_name
        if name is None:
            continue
        if name in holders:
            raise DuplicateNameError(
                f"the layers {holders[name]!r} and {path!r} both go by the name {name!r}, so that they would draw the "
                "same masks. Give each a name of its own, or none: a layer without a name is keyed by its path."
            )
        holders[name] = path

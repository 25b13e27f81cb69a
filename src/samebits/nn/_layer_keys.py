"""The keys of layers that own their randomness.

A layer takes one key per call and draws from it; its numbers depend on nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_all_functorch_interpreters
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from samebits import random
from samebits._context import Words, process
from samebits._unseeded import no_seed
from samebits.errors import DuplicateNameError, InvalidArgumentError, UnimplementedError
from samebits.random import _int_keys as int_keys
from samebits.random._process import seeds

# Activation checkpointing repeats a forward inside backward: a repeated call must get the key it had.
#
# A forward may be repeated under saved-tensor hooks or with gradients off (non-reentrant and reentrant
# checkpointing run it so). There a call draws 63 bits from torch's default generator that identify it, and
# its key is stored under them. Checkpointing restores that generator for the repetition, so that the same
# bits are drawn inside backward and find the key: for any number of calls of one layer, nested, and across
# steps. In all other forwards nothing is drawn, so that torch's generator does not depend on these layers.


_KEPT = 1 << 16
_keys: OrderedDict[tuple[int, int], Words] = OrderedDict()


def in_backward() -> bool:
    """Returns True inside backward: a layer called there repeats an earlier forward."""
    return torch._C._current_graph_task_id() != -1


def may_be_repeated() -> bool:
    return (
        not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    )


def remember(layer: torch.nn.Module, key: Words) -> None:
    """Stores the key of this call for its repetition; only the newest 65,536 are stored."""
    call = _identifier(layer)
    _keys.pop(call, None)
    _keys[call] = key
    while len(_keys) > _KEPT:
        _keys.popitem(last=False)


def recall(layer: torch.nn.Module) -> Words:
    """Returns the key of the call that is repeated; `UnimplementedError` if its bits are no forward's."""
    key = _keys.get(_identifier(layer))
    if key is None:
        raise UnimplementedError(
            f"samebits.nn.{type(layer).__name__} {getattr(layer, 'layer_name', None) or ''} is called inside "
            "backward, and torch's generator does not identify the forward that this repeats. Let activation "
            "checkpointing restore it: torch.utils.checkpoint.checkpoint(..., preserve_rng_state=True), the "
            "default; inside the checkpointed function do not seed torch, and do not turn on gradients or "
            "saved-tensor hooks in only one of the two calls."
        )
    return key


def _identifier(layer: torch.nn.Module) -> tuple[int, int]:
    return int(torch.randint(2**63 - 1, (1,))), id(layer)


# Layers that draw, under tracing: a mask must not become a constant of the graph.


P = ParamSpec("P")
R = TypeVar("R")


def call_untraced(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls `function`, which makes plain tensors; each call breaks the graph of code under torch.compile."""
    if torch.compiler.is_compiling():
        return _call_outside_graph(function, *args, **kwargs)
    if not torch._C._are_functorch_transforms_active():
        return function(*args, **kwargs)
    with torch._C._DisableFuncTorch():  # torch.func's transforms leave the tensors plain
        return function(*args, **kwargs)


@_disable_dynamo
def _call_outside_graph(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return function(*args, **kwargs)


def is_vmapped() -> bool:
    """Returns True under torch.vmap with different numbers per sample (`randomness` is not "same")."""
    return torch._C._functorch.peek_interpreter_stack() is not None and any(
        isinstance(level, VmapInterpreter) and level.randomness() != "same"
        for level in retrieve_all_functorch_interpreters()
    )


is_vmapped._dynamo_marked_constant = True  # type: ignore[attr-defined]  # evaluated while Dynamo traces


def check_traceable(layer: torch.nn.Module) -> None:
    """Raises `UnimplementedError` under make_fx, torch.export, torch.jit.trace and torch.vmap.

    With `randomness="same"` one mask for all samples is what torch.vmap expects.
    """
    if torch.jit.is_tracing() or get_proxy_mode() is not None:
        raise UnimplementedError(
            f"samebits.nn.{type(layer).__name__} is called while torch.export, make_fx or torch.jit.trace "
            "records its caller: the graph would repeat one mask forever. Trace in eval mode (model.eval()), "
            "or use torch.compile, which takes a new key at each call (samebits.nn.compiled: without a break "
            "of the graph)."
        )
    if is_vmapped():
        raise UnimplementedError(
            f"samebits.nn.{type(layer).__name__} under torch.vmap has one key for all samples. If they may "
            'share a mask, call torch.vmap(..., randomness="same"); else call the model on the whole batch, '
            "or in eval mode."
        )


_LAYER = int_keys.as_uint64("samebits.nn")
_STEP = int_keys.as_uint64("samebits.nn.set_step")
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"}
_DRAWN = int_keys.as_uint64("samebits.nn.drawn")
_UNKNOWN = (
    "samebits.nn.{0} in a run that does not know it: give its model to Run(model=model), so that the layer "
    "is keyed by its path, or name it: {0}(..., name='head')."
)
_COPIED = (
    "samebits.nn.{0} is a copy of a layer with a key from set_step or own_randomness, and would draw the "
    "same masks. Call set_step(model, step), or own_randomness(model, key=...) with another key, for the "
    "model that holds the copy."
)


@dataclass(eq=False)
class LayerCalls:
    """The calls of one layer in one place (a step of a run, or since its key was set), and their key."""

    key: Words
    place: object
    number: int = 0

    def next(self) -> Words:
        self.number += 1
        return int_keys.fold(self.key, self.number)

    def continuation_key(self) -> Words:
        """The key under which a count from 1 continues this one: what is folded in is added to the offset."""
        seed, offset = self.key
        return seed, (offset + self.number) % 2**64


@dataclass(eq=False)
class CompiledCalls(LayerCalls):
    """The calls of one layer in one forward of a compiled model, counted under its input key."""

    tensor: torch.Tensor = field(kw_only=True)
    taken_from: LayerCalls = field(kw_only=True)

    def next_tensor(self) -> torch.Tensor:
        """Returns `next`, for a graph: the key is an input, the number of the call a constant."""
        self.number += 1
        return random.fold_in(self.tensor, self.number)


class OwnsRandomness(torch.nn.Module):
    """Mixin of every layer in `samebits.nn` that draws: a call's key is a function of the call's position.

    | place | key of a call |
    |---|---|
    | in the loop of a `Run` that has the model | (run's key, path in the run, step, call within the step) |
    | else, after `set_step(model, step)` | (seed, path in the model, step, call within the step) |
    | else, after `own_randomness(model, key=key)` | (key, path in the model, calls since then) |
    | else | drawn from torch's default generator, as torch's layers do |

    "Path" is the layer's `name` where it has one. Of `set_step` and `own_randomness(key=...)` the later call
    counts. In the first two rows the masks of a resumed program are those of the uninterrupted one. In the
    third, other draws do not matter, but the count of calls is in no state_dict: a resumed program needs one
    of the first two, or torch's RNG state in the fourth.

    Under torch.compile a key of the forward breaks the graph; `samebits.nn.compiled` makes it an input.
    Activation checkpointing (both kinds, nested too) repeats a call with the same key.

    Args:
        name: keys the layer instead of its path; no two layers of a model may share it.

    Example:
        >>> class Jitter(samebits.nn.OwnsRandomness):
        ...     def forward(self, x):
        ...         return x + samebits.random.randint(self.next_key(x.device), *x.shape, high=10)
        >>> layer = Jitter()
        >>> samebits.nn.set_step(layer, 0, seed=1)
        >>> layer(torch.zeros(4)), layer(torch.zeros(4))  # each call has a key of its own
        (tensor([8., 6., 9., 7.]), tensor([4., 3., 2., 8.]))
    """

    _shown: tuple[str, ...] = ()
    _given_name: str | None = None
    _run_path: tuple[int, str] | None = None
    _step_calls: LayerCalls | None = None
    _keyed_calls: LayerCalls | None = None
    _compiled_calls: CompiledCalls | None = None

    def __init__(self, *args: Any, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._given_name = name

    @property
    def layer_name(self) -> str | None:
        """The user's `name`, else the path in the `Run` that has the layer (a copy of the layer has none)."""
        if self._given_name is not None or self._run_path is None:
            return self._given_name
        owner, path = self._run_path
        return path if owner == id(self) else None

    def extra_repr(self) -> str:
        """Returns torch's text, the attributes named in `_shown`, and the name."""
        parts = [super().extra_repr(), *(f"{name}={getattr(self, name)}" for name in self._shown)]
        if self.layer_name is not None:
            parts.append(f"name={self.layer_name!r}")
        return ", ".join(part for part in parts if part)

    def next_key(self, device: torch.device) -> torch.Tensor:
        """Returns the key of this call, uint64 of shape (2,), on `device` if that is CUDA, else on the CPU.

        Raises InvalidArgumentError in the loop of a run that does not know the layer, UnimplementedError for
        an unidentified call that is repeated inside backward, or is being traced.
        """
        return self.next_keys(device, 1)[0]

    def next_keys(self, device: torch.device, number: int) -> list[torch.Tensor]:
        """Returns several keys of one call, for a layer that draws in several places; as `next_key`."""
        if torch.compiler.is_dynamo_compiling() and self._compiled_calls is not None and not is_vmapped():
            call = self._compiled_calls.next_tensor().to(device if device.type == "cuda" else "cpu")
            return [random.fold_in(call, place) for place in range(number)]
        return call_untraced(self._keys, device, number)

    def _begin_compiled_forward(self) -> CompiledCalls | None:
        """Counts the next forward's calls under a key known now, for `compiled`; None without a key."""
        calls = None if self._compiled_calls else self._calls()
        if calls is None:
            return None
        if in_backward():
            key = recall(self)
        else:
            key = calls.continuation_key()
            if may_be_repeated():
                remember(self, key)
        self._compiled_calls = CompiledCalls(
            key, calls.place, tensor=int_keys.to_tensor(key), taken_from=calls
        )
        return self._compiled_calls

    def _end_compiled_forward(self) -> None:
        """Continues the count after that forward."""
        if self._compiled_calls is not None and not in_backward():
            self._compiled_calls.taken_from.number += self._compiled_calls.number
        self._compiled_calls = None

    def _keys(self, device: torch.device, number: int) -> list[torch.Tensor]:
        call = self._next_words()
        on = device if device.type == "cuda" else None
        return [int_keys.to_tensor(int_keys.fold(call, place), on) for place in range(number)]

    def _next_words(self) -> Words:
        check_traceable(self)
        calls = self._calls()
        if calls is None:  # checkpointing restores the generator, and with it this key
            return int_keys.fold(int_keys.root(int(torch.randint(2**63 - 1, (1,)))), _DRAWN)
        if in_backward():
            return recall(self)
        key = calls.next()
        if may_be_repeated():
            remember(self, key)
        return key

    def _calls(self) -> LayerCalls | None:
        if self._compiled_calls is not None:
            return self._compiled_calls
        position, run_key = process.position, process.run_key
        if position is None or run_key is None:
            if self._keyed_calls is not None and self._keyed_calls.place != id(self):
                raise InvalidArgumentError(_COPIED.format(type(self).__name__))
            return self._keyed_calls
        if self._step_calls is None or self._step_calls.place is not position:
            name = self.layer_name
            if name is None:
                raise InvalidArgumentError(_UNKNOWN.format(type(self).__name__))
            self._step_calls = LayerCalls(
                int_keys.fold(run_key, _LAYER, name, position.step, *position.inside, *process.rank_key),
                position,
            )
        return self._step_calls


def plain_path(path: str) -> str:
    """Returns the path without torch's wrappers: a compiled model draws the masks of the plain one."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPERS)


def layers(module: torch.nn.Module) -> Iterator[tuple[str, OwnsRandomness]]:
    """Yields every layer of `module` that owns its randomness, once, with its (first) path."""
    for path, layer in module.named_modules():
        if isinstance(layer, OwnsRandomness):
            yield plain_path(path), layer


def set_step(module: torch.nn.Module, step: int, *, seed: int | None = None) -> None:
    """Sets the step of the layers of `module`: a plain loop's masks become a function of (seed, path, step).

    Call it before each step, also after a resume. In the loop of a `samebits.Run` its step counts instead.

    Args:
        module: the model; a layer is keyed by its path in it, so give the same one each time.
        step: number of the step in the whole training, as in a checkpoint.
        seed: of the masks; without it, that of `samebits.set_random_seed` (or what torch was seeded with).

    Raises:
        UnseededError: no seed is given, and none is set.
        DuplicateNameError: two layers have the same name.

    Example:
        >>> model = torch.nn.Sequential(samebits.nn.Dropout(0.5))
        >>> for step in 0, 1, 0:
        ...     samebits.nn.set_step(model, step, seed=1)
        ...     print(step, model(torch.ones(8)))
        0 tensor([2., 2., 2., 0., 2., 2., 0., 0.])
        1 tensor([0., 0., 0., 2., 2., 2., 0., 2.])
        0 tensor([2., 2., 2., 0., 2., 2., 0., 0.])
    """
    seed = seeds.root_seed() if seed is None else seed
    if seed is None:
        raise no_seed("samebits.nn.set_step derives keys", instead="give set_step(module, step, seed=...)")
    set_key(module, int_keys.fold(int_keys.root(seed), _STEP), step)


def set_key(module: torch.nn.Module, key: Words, *position: int) -> None:
    """Outside a run, makes the layers count their calls from here, under (key, name or path, position)."""
    found = list(layers(module))
    _check_names(found)
    for path, layer in found:
        name = path if layer._given_name is None else layer._given_name
        layer._keyed_calls = LayerCalls(int_keys.fold(key, _LAYER, name, *position), id(layer))


def name_layers(module: torch.nn.Module, prefix: str) -> None:
    """Gives every layer of `module` without a name its path as name, for `Run`; a shared layer its first.

    Raises `DuplicateNameError` when two layers have the same name, before anything is changed.
    """
    found = [(f"{prefix}.{path}" if path else prefix, layer) for path, layer in layers(module)]
    _check_names(found)
    for path, layer in found:
        if layer.layer_name is None:
            layer._run_path = id(layer), path
        layer._step_calls = None


def preserve_call_counts(modules: Iterable[torch.nn.Module]) -> Callable[[], None]:
    """Saves the layers' counts of calls in this step; the returned function restores them."""
    counted = [(layer, layer._step_calls) for module in modules for _, layer in layers(module)]

    def restore() -> None:
        for layer, calls in counted:
            layer._step_calls = calls

    return restore


def _check_names(found: list[tuple[str, OwnsRandomness]]) -> None:
    """Raises if two layers have the same name; copies of a layer with a name may share it."""
    holders: dict[str, str] = {path: path for path, layer in found if layer._given_name is None}
    for path, layer in found:
        name = layer._given_name
        if name is None:
            continue
        if name in holders:
            raise DuplicateNameError(
                f"the layers {holders[name]!r} and {path!r} both have the name {name!r}, so that they would "
                "draw the same masks. Give each a separate name, or none: it is then keyed by its path."
            )
        holders[name] = path

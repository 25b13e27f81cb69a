"""Turns modules and optimizers among the arguments of a step into named tensors, and back inside of the trace.

A trace sees inputs as inputs only if they are arguments. So parameters, buffers and optimizer state are taken out of
(copies of) the objects, and for the time of the trace the objects hold the traced tensors instead.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.replica.step import BATCH, STATE


@dataclass(frozen=True)
class _Slot:
    """One tensor input: where it is kept."""

    name: str
    kind: str
    tensor: torch.Tensor


_PLAIN = (bool, int, float, str, tuple)
"""Of param_groups and arguments: what a graph takes as it is."""


class Lifted:
    """The tensors of a step's arguments, by name. The objects are copies unless `copied` is off: to be read only."""

    def __init__(self, names: Sequence[str], args: tuple[Any, ...], *, copied: bool = True) -> None:
        if copied:
            _check_copies(args)
        self._args = copy.deepcopy(args) if copied else args
        self.args = self._args
        self._modules = {n: a for n, a in zip(names, self._args, strict=True) if isinstance(a, nn.Module)}
        self._optimizers = {
            n: a for n, a in zip(names, self._args, strict=True) if isinstance(a, torch.optim.Optimizer)
        }
        self._plain = {
            n: a
            for n, a in zip(names, self._args, strict=True)
            if n not in self._modules and n not in self._optimizers
        }
        self.names = names
        self._known = {
            id(p): f"{n}.{k}" for n, module in self._modules.items() for k, p in module.named_parameters()
        }
        for name, optimizer in self._optimizers.items():
            self._check(name, optimizer)
            if copied:
                fill(optimizer)
        self._leaves, self._spec = pytree.tree_flatten(self._plain)
        self.slots = [*self._of_modules(), *self._of_optimizers(), *self._of_plain()]

    def numbers(self) -> dict[str, Any]:
        """What a captured graph holds of the arguments besides tensors: learning rates, modes, flags; by path."""
        found = {
            f"{name}.{path}.training".replace("..", "."): child.training
            for name, module in self._modules.items()
            for path, child in module.named_modules()
        }
        for name, optimizer in self._optimizers.items():
            for index, group in enumerate(optimizer.param_groups):
                given = {key: value for key, value in group.items() if isinstance(value, _PLAIN)}
                found |= {f"{name}.param_groups.{index}.{key}": value for key, value in given.items()}
        leaves = pytree.tree_flatten_with_path(self._plain)[0]
        return found | {dotted(path): leaf for path, leaf in leaves if isinstance(leaf, _PLAIN)}

    def again(self) -> Lifted:
        """The same tensors in objects of their own: what one rank's run counts, a scheduler say, no other rank sees."""
        return copy.deepcopy(
            self, {id(kept): kept for kept in (self._spec, *(slot.tensor for slot in self.slots))}
        )

    def call(self, step: Callable[..., Any], tensors: list[torch.Tensor], **extra: Any) -> Any:
        """Calls a step with `tensors`, in the order of the slots, in place of what the objects hold."""
        given = {slot.name: tensor for slot, tensor in zip(self.slots, tensors, strict=True)}
        with ExitStack() as stack:
            for name, module in self._modules.items():
                own = {k: given[f"{name}.{k}"] for k in _tensors_of(module)}
                stack.enter_context(_reparametrize_module(module, own, tie_weights=True))
            for name, optimizer in self._optimizers.items():
                stack.enter_context(self._swapped(name, optimizer, given))
            traced = iter(tensors[len(tensors) - sum(map(_is_tensor, self._leaves)) :])
            leaves = [next(traced) if _is_tensor(leaf) else leaf for leaf in self._leaves]
            plain = pytree.tree_unflatten(leaves, self._spec)
            objects = {**self._modules, **self._optimizers, **plain}
            return step(*(objects[name] for name in self.names), **extra)

    def _of_modules(self) -> Iterator[_Slot]:
        for name, module in self._modules.items():
            for key, tensor in _tensors_of(module).items():
                yield _Slot(f"{name}.{key}", STATE, tensor)

    def _of_optimizers(self) -> Iterator[_Slot]:
        for name, optimizer in self._optimizers.items():
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        yield _Slot(f"{name}.{self._known[id(parameter)]}.{key}", STATE, value)

    def _of_plain(self) -> Iterator[_Slot]:
        for path, leaf in pytree.tree_flatten_with_path(self._plain)[0]:
            if isinstance(leaf, torch.Tensor):
                kind = STATE if isinstance(leaf, nn.Parameter) else BATCH
                yield _Slot(dotted(path), kind, leaf)

    def _check(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            if any(id(p) not in self._known for p in group["params"]):
                raise InvalidArgumentError(
                    f"{name} trains a parameter of a module that was not given; pass the module, too."
                )

    @contextmanager
    def _swapped(self, name: str, optimizer: Any, given: dict[str, torch.Tensor]) -> Iterator[None]:
        groups, state = [group["params"] for group in optimizer.param_groups], optimizer.state
        for group in optimizer.param_groups:
            group["params"] = [given[self._known[id(p)]] for p in group["params"]]
        optimizer.state = defaultdict(dict)
        for parameter, entries in state.items():
            own = self._known[id(parameter)]
            optimizer.state[given[own]] = {k: given.get(f"{name}.{own}.{k}", v) for k, v in entries.items()}
        try:
            yield
        finally:
            for group, parameters in zip(optimizer.param_groups, groups, strict=True):
                group["params"] = parameters
            optimizer.state = state


def dotted(path: tuple[Any, ...]) -> str:
    """A path in a tree as `params.w.0`."""
    parts = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path)
    return ".".join(map(str, parts))


def names_of(step: Callable[..., Any], count: int) -> list[str]:
    """The names of the first `count` arguments of a step.

    Raises:
        InvalidArgumentError: it takes fewer, or needs more (a `mesh` it may be given), or has no names.
    """
    names = []
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # a function written in C, or no function
        raise InvalidArgumentError(
            f"capture: {step} does not say what its arguments are called; capture a Python function that calls it: "
            "capture(lambda a, b: torch.mm(a, b), a, b, world_size=8)."
        ) from None
    for one in parameters:
        if one.kind is one.VAR_POSITIONAL:
            names += [f"{one.name}{index}" for index in range(count - len(names))]
        elif one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}:
            names.append(one.name)
    if len(names) < count:
        raise InvalidArgumentError(f"capture: {_called(step)} takes {len(names)} arguments, not {count}.")
    known, star = {*names[:count], "mesh"}, {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    required = (one.name for one in parameters if one.default is one.empty and one.kind not in star)
    if missing := [name for name in required if name not in known]:
        raise InvalidArgumentError(
            f"capture: {_called(step)} also takes {', '.join(missing)}; give these, too."
        )
    return names[:count]


def _called(step: Callable[..., Any]) -> str:
    return f"{getattr(step, '__name__', step)}()"


def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _check_copies(args: tuple[Any, ...]) -> None:
    for one in args:
        if isinstance(one, nn.Module) and any(hasattr(part, "_orig_mod") for part in one.modules()):
            raise UnimplementedError(
                "capture: a module that torch.compile made is a graph already, and hides its collectives; pass the module "
                "that was compiled (compiled._orig_mod)."
            )
        if isinstance(one, nn.Module) and any(isinstance(part, FSDPModule) for part in one.modules()):
            raise UnimplementedError(
                "capture: a module that fully_shard was applied to holds the shards of one rank, and cannot be copied for "
                "the others. Pass what makes it: capture(step, PerRank(lambda mesh: make(mesh)), ..., mesh={'dp': 4})."
            )


def fill(optimizer: torch.optim.Optimizer) -> None:
    """Makes the state that the first step would make: without it there is nothing to follow over steps."""
    if optimizer.state:
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)

"""Turns modules and optimizers among a step's arguments into named tensors, and back inside the trace.

A trace takes only arguments as inputs. So parameters, buffers and optimizer state are taken out of (copies
of) the objects, and during the trace the objects hold the traced tensors instead.
"""

from __future__ import annotations

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.replica._capture.captured_step import BATCH, STATE


@dataclass(frozen=True)
class _TensorInput:
    """One tensor input and its location."""

    name: str
    kind: str
    tensor: torch.Tensor


_PLAIN = (bool, int, float, str, tuple)
"""Values of param_groups and arguments that a graph takes as they are."""


class LiftedArguments:
    """The tensors of a step's arguments, by name. Objects are copies; without `copied`, read-only."""

    def __init__(self, names: Sequence[str], args: tuple[Any, ...], *, copied: bool = True) -> None:
        copies: dict[int, Any] = {}
        if copied:
            _check_copies(args)
            _check_hooks(names, args)
        self.args = copy.deepcopy(args, copies) if copied else args
        self._tensors = [one for one in copies.values() if isinstance(one, torch.Tensor)]
        self.left: dict[str, torch.Tensor] = {}
        """Gradients that the last call left to the next one, by the names of their parameters."""
        given = dict(zip(names, self.args, strict=True))
        self._modules = {n: a for n, a in given.items() if isinstance(a, nn.Module)}
        self._optimizers = {n: a for n, a in given.items() if isinstance(a, torch.optim.Optimizer)}
        objects = self._modules.keys() | self._optimizers.keys()
        self._plain = {n: a for n, a in given.items() if n not in objects}
        self.names = names
        self._known = {
            id(p): f"{n}.{k}" for n, module in self._modules.items() for k, p in module.named_parameters()
        }
        for name, optimizer in self._optimizers.items():
            self._check(name, optimizer)
            if copied:
                create_state(optimizer)
        self._leaves, self._spec = pytree.tree_flatten(self._plain)
        self.slots = [*self._of_modules(), *self._of_optimizers(), *self._of_plain()]

    def numbers(self) -> dict[str, Any]:
        """Returns the numbers of the arguments that a captured graph holds: learning rates, modes, flags."""
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
        return found | {dotted_path(path): leaf for path, leaf in leaves if isinstance(leaf, _PLAIN)}

    def copy_objects(self) -> LiftedArguments:
        """Returns the same tensors in new objects: other ranks do not see, say, a scheduler's counter."""
        kept = (self._spec, *self._tensors, *(slot.tensor for slot in self.slots))
        return copy.deepcopy(self, {id(one): one for one in kept})

    def call(self, step: Callable[..., Any], tensors: list[torch.Tensor], **extra: Any) -> Any:
        """Calls a step with `tensors`, in the order of the slots, in place of what the objects hold."""
        given = {slot.name: tensor for slot, tensor in zip(self.slots, tensors, strict=True)}
        with ExitStack() as stack:
            swapped = {
                name: {key: given[f"{name}.{key}"] for key in _tensors_of(module)}
                for name, module in self._modules.items()
            }
            for own, module in zip(swapped.values(), self._modules.values(), strict=True):
                stack.enter_context(_reparametrize_module(module, own, tie_weights=True))
            for name, optimizer in self._optimizers.items():
                stack.enter_context(self._with_tensors(name, optimizer, given))
            number = sum(isinstance(leaf, torch.Tensor) for leaf in self._leaves)
            traced = iter(tensors[len(tensors) - number :])
            leaves = [next(traced) if isinstance(leaf, torch.Tensor) else leaf for leaf in self._leaves]
            plain = pytree.tree_unflatten(leaves, self._spec)
            objects = {**self._modules, **self._optimizers, **plain}
            for name, grad in self.left.items():
                given[name].grad = grad
            found = step(*(objects[name] for name in self.names), **extra)
            self.left = {name: one.grad for name, one in given.items() if one.grad is not None}
        for name, own in swapped.items():
            before = {key: given[f"{name}.{key}"] for key in own}
            _check_same_names({**_tensors_of(self._modules[name]), **own}, before, name)
        return found

    def zero_leftovers(self) -> dict[str, torch.Tensor]:
        """Zeroes tensors that a trace left in `.grad` and modules' attributes; returns names and zeros."""
        self.left = {name: _zeros(one) for name, one in self.left.items()}
        found = {f"{name}.grad": one for name, one in self.left.items()}
        for name, module in self._modules.items():
            found |= zeros_in_attributes(name, module, module)
        return found

    def tensors_outside_trees(self) -> list[torch.Tensor]:
        """Returns the tensors of arguments that are no tree of tensors: of a batch with its own class."""
        copies: dict[int, Any] = {}
        for leaf in self._leaves:
            if not isinstance(leaf, torch.Tensor):
                copy.deepcopy(leaf, copies)
        known = {id(slot.tensor) for slot in self.slots}
        return [one for one in self._tensors if id(one) in copies and id(one) not in known]

    def _of_modules(self) -> Iterator[_TensorInput]:
        for name, module in self._modules.items():
            for key, tensor in _tensors_of(module).items():
                yield _TensorInput(f"{name}.{key}", STATE, tensor)

    def _of_optimizers(self) -> Iterator[_TensorInput]:
        for name, optimizer in self._optimizers.items():
            for parameter, state in optimizer.state.items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        yield _TensorInput(f"{name}.{self._known[id(parameter)]}.{key}", STATE, value)

    def _of_plain(self) -> Iterator[_TensorInput]:
        for path, leaf in pytree.tree_flatten_with_path(self._plain)[0]:
            if isinstance(leaf, torch.Tensor):
                kind = STATE if isinstance(leaf, nn.Parameter) else BATCH
                yield _TensorInput(dotted_path(path), kind, leaf)

    def _check(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            if any(id(p) not in self._known for p in group["params"]):
                raise InvalidArgumentError(
                    f"{name} trains a parameter of a module that was not given; pass the module, too."
                )

    @contextmanager
    def _with_tensors(self, name: str, optimizer: Any, tensors: dict[str, torch.Tensor]) -> Iterator[None]:
        groups, state = [group["params"] for group in optimizer.param_groups], optimizer.state
        for group in optimizer.param_groups:
            group["params"] = [tensors[self._known[id(p)]] for p in group["params"]]
        optimizer.state = defaultdict(dict)
        for parameter, entries in state.items():
            own = self._known[id(parameter)]
            optimizer.state[tensors[own]] = {
                k: tensors.get(f"{name}.{own}.{k}", v) for k, v in entries.items()
            }
        try:
            yield
            names = {id(one): key for key, one in tensors.items()}
            for parameter, entries in optimizer.state.items():
                own = names[id(parameter)]
                _check_same_names(
                    {key: one for key, one in entries.items() if isinstance(one, torch.Tensor)},
                    {key: tensors.get(f"{name}.{own}.{key}") for key in entries},
                    f"{name}.{own}",
                )
        finally:
            for group, parameters in zip(optimizer.param_groups, groups, strict=True):
                group["params"] = parameters
            optimizer.state = state


def dotted_path(path: tuple[Any, ...]) -> str:
    """Returns a path in a tree as `params.w.0`."""
    parts = (getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path)
    return ".".join(map(str, parts))


def names_of(step: Callable[..., Any], count: int) -> list[str]:
    """Returns the names of the first `count` arguments of a step.

    Raises InvalidArgumentError if it takes fewer, needs more (a `mesh` it may be given), or has no names.
    """
    names = []
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # a function written in C, or no function
        raise InvalidArgumentError(
            f"capture: {step} does not say what its arguments are called; capture a Python function that "
            "calls it: capture(lambda a, b: torch.mm(a, b), a, b, world_size=8)."
        ) from None
    for one in parameters:
        if one.kind is one.VAR_POSITIONAL:
            names += [f"{one.name}{index}" for index in range(count - len(names))]
        elif one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}:
            names.append(one.name)
    if len(names) < count:
        raise InvalidArgumentError(
            f"capture: {_function_name(step)} takes {len(names)} arguments, not {count}."
        )
    known, star = {*names[:count], "mesh"}, {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    required = (one.name for one in parameters if one.default is one.empty and one.kind not in star)
    if missing := [name for name in required if name not in known]:
        raise InvalidArgumentError(
            f"capture: {_function_name(step)} also takes {', '.join(missing)}; give these, too."
        )
    return names[:count]


def _function_name(step: Callable[..., Any]) -> str:
    return f"{getattr(step, '__name__', step)}()"


def _tensors_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _check_copies(args: tuple[Any, ...]) -> None:
    if any(leaf.is_nested for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)):
        raise UnimplementedError(
            "capture: an argument is a nested tensor, which a capture does not follow; give the step its "
            "values and offsets, n.values() and n.offsets(), or padded tensors with a mask."
        )
    for one in args:
        if isinstance(one, nn.Module) and any(hasattr(part, "_orig_mod") for part in one.modules()):
            raise UnimplementedError(
                "capture: a module that torch.compile made is a graph already, and hides its collectives; "
                "pass the module that was compiled (compiled._orig_mod)."
            )
        if isinstance(one, nn.Module) and any(isinstance(part, FSDPModule) for part in one.modules()):
            raise UnimplementedError(
                "capture: a module that fully_shard was applied to holds the shards of one rank, and cannot "
                "be copied for the others. Pass what makes it: capture(step, PerRank(lambda mesh: "
                "make(mesh)), ..., mesh={'dp': 4})."
            )


def _check_hooks(names: Sequence[str], args: tuple[Any, ...]) -> None:
    """Refuses hooks on tensors and optimizers: a copy does not have them."""
    for name, one in zip(names, args, strict=True):
        held: dict[str, Any] = dict(one.named_parameters()) if isinstance(one, nn.Module) else {}
        hooked = [key for key, p in held.items() if p._backward_hooks or p._post_accumulate_grad_hooks]
        where = f"parameter {name}.{hooked[0]} has" if hooked else ""
        if isinstance(one, torch.optim.Optimizer) and (
            one._optimizer_step_pre_hooks or one._optimizer_step_post_hooks
        ):
            where = f"optimizer {name} has"
        if where:
            raise UnimplementedError(
                f"capture: {where} a hook, which a copy does not have; do what it does in the step, or "
                "register it there, or in forward."
            )


def _check_same_names(
    after: Mapping[str, torch.Tensor], before: Mapping[str, torch.Tensor | None], where: str
) -> None:
    for key, one in after.items():
        if one is not before.get(key):
            raise UnimplementedError(
                f"capture: the step puts a new tensor into {where}.{key}, with which the next step begins; a "
                f"step that is captured changes its state in place ({key}.copy_(...)), or takes it as an "
                "argument and returns it."
            )


def create_state(optimizer: torch.optim.Optimizer) -> None:
    """Makes the state that the first step would make: without it there is nothing to follow over steps."""
    held = [p for group in optimizer.param_groups for p in group["params"]]
    parameters = [p for p in held if not optimizer.state.get(p)]
    if not parameters:
        return
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    step: Any = type(optimizer).step
    if getattr(step, "hooked", False):  # the hooks of a step are not called: nothing was trained
        step = step.__wrapped__
    try:
        step(optimizer)
    except Exception as error:
        raise UnimplementedError(
            f"capture: {type(optimizer).__name__} makes its state in its first step, which was called with "
            f"gradients of zero and no closure, and raised {type(error).__name__}: {error}. A step that "
            "needs a closure (LBFGS) computes the loss as often as its values say, which no graph shows: "
            "take an optimizer without one, or write the update in the step."
        ) from error
    for parameter in parameters:
        parameter.grad = None


def zeros_in_attributes(name: str, traced: nn.Module, other: nn.Module) -> dict[str, torch.Tensor]:
    """Zeroes attributes of `other` where a trace left tensors in `traced`'s; returns names and zeros."""
    found: dict[str, torch.Tensor] = {}
    parts = zip(traced.named_modules(prefix=name), other.modules(), strict=True)
    for (path, part), same in parts:
        for key, value in vars(part).items():
            leaves, spec = pytree.tree_flatten(value)
            if key in _OWN or not any(isinstance(leaf, FakeTensor) for leaf in leaves):
                continue
            zeros = [_zeros(leaf) if isinstance(leaf, FakeTensor) else leaf for leaf in leaves]
            vars(same)[key] = pytree.tree_unflatten(zeros, spec)
            found.update((f"{path}.{key}", one) for one in zeros if isinstance(one, torch.Tensor))
    return found


_OWN = {"_parameters", "_buffers", "_modules"}


def _zeros(like: torch.Tensor) -> torch.Tensor:
    return torch.zeros([int(size) for size in like.shape], dtype=like.dtype, device=like.device)

"""Arguments of a captured step that cannot be copied from rank to rank: each rank makes its own (FSDP2)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count
from operator import attrgetter
from typing import Any, TypeGuard
from weakref import ref

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from samebits.errors import InvalidArgumentError
from samebits.replica._analysis.partitions import Groups
from samebits.replica._capture.closures import Closure
from samebits.replica._capture.lifting import create_state, dotted_path, zeros_in_attributes

_STAR = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


@dataclass(frozen=True)
class PerRank:
    """Objects that `make()`, or `make(mesh)`, makes on each rank: modules of `fully_shard`, optimizers.

    capture(step, PerRank(lambda mesh: sharded_model_and_optimizer(mesh)), x, mesh={"dp": 4})

    Every rank makes them in a process group of its own, from the same generator states, and the step gets
    them: new objects, not those of the rank before. Their tensors are constants of the captured step: shards
    of a DTensor start equal on the ranks that replicate them, if they were made so.

    Example:
        >>> from torch.distributed.fsdp import fully_shard
        >>> make = samebits.replica.PerRank(lambda mesh: fully_shard(torch.nn.Linear(4, 2), mesh=mesh))
        >>> def step(model, x):
        ...     model(x).sum().backward()
        ...     model.zero_grad()
        >>> captured = samebits.replica.capture(step, make, torch.ones(2, 4), mesh={"dp": 2})
        >>> samebits.replica.analyze(captured).partition("model.weight")  # each rank has its shard
        ((0,), (1,))
    """

    make: Callable[..., Any]

    def __post_init__(self) -> None:
        if not callable(self.make) or isinstance(self.make, nn.Module):
            raise InvalidArgumentError(
                "PerRank: give the function that makes it on each rank, PerRank(lambda mesh: make(mesh)), "
                f"not a {type(self.make).__name__}."
            )


def check_makers(args: tuple[Any, ...]) -> None:
    """Raises `InvalidArgumentError` for a `PerRank` inside an argument: nothing would call its function."""
    for one in args:
        if not isinstance(one, PerRank) and any(
            isinstance(leaf, PerRank) for leaf in pytree.tree_leaves(one)
        ):
            raise InvalidArgumentError(
                "capture: a PerRank is inside of a list or a dict; it must be an argument of the step "
                "itself, and may make a tuple: PerRank(lambda mesh: (model, optimizer))."
            )


def make_argument(argument: Any, extra: dict[str, Any]) -> Any:
    """Returns the argument of a step on the current rank.

    Raises `InvalidArgumentError` if its function needs another argument.
    """
    if not isinstance(argument, PerRank):
        return argument
    takes = inspect.signature(argument.make).parameters
    required = [name for name, one in takes.items() if one.default is one.empty and one.kind not in _STAR]
    if missing := [name for name in required if name not in extra]:
        raise InvalidArgumentError(
            f"capture: PerRank's function takes {', '.join(missing)}; it may take `mesh` only, by this name, "
            "and gets one where the capture has one (mesh={'dp': 4})."
        )
    return argument.make(**{name: value for name, value in extra.items() if name in takes})


def existing_objects(closure: Closure) -> dict[int, ref[Any]]:
    """Returns the modules, parameters and optimizers that exist before anything is made."""
    kinds = (nn.Module, nn.Parameter, torch.optim.Optimizer)
    return {id(one): ref(one) for one in closure.objects() if isinstance(one, kinds)}


def check_fresh(argument: str, made: Any, seen: dict[int, ref[Any]]) -> None:
    """Adds the objects that a rank has made to those `seen` before, and has its optimizers make their state.

    Raises InvalidArgumentError for one that existed before: it has what the step did to it in a trace before.
    """
    for path, leaf in pytree.tree_flatten_with_path(made)[0]:
        own = [*leaf.modules(), *leaf.parameters()] if isinstance(leaf, nn.Module) else [leaf]
        for one in own if hasattr(leaf, "state_dict") else ():
            if id(one) in seen and seen[id(one)]() is one:
                name = dotted_path((argument, *path))
                raise InvalidArgumentError(
                    f"capture: PerRank's function gave {name} ({type(leaf).__name__}), or a part of it, "
                    "which existed before, so it would have what the step did to it as another rank. Make it "
                    "inside of the function: PerRank(lambda mesh: make(mesh))."
                )
            seen[id(one)] = ref(one)
    for leaf in pytree.tree_leaves(made):
        if isinstance(leaf, torch.optim.Optimizer):
            create_state(leaf)


def zero_leftovers(argument: str, before: Any, made: Any) -> dict[str, torch.Tensor]:
    """Puts zeros into the objects that were `made`, where a step has left tensors in those made `before`;
    returns names and zeros.
    """
    found: dict[str, torch.Tensor] = {}
    pairs = zip(pytree.tree_flatten_with_path(before)[0], pytree.tree_leaves(made), strict=True)
    for (path, old), new in pairs:
        if not isinstance(old, nn.Module):
            continue
        name = dotted_path((argument, *path))
        for (key, was), now in zip(old.named_parameters(), new.parameters(), strict=True):
            if was.grad is not None:
                zeros = now.grad = torch.zeros_like(now)
                found[f"{name}.{key}.grad"] = zeros.to_local() if isinstance(zeros, DTensor) else zeros
        found |= zeros_in_attributes(name, old, new)
    return found


def name_constants(module: GraphModule, made: dict[str, Any], closure: Closure) -> dict[str, Groups]:
    """Names the constants and generators of a graph after the objects that were `made`, or the `closure`.

    Returns the ranks that hold the same shard, for each constant of a DTensor.
    """
    shards: dict[int, Groups] = {}
    names: dict[int, str] = {}
    for argument, tree in made.items():
        for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
            for name, tensor in _tensors(leaf, tree):
                local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                if isinstance(tensor, DTensor):
                    shards[local.untyped_storage()._cdata] = replica_groups(tensor)
                names.setdefault(local.untyped_storage()._cdata, dotted_path((argument, *path, name)))
    renamed: dict[str, str] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr" and str(node.target) in renamed:
            node.target = renamed[str(node.target)]
            continue
        held = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if not isinstance(held, (torch.Tensor, torch.Generator)):
            continue
        if name := (_is_dense(held) and names.get(held.untyped_storage()._cdata)) or closure.name_of(held):
            renamed[str(node.target)] = node.target = _register(module, name, held)
    kept = {name: attrgetter(name)(module) for name in renamed.values()} if shards else {}
    memory = {name: one.untyped_storage()._cdata for name, one in kept.items() if _is_dense(one)}
    return {name: shards[one] for name, one in memory.items() if one in shards}


def _is_dense(held: Any) -> TypeGuard[torch.Tensor]:
    return isinstance(held, torch.Tensor) and held.layout is torch.strided


def _register(module: nn.Module, name: str, held: torch.Tensor | torch.Generator) -> str:
    """Makes a tensor or generator the attribute `a.b.c` of a module.

    Returns the name, numbered where several have the same memory.
    """
    *path, last = name.split(".")
    taken = []
    for part in path:
        taken.append(_free_name(module, part))
        if not hasattr(module, taken[-1]):
            module.add_module(taken[-1], nn.Module())
        module = getattr(module, taken[-1])
    numbered = chain([last], (f"{last}_{number}" for number in count(1)))
    free = next(one for one in numbered if not hasattr(module, one))
    setattr(module, free, held)
    return ".".join([*taken, free])


def _free_name(module: nn.Module, part: str) -> str:
    """Returns a name that the module has no attribute of: not `graph`, but `graph_`."""
    while hasattr(module, part) and not isinstance(getattr(module, part), nn.Module):
        part += "_"
    return part


def replica_groups(tensor: DTensor) -> Groups:
    """Returns the ranks of a DTensor's mesh in groups that hold the same shard."""
    mesh = tensor.device_mesh.mesh
    along = [axis for axis, one in enumerate(tensor.placements) if isinstance(one, Replicate)]
    apart = [axis for axis in range(mesh.ndim) if axis not in along]
    parts = math.prod(mesh.shape[axis] for axis in apart)
    return tuple(map(tuple, mesh.permute(*apart, *along).reshape(parts, -1).tolist()))


def _tensors(leaf: Any, tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields names and tensors of one leaf; optimizer state by the names of the tree's parameters."""
    if isinstance(leaf, nn.Module):
        yield from leaf.named_parameters()
        yield from leaf.named_buffers()
    elif isinstance(leaf, torch.optim.Optimizer):
        modules = (one for one in pytree.tree_leaves(tree) if isinstance(one, nn.Module))
        named = (pair for one in modules for pair in one.named_parameters())
        names: dict[Any, str] = {parameter: name for name, parameter in named}
        for index, (parameter, state) in enumerate(leaf.state.items()):
            name = names.get(parameter, str(index))
            yield from ((f"{name}.{key}", one) for key, one in state.items() if isinstance(one, torch.Tensor))

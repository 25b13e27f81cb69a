"""A step's inputs besides its arguments: state in objects, tensors it closes over or a batch hides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits._inspect.user_code import line_of_node
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.replica._analysis.op_rules import written_storages
from samebits.replica._analysis.storage_layout import StorageLayout, constant_place
from samebits.replica._capture.closures import Closure
from samebits.replica._capture.rank_differences import RankTrace, check_same_over_steps


def check_second_step(first: RankTrace, module: GraphModule, zeros: Mapping[str, torch.Tensor]) -> None:
    """Checks that the second step, `module`, reads nothing that the `first` left in objects but `zeros`.

    Raises UnimplementedError if it does, or runs other ops than the first.
    """
    left = {_memory(one): name for name, one in zeros.items()}
    cleared: set[str] = set()
    for node in module.graph.nodes:
        for one in node.all_input_nodes:
            held = constant_of(one, module)
            name = left.get(_memory(held)) if held is not None else None
            if name is not None and "zero_" in str(node.target):
                cleared.add(name)
            elif name is not None and name not in cleared:
                raise UnimplementedError(
                    f"capture: the step reads what the step before left in {name} ({line_of_node(node)}); "
                    "what a step starts with must be an argument, a parameter, a buffer or optimizer state. "
                    "Of gradients: optimizer.zero_grad() at the end of the step, or at its start."
                )
    if not cleared:
        check_same_over_steps(first, module)


def check_optimizers(closure: Closure) -> None:
    """Raises `UnimplementedError` for a closed-over optimizer that has made its state in a trace."""
    for name, optimizer in closure.optimizers:
        if any(isinstance(one, FakeTensor) for state in optimizer.state.values() for one in state.values()):
            raise UnimplementedError(
                f"capture: the step closes over {name}, and {type(optimizer).__name__} makes its state in "
                "its first step. Give it and its module to the step as arguments, capture(step, model, "
                "optimizer, ...), or train a step before."
            )


def check_closures(module: GraphModule, args: tuple[Any, ...]) -> None:
    """Raises `InvalidArgumentError` for a closed-over tensor of an argument: it would be trained."""
    given = {_memory(one) for one in pytree.tree_leaves(args) if isinstance(one, torch.Tensor)}
    for one in args:
        if isinstance(one, nn.Module):
            given.update(map(_memory, (*one.parameters(), *one.buffers())))
    for node in module.graph.nodes:
        held = constant_of(node, module)
        if held is not None and _memory(held) in given:
            user = next(iter(node.users), node)
            raise InvalidArgumentError(
                f"capture: the step closes over a tensor of one of its arguments ({line_of_node(user)}); use "
                "the argument that the step is called with, as that is what is followed."
            )


def unwritten_batch_tensors(module: GraphModule, tensors: Iterable[torch.Tensor]) -> list[str]:
    """Returns constants that are tensors of a batch of a class of its own, unwritten: not assumed equal."""
    hidden = {_memory(one) for one in tensors}
    layout = StorageLayout(module)
    written = written_storages(layout) if hidden else set()
    named = {str(node.target): constant_of(node, module) for node in module.graph.nodes}
    reached = {name: held for name, held in named.items() if held is not None and _memory(held) in hidden}
    return [name for name, held in reached.items() if constant_place(held).storage not in written]


def constant_of(node: Node, module: GraphModule) -> torch.Tensor | None:
    """Returns the tensor that a node names; None for any other node."""
    value = attrgetter(str(node.target))(module) if node.op == "get_attr" else None
    return value if isinstance(value, torch.Tensor) else None


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)

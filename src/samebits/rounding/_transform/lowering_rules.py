"""The rule by which each op of a captured step is lowered: as it is, or computed in float32 and rounded."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping
from typing import Literal

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits._inspect.user_code import line_of_node
from samebits._inspect.words import words
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.replica._analysis.interpreter import Interpreter
from samebits.replica._analysis.op_rules import is_collective, written_names
from samebits.replica._analysis.op_schemas import argument, signature
from samebits.replica._analysis.storage_layout import tensors

Rule = Literal["as it is", "float32"]
AS_IS, FLOAT32 = "as it is", "float32"
"""The rules: run as captured (it moves or draws values of its dtype), or on float32 copies, rounded."""

HALVES = (torch.bfloat16, torch.float16)
_MOVES = words(
    """clone copy copy_ _to_copy cat stack index index_select gather slice_scatter select_scatter flip roll
    repeat where constant_pad_nd lift_fresh_copy embedding sort topk relu relu_ threshold_backward neg neg_
    abs abs_ sign max min amax amin maximum minimum tril triu max_pool2d_with_indices"""
)
"""They return their input, or its negative: nothing to round, if all inputs have the dtype of the result."""
_MAKES = words(
    """empty empty_like empty_strided new_empty new_empty_strided empty_permuted zeros zeros_like new_zeros
    zero_ ones ones_like new_ones rand rand_like randn randn_like randint randint_like uniform_ normal_
    random_ exponential_ geometric_ cauchy_ log_normal_ bernoulli bernoulli_ nextafter nextafter_ set_
    set_data resize_ resize_as_"""
)
"""Zeros, ones, memory, and draws, which are made in their dtype; functions defined by the dtype's steps."""
_REDUCE = words(
    """all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_ reduce_scatter_tensor
    reduce_scatter_tensor_out reduce_scatter_tensor_coalesced allreduce_ allreduce_coalesced_
    _reduce_scatter_base_ reduce_scatter_ reduce_scatter_tensor_coalesced_ reduce_"""
)
"""The collectives that compute; the others move."""
_OURS = frozenset({"samebits::dropout"})


def rule_of(node: Node, frame: Interpreter, user_rules: Mapping[str, Rule]) -> Rule:
    """Returns the rule of an op of a frame that is no higher-order op.

    Raises UnimplementedError, with the user's line, for an op with a 16-bit result and no rule.
    """
    target = node.target
    if target is operator.getitem or not is_narrow(node):
        return AS_IS
    if not isinstance(target, torch._ops.OpOverload):
        raise _no_rule_error(node, str(target))
    name, packet = target.name(), signature(target).packet
    for given in (name, target._schema.name):
        if given in user_rules:
            return user_rules[given]
    if is_collective(node):
        return FLOAT32 if packet in _REDUCE else AS_IS
    makes = torch.Tag.inplace_view in target.tags or packet in _MAKES
    if makes or frame.program.plan(node, frame.layout).is_view:
        return AS_IS
    if packet in _MOVES and _same_dtype(node):
        return AS_IS
    if target.namespace == "samebits":
        return FLOAT32 if name in _OURS else AS_IS
    if target.namespace not in {"aten", "prims", "_c10d_functional", "_c10d_functional_autograd"}:
        raise _no_rule_error(node, name)
    if "wait_tensor" in packet:
        return AS_IS
    _check_no_shared_writes(node, frame)
    return FLOAT32


def check_rules(rules: Mapping[str, Rule] | None, module: GraphModule) -> Mapping[str, Rule]:
    """Checks and returns the rules that a user gives for the ops of a graph and of its bodies.

    Raises InvalidArgumentError for what is no rule, or has the name of no op in the graph (a typing error).
    """
    if not isinstance(rules, Mapping | None):
        raise InvalidArgumentError(
            f"lower(rules={rules!r}): give rules by the names of ops, {{'mine::op': {FLOAT32!r}}}."
        )
    held = _op_names(module) if rules else ()
    for name, rule in (rules or {}).items():
        if rule not in {AS_IS, FLOAT32}:
            raise InvalidArgumentError(
                f"lower(rules={{{name!r}: {rule!r}}}): a rule is {AS_IS!r} or {FLOAT32!r}."
            )
        if name not in held:
            near = difflib.get_close_matches(str(name), held, cutoff=0.8)
            raise InvalidArgumentError(
                f"lower(rules={{{name!r}: ...}}): the step has no op of this name; "
                + (f"near it are {', '.join(near)}." if near else f"its ops are {', '.join(held)}.")
            )
    return rules or {}


def _op_names(module: GraphModule) -> list[str]:
    """Returns the names for a rule: with the overload, and without it, for all overloads."""
    graphs = (part.graph for part in module.modules() if isinstance(part, GraphModule))
    targets = [node.target for graph in graphs for node in graph.nodes]
    ops = [one for one in targets if isinstance(one, torch._ops.OpOverload)]
    return sorted({name for one in ops for name in (one.name(), one._schema.name)})


def is_narrow(node: Node) -> bool:
    return any(leaf.dtype in HALVES for leaf in (*tensors(node), *written_tensors(node).values()))


def written_tensors(node: Node) -> dict[tuple[str, int], torch.Tensor]:
    """Returns the (fake) tensors that an op writes to, by argument and place in its list."""
    target = node.target
    names = written_names(node, signature(target)) if isinstance(target, torch._ops.OpOverload) else ()
    found = {}
    for name in names:
        for index, leaf in enumerate(pytree.tree_leaves(argument(node, name))):
            if isinstance(leaf, Node) and isinstance(leaf.meta.get("val"), torch.Tensor):
                found[name, index] = leaf.meta["val"]
    return found


def _same_dtype(node: Node) -> bool:
    dtypes = {leaf.dtype for one in (*node.all_input_nodes, node) for leaf in tensors(one)}
    return len({dtype for dtype in dtypes if dtype.is_floating_point}) == 1


def _check_no_shared_writes(node: Node, frame: Interpreter) -> None:
    """Raises if tensors in written lists share memory: an op over lists works on copies, which diverge."""
    over_lists = signature(node.target).packet.startswith(("_foreach_", "_fused_"))  # type: ignore[arg-type]
    several = any(place for _, place in written_tensors(node))
    if over_lists and several and len(frame.program.plan(node, frame.layout).flows) == 1:
        raise UnimplementedError(
            f"lower: {node.target} ({node.name}; {line_of_node(node)}) writes to tensors in its lists that "
            "share memory; call it for each in turn."
        )


def _no_rule_error(node: Node, name: str) -> UnimplementedError:
    return UnimplementedError(
        f"lower: no rule says how to round {name} ({node.name}; {line_of_node(node)}), which returns "
        f"bfloat16 or float16. If it computes in float32 on float32 inputs: lower(step, rules={{{name!r}: "
        f"{FLOAT32!r}}}); if it computes nothing: {AS_IS!r}."
    )

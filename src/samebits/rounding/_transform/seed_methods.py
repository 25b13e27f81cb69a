"""The method of each op of a captured step: its random numbers from the same seed on all ranks, or not.

An op whose results are replica-equal must round alike everywhere, or the replicas diverge; one whose results
vary must not, or the errors of the shards add up. The report of the analysis decides, call site by call site.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits import _digest as digest
from samebits._byte_digest import of_bytes
from samebits._inspect.user_code import text_of_node
from samebits.errors import InvalidArgumentError, RoundingMethodError
from samebits.replica import CapturedStep, Report
from samebits.replica._analysis.control_flow_ops import HANDLERS
from samebits.replica._analysis.interpreter import Interpreter
from samebits.replica._analysis.storage_layout import StorageLayout
from samebits.replica._capture.captured_step import check_step
from samebits.replica._report.report import check_report

# The digest of a captured step: an edit changes it, and another capture of the same code does not.


def digest_of(step: CapturedStep) -> str:
    """Returns the digest of a step's ops, arguments, bodies, constants, memory, names, groups and ranks."""
    parts = [f"{step.world_size} {step.kinds} {step.output_names} {dict(step.mesh)}"]
    modules = [part for part in step.module.modules() if isinstance(part, GraphModule)]
    numbers = {id(module): number for number, module in enumerate(modules)}
    for module in modules:
        layout, storages = StorageLayout(module), {}
        for node in layout.nodes:
            parts.append(f"{node.name} {node.op} {node.target} {_arguments(node)} {text_of_node(node)}")
            parts += _memory(node, layout, storages)
            if node.op == "get_attr":
                parts.append(_constant(layout.constant(node), numbers))
            if node in step.groups or node in step.by_rank:
                parts.append(f"{step.groups.get(node)} {step.by_rank.get(node)}")
    return of_bytes("\n".join(parts).encode())


def _arguments(node: Node) -> str:
    args = node.args, node.kwargs
    return str(pytree.tree_map(lambda leaf: f"%{leaf.name}" if isinstance(leaf, Node) else _text(leaf), args))


def _text(leaf: Any) -> str:
    return leaf.hex() if isinstance(leaf, float) else repr(leaf)


def _memory(node: Node, layout: StorageLayout, storages: dict[Hashable, int]) -> Iterator[str]:
    """Yields dtype, shape and place of each tensor; storages are numbered in order of occurrence."""
    for leaf in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(leaf, torch.Tensor):
            yield f"{leaf.dtype} {tuple(leaf.shape)} {leaf.device}"
    for place in layout.places[node]:
        yield f"{storages.setdefault(place.storage, len(storages))} {place.low} {place.high} {place.dense}"


def _constant(value: Any, numbers: dict[int, int]) -> str:
    if isinstance(value, torch.Tensor) and not isinstance(value, torch._subclasses.FakeTensor):
        return f"{digest.leaf(value):016x}"
    return f"graph {numbers[id(value)]}" if id(value) in numbers else type(value).__name__


_PLACE = "samebits.rounding"
"""The key in the `meta` of a graph under which its methods are stored."""


class Method(StrEnum):
    """The numbers by which an op rounds: shared by all ranks, or by the rank's class of equal ranks.

    Example:
        >>> captured = samebits.replica.capture(lambda x: x + 1, torch.ones(2), world_size=4)
        >>> for declared in samebits.replica.Equal(), samebits.replica.PerReplica():
        ...     report = samebits.replica.analyze(captured, {"x": declared})
        ...     samebits.rounding.assign_methods(captured, report)["add"]
        <Method.IDENTICAL_SEEDS: 'IDENTICAL_SEEDS'>
        <Method.DIFFERING_SEEDS: 'DIFFERING_SEEDS'>
    """

    IDENTICAL_SEEDS = "IDENTICAL_SEEDS"
    DIFFERING_SEEDS = "DIFFERING_SEEDS"


@dataclass(frozen=True)
class Assignment:
    """The methods that `assign_methods` stores in a graph."""

    digest: str
    methods: dict[str, Method]
    frame: Interpreter


def assign_methods(step: CapturedStep, report: Report) -> Mapping[str, Method]:
    """Gives every op of a captured step its method, by its path, and stores the graph's digest: do it last.

    An op has IDENTICAL_SEEDS if all its results and writes are replica-equal by `report` (also if it has
    none), else DIFFERING_SEEDS. Paths are names of nodes; in the body of a higher-order op,
    `cond/true_graph_0/mul`: a body that is called twice has methods for each of its call sites.

    Raises:
        InvalidArgumentError: these are no step and its report, or the report is of another step.

    Example:
        >>> args = torch.ones(2), torch.ones(2)
        >>> captured = samebits.replica.capture(lambda x, y: (x + 1, y * 2), *args, world_size=4)
        >>> report = samebits.replica.analyze(captured, {"y": samebits.replica.Equal()})
        >>> for op, method in samebits.rounding.assign_methods(captured, report).items():
        ...     print(op, method)
        add DIFFERING_SEEDS
        mul IDENTICAL_SEEDS
    """
    check_step("assign_methods(step, report)", step)
    check_report("assign_methods(step, report)", report)
    if report.step is not step:
        raise InvalidArgumentError(
            "assign_methods: the report is of another step; give samebits.replica.analyze(step)."
        )
    methods = {path: _method(node, frame) for path, node, frame in _ops(report.frame)}
    step.module.meta[_PLACE] = Assignment(digest_of(step), methods, report.frame)
    return MappingProxyType(methods)


def clear_methods(step: CapturedStep) -> None:
    """Removes the methods: the step may then be edited, or lowered with `rounding=False`.

    Example:
        >>> captured = samebits.replica.capture(lambda x: x + 1, torch.ones(2), world_size=1)
        >>> methods = samebits.rounding.assign_methods(captured, samebits.replica.analyze(captured))
        >>> samebits.rounding.clear_methods(captured)
        >>> samebits.rounding.lower(captured, rounding=False)(torch.ones(2))
        tensor([2., 2.])
    """
    check_step("clear_methods", step)
    step.module.meta.pop(_PLACE, None)


def verify_methods(step: CapturedStep, *, rounding: bool = True) -> None:
    """Checks that every op has a method if `rounding`, and none has one if not.

    Raises:
        RoundingMethodError: names the first op without a method, or with one that it must not have; or the
            graph was edited since the methods were assigned.

    Example:
        >>> captured = samebits.replica.capture(lambda x: x + 1, torch.ones(2), world_size=4)
        >>> samebits.rounding.verify_methods(captured, rounding=False)
        >>> samebits.rounding.verify_methods(captured)
        Traceback (most recent call last):
            ...
        samebits.errors.RoundingMethodError: lower: op 'add' has no stochastic rounding method; ...
    """
    check_step("verify_methods", step)
    found = step.module.meta.get(_PLACE)
    methods = found.methods if found else {}
    if not rounding:
        for path in methods:
            raise RoundingMethodError(
                f"lower(rounding=False): op {path!r} has the method {methods[path]}; remove the methods with "
                "clear_methods(step), or round."
            )
        return
    for path in _paths(step.module):
        if path not in methods:
            raise RoundingMethodError(
                f"lower: op {path!r} has no stochastic rounding method; call assign_methods(step, report) "
                "last, after every other transform."
            )
    if found and found.digest != digest_of(step):
        raise RoundingMethodError(
            "lower: the graph was edited after assign_methods, so its equalities need not hold; analyze it "
            "again and assign methods to it as the last transform."
        )


def assignment_of(step: CapturedStep) -> Assignment | None:
    return step.module.meta.get(_PLACE)


def _method(node: Node, frame: Interpreter) -> Method:
    partitions = set(frame.computed.get(node, ()))
    if node.meta.get("val") is not None:
        partitions.add(frame.defined[node][0])
    equal = partitions <= {frame.known.equal}
    return Method.IDENTICAL_SEEDS if equal else Method.DIFFERING_SEEDS


def _ops(frame: Interpreter, path: str = "") -> Iterator[tuple[str, Node, Interpreter]]:
    """Yields (path, op, the frame that it ran in) of a graph and of its bodies, call site by call site."""
    for node in frame.layout.nodes:
        if node.op == "call_function":
            yield path + node.name, node, frame
            for graph, inner in frame.bodies.get(node, {}).items():
                yield from _ops(inner, f"{path}{node.name}/{graph.target}/")


def _paths(module: GraphModule, path: str = "") -> Iterator[str]:
    for node in module.graph.nodes:
        if node.op == "call_function":
            yield path + node.name
            for graph in bodies_of(node) if str(node.target) in HANDLERS else ():
                body = getattr(module, str(graph.target))
                yield from _paths(body, f"{path}{node.name}/{graph.target}/")


def bodies_of(node: Node) -> list[Node]:
    owner = node.graph.owning_module
    named = [one for one in node.all_input_nodes if one.op == "get_attr"]
    return [one for one in named if isinstance(getattr(owner, str(one.target), None), GraphModule)]

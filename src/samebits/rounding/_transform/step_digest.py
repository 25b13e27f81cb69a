"""The digest of a captured step: an edit changes it, and another capture of the same code does not."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits import _digest as digest
from samebits._byte_digest import of_bytes
from samebits._inspect.user_code import text_of_node
from samebits.replica._analysis.storage_layout import StorageLayout
from samebits.replica._capture.captured_step import CapturedStep


def digest_of(step: CapturedStep) -> str:
    """Returns the digest of the ops, their arguments, the bodies, constants, memory, names, groups and ranks of a step."""
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
    return str(
        pytree.tree_map(
            lambda leaf: f"%{leaf.name}" if isinstance(leaf, Node) else _text(leaf), (node.args, node.kwargs)
        )
    )


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

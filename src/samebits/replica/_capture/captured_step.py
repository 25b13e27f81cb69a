"""A captured training step: one graph, its named inputs and outputs, and the values that differ from rank to rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits.errors import InvalidArgumentError
from samebits.replica._analysis.partitions import Groups

STATE, BATCH, GENERATOR, CONSTANT = "state", "batch", "generator", "constant"
"""Parameters, buffers and optimizer state; other tensors; a generator of the process; a tensor that the code closes over."""


@dataclass
class CapturedStep:
    """The result of `capture`. Prints itself as the graph with the names of its inputs.

    Example:
        >>> def step(model, x):
        ...     return {"loss": model(x).sum()}
        >>> args = torch.nn.Linear(3, 1), torch.ones(4, 3)
        >>> captured = samebits.replica.capture(step, *args, world_size=8)
        >>> captured.input_names, captured.output_names, captured.world_size
        (['model.weight', 'model.bias', 'x'], ['output.loss'], 8)
    """

    module: GraphModule
    """The graph of rank 0."""
    world_size: int
    kinds: dict[str, str]
    """Kind of each input, in the order of the graph's placeholders; generators and constants follow."""
    output_names: list[str]
    groups: dict[Node, Groups] = field(default_factory=dict)
    """All groups of each collective, over all ranks."""
    by_rank: dict[Node, tuple[Any, ...] | None] = field(default_factory=dict)
    """Arguments [ranks] of the nodes that have other ones on other ranks; None where the code was not run as all ranks."""
    mesh: Mapping[str, int] = field(default_factory=dict)
    """Axes and their sizes, first axis slowest."""
    captured: tuple[int, ...] = (0,)
    """The ranks as which the code was run."""
    arguments: Sequence[str] = ()
    """Names of the arguments of the step."""
    outputs: pytree.TreeSpec = field(default_factory=lambda: pytree.tree_structure(None))
    """The tree of what the step returns."""
    shards: dict[str, Groups] = field(default_factory=dict)
    """The ranks that hold the same shard, for each constant that is a shard of a DTensor."""

    numbers: dict[str, Any] = field(default_factory=dict)
    """The numbers among the arguments that the graph holds, by path: learning rates, modes, flags."""

    written: tuple[str, ...] = ()
    """Arguments that are no parameters and that the step writes: they count as state."""

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs; of tensors as `model.fc.weight`, of generators as `generator:cpu`."""
        return list(self.kinds)

    def __str__(self) -> str:
        ranks = f"{len(self.captured)} of {self.world_size} ranks captured"
        nodes = sum(len(one.graph.nodes) for one in self.module.modules() if isinstance(one, GraphModule))
        head = f"step of {nodes} nodes, {ranks}"
        inputs = "\n".join(f"  {name} ({kind})" for name, kind in self.kinds.items())
        return (
            f"{head}\ninputs\n{inputs}\noutputs\n  "
            + "\n  ".join(self.output_names)
            + f"\n{self.module.graph}"
        )


def check_step(caller: str, step: Any) -> None:
    """Raises `InvalidArgumentError`, with the name of the function `caller`, unless `step` is a captured step."""
    if not isinstance(step, CapturedStep):
        raise InvalidArgumentError(
            f"{caller} takes a captured step, the result of samebits.replica.capture(...), not {describe(step)}."
        )


def describe(value: Any) -> str:
    """Returns the name of a wrong argument for a message: of a class or a function its name, of any other object its class."""
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"{type(value).__name__}"

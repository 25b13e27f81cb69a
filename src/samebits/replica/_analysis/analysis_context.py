"""The state that all passes over a step share: layouts, plans, outcomes of bodies and findings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from samebits._inspect.user_code import line_of_node
from samebits.replica._analysis.control_flow_ops import BodyOutcome
from samebits.replica._analysis.op_rules import OpEffects, plan_of
from samebits.replica._analysis.partitions import Partitions
from samebits.replica._analysis.storage_layout import StorageLayout
from samebits.replica._capture.captured_step import CapturedStep

CALL_SITES = "call sites"


@dataclass(frozen=True)
class AnalysisFinding:
    """A finding of the analysis besides the values that vary."""

    kind: str
    """`hang`: a collective that not all members reach; `unknown`: an op of which nothing is known;
    `call sites`: calls of one body with values that are not equal on the same ranks."""
    node: Node
    text: str

    @property
    def line(self) -> str:
        """The user's line."""
        return line_of_node(self.node)

    @property
    def is_warning(self) -> bool:
        """True if it is suspect, and no failure."""
        return self.kind == CALL_SITES

    def __str__(self) -> str:
        return f"{self.kind}: {self.text} ({self.line})"


class AnalysisContext:
    """The state of all passes: the graphs with their layouts and plans, and the bodies run before."""

    def __init__(self, step: CapturedStep) -> None:
        self.step = step
        self.partitions = Partitions(step.world_size)
        self.findings: dict[tuple[str, Node], AnalysisFinding] = {}
        self._layouts: dict[GraphModule, StorageLayout] = {}
        self._plans: dict[Node, OpEffects] = {}
        self.literals = {node: self._literal(values) for node, values in step.by_rank.items()}
        self.outcomes: dict[object, tuple[BodyOutcome, Any]] = {}
        """The outcome of each body for each of its inputs, and the frame of that run."""

    def layout(self, module: GraphModule) -> StorageLayout:
        if module not in self._layouts:
            self._layouts[module] = StorageLayout(module)
        return self._layouts[module]

    def plan(self, node: Node, layout: StorageLayout) -> OpEffects:
        if node not in self._plans:
            self._plans[node] = plan_of(node, layout)
        return self._plans[node]

    def add_finding(self, kind: str, node: Node, text: str, site: Node | None = None) -> None:
        """Adds a finding, once; `site` is the higher-order op in whose body the node is."""
        self.findings.setdefault((kind, node), AnalysisFinding(kind, site or node, text))

    def _literal(self, values: tuple[Any, ...] | None) -> int:
        known = self.partitions
        return known.distinct if values is None else known.from_values([str(value) for value in values])

"""One run over one graph: every node reads, moves and writes partitions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits.errors import InvalidArgumentError
from samebits.replica._analysis.analysis_context import AnalysisContext
from samebits.replica._analysis.collectives import PARTS, result_partition
from samebits.replica._analysis.control_flow_ops import HANDLERS, BodyOutcome, Generators, operands_of
from samebits.replica._analysis.memory import ByteRange, Memory
from samebits.replica._analysis.op_rules import SEED, Flow, OpEffects
from samebits.replica._analysis.partitions import Partitions
from samebits.replica._analysis.storage_layout import tensors

# The reasons why a value varies: every write of a varying value, and the varying values that it was made
# of.


@dataclass(slots=True)
class Event:
    """One write. `what` is a node, or the name of an input."""

    what: Node | str
    partition: int
    parents: tuple[int, ...]
    reason: str = ""


class Events:
    """The writes of one pass over a graph. Event 0 represents all values that are equal on every rank."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self.log: list[Event] = [Event("", partitions.equal, ())]

    def add(self, what: Node | str, partition: int, parents: tuple[int, ...], reason: str = "") -> int:
        if partition == self._partitions.equal:
            return 0
        self.log.append(Event(what, partition, tuple(dict.fromkeys(one for one in parents if one)), reason))
        return len(self.log) - 1

    def path(self, event: int, over: int) -> list[Event]:
        """Returns the shortest path from a first source that differs within `over` to an event, inclusive."""
        came: dict[int, int] = {event: event}
        front = [event]
        while front:
            following = []
            for one in front:
                parents = [parent for parent in self.log[one].parents if self._differs(parent, over)]
                if not parents:
                    return [self.log[number] for number in _path_back(one, came)]
                for parent in parents:
                    if parent not in came:
                        came[parent] = one
                        following.append(parent)
            front = following
        return [self.log[event]]

    def _differs(self, event: int, over: int) -> bool:
        return not self._partitions.holds_over(self.log[event].partition, over)


def _path_back(event: int, came: dict[int, int]) -> list[int]:
    found = [event]
    while came[found[-1]] != found[-1]:
        found.append(came[found[-1]])
    return found


_PROGRESS_EVERY = 1000
"""Nodes between two progress calls: some milliseconds."""


class Interpreter:
    """A run of one graph, with its own memory."""

    def __init__(self, program: AnalysisContext, module: GraphModule, control: int, events: Events) -> None:
        self.program, self.events, self.control = program, events, control
        self.known = program.partitions
        self.layout = program.layout(module)
        self.memory = Memory(self.known)
        self.numbers: dict[Node, tuple[int, int]] = {}
        self.skew: dict[Node, tuple[int, int]] = {}
        """Views that read other bytes on other ranks: the partition of their offsets, and the event why."""
        self.site: Node | None = None
        """The higher-order op whose body this is."""
        self.defined: dict[Node, tuple[int, tuple[int, ...]]] = {}
        self.computed: dict[Node, tuple[int, ...]] = {}
        """The result of each op, wherever it is stored: a partition, one per tensor of an op over lists."""
        self.consumed: dict[Node, dict[Node, int]] = {}
        """The partition of each operand of each op when the op read it."""
        self.bodies: dict[Node, dict[Node, Interpreter]] = {}
        """The last (finest) run of each body of each higher-order op, by the node that names the body."""
        self.calling: Node | None = None
        self.generators: dict[str, tuple[int, int]] = {}
        self.drawn: set[str] = set()
        self.reason = ""

    def bind(self, node: Node, partition: int, event: int) -> None:
        """Gives a placeholder its value."""
        self.numbers[node] = (partition, event)
        for place in self.layout.places[node]:
            self.fill(place, partition, event)

    def fill(self, place: ByteRange, partition: int, event: int) -> None:
        """Gives a storage its value; where two inputs share it, the value is equal where both are."""
        whole = ByteRange(place.storage)
        if self.memory.is_written(whole):
            held, made = self.memory.read(whole)
            partition = self.known.meet(partition, held)
            event = self.events.add("memory that inputs share", partition, (event, *made))
        self.memory.write(whole, partition, event)

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Visits every node; placeholders must be bound. `on_progress(done, total)` counts nodes."""
        for index, node in enumerate(self.layout.nodes):
            if on_progress is not None and index % _PROGRESS_EVERY == 0:
                on_progress(index, len(self.layout.nodes))
            if node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                self._constant(node)
            elif node.op not in {"placeholder", "output"}:
                raise InvalidArgumentError(
                    f"analyze: {node.format_node()} is no op of a captured graph; use "
                    f"samebits.replica.capture."
                )
            if node.op != "output":
                self.defined[node] = self.read(node)

    def read(self, node: Node) -> tuple[int, tuple[int, ...]]:
        places = self.layout.places[node]
        if not places:
            partition, event = self.numbers.get(node, (self.known.equal, 0))
            return partition, (event,)
        if len(places) == 1 and not self.skew:
            return self.memory.read(places[0])
        found, events = self.known.equal, ()
        if node in self.skew:
            found, event = self.skew[node]
            places, events = tuple(place.anywhere() for place in places), (event,)
        for place in places:
            held, made = self.memory.read(place)
            found, events = self.known.meet(found, held), events + made
        return found, events

    def read_all(self, operands: Sequence[Any]) -> tuple[int, ...]:
        """Returns the partition of each operand; a plain number is equal."""
        return tuple(self.read(one)[0] if isinstance(one, Node) else self.known.equal for one in operands)

    def meet(self, *partitions: int) -> int:
        found = self.known.equal
        for one in partitions:
            found = self.known.meet(found, one)
        return found

    def _constant(self, node: Node) -> None:
        for place in self.layout.places[node]:
            whole = ByteRange(place.storage)
            if not self.memory.is_written(whole):
                self._write(node, whole, self.program.literals.get(node, self.known.equal), ())

    def _write(
        self, node: Node, place: ByteRange, partition: int, parents: tuple[int, ...], reason: str = ""
    ) -> None:
        if self.memory.is_written(place) and not place.dense:
            held, made = self.memory.read(place)  # the bytes in the gaps stay
            partition, parents = self.known.meet(partition, held), parents + made
        elif not self.memory.is_written(place):
            place = ByteRange(place.storage)
        self.memory.write(place, partition, self.events.add(node, partition, parents, reason))

    def _call(self, node: Node) -> None:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._call_higher_order(node)
            return
        plan = self.program.plan(node, self.layout)
        literal = self._literal(node, plan)
        if plan.is_view:
            self._note_skew(node, plan, literal)
            return
        own, parents = self._own_partition(node, plan, literal)
        results = [self._flow(node, plan, flow, own) for flow in plan.flows]
        pairs = zip(plan.flows, results, strict=True)
        self.computed[node] = tuple(one for flow, (one, _) in pairs if flow.writes)
        reason = self._reason(node, plan)
        for flow, (partition, made) in zip(plan.flows, results, strict=True):
            self._store(node, flow, partition, made + parents, reason)
        self._inherit_skew(node)
        if not self.layout.places[node]:
            partition = self.meet(own, *(one for one, _ in results))
            made = tuple(itertools.chain(parents, *(one for _, one in results)))
            self.numbers[node] = (partition, self.events.add(node, partition, made, reason))

    def _store(self, node: Node, flow: Flow, partition: int, parents: tuple[int, ...], reason: str) -> None:
        late = [one for one in flow.writers if one in self.skew]
        skewed = {place: self.skew[one] for one in late for place in self.layout.places[one]}
        for place in flow.writes:
            if place in skewed:
                where, event = skewed[place]
                written = self.known.meet(partition, where)
                self._write(node, place.anywhere(), written, (*parents, event), reason)
            else:
                self._write(node, place, partition, parents, reason)

    def _literal(self, node: Node, plan: OpEffects) -> int:
        """Returns the partition of the literals in the arguments that Python code made of the rank."""
        is_of_parts = plan.collective is not None and plan.collective.move == PARTS
        if is_of_parts and self.program.step.by_rank.get(node):
            # every rank has its own split sizes, which `result_partition` evaluates
            return self.known.equal
        return self.program.literals.get(node, self.known.equal)

    def _own_partition(self, node: Node, plan: OpEffects, literal: int) -> tuple[int, tuple[int, ...]]:
        """Returns the op's own contribution to its result: literals, nondeterminism, the generator."""
        own, parents = literal, ()
        if plan.nondeterminism:
            own = self.known.distinct
        if plan.unknown:
            self.program.add_finding(
                "unknown", node, f"{node.target}: {plan.nondeterminism or 'nothing is known of this op'}"
            )
        if plan.generator is not None:
            state, parents = self._draw(node, plan, literal)
            own = self.known.meet(own, state)
        return own, parents

    def _draw(self, node: Node, plan: OpEffects, literal: int) -> tuple[int, tuple[int, ...]]:
        """Returns the state that an op draws from; then it is equal where the number of draws is."""
        name = str(plan.generator.storage)  # type: ignore[union-attr]
        state, event = self.generators[name]
        if name == SEED:
            return state, (event,)
        self.drawn.add(name)
        read = [self.read(one) for one in (plan.indices if plan.counted else node.all_input_nodes)]
        moved_by = self.meet(literal, *(one for one, _ in read))
        if moved_by != self.known.equal:
            after = self.known.meet(state, moved_by)
            made = tuple(itertools.chain((event,), *(one for _, one in read)))
            reason = "the data decide how many words are drawn"
            self.generators[name] = (after, self.events.add(node, after, made, reason))
        return state, (event,)

    def _flow(
        self, node: Node, plan: OpEffects, flow: Flow, own_partition: int
    ) -> tuple[int, tuple[int, ...]]:
        partition, parents = own_partition, ()
        consumed = self.consumed.setdefault(node, {})
        for one in (*flow.reads, *plan.indices):
            held, made = self.read(one)
            consumed[one] = held
            partition, parents = self.known.meet(partition, held), parents + made
        if plan.collective is not None:
            groups = self.program.step.groups[node]
            self._check_reached(node)
            by_rank = self.program.step.by_rank.get(node)
            partition = self.known.meet(
                own_partition, result_partition(plan.collective, node, groups, partition, by_rank, self.known)
            )
        if partition != self.known.equal and not self.reason:
            self.reason = self._reason(node, plan)
        return partition, parents

    def _reason(self, node: Node, plan: OpEffects) -> str:
        if plan.nondeterminism:
            return plan.nondeterminism
        if node in self.program.literals and (plan.collective is None or plan.collective.move != PARTS):
            return "the Python code makes this argument from the rank"
        if plan.generator is not None:
            return f"draws from {plan.generator.storage}"
        if plan.collective is not None and plan.collective.move == PARTS:
            return "gives every member of the group its own part"
        return ""

    def _check_reached(self, node: Node) -> None:
        """Reports a collective that some members of a group do not reach: it never ends."""
        if self.control == self.known.equal:
            return
        labels = self.known.labels(self.control)
        for group in self.program.step.groups[node]:
            if len({int(labels[rank]) for rank in group}) > 1:
                text = f"{node.target} over ranks {list(group)} is in a branch that not all take: it hangs"
                self.program.add_finding("hang", node, text, self.site)
                return

    def _note_skew(self, node: Node, plan: OpEffects, literal: int) -> None:
        """Notes a view whose offsets differ from rank to rank. A view writes nothing."""
        read = [self.read(one) for one in plan.indices]
        where = self.meet(literal, *(one for one, _ in read))
        if where != self.known.equal:
            made = tuple(itertools.chain(*(one for _, one in read)))
            self.skew[node] = (where, self.events.add(node, where, made, "reads other bytes on other ranks"))
        self._inherit_skew(node)
        seen = self.read(node)[0]  # and not all of the list, or of the buffer, that it is a part of
        self.consumed[node] = {
            one: seen if self.layout.places[one] else self.read(one)[0] for one in node.all_input_nodes
        }

    def _inherit_skew(self, node: Node) -> None:
        """Passes the skew on to a view of a skewed view, and to a tensor that was written through one."""
        if not self.skew:
            return
        storages = self.layout.storages(node)
        for one in node.all_input_nodes:
            if one in self.skew and storages & self.layout.storages(one):
                where, event = self.skew.get(node, (self.known.equal, 0))
                self.skew[node] = (self.known.meet(where, self.skew[one][0]), event or self.skew[one][1])

    def body(self, graph: Any, operands: Sequence[int], control: int, generators: Generators) -> BodyOutcome:
        """Runs the body that a node names; for the same inputs once only."""
        module = self.layout.constant(graph)
        key = (id(module), tuple(operands), control, tuple(generators.items()))
        if key not in self.program.outcomes:
            self.program.outcomes[key] = self._body(graph, module, operands, control, generators)
        outcome, frame = self.program.outcomes[key]
        assert self.calling is not None
        self.bodies.setdefault(self.calling, {})[graph] = frame
        return outcome

    def _body(
        self, caller: Node, module: GraphModule, operands: Sequence[int], control: int, generators: Generators
    ) -> tuple[BodyOutcome, Interpreter]:
        frame = Interpreter(self.program, module, control, Events(self.known))
        frame.site = self.site or caller
        inputs = [node for node in frame.layout.nodes if node.op == "placeholder"]
        for node, partition in zip(inputs, operands, strict=True):
            frame.bind(node, partition, frame.events.add(node, partition, ()))
        frame.generators = {name: (one, frame.events.add(name, one, ())) for name, one in generators.items()}
        frame.run()
        results = pytree.tree_leaves(frame.layout.nodes[-1].args[0])
        after = {name: one for name, (one, _) in frame.generators.items()}
        ends = frame.read_all(results), frame.read_all(inputs), after
        outcome = BodyOutcome(*ends, frozenset(frame.drawn), frame.reason)
        return outcome, frame

    def _call_higher_order(self, node: Node) -> None:
        name = str(node.target)
        generators = {one: state for one, (state, _) in self.generators.items()}
        operands = node.all_input_nodes
        self.consumed[node] = {one: self.read(one)[0] for one in operands if self.layout.places[one]}
        parents = tuple(itertools.chain(*(self.read(one)[1] for one in operands)))
        if name not in HANDLERS:
            self.program.add_finding(
                "unknown", node, f"{name}: nothing is known of this op, so its results vary"
            )
            self._call_opaque(node, parents, "a higher-order op of which nothing is known")
            return
        given = operands_of(node)
        self.calling = node
        outcome = HANDLERS[name](self, node, generators)
        literal = self.program.literals.get(node, self.known.equal)
        if self._mutated_aliases(given, outcome):
            self.program.add_finding("unknown", node, f"{name} writes to operands that share memory")
            self._call_opaque(node, parents, "writes to operands that share memory")
            return
        reason = outcome.reason
        for one in outcome.drawn:
            parents += (self.generators[one][1],)
            after = outcome.generators[one]
            why = f"draws from {one} in a branch or a loop"
            self.generators[one] = (after, self.events.add(node, after, parents, why))
        self.drawn |= outcome.drawn
        for operand, after in zip(given, outcome.operands, strict=True):
            if isinstance(operand, Node) and after != self.read(operand)[0]:
                for place in self.layout.places[operand]:
                    self._write(node, place, after, parents, reason)
        self._results(node, tuple(self.meet(one, literal) for one in outcome.outputs), parents, reason)

    def _results(self, node: Node, outputs: tuple[int, ...], parents: tuple[int, ...], reason: str) -> None:
        leaves = [isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(node.meta.get("val"))]
        every = self.meet(*outputs)
        per_tensor = outputs if len(leaves) == len(outputs) else (every,) * len(leaves)
        mine = [one for one, is_tensor in zip(per_tensor, leaves, strict=True) if is_tensor]
        for place, one in zip(self.layout.places[node], mine, strict=True):
            self._write(node, place, one, parents, reason)
        self.numbers[node] = (every, self.events.add(node, every, parents, reason))

    def _call_opaque(self, node: Node, parents: tuple[int, ...], reason: str) -> None:
        for one in (node, *node.all_input_nodes):
            if one is node or tensors(one):
                for place in self.layout.places[one]:
                    self._write(node, place.anywhere(), self.known.distinct, parents, reason)
        for name in self.generators:
            self.generators[name] = (
                self.known.distinct,
                self.events.add(node, self.known.distinct, parents, reason),
            )
        distinct = self.known.distinct
        self.numbers[node] = (distinct, self.events.add(node, distinct, parents, reason))

    def _mutated_aliases(self, operands: Sequence[Any], outcome: BodyOutcome) -> bool:
        nodes = [one for one in operands if isinstance(one, Node)]
        storages = [place.storage for one in nodes for place in self.layout.places[one]]
        before = self.read_all(operands)
        return len(set(storages)) < len(storages) and before != outcome.operands

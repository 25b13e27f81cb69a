"""The fixpoint of a captured step: which values hold the same bits on which ranks, at every step of a run.

Variables start as declared and are refined by the values after a step, until nothing changes: the greatest
fixpoint. Every round refines some variable or is the last, and costs time linear in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

from torch.fx import Node
from torch.utils import _pytree as pytree

from samebits._garbage_collection import without_garbage_collection
from samebits._inspect.user_code import line_of_node
from samebits.errors import InvalidArgumentError
from samebits.replica._analysis.analysis_context import CALL_SITES, AnalysisContext, AnalysisFinding
from samebits.replica._analysis.interpreter import Events, Interpreter
from samebits.replica._analysis.storage_layout import constant_place
from samebits.replica._capture.captured_step import CONSTANT, GENERATOR, STATE, CapturedStep, check_step
from samebits.replica._declarations import Declaration, Equal, Partition, PerReplica, partition_number
from samebits.replica._report.report import Report, Value

# Bodies that are called at several sites with values that are not equal on the same ranks.
#
# The analysis gives each site its own result. A tool that outlines or merges such a body, or gives it one
# rounding method, needs to know.


_NAMED = 8


def disagreements(frame: Interpreter) -> Iterator[AnalysisFinding]:
    """Yields one finding for each input of a body on which two call sites disagree; it has both lines."""
    sites: dict[object, list[tuple[Node, Interpreter]]] = {}
    for node, body in _calls(frame):
        sites.setdefault(node.args[1] or id(body.layout.module), []).append((node, body))
    for name, called in sites.items():
        (first, one), *others = called
        for index, given in enumerate(_inputs(one)):
            for site, other in others:
                found = _inputs(other)
                if len(found) != len(_inputs(one)) or other.numbers[found[index]][0] == one.numbers[given][0]:
                    continue
                yield AnalysisFinding(
                    CALL_SITES, site, _text(name, given, (first, one), (site, other), index)
                )
                break


def _calls(frame: Interpreter) -> Iterator[tuple[Node, Interpreter]]:
    for node, bodies in frame.bodies.items():
        for body in bodies.values():
            if str(node.target) == "invoke_subgraph":
                yield node, body
            yield from _calls(body)


def _inputs(body: Interpreter) -> list[Node]:
    return [node for node in body.layout.nodes if node.op == "placeholder"]


def _text(
    name: object,
    placeholder: Node,
    first: tuple[Node, Interpreter],
    second: tuple[Node, Interpreter],
    index: int,
) -> str:
    (site, one), (_, other) = first, second
    text = one.known.text
    here, there = text(one.numbers[placeholder][0]), text(other.numbers[_inputs(other)[index]][0])
    later = {node.name: held for node, (held, _) in other.defined.items() if node.op == "call_function"}
    apart = [node.name for node, (held, _) in one.defined.items() if later.get(node.name, held) != held]
    named = ", ".join(apart[:_NAMED]) + (", ..." if len(apart) > _NAMED else "")
    where = f"the call at {line_of_node(site)}" if site.meta.get("stack_trace") else f"the call {site.name}"
    return (
        f"the calls of {name} disagree on {placeholder.name}: {here} in {where}, {there} in this one; "
        f"values inside that differ: {named or 'none'}"
    )


@dataclass
class _Round:
    """One pass over the step from given initial values."""

    frame: Interpreter
    events: Events
    first: dict[str, int]
    """The event with which each input starts."""
    ends: dict[str, tuple[int, tuple[int, ...]]]
    outputs: dict[str, tuple[int, tuple[int, ...]]]


def analyze(
    step: CapturedStep,
    inputs: Mapping[str, Declaration] | None = None,
    feedback: Mapping[str, str] | None = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Determines, for every value of a step, the ranks on which it has equal bits.

    `inputs` declares inputs by name or pattern (`model.*`), later ones over earlier ones: `Equal()`,
    `PerReplica()` or `Partition(groups)`. By default what is written or is a parameter is equal, other
    tensors and generators are per replica. `feedback` names outputs that are an input of the next step
    (`{"params.w": "output.w"}`); what is written in place needs none. `on_progress(done, total)` is called
    every 1,000 nodes of a pass; there is one pass per refinement.

    Assumed: op determinism on, one kind of processor and one number of threads on all ranks (the op table
    knows the ops that vary even so), and collectives as in `samebits.replica._analysis.collectives`.

    Raises:
        InvalidArgumentError: `step` is no captured step, no input or output has such a name; groups overlap.

    Example:
        >>> args = torch.ones(3), torch.ones(4)
        >>> captured = samebits.replica.capture(lambda w, x: w.add_(x.sum()), *args, world_size=8)
        >>> samebits.replica.analyze(captured).drifting
        ('w',)
        >>> samebits.replica.analyze(captured, {"x": samebits.replica.Equal()}).drifting
        ()
    """
    check_step("analyze", step)
    program = AnalysisContext(step)
    start = _declared_partitions(step, {} if inputs is None else inputs, program)
    declared = dict(start)
    fed = _check_feedback(step, {} if feedback is None else feedback)
    with without_garbage_collection():
        while True:
            found = _round(program, start, on_progress)
            after = {}
            for name, partition in start.items():
                end = found.outputs[fed[name]] if name in fed else found.ends[name]
                after[name] = program.partitions.meet(partition, end[0])
            if after == start:
                return _report(program, found, start, declared, fed)
            start = after


def _declared_partitions(
    step: CapturedStep, inputs: Mapping[str, Declaration], program: AnalysisContext
) -> dict[str, int]:
    usual = {STATE: Equal(), CONSTANT: Equal()}
    kinds = step.kinds.items()
    declarations: dict[str, Declaration] = {name: usual.get(kind, PerReplica()) for name, kind in kinds}
    declarations.update((name, Partition(groups)) for name, groups in step.shards.items())
    if not isinstance(inputs, Mapping):
        raise InvalidArgumentError(f'analyze: declare inputs by name, {{"x": Equal()}}, not {inputs!r}.')
    for pattern, declaration in inputs.items():
        names = [name for name in step.kinds if name == pattern or fnmatchcase(name, str(pattern))]
        if not names:
            raise InvalidArgumentError(
                f"analyze(inputs={{{pattern!r}: ...}}): no input has this name; there are "
                f"{', '.join(step.kinds)}."
            )
        declarations.update(dict.fromkeys(names, declaration))
    start = {name: partition_number(one, program.partitions) for name, one in declarations.items()}
    for node, literal in program.literals.items():
        if node.op == "get_attr" and str(node.target) in start:
            name = str(node.target)
            start[name] = program.partitions.meet(start[name], literal)
    return start


def _check_feedback(step: CapturedStep, feedback: Mapping[str, str]) -> Mapping[str, str]:
    if not isinstance(feedback, Mapping):
        raise InvalidArgumentError(
            'analyze: feedback names the output that an input takes, {"params.w": "output.w"}, not '
            f"{feedback!r}."
        )
    for name, output in feedback.items():
        if name not in step.kinds or output not in step.output_names:
            raise InvalidArgumentError(
                f"analyze(feedback={{{name!r}: {output!r}}}): inputs are {', '.join(step.kinds)}; "
                f"outputs are {', '.join(step.output_names)}."
            )
    return feedback


def _round(
    program: AnalysisContext, start: Mapping[str, int], on_progress: Callable[[int, int], None] | None
) -> _Round:
    step, events = program.step, Events(program.partitions)
    first = {name: events.add(name, partition, ()) for name, partition in start.items()}
    frame = Interpreter(program, step.module, program.partitions.equal, events)
    placeholders = iter([node for node in frame.layout.nodes if node.op == "placeholder"])
    nodes: dict[str, Node] = {}
    names = [name for name, kind in step.kinds.items() if kind == CONSTANT]
    constants = {name: constant_place(attrgetter(name)(step.module)) for name in names}
    for name, kind in step.kinds.items():
        if kind == GENERATOR:
            frame.generators[name] = (start[name], first[name])
        elif kind == CONSTANT:
            frame.fill(constants[name], start[name], first[name])
        else:
            nodes[name] = next(placeholders)
            frame.bind(nodes[name], start[name], first[name])
    frame.run(on_progress)
    ends: dict[str, Any] = {name: frame.read(node) for name, node in nodes.items()}
    for name, kind in step.kinds.items():
        if kind == GENERATOR:
            state, event = frame.generators[name]
            ends[name] = (state, (event,))
        elif kind == CONSTANT:
            ends[name] = frame.memory.read(constants[name])
    leaves = pytree.tree_leaves(frame.layout.nodes[-1].args[0])
    outputs = {
        name: frame.read(leaf) if isinstance(leaf, Node) else (program.partitions.equal, ())
        for name, leaf in zip(step.output_names, leaves, strict=True)
    }
    return _Round(frame, events, first, ends, outputs)


def _report(
    program: AnalysisContext,
    last_round: _Round,
    start: dict[str, int],
    declared: dict[str, int],
    fed: Mapping[str, str],
) -> Report:
    for name, partition in start.items():
        if partition != declared[name]:  # the state that the step before left
            _, made = last_round.outputs[fed[name]] if name in fed else last_round.ends[name]
            event = last_round.events.log[last_round.first[name]]
            event.parents = tuple(one for one in made if one)
    starts = {name: Value(one, (last_round.first[name],)) for name, one in start.items()}
    ends = {name: Value(*one) for name, one in last_round.ends.items()}
    outputs = {name: Value(*one) for name, one in last_round.outputs.items()}
    defined = {node.name: Value(*one) for node, one in last_round.frame.defined.items()}
    return Report(
        program.step,
        program.partitions,
        last_round.events,
        starts,
        ends,
        {**defined, **outputs},
        (*program.findings.values(), *disagreements(last_round.frame)),
        declared,
        last_round.frame,
    )

"""The analysis against what ranks really hold: 2,000 random programs, and more in a soak. Nothing claimed may differ.

SAMEBITS_SOUNDNESS_PROGRAMS=20000 pytest -m soak -s tests/replica/test_analysis_programs.py
"""

import dataclasses
import itertools
import os
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode

import replica_ops as ops
import replica_oracle as oracle
import replica_programs as programs
from replica_lockstep import Ranks
from replica_programs import GENERATOR, Drawn, judged
from samebits.errors import RankDependentError
from samebits.replica._analysis import (
    analysis_context as program,
)
from samebits.replica._analysis import (
    collectives,
    control_flow_ops,
    fixpoint,
    interpreter,
    memory,
    op_rules,
)
from samebits.replica._analysis import (
    storage_layout as layout,
)

MIXED = {**ops.ELEMENTWISE, **ops.DTYPES, **ops.REDUCTIONS, **ops.VIEWS, **ops.WRITES, **ops.DRAWS}
KINDS = {
    "ops": programs.programs(MIXED, ops.COLLECTIVES),
    "collectives": programs.programs(
        {**ops.ELEMENTWISE, **ops.VIEWS, **ops.WRITES}, {**ops.COLLECTIVES, **ops.COLLECTIVES}
    ),
    "ranks": programs.programs(
        {**MIXED, **ops.BY_RANK}, {**ops.COLLECTIVES, **ops.BY_RANK_COLLECTIVES}, by_rank=True
    ),
    "flow": programs.programs(
        {**ops.FLOW, "add": ops.ELEMENTWISE["add"], "rand": ops.DRAWS["rand"]},
        {**ops.FLOW_COLLECTIVES, "all_reduce": ops.COLLECTIVES["all_reduce"]},
        shortest=1,
        longest=3,
    ),
}
BATCHES, BATCH = 20, {"ops": 55, "collectives": 30, "ranks": 10, "flow": 5}
"""Programs of each kind in a batch. CI runs all batches: 2,000 programs."""
HYPOTHESIS = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)


@pytest.fixture(autouse=True)
def as_nobody_was_here():
    """`torch.cond` keeps what it compiled: whatever ran before in this process, a batch meets the same, and leaves nothing."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def tried(batch):
    """Sums of the verdicts over the programs of a batch, no two of them the same graph."""
    return sum((tried_kind(kind, batch, count) for kind, count in BATCH.items()), Counter())


def tried_kind(kind, batch, count):
    total, seen = Counter(), set()

    def one(drawn):
        key = dataclasses.replace(drawn, classes=None)
        if key in seen or len(seen) == count:
            return
        try:
            verdict = judged(drawn)
        # its groups are not of one size, and it does other things in each: refused
        except RankDependentError:
            return
        if verdict.wrong:
            drawn = programs.smallest(drawn, lambda less: judged(less).wrong)
            pytest.fail(f"claimed, and not so: {judged(drawn).wrong[:3]} of {drawn}")
        seen.add(key)
        total.update({name: int(value) for name, value in vars(verdict).items() if isinstance(value, int)})

    for again in itertools.count():
        if len(seen) == count:
            return total + Counter(programs=count)
        settings(HYPOTHESIS, max_examples=count)(seed(batch * 1000 + again)(given(KINDS[kind])(one)))()


def percent(total):
    return (
        f"{total['programs']} programs, {total['values']} values: {total['apart']} pairs differ, none is claimed; of "
        f"{total['equal']} equal pairs {total['found'] / total['equal']:.2%} are claimed; {total['hangs']} hangs"
    )


@pytest.mark.parametrize(
    "batch",
    [
        *(pytest.param(n, marks=pytest.mark.slow) for n in range(6)),
        *(pytest.param(n, marks=pytest.mark.soak) for n in range(6, BATCHES)),
    ],
)
def test_what_is_claimed_is_so(batch):
    """Random programs: no pair of ranks claimed equal differs in any of 5 draws, and 95% of the pairs that are equal are claimed."""
    total = tried(batch)
    print(percent(total))
    assert total["programs"] * BATCHES >= 2000
    assert total["found"] >= 0.95 * total["equal"] > 0
    assert total["apart"] > 0.1 * total["equal"]


@pytest.mark.soak
@pytest.mark.timeout(14400)
def test_what_is_claimed_is_so_over_many_programs(soak):
    """As above, over SAMEBITS_SOUNDNESS_PROGRAMS programs that CI does not see; prints what came out."""
    wanted, total = int(os.environ.get("SAMEBITS_SOUNDNESS_PROGRAMS", "20000")), Counter()
    for batch in range(-(-wanted // sum(BATCH.values()))):
        total += tried(1000 + batch)
    soak("random programs", total["programs"])
    soak("pairs of ranks in them that differ, none of them claimed equal", total["apart"])
    soak("pairs that are equal", total["equal"])
    soak("of these claimed", total["found"])
    soak("hangs", total["hangs"])
    print(f"\n{percent(total)}")
    assert total["found"] >= 0.95 * total["equal"] > 0


# --- each rule, broken ---


def no_views_of_constants(patch):
    patch.setattr(layout.StorageLayout, "_viewed_constant", lambda self, node: ())


def outs_are_not_read(patch):
    true = op_rules._read
    patch.setattr(
        op_rules,
        "_read",
        lambda node, known, operands: tuple(
            one for one in true(node, known, operands) if one is not node.kwargs.get("out")
        ),
    )


def generators_are_equal(patch):
    patch.setattr(interpreter.Interpreter, "_draw", lambda self, node, plan, literal: (self.known.equal, ()))


def arguments_are_equal(patch):
    patch.setattr(program.AnalysisContext, "_literal", lambda self, values: self.partitions.equal)


def custom_ops_write_nothing(patch):
    true = op_rules.written_names
    patch.setattr(
        op_rules,
        "written_names",
        lambda node, known: true(node, known) if node.target.namespace == "aten" else (),
    )


def all_ops_are_deterministic(patch):
    patch.setattr(op_rules, "_nondeterminism", lambda node, target: "")


def the_first_member_is_the_root(patch):
    for name, one in list(collectives.COLLECTIVES.items()):
        if one.move == collectives.FROM_ROOT:
            patch.setitem(collectives.COLLECTIVES, name, dataclasses.replace(one, root=""))


def all_members_get_all(patch):
    for name, one in list(collectives.COLLECTIVES.items()):
        if one.move == collectives.PARTS:
            patch.setitem(collectives.COLLECTIVES, name, dataclasses.replace(one, move=collectives.TOGETHER))


def order_does_not_count(patch):
    true = collectives._symbols

    def unordered(move, groups, labels, root, splits):
        if move != collectives.TOGETHER:
            return true(move, groups, labels, root, splits)
        ranked = {rank: tuple(sorted(labels[one] for one in group)) for group in groups for rank in group}
        return iter([ranked.get(rank, rank) for rank in range(len(labels))])

    patch.setattr(collectives, "_symbols", unordered)


def lists_are_paired(patch):
    patch.setattr(op_rules, "_merge_overlapping", lambda flows, layout: flows)


def steps_stand_alone(patch):
    true = fixpoint._round
    first = {}

    def once(program, start, on_progress):
        return true(program, first.setdefault(id(program), start), on_progress)

    patch.setattr(fixpoint, "_round", once)


def predicates_do_not_count(patch):
    true = control_flow_ops._cond

    def branches_only(caller, node, generators):
        outcome = true(caller, node, generators)
        given = caller.read_all(node.args[3])
        inside = [caller.body(graph, given, caller.control, generators) for graph in node.args[1:3]]
        outputs = tuple(map(caller.meet, *(one.outputs for one in inside)))
        return dataclasses.replace(outcome, outputs=outputs, generators=generators, drawn=frozenset())

    patch.setitem(control_flow_ops.HANDLERS, "cond", branches_only)


def loops_run_once(patch):
    def once(caller, node, generators):
        body, carried, fixed = node.args[1], caller.read_all(node.args[2]), caller.read_all(node.args[3])
        trip = caller.body(body, (*carried, *fixed), caller.control, generators)
        return control_flow_ops.BodyOutcome(
            tuple(map(caller.meet, carried, trip.outputs)), (*carried, *fixed), generators
        )

    patch.setitem(control_flow_ops.HANDLERS, "while_loop", once)


def scans_run_once(patch):
    def once(caller, node, generators):
        given = (
            *caller.read_all(node.args[1]),
            *caller.read_all(node.args[2]),
            *caller.read_all(node.args[3]),
        )
        trip = caller.body(node.args[0], given, caller.control, generators)
        return control_flow_ops.BodyOutcome(trip.outputs, given, generators)

    patch.setitem(control_flow_ops.HANDLERS, "scan", once)


def nothing_hangs(patch):
    patch.setattr(interpreter.Interpreter, "_check_reached", lambda self, node: None)


def values_do_not_count(patch):
    patch.setattr(op_rules, "_SHAPE_ONLY", op_rules._SHAPE_ONLY | {"sin"})


def a_write_to_a_view_is_one_to_all(patch):
    patch.setattr(
        memory.Memory,
        "write",
        lambda self, place, partition, event: self._cells.__setitem__(
            place.storage, [memory.Cell(0, 1 << 62, partition, event)]
        ),
    )


def views_have_no_gaps(patch):
    patch.setattr(memory, "is_dense", lambda tensor: True)


def parts_are_wholes(patch):
    patch.setitem(
        collectives.COLLECTIVES,
        "_c10d_functional::reduce_scatter_tensor",
        collectives.COLLECTIVES["_c10d_functional::all_reduce"],
    )


def groups_are_the_world(patch):
    true = interpreter.result_partition
    patch.setattr(
        interpreter,
        "result_partition",
        lambda one, node, groups, *rest: true(one, node, ((0, 1, 2, 3),), *rest),
    )


ALL, EACH = (0, 0, 0, 0), (0, 1, 2, 3)
BROKEN = {
    no_views_of_constants: ([("closed_over", 3, 3, 5, 0)], (EACH, ALL, ALL), {}),
    outs_are_not_read: ([("out_add", 3, 2, 0, 0)], (EACH, ALL, ALL), {}),
    generators_are_equal: ([("randn_like", 3, 3, 0, 0)], (ALL, ALL, ALL), {GENERATOR: EACH}),
    arguments_are_equal: ([("rank_scale", 3, 3, 0, 0)], (ALL, ALL, ALL), {}),
    custom_ops_write_nothing: ([("custom_", 2, 3, 0, 0), ("add", 0, 0, 0, 0)], (EACH, ALL, ALL), {}),
    all_ops_are_deterministic: ([("noisy", 3, 3, 0, 0)], (ALL, ALL, ALL), {}),
    the_first_member_is_the_root: ([("dist.broadcast", 3, 3, 1, 0)], ((0, 1, 0, 2), ALL, ALL), {}),
    all_members_get_all: ([("dist.all_to_all_single", 3, 3, 0, 2)], (ALL, ALL, ALL), {}),
    order_does_not_count: ([("all_gather", 3, 3, 0, 0)], ((0, 1, 1, 0), ALL, ALL), {}),
    lists_are_paired: ([("foreach_shared_", 3, 2, 0, 0), ("select", 0, 2, 1, 0)], (ALL, EACH, ALL), {}),
    steps_stand_alone: ([("foreach_lerp_", 2, 3, 0, 0)], (EACH, ALL, ALL), {"fresh": False}),
    predicates_do_not_count: ([("cond", 3, 2, 0, 0)], (EACH, ALL, ALL), {}),
    loops_run_once: ([("while_carry", 3, 2, 0, 0)], (EACH, ALL, ALL), {}),
    scans_run_once: ([("scan", 2, 3, 0, 0)], (EACH, ALL, ALL), {}),
    nothing_hangs: ([("cond_reduces", 3, 2, 0, 2)], (EACH, ALL, ALL), {}),
    values_do_not_count: ([("sin", 3, 3, 0, 0)], (EACH, ALL, ALL), {}),
    a_write_to_a_view_is_one_to_all: ([("row_copy_", 3, 2, 1, 0), ("add", 0, 0, 0, 0)], (EACH, ALL, ALL), {}),
    views_have_no_gaps: ([("column_copy_", 3, 2, 0, 0), ("select", 0, 2, 1, 0)], (EACH, ALL, ALL), {}),
    parts_are_wholes: ([("reduce_scatter", 3, 3, 0, 0)], (EACH, ALL, ALL), {}),
    groups_are_the_world: ([("all_reduce", 3, 3, 0, 1)], (EACH, ALL, ALL), {}),
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.__name__)
def test_a_broken_rule_of_theirs_is_caught(broken, monkeypatch):
    """With one rule broken, a program shows it: something is claimed, or not reported, that is so; with the rule whole, nothing."""
    instructions, classes, more = BROKEN[broken]
    labels = dict(zip(programs.INPUTS, (*classes, ALL)), **{GENERATOR: ALL}) | more
    fresh = labels.pop("fresh", True)
    drawn = Drawn((2, 2), tuple(instructions), labels, fresh=fresh)
    assert not judged(drawn).wrong
    broken(monkeypatch)
    assert judged(drawn).wrong


# --- the ranks in lockstep, on which the programs run ---

NOT_SIMULATED = {"dist.reduce", "dist.reduce_scatter"}
"""LocalTensorMode has no such collective; and its `all_gather_` gives every group what the last group gathered."""


def on_both(drawn):
    """(labels by LocalTensorMode, labels by replica_lockstep) of every value of a program."""
    step, graphs = programs.captured(drawn)
    source = torch.Generator().manual_seed(0)
    held = {name: programs.inputs_of(drawn.classes[name], name, source) for name in programs.INPUTS}
    with oracle.World() as mesh, LocalTensorMode(oracle.RANKS):
        torch.manual_seed(0)
        recorder = oracle.Recorder(step.module, mesh)
        recorder.run(
            *(LocalTensor({r: one.clone() for r, one in enumerate(held[name])}) for name in programs.INPUTS)
        )
    ranks = Ranks(graphs, [0] * oracle.RANKS)
    with torch.no_grad():
        ranks.step([[held[name][rank] for name in programs.INPUTS] for rank in range(oracle.RANKS)])
    return recorder.labels, {name: tuple(programs.labels_of(bits)) for name, bits in ranks.seen.items()}


@pytest.mark.parametrize("name", [name for name in ops.COLLECTIVES if name not in NOT_SIMULATED])
def test_the_ranks_in_lockstep_do_what_local_tensor_mode_does(name):
    """The two oracles hold the same values on the same ranks: each collective, over each group of a mesh, on partly equal inputs."""
    labels = {
        "x0": (0, 1, 2, 3),
        "x1": (0, 0, 0, 1),
        "x2": (0, 0, 1, 1),
        "i0": (0, 1, 0, 1),
        programs.GENERATOR: (0,) * 4,
    }
    for where in (2,) if name == "dist.all_gather" else (0, 1, 2):
        drawn = programs.Drawn((2, 2), ((name, 0, 2, where + 1, where), ("sin", 0, 0, 0, 0)), labels)
        simulated, mine = on_both(drawn)
        written = [name for name in simulated if not name.startswith("empty")]  # which hold anything
        assert {name: simulated[name] for name in written} == {name: mine[name] for name in written}

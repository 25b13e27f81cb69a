"""The analysis against what simulated ranks really hold, over random programs."""

import dataclasses

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._higher_order_ops.while_loop import while_loop

import replica_oracle as oracle

from samebits import replica
from samebits.replica import collectives, control, frame, memory, rules

MESH = {"dp": 2, "tp": 2}
INSTRUCTION = st.tuples(
    st.sampled_from(list(oracle.OPS)),
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from(["world", "dp", "tp"]),
)
PROGRAMS = st.lists(INSTRUCTION, min_size=2, max_size=9)
INPUTS = st.tuples(*[st.sampled_from(oracle.CLASSES)] * oracle.INPUTS)
tally = {"equal": 0, "found": 0}


def zeros():
    return [torch.zeros(oracle.SIZE, 2) for _ in range(oracle.INPUTS)]


def checked(instructions, classes, seeds=(0, 1)):
    step = replica.capture(oracle.program(instructions), *zeros(), mesh=MESH)
    return oracle.judged(
        oracle.claims(step, classes), [oracle.simulated(step, classes, seed)[0] for seed in seeds]
    )


@settings(
    max_examples=32, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(PROGRAMS, INPUTS)
def test_what_is_claimed_equal_is_equal(instructions, classes):
    """Random programs of ops, views, in-place writes, draws and collectives: no pair claimed equal differs."""
    wrong, equal, found = checked(instructions, classes)
    tally["equal"] += equal
    tally["found"] += found
    assert not wrong


def test_most_of_what_is_equal_is_claimed():
    """At least 95% of the pairs that are equal in all draws are claimed: it does not call everything varying."""
    if not tally["equal"]:
        test_what_is_claimed_equal_is_equal()
    assert tally["found"] >= 0.95 * tally["equal"] > 0


def broken_shape_only(patch):
    patch.setattr(rules, "_SHAPE_ONLY", rules._SHAPE_ONLY | {"sin"})


def broken_views(patch):
    patch.setattr(
        memory.Memory,
        "write",
        lambda self, place, partition, event: self._cells.__setitem__(
            place.storage, [memory.Cell(0, 1 << 62, partition, event)]
        ),
    )


def broken_gaps(patch):
    patch.setattr(memory, "_dense", lambda tensor: True)


def broken_parts(patch):
    patch.setitem(
        collectives.COLLECTIVES,
        "_c10d_functional::reduce_scatter_tensor",
        collectives.COLLECTIVES["_c10d_functional::all_reduce"],
    )


def broken_groups(patch):
    true = frame.moved
    patch.setattr(
        frame, "moved", lambda one, node, groups, *rest: true(one, node, (tuple(range(oracle.RANKS)),), *rest)
    )


BROKEN = {
    broken_shape_only: [("sin", 0, 1, "")],
    broken_views: [("row_copy_", 0, 1, ""), ("add", 0, 0, "")],
    broken_gaps: [("column_copy_", 0, 1, ""), ("cat", 0, 1, "")],
    broken_parts: [("reduce_scatter", 0, 0, "world")],
    broken_groups: [("all_reduce", 0, 0, "dp")],
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.__name__)
def test_a_broken_rule_is_caught(broken, monkeypatch):
    """With one rule broken, the oracle finds a pair that is claimed equal and differs; with the rule whole, none."""
    distinct, equal = (0, 1, 2, 3), (0, 0, 0, 0)
    classes = (distinct, equal, equal)
    assert not checked(BROKEN[broken], classes)[0]
    broken(monkeypatch)
    assert checked(BROKEN[broken], classes)[0]


def branch(a, b):
    return torch.cond(a.sum() > 0, lambda b: b + 1, lambda b: b * 2, (b,))


def branch_draws(a, b):
    return torch.cond(a[0, 0] > 0, lambda a, b: torch.rand_like(b), lambda a, b: b * 2, (a, b))


def loop(a, b):
    limit = (a.sum().abs() * 2).int() + 1
    return while_loop(
        lambda i, n, c, d: i < n,
        lambda i, n, c, d: (i + 1, n.clone(), d.clone(), c * 0.5),
        (torch.zeros((), dtype=torch.int32), limit, b, b + 1),
    )[2]


def loop_carry(a, b):
    return while_loop(
        lambda i, c, d: i < 3,
        lambda i, c, d: (i + 1, d.clone(), d * a),
        (torch.zeros((), dtype=torch.int32), b, b + 1),
    )[1]


def draw(a, b):
    return torch.rand_like(b)


FLOW = {"branch": branch, "branch_draws": branch_draws, "loop": loop, "loop_carry": loop_carry, "draw": draw}


def flow_program(instructions):
    def step(x0, x1, x2):
        values = [x0, x1, x2]
        for name, one, two in instructions:
            values.append(FLOW[name](values[one % len(values)], values[two % len(values)]))
        return values

    return step


def captured_flow(instructions):
    step = replica.capture(flow_program(instructions), *zeros(), world_size=1)
    return dataclasses.replace(step, world_size=oracle.RANKS)


@settings(
    max_examples=7, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(
    st.lists(
        st.tuples(st.sampled_from(list(FLOW)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4
    ),
    INPUTS,
)
def test_control_flow_is_sound(instructions, classes):
    """Random programs with branches, loops and draws inside of them, each rank run on its own: nothing claimed differs."""
    step = captured_flow(instructions)
    runs = [oracle.run_alone(step, classes, seed) for seed in range(4)]
    assert not oracle.judged(oracle.claims(step, classes), runs)[0]


def _branches_only(patch):
    true = control._cond
    patch.setitem(
        control.HANDLERS,
        "cond",
        lambda caller, node, state: _without(true(caller, node, state), caller, node, state),
    )


def _without(outcome, caller, node, state):
    inside = [
        caller.body(graph, caller.read_all(node.args[3]), caller.control, state) for graph in node.args[1:3]
    ]
    outputs = tuple(map(caller.meet, *(one.outputs for one in inside)))
    return dataclasses.replace(outcome, outputs=outputs, generators=state, drawn=frozenset())


@pytest.mark.parametrize("name", ["branch", "branch_draws"])
def test_a_predicate_that_is_ignored_is_caught(name, monkeypatch):
    """PopART's rule for If (both branches, not the condition) fails the oracle; so does a draw that moves no generator."""
    step = captured_flow([(name, 0, 1), ("draw", 1, 1)])
    classes = ((0, 1, 2, 3), (0, 0, 0, 0), (0, 0, 0, 0))
    runs = [oracle.run_alone(step, classes, seed) for seed in range(4)]
    assert not oracle.judged(oracle.claims(step, classes), runs)[0]
    _branches_only(monkeypatch)
    assert oracle.judged(oracle.claims(step, classes), runs)[0]

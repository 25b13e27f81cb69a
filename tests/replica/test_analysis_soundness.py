"""The analysis against what simulated ranks really hold, over a few random programs on torch's own `LocalTensorMode`.

`test_analysis_programs.py` has the many, on the ranks of `replica_lockstep`, which this one checks against LocalTensorMode.
"""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode

import replica_ops as ops
import replica_oracle as oracle
import replica_programs as programs
from replica_lockstep import Ranks
from samebits import replica
from samebits.replica._analysis import collectives, interpreter, memory, op_rules

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
    patch.setattr(op_rules, "_SHAPE_ONLY", op_rules._SHAPE_ONLY | {"sin"})


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
    true = interpreter.result_partition
    patch.setattr(
        interpreter,
        "result_partition",
        lambda one, node, groups, *rest: true(one, node, (tuple(range(oracle.RANKS)),), *rest),
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

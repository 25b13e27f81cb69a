"""PopART's facts on captured graphs, its weak points, and the programs that JAX's check_vma accepts."""

import dataclasses
import logging

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from samebits.errors import InvalidArgumentError
from samebits.replica import Equal, Partition, PerReplica, analyze, capture
from samebits.replica.partitions import Partitions

logging.getLogger("torch.__trace").propagate = False
MESH = {"dp": 2, "tp": 4}
TP, DP = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7))
ALL = (tuple(range(8)),)
ALONE = tuple((rank,) for rank in range(8))


def square():
    return torch.randn(8, 8)


def flag():
    return torch.tensor(True)


def of(step, *args, inputs=None, ranks=4, **options):
    """The report of a step without collectives is captured once: no code of the rank in it."""
    captured = capture(step, *args, world_size=1)
    return analyze(dataclasses.replace(captured, world_size=ranks), inputs, **options)


def world():
    return dist.group.WORLD


def accumulate(w, x):
    buffer = torch.zeros(8, 8)
    loaded = buffer.copy_(x)
    w.add_(loaded)
    return w + 1.0


def test_fact_1_a_broadcast_stream_keeps_everything_equal():
    """PopART 1: stream, buffer, load, variable before and after, result: all equal."""
    report = of(accumulate, square(), square(), inputs={"x": Equal()})
    assert all(report.is_replica_equal(name) for name in ("w", "x", "output", "zeros", "copy_", "add_"))
    assert report.is_replica_equal("w", when="start")


def test_fact_2_a_replicated_stream_flips_the_initial_value():
    """PopART 2: stream unequal, fresh buffer EQUAL, load unequal, variable unequal already at the start of a step."""
    report = of(accumulate, square(), square(), inputs={"x": PerReplica()})
    assert report.is_replica_equal("zeros")
    assert not any(report.is_replica_equal(name) for name in ("x", "copy_", "w", "add_", "output"))
    assert not report.is_replica_equal("w", when="start")


def train(w, x, y, reduce):
    leaf = w.detach().requires_grad_()
    loss = (x @ leaf - y).abs().sum()
    (grad,) = torch.autograd.grad(loss, leaf)
    w.sub_(reduce(grad), alpha=0.1)
    return loss.detach()


def test_fact_3_a_training_step_keeps_its_weights_equal():
    """PopART 3 to 6: inputs, matmul, loss, gradient unequal; loss seed, reduced gradient, updated weights equal."""
    reduced = capture(
        lambda w, x, y: train(w, x, y, lambda g: fc.all_reduce(g, "sum", world())),
        square(),
        square(),
        square(),
        world_size=4,
    )
    report = analyze(reduced, {"w": Equal()})
    equal = {name for name in report.values if report.is_replica_equal(name)}
    assert {"all_reduce", "wait_tensor", "sub_", "ones_like"} <= equal
    assert not {"mm", "sub", "abs_1", "sum_1", "mm_1", "output"} & equal
    report.expect_equal("w")


def test_a_forgotten_all_reduce_is_found_and_explained():
    """No such test in PopART: the path from the batch to the weight, the user's line, and the cure."""
    report = of(
        lambda w, x, y: train(w, x, y, lambda g: g), square(), square(), square(), inputs={"w": Equal()}
    )
    with pytest.raises(AssertionError, match="all_reduce"):
        report.expect_equal("w")
    text = report.explain("w")
    assert text.index("x (batch)") < text.index("aten.mm") < text.index("aten.sub_")
    assert "test_replica_facts.py" in text and "torch.autograd.grad(loss, leaf)" in text


def test_fact_7_the_report_prints_equality_of_inputs_and_outputs():
    """PopART 7: the printed form says of each value whether it is equal."""
    printed = str(of(accumulate, square(), square(), inputs={"x": PerReplica()}, ranks=2))
    assert [line.split()[:2] for line in printed.splitlines()[1:4]] == [
        ["w", "state"],
        ["x", "batch"],
        ["output", "output"],
    ]
    assert "all differ" in printed


def test_fact_8_a_value_that_is_not_there_raises():
    """PopART 8 and 9: asking for a value with nothing stored names what there is."""
    with pytest.raises(InvalidArgumentError, match="w, x, output"):
        of(accumulate, square(), square()).is_replica_equal("nothing")


LABELS = st.lists(st.integers(0, 3), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(LABELS, LABELS, LABELS)
def test_facts_10_to_12_values_only_go_down(one, two, three):
    """PopART 10 to 12: meet is commutative, associative and idempotent; what is unequal stays so; equal sets change nothing."""
    known = Partitions(6)
    a, b, c = (known.of_values(labels) for labels in (one, two, three))
    assert known.meet(a, b) == known.meet(b, a)
    assert known.meet(a, known.meet(b, c)) == known.meet(known.meet(a, b), c)
    assert known.meet(a, a) == a == known.meet(a, known.equal)
    assert known.meet(a, known.distinct) == known.distinct
    assert known.meet(a, b) == known.of_values(list(zip(one, two)))


def call_site(scale):
    body = torch.fx.experimental.proxy_tensor.make_fx(lambda x: (x * scale,), tracing_mode="fake")(square())
    return lambda x: invoke_subgraph(body, "region", x)[0]


def test_facts_4_to_6_calls_are_followed_per_call_site():
    """PopART's outlined subgraphs: one body, an equal and an unequal call site, each with its own result."""
    region = call_site(2.0)
    report = of(lambda x, y: (region(x), region(y)), square(), square(), inputs={"x": Equal()})
    assert report.is_replica_equal("output.0")
    assert not report.is_replica_equal("output.1")


def test_call_sites_that_disagree_are_reported():
    """PopART warns for each tensor on which call sites disagree: so does the report, by input, with both sites; else none."""
    region = call_site(2.0)
    report = of(lambda x, y: (region(x), region(y)), square(), square(), inputs={"x": Equal()})
    (found,) = report.findings
    assert (
        found.kind == "call sites"
        and "equal in the call" in found.text
        and "all differ in this one" in found.text
    )
    assert "mul" in found.text and "call sites: " in str(report)
    agreeing = of(lambda x, y: (region(x), region(y)), square(), square())
    assert agreeing.findings == ()


# --- where PopART and check_vma are unsound ---


def test_a_predicate_counts():
    """PopART's If and JAX's cond look at the branches only: an unequal predicate over equal operands varies."""
    step = lambda p, x: torch.cond(p, lambda a: a * 2, lambda a: a * 3, (x,))
    report = of(step, flag(), square(), inputs={"x": Equal()})
    assert not report.is_replica_equal("output")
    assert "p (batch)" in report.explain("output")
    assert of(step, flag(), square(), inputs={"*": Equal()}).is_replica_equal("output")


def test_a_trip_count_counts():
    """JAX's while with a varying bound: carried values differ though the operands are equal."""
    step = lambda n, x: while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))[1]
    assert not of(step, torch.tensor(3), square(), inputs={"x": Equal()}).is_replica_equal("output")
    assert of(step, torch.tensor(3), square(), inputs={"*": Equal()}).is_replica_equal("output")


def test_a_carry_is_followed_to_its_fixpoint():
    """PopART's Loop runs its body once: (a, b) -> (b, unequal) leaves `a` equal there."""
    step = lambda x, z: while_loop(
        lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b.clone(), b * z), (torch.tensor(0), x, x + 1)
    )
    report = of(step, square(), square(), inputs={"x": Equal()})
    assert [report.is_replica_equal(f"output.{index}") for index in range(3)] == [True, False, False]


def test_a_scan_mixes_what_it_scans():
    """A scan over unequal slices has unequal carries; over equal ones, equal."""
    step = lambda x, z: scan(lambda c, e: (c + e, c * 2), x[0], z, dim=0)
    assert not of(step, square(), square(), inputs={"x": Equal()}).is_replica_equal("output.0")
    assert of(step, square(), square(), inputs={"*": Equal()}).is_replica_equal("output.0")


def test_a_collective_that_not_all_reach_is_reported():
    """An all-reduce under a predicate that differs within its group hangs; under an equal one it does not."""
    step = lambda p, x: torch.cond(p, lambda a: fc.all_reduce(a, "sum", world()) * 2, lambda a: a.cos(), (x,))
    captured = capture(step, flag(), square(), world_size=4)
    assert [one.kind for one in analyze(captured, {"x": Equal()}).findings] == ["hang"]
    assert "it hangs" in str(analyze(captured, {"x": Equal()}))
    assert not analyze(captured, {"p": Equal()}).findings


def test_a_draw_in_a_branch_poisons_the_generator():
    """A draw that the data decide moves the generator on some ranks: later draws are not equal (PopART 17's danger)."""
    step = lambda p, x: (torch.cond(p, lambda a: torch.rand_like(a), lambda a: a * 3, (x,)), torch.rand(3))
    equal = {"x": Equal(), "generator:cpu": Equal()}
    report = of(step, flag(), square(), inputs=equal)
    assert not report.is_replica_equal("output.1")
    assert report.explain("output.1").index("p (batch)") < report.explain("output.1").index("cond")
    assert of(step, flag(), square(), inputs={"*": Equal()}).is_replica_equal("output.1")


def test_generators_are_per_replica_unless_declared():
    """A dropout mask varies by default: nobody said that ranks are seeded alike."""
    step = lambda x: nn.functional.dropout(x, 0.5)
    assert not of(step, square(), inputs={"x": Equal()}).is_replica_equal("output")
    report = of(step, square(), inputs={"*": Equal()})
    with pytest.raises(AssertionError, match="expected to vary"):
        report.expect_varying("output")
    of(step, square()).expect_varying("output")


@pytest.mark.parametrize(
    "write",
    [
        lambda p, g: p[0:2].copy_(g[0:2]),
        lambda p, g: p.view(-1).add_(g.view(-1)),
        lambda p, g: p.detach().add_(g),
        lambda p, g: p.data.add_(g),
        lambda p, g: p.t().mul_(g),
        lambda p, g: torch._foreach_add_([p], [g]),
        lambda p, g: torch.add(p, g, out=p),
        lambda p, g: p.chunk(2)[1].sub_(g[:4]),
        lambda p, g: p.index_put_((torch.tensor([0]),), g[:1]),
    ],
)
def test_writes_through_views_reach_the_base(write):
    """spmd_types leaves the base replicated after each of these; here it varies."""

    def step(p, g):
        write(p, g)
        return p * 1

    assert not of(step, square(), square(), inputs={"p": Equal()}).is_replica_equal("p")


def test_a_write_to_some_bytes_leaves_the_others():
    """Rows that were not written stay equal, and a row written over with equal bits is equal again."""

    def step(p, g):
        p[0:2].copy_(g[0:2])
        rest, first = p[2:4] * 1, p[0:3] * 1
        p[0:2].zero_()
        return rest, first, p * 1

    report = of(step, square(), square(), inputs={"p": Equal()})
    assert [report.is_replica_equal(f"output.{index}") for index in range(3)] == [True, False, True]


def test_foreach_pairs_outputs_with_their_inputs():
    """PopART's multi-exchange rule: output i depends on inputs i only."""
    step = lambda p, q, g: torch._foreach_add([p, q], [g, q])
    report = of(step, square(), square(), square(), inputs={"p": Equal(), "q": Equal()})
    assert [report.is_replica_equal(f"output.{index}") for index in range(2)] == [False, True]


def test_an_op_of_unknown_determinism_breaks_equality():
    """A custom op that nobody declared: equal inputs need not give equal outputs; declared, they do."""
    library = torch.library.Library("replica_facts", "DEF")
    library.define("noisy(Tensor x) -> Tensor")
    library.impl("noisy", lambda x: x + 1, "CompositeExplicitAutograd")
    step = lambda x: torch.ops.replica_facts.noisy(x)
    report = of(step, square(), inputs={"x": Equal()})
    assert not report.is_replica_equal("output")
    assert "declare_op" in report.explain("output")


def test_feedback_and_its_fixpoint():
    """A functional step: what it returns is the input of the next, and the loop is followed until nothing changes."""
    step = lambda a, b, c, x: (b * 1, c * 1, c + x)
    args = [square() for _ in range(4)]
    loop = {"a": "output.0", "b": "output.1", "c": "output.2"}
    report = of(step, *args, inputs={"[abc]": Equal()}, feedback=loop)
    assert not any(report.is_replica_equal(name, when="start") for name in "abc")
    assert "x (batch)" in report.explain("a", when="start")
    assert of(step, *args, inputs={"[abc]": Equal()}).is_replica_equal("a")


# --- sub-groups: named precision patterns ---

PATTERNS = {
    "all_reduce tp then dp": (
        lambda x, mesh: fc.all_reduce(fc.all_reduce(x, "sum", (mesh, 1)), "sum", (mesh, 0)),
        ALONE,
        ALL,
    ),
    "all_reduce tp": (lambda x, mesh: fc.all_reduce(x, "sum", (mesh, 1)), ALONE, TP),
    "all_reduce tp of equal over dp": (lambda x, mesh: fc.all_reduce(x, "sum", (mesh, 1)), DP, ALL),
    "scatter then gather over dp": (
        lambda x, mesh: fc.all_gather_tensor(fc.reduce_scatter_tensor(x, "sum", 0, (mesh, 0)), 0, (mesh, 0)),
        ALONE,
        DP,
    ),
    "reduce_scatter world of equal": (lambda x: fc.reduce_scatter_tensor(x, "sum", 0, world()), ALL, ALONE),
    "zero: scatter, update, gather": (
        lambda x: fc.all_gather_tensor(fc.reduce_scatter_tensor(x, "sum", 0, world()) * 0.1, 0, world()),
        ALONE,
        ALL,
    ),
    "broadcast tp": (lambda x, mesh: fc.broadcast(x, 0, (mesh, 1)), ALONE, TP),
    "all_to_all world of equal": (lambda x: fc.all_to_all_single(x, None, None, world()), ALL, ALONE),
    "permute world of equal": (lambda x: fc.permute_tensor(x, [1, 2, 3, 4, 5, 6, 7, 0], world()), ALL, ALL),
    "in-place all_reduce": (lambda x: (dist.all_reduce(x), x * 1)[1], ALONE, ALL),
    "in-place all_reduce tp": (
        lambda x, mesh: (dist.all_reduce(x, group=mesh.get_group("tp")), x * 1)[1],
        ALONE,
        TP,
    ),
    "reduce to one rank": (lambda x: (dist.reduce(x, 0), x * 1)[1], ALL, ALONE),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_sub_groups_have_exact_rules(name):
    """Collectives over sub-groups, one after the other: the partition is the exact one."""
    program, given, expected = PATTERNS[name]
    if "mesh" in program.__code__.co_varnames:
        step = lambda x, mesh: program(x, mesh)
    else:
        step = lambda x, mesh: program(x)
    report = analyze(capture(step, square(), mesh=MESH), {"x": Partition(given)})
    assert report.partition("output") == expected
    assert report.is_replica_equal("output", over="tp") == (expected in {ALL, TP})
    assert report.is_replica_equal("output", over=DP) == (expected in {ALL, DP})


def test_lists_that_share_memory_are_one():
    """A foreach over a tensor and a view of it: which goes first is not said, so both are as equal as all inputs."""
    step = lambda p, g: torch._foreach_add_([p, p[:4]], [g, torch.zeros(4, 8)])
    assert not of(step, square(), square(), inputs={"p": Equal()}).is_replica_equal("p")


def test_constants_that_share_memory_are_one():
    """A tensor that the code closes over, and a view of it: what is written to one is read from the other."""
    base = torch.zeros(8, 8)
    row = base[0]

    def step(x):
        row.add_(x[0])
        return base * 1

    assert not of(step, square()).is_replica_equal("output")
    assert of(step, square(), inputs={"x": Equal()}).is_replica_equal("output")


def test_a_write_through_a_view_of_a_constant_reaches_it():
    """Each use of a closed-over tensor is traced as a tensor of its own: what a view of it writes is read from it all the same."""
    base = torch.zeros(8, 8)

    def step(x):
        base[:2].add_(x[:2])
        first, second = base.split(4)
        second.mul_(2)
        return base * 1

    assert not of(step, square()).is_replica_equal("output")
    assert of(step, square(), inputs={"x": Equal()}).is_replica_equal("output")


def test_a_collective_on_a_constant_writes_it():
    """`dist.all_reduce(total)` of a tensor that the code closes over: its members get the same bits, others do not."""
    total, own = torch.zeros(8), torch.zeros(8)

    def step(x):
        total.add_(x[0])
        own.add_(x[0])
        dist.all_reduce(total)
        return total * 1, own * 1

    report = analyze(capture(step, square(), world_size=4))
    assert report.is_replica_equal("output.0") and not report.is_replica_equal("output.1")


def test_what_is_read_counts_though_it_is_written_over():
    """`torch.add(p, g, out=p)` reads p; `torch.add(g, g, out=p)` does not."""
    inputs = {"p": PerReplica(), "g": Equal()}
    read = of(lambda p, g: torch.add(p, g, out=p) * 1, square(), square(), inputs=inputs)
    assert not read.is_replica_equal("output")
    over = of(lambda p, g: torch.add(g, g, out=p) * 1, square(), square(), inputs=inputs)
    assert over.is_replica_equal("output")


def test_a_tensor_given_twice_is_one():
    """Two inputs with one memory: a write to one is read from the other, and both are as equal as both are."""
    x = square()
    report = of(lambda p, q, g: (p.add_(g), q * 1)[1], x, x, square(), inputs={"p": Equal(), "q": Equal()})
    assert not report.is_replica_equal("output")
    mixed = of(lambda p, q: p + q, x, x, inputs={"p": PerReplica(), "q": Equal()})
    assert mixed.explain("q").splitlines()[1].lstrip().startswith("p (batch)")

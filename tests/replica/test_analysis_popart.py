"""PopART's facts on captured graphs: the shapes of its tests rebuilt, and its store of results as it is here."""

import dataclasses
import logging
import re

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.scan import scan

from samebits.errors import InvalidArgumentError
from samebits.replica import Equal, Partition, PerReplica, analyze, capture, listing
from samebits.replica._analysis.partitions import Partitions

logging.getLogger("torch.__trace").propagate = False
MESH = {"dp": 2, "tp": 4}
TP, DP = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 4), (1, 5), (2, 6), (3, 7))
ALL = (tuple(range(8)),)
ALONE = tuple((rank,) for rank in range(8))


def square():
    return torch.randn(8, 8)


def flag():
    return torch.tensor(True)


def captured(step, *args, ranks=4):
    """A step without collectives is captured once: no code of the rank in it."""
    return dataclasses.replace(capture(step, *args, world_size=1), world_size=ranks)


def of(step, *args, inputs=None, ranks=4, **options):
    """The report of a step without collectives."""
    return analyze(captured(step, *args, ranks=ranks), inputs, **options)


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


def reduced(grad):
    return fc.all_reduce(grad, "sum", world())


def updated(w, grad):
    w.sub_(grad, alpha=0.1)
    return w * 1


def outlined(function, name):
    """The function as a subgraph of its own, which is called, as PopART outlines it."""
    return lambda *args: invoke_subgraph(lambda *given: (function(*given),), name, *args)[0]


def train(w, x, y, reduce, update=updated):
    leaf = w.detach().requires_grad_()
    loss = (x @ leaf - y).abs().sum()
    (grad,) = torch.autograd.grad(loss, leaf)
    with torch.no_grad():
        update(w, reduce(grad))
    return loss.detach()


def of_training(reduce, update):
    step = lambda w, x, y: train(w, x, y, reduce, update)
    return analyze(capture(step, square(), square(), square(), world_size=4), {"w": Equal()})


def lines_of(report):
    """Op, what it read, and what it gave, of each line of the listing, bodies included."""
    found = re.findall(r"^ *\S+ = (.+?)\((.*)\) -> (.*)$", listing(report), re.MULTILINE)
    return {op.split(".")[1] if "." in op else op: (read, gave) for op, read, gave in found}


@pytest.mark.parametrize(
    ("reduce", "update"),
    [
        pytest.param(reduced, updated, id="fact_3_nothing_outlined"),
        pytest.param(outlined(reduced, "reduce"), updated, id="fact_4_all_reduce_outlined"),
        pytest.param(reduced, outlined(updated, "update"), id="fact_5_update_outlined"),
        pytest.param(outlined(reduced, "reduce"), outlined(updated, "update"), id="fact_6_both_outlined"),
    ],
)
def test_fact_3_to_fact_6_a_training_step_keeps_its_weights_equal(reduce, update):
    """PopART 3 to 6: inputs, matmul, loss, gradient unequal; loss seed, reduced gradient, updated weights equal; outlined or not."""
    report = of_training(reduce, update)
    values = {name: name in report.values and report.is_replica_equal(name) for name in report.values}
    assert not any(values[name] for name in ("mm", "sub", "abs_1", "sum_1", "mm_1", "output"))
    assert values["ones_like"]
    calls = [node for node in report.step.module.graph.nodes if str(node.target) == "invoke_subgraph"]
    assert len(calls) == (reduce is not reduced) + (update is not updated)
    ops = lines_of(report)
    assert ops["all_reduce"][0].endswith(": all differ") and ops["all_reduce"][1] == "equal"
    assert ops["sub_"][1] == "equal" and "differ" not in ops["sub_"][0]
    assert report.step.kinds["w"] == "state"
    report.expect_equal("w")
    assert report.drifting == ()


@pytest.mark.parametrize("update", [updated, outlined(updated, "update")])
def test_without_its_all_reduce_the_step_of_facts_3_to_6_drifts(update):
    """Negative control: the same shapes, outlined or not, with no reduction: the weight is named as drifting."""
    assert of_training(lambda grad: grad, update).drifting == ("w",)


def test_a_forgotten_all_reduce_is_found_and_explained():
    """No such test in PopART: the path from the batch to the weight, the user's line, and the cure."""
    report = of(
        lambda w, x, y: train(w, x, y, lambda g: g), square(), square(), square(), inputs={"w": Equal()}
    )
    with pytest.raises(AssertionError, match="all_reduce"):
        report.expect_equal("w")
    text = report.explain("w")
    assert text.index("x (batch)") < text.index("aten.mm") < text.index("aten.sub_")
    assert "test_analysis_popart.py" in text and "torch.autograd.grad(loss, leaf)" in text


def test_fact_7_the_listing_prints_equality_of_inputs_and_outputs():
    """PopART 7: all-reduce `In0: 0, Out0: 1`, identity `0 -> 0`, update `In0: 1, In1: 1, Out0: 1`; and the table of inputs."""
    report = of_training(reduced, updated)
    lines = lines_of(report)
    assert lines["all_reduce"] == ("mm_1: all differ", "equal")
    assert lines["t"] == ("x: all differ", "all differ")
    assert lines["sub_"] == ("w: equal, wait_tensor: equal", "equal")
    table = [re.split(r"  +", line) for line in str(report).splitlines()[1:3]]
    assert table == [["w", "state", "equal", "equal"], ["x", "batch", "all differ all differ"]]


# --- PopART's store of results: here memory, its times, and the fixpoint over them ---


def test_fact_8_a_value_that_is_not_there_raises():
    """PopART 8: asking for a value with nothing stored raises, and names what there is."""
    with pytest.raises(InvalidArgumentError, match="w, x, output"):
        of(accumulate, square(), square()).is_replica_equal("nothing")


def test_fact_9_the_start_is_before_every_op_and_no_time_of_an_op():
    """PopART 9: an initial value holds before the ops; the result of an op has none, and asking for it raises."""
    report = of(accumulate, square(), square(), inputs={"x": Equal()})
    assert report.is_replica_equal("w", when="start")
    with pytest.raises(InvalidArgumentError, match="'add_' at the start"):
        report.is_replica_equal("add_", when="start")


def test_fact_10_what_became_unequal_stays_so():
    """PopART 10: true, then false is false; a true after it, the same bits written at the end of a step, does not raise the start."""

    def step(w, x):
        old = w * 1
        w.copy_(x)
        return old

    report = of(step, square(), square(), inputs={"w": Equal()})
    assert not report.is_replica_equal("w", when="start") and not report.is_replica_equal("output")
    zeroed = of(lambda w, x: (w * x, w.zero_())[0], square(), square(), inputs={"w": PerReplica()})
    assert not zeroed.is_replica_equal("w", when="start") and zeroed.is_replica_equal("w")


def test_fact_11_a_later_write_leaves_the_times_before_it():
    """PopART 11: equal from its write on, a value stays unequal at the start, and for the ops that read it before."""

    def step(p):
        before = p * 1
        p.zero_()
        return before, p * 1

    report = of(step, square(), inputs={"p": PerReplica()})
    assert not report.is_replica_equal("p", when="start") and report.is_replica_equal("p", when="end")
    assert [report.is_replica_equal(f"output.{index}") for index in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("w", "x", "passes"),
    [
        pytest.param(Equal(), Equal(), 1, id="the same value is no change"),
        pytest.param(PerReplica(), PerReplica(), 1, id="nor is false again"),
        pytest.param(PerReplica(), Equal(), 1, id="nor is false to true"),
        pytest.param(Equal(), PerReplica(), 2, id="true to false is"),
    ],
)
def test_fact_12_only_what_falls_is_a_change(w, x, passes):
    """PopART 12: a pass after which no initial value has fallen is the last."""
    begun = []
    step = captured(lambda w, x: w.copy_(x).sum(), square(), square())
    analyze(step, {"w": w, "x": x}, on_progress=lambda done, _: begun.append(done))
    assert begun == [0] * passes


def test_fact_13_a_disagreement_is_one_body_called_with_an_equal_and_an_unequal_value():
    """PopART 13: reported once with the tensor, in either order of the calls; agreeing calls, or one value at two times, are none."""
    region = call_site(2.0)

    def kinds(step, **inputs):
        return [one.kind for one in of(step, square(), square(), inputs=inputs).findings]

    both = lambda x, y: (region(x), region(y))
    assert kinds(both, x=Equal()) == kinds(both, y=Equal()) == ["call sites"]
    assert kinds(both) == kinds(both, x=Equal(), y=Equal()) == []
    assert kinds(lambda x, y: (x.copy_(y), x.zero_(), x * 1)[2], x=Equal()) == []


def test_fact_14_the_listing_is_in_the_order_of_time():
    """PopART 14: initial values first, then a line per op in the order in which they run, each with what it is."""
    lines = listing(of(accumulate, square(), square(), inputs={"x": PerReplica()}, ranks=2)).splitlines()
    assert lines[:2] == ["w (state): all differ", "x (batch): all differ"]
    assert lines[2:] == [
        "zeros = aten.zeros.default() -> equal",
        "copy_ = aten.copy_.default(x: all differ) -> all differ",
        "add_ = aten.add_.Tensor(w: all differ, copy_: all differ) -> all differ",
        "add = aten.add.Tensor(add_: all differ) -> all differ",
    ]


LABELS = st.lists(st.integers(0, 3), min_size=6, max_size=6)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(LABELS, LABELS, LABELS)
def test_fact_10_to_fact_12_values_only_go_down(one, two, three):
    """PopART 10 to 12: meet is commutative, associative and idempotent; what is unequal stays so; equal sets change nothing."""
    known = Partitions(6)
    a, b, c = (known.from_values(labels) for labels in (one, two, three))
    assert known.meet(a, b) == known.meet(b, a)
    assert known.meet(a, known.meet(b, c)) == known.meet(known.meet(a, b), c)
    assert known.meet(a, a) == a == known.meet(a, known.equal)
    assert known.meet(a, known.distinct) == known.distinct
    assert known.meet(a, b) == known.from_values(list(zip(one, two)))


def call_site(scale):
    body = torch.fx.experimental.proxy_tensor.make_fx(lambda x: (x * scale,), tracing_mode="fake")(square())
    return lambda x: invoke_subgraph(body, "region", x)[0]


def test_calls_are_followed_per_call_site():
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


# --- control flow, generators, memory ---


def test_a_scan_mixes_what_it_scans():
    """A scan over unequal slices has unequal carries; over equal ones, equal."""
    step = lambda x, z: scan(lambda c, e: (c + e, c * 2), x[0], z, dim=0)
    assert not of(step, square(), square(), inputs={"x": Equal()}).is_replica_equal("output.0")
    assert of(step, square(), square(), inputs={"*": Equal()}).is_replica_equal("output.0")


@pytest.mark.slow
def test_a_collective_that_not_all_reach_is_reported():
    """An all-reduce under a predicate that differs within its group hangs; under an equal one it does not."""
    step = lambda p, x: torch.cond(p, lambda a: fc.all_reduce(a, "sum", world()) * 2, lambda a: a.cos(), (x,))
    step = capture(step, flag(), square(), world_size=4)
    assert [one.kind for one in analyze(step, {"x": Equal()}).findings] == ["hang"]
    assert "it hangs" in str(analyze(step, {"x": Equal()}))
    assert not analyze(step, {"p": Equal()}).findings


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

"""Methods of the ops of a captured step: PopART's facts on them, the verifier, and the digest that an edit breaks."""

import dataclasses

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.fx.experimental.proxy_tensor import make_fx

import samebits
from samebits import rounding
from samebits.errors import InvalidArgumentError, RoundingMethodError
from samebits.replica import Equal, Partition, PerReplica, analyze, capture
from samebits.rounding import Method

SAME, OWN = Method.IDENTICAL_SEEDS, Method.DIFFERING_SEEDS


def square():
    return torch.randn(8, 8).to(torch.bfloat16)


def of(step, *args, inputs=None, ranks=4):
    """(step captured once for `ranks` ranks, its methods)."""
    captured = dataclasses.replace(capture(step, *args, world_size=1), world_size=ranks)
    return captured, rounding.assign_methods(captured, analyze(captured, inputs))


def accumulate(w, x):
    buffer = torch.zeros(8, 8, dtype=torch.bfloat16)
    loaded = buffer.copy_(x)
    w.add_(loaded)
    return w + 1.0


def test_fact_1_with_a_broadcast_stream_all_ops_have_identical_seeds():
    """PopART 1: buffer, load, accumulation and result of equal values have IDENTICAL_SEEDS."""
    _, methods = of(accumulate, square(), square(), inputs={"x": Equal()})
    assert set(methods) == {"zeros", "copy_", "add_", "add"} and set(methods.values()) == {SAME}


def test_fact_2_with_a_replicated_stream_what_it_reaches_has_differing_seeds():
    """PopART 2: the fresh buffer keeps IDENTICAL_SEEDS; the load, the variable from its first write on, and the result not."""
    _, methods = of(accumulate, square(), square(), inputs={"x": PerReplica()})
    assert methods == {"zeros": SAME, "copy_": OWN, "add_": OWN, "add": OWN}


def train(w, x, y):
    leaf = w.detach().requires_grad_()
    loss = (x @ leaf - y).abs().sum()
    (grad,) = torch.autograd.grad(loss, leaf)
    w.sub_(fc.all_reduce(grad, "sum", dist.group.WORLD), alpha=0.1)
    return loss.detach()


def test_fact_3_of_a_training_step_the_reduction_and_the_update_have_identical_seeds():
    """PopART 3: loss seed, reduced gradient and update IDENTICAL; the products, the loss and the local gradient DIFFERING."""
    captured = capture(train, square(), square(), square(), world_size=4)
    methods = rounding.assign_methods(captured, analyze(captured, {"w": Equal()}))
    assert {methods[name] for name in ("ones_like", "all_reduce", "wait_tensor", "sub_")} == {SAME}
    assert {methods[name] for name in ("mm", "sub", "abs_1", "sum_1", "mm_1")} == {OWN}


def region(scale):
    body = make_fx(lambda x: (x * scale,), tracing_mode="fake")(square())
    return lambda x: invoke_subgraph(body, "region", x)[0]


def test_each_call_of_a_body_has_its_own_methods():
    """PopART 4 to 6: one body, called with an equal and with a varying value: IDENTICAL in one call, DIFFERING in the other."""
    body = region(1.7)
    _, methods = of(lambda x, y: (body(x), body(y)), square(), square(), inputs={"x": Equal()})
    assert methods["invoke_subgraph"] == methods["invoke_subgraph/repeated_subgraph0/mul"] == SAME
    assert methods["invoke_subgraph_1"] == methods["invoke_subgraph_1/repeated_subgraph1/mul"] == OWN


def test_one_module_that_two_calls_name_has_methods_for_each():
    """Where two calls share one and the same graph, as compilers emit it, they do not share its methods."""
    body = region(1.7)
    captured = dataclasses.replace(capture(lambda x, y: (body(x), body(y)), square(), square(), world_size=1))
    graph = captured.module.graph
    first, second = (node for node in graph.nodes if "invoke" in str(node.target))
    second.args = (first.args[0], *second.args[1:])
    captured = dataclasses.replace(captured, world_size=4)
    methods = rounding.assign_methods(captured, analyze(captured, {"x": Equal()}))
    assert methods["invoke_subgraph/repeated_subgraph0/mul"] == SAME
    assert methods["invoke_subgraph_1/repeated_subgraph0/mul"] == OWN


def test_ops_in_branches_loops_and_scans_have_methods():
    """The bodies of cond, while_loop and scan are part of the step: every op in them has its method."""

    def step(n, x, z):
        a = torch.cond(n > 2, lambda a: a * 2.1, lambda a: a / 3, (x,))
        b = while_loop(lambda i, c: i < n, lambda i, c: (i + 1, c * 1.1), (torch.tensor(0), a))[1]
        return scan(lambda c, e: (c + e, c * 2.1), b[0], z, dim=0)

    _, methods = of(step, torch.tensor(3), square(), square(), inputs={"n": Equal(), "x": Equal()})
    inside = {path: one for path, one in methods.items() if "/" in path}
    branches, loops = (
        {p: m for p, m in inside.items() if p.startswith(start)} for start in ("cond", "while")
    )
    assert len(branches) == 2 and len(loops) == 3 and {*branches.values(), *loops.values()} == {SAME}
    assert {one for path, one in inside.items() if path.startswith("scan")} == {OWN}


def test_an_op_without_results_has_identical_seeds():
    """PopART: a host store gives nothing, so all that it gives is equal, whatever it reads."""
    library = torch.library.Library("rounding_facts", "DEF")
    library.define("store(Tensor x) -> ()")
    library.impl("store", lambda x: None, "CompositeExplicitAutograd")
    library.impl("store", lambda x: None, "Meta")
    torch.fx.node.has_side_effect(torch.ops.rounding_facts.store.default)
    _, methods = of(lambda x: (torch.ops.rounding_facts.store(x), x * 2)[1], square())
    assert methods == {"store": SAME, "mul": OWN}


def test_a_write_counts_as_a_result():
    """An op over lists that returns nothing has the method of what it writes."""
    step = lambda p, g: torch._foreach_add_([p], [g])
    assert set(of(step, square(), square(), inputs={"p": Equal()})[1].values()) == {OWN}
    assert set(of(step, square(), square(), inputs={"*": Equal()})[1].values()) == {SAME}


def test_equal_within_groups_is_not_identical():
    """A value that is equal in groups only has DIFFERING_SEEDS: one stream for each class."""
    _, methods = of(lambda x: x * 1.7, square(), inputs={"x": Partition([[0, 1], [2, 3]])})
    assert methods == {"mul": OWN}


def two_ops(x):
    return (x * 1.7) + 2


def test_fact_15_rounding_on_needs_a_method_for_every_op():
    """PopART 15: none or some have a method: an error that names the first without; all: none."""
    captured, _ = of(two_ops, square())
    rounding.verify_methods(captured)
    found = captured.module.meta["samebits.rounding"]
    del found.methods["add"]
    with pytest.raises(RoundingMethodError, match="op 'add' has no"):
        rounding.verify_methods(captured)
    rounding.clear_methods(captured)
    with pytest.raises(RoundingMethodError, match="op 'mul' has no"):
        rounding.lower(captured, rank=0)


def test_fact_16_rounding_off_allows_no_methods():
    """PopART 16: none has a method: fine; some or all: an error that names one and the cure."""
    captured, _ = of(two_ops, square())
    with pytest.raises(RoundingMethodError, match="op 'mul' has the method.*clear_methods"):
        rounding.lower(captured, rounding=False, rank=0)
    del captured.module.meta["samebits.rounding"].methods["mul"]
    with pytest.raises(RoundingMethodError, match="op 'add'"):
        rounding.verify_methods(captured, rounding=False)
    rounding.clear_methods(captured)
    rounding.lower(captured, rounding=False, rank=0)


def new_argument(graph):
    next(node for node in graph.nodes if node.name == "mul").update_arg(1, 1.8)


def other_operands(graph):
    node = next(node for node in graph.nodes if node.name == "add")
    node.update_arg(0, next(iter(graph.nodes)))


def other_dtype(graph):
    node = next(node for node in graph.nodes if node.name == "mul")
    node.meta["val"] = node.meta["val"].to(torch.float16)


def other_memory(graph):
    mul, add = (next(node for node in graph.nodes if node.name == name) for name in ("mul", "add"))
    add.meta["val"] = mul.meta["val"].view(8, 8)


def other_op(graph):
    next(node for node in graph.nodes if node.name == "add").target = torch.ops.aten.sub.Tensor


@pytest.mark.parametrize("edit", [new_argument, other_operands, other_dtype, other_memory, other_op])
def test_an_edited_graph_is_refused(edit):
    """Assigning methods is the last transform: after any edit of ops, arguments, dtypes or memory, lower refuses."""
    captured, _ = of(two_ops, square())
    rounding.lower(captured, rank=0)
    edit(captured.module.graph)
    with pytest.raises(RoundingMethodError, match="edited"):
        rounding.lower(captured, rank=0)


def test_an_added_op_is_named_and_an_edited_body_refused():
    """A new op has no method, and is named; an argument changed in the body of a branch is an edit, too."""
    captured, _ = of(two_ops, square())
    graph = captured.module.graph
    with graph.inserting_before(next(node for node in graph.nodes if node.op == "output")):
        graph.call_function(torch.ops.aten.neg.default, (next(iter(graph.nodes)),))
    with pytest.raises(RoundingMethodError, match="'neg_default'"):
        rounding.lower(captured, rank=0)
    branched, _ = of(lambda x: torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a * 3, (x,)), square())
    rounding.lower(branched, rank=0)
    body = branched.module.true_graph_0.graph
    next(node for node in body.nodes if node.name == "mul").update_arg(1, 2.5)
    with pytest.raises(RoundingMethodError, match="edited"):
        rounding.lower(branched, rank=0)


def test_methods_are_of_the_step_that_was_analyzed():
    """A report of another step is refused; the same code captured again has the same digest."""
    one, _ = of(two_ops, square())
    other, _ = of(two_ops, square())
    with pytest.raises(InvalidArgumentError, match="another step"):
        rounding.assign_methods(one, analyze(other))
    assert len({step.module.meta["samebits.rounding"].digest for step in (one, other)}) == 1


@pytest.mark.slow
def test_the_analysis_comes_with_the_first_use(python):
    """`import samebits` does not read the op table; `samebits.rounding.lower` is there all the same."""
    out = python(
        "import sys, samebits\n"
        "print('samebits.replica' in sys.modules, 'samebits.rounding._transform' in sys.modules)\n"
        "print(samebits.rounding.lower.__module__, hasattr(samebits.rounding, 'nothing'))\n"
    ).stdout.splitlines()
    assert out == ["False False", "samebits.rounding._transform.lowered_step False"]
    assert set(samebits.rounding.__all__) >= {"assign_methods", "lower"}

"""What a user types wrong, or captures though it cannot be followed: refused with an error of ours, the line and the cure."""

import logging

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce

from samebits import rounding
from samebits.errors import ConflictError, InvalidArgumentError, UnimplementedError
from samebits.replica import PerRank, Witness, analyze, capture, dot_graph, listing, write_html
from samebits.replica._capture.capture import MOST_RANKS

logging.getLogger("torch.__trace").propagate = False
X = torch.ones(4)


def step(model, x):
    return model(x).sum()


@pytest.fixture(scope="module")
def report():
    return analyze(capture(step, nn.Linear(4, 2), X, world_size=2))


CALLS = {
    "over a number": (lambda r: r.is_replica_equal("x", over=3), "groups of ranks"),
    "over a flat list": (lambda r: r.is_replica_equal("x", over=[0, 1]), "groups of ranks"),
    "over nothing": (lambda r: r.explain("x", over=[]), "groups of ranks"),
    "a list of names": (lambda r: r.expect_equal(["model.weight"]), "one by one"),
    "no name": (lambda r: r.expect_equal(), "nothing is checked"),
    "no name to vary": (lambda r: r.expect_varying(), "nothing is checked"),
    "when": (lambda r: r.partition("x", when="begin"), "'start' or 'end'"),
    "a typing error": (lambda r: r.explain("model.wieght"), "Near it are model.weight"),
    "drift of an output": (lambda r: r.explain_drift("output"), "only inputs"),
    "analyze a function": (lambda r: analyze(step), "captured step.*not step"),
    "analyze a report": (analyze, "captured step.*not Report"),
    "feedback": (lambda r: analyze(r.step, feedback="x"), "names the output"),
    "a number declared": (lambda r: analyze(r.step, {0: None}), "no input has this name"),
    "listing a step": (lambda r: listing(r.step), "takes a report"),
    "a graph of a step": (lambda r: dot_graph(r.step), "dot_graph takes a report"),
    "page, swapped": (lambda r: write_html("a.html", r), r"write_html\(report, file\)"),
    "methods, swapped": (lambda r: rounding.assign_methods(r, r.step), "captured step.*not Report"),
    "methods without a report": (lambda r: rounding.assign_methods(r.step, None), "takes a report"),
    "verify a report": (rounding.verify_methods, "captured step"),
    "clear a report": (rounding.clear_methods, "captured step"),
    "lower a report": (rounding.lower, "captured step"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_wrong_question_is_answered_with_what_to_ask(report, what):
    """Wrong axes, names, times, kinds and orders of arguments end in an InvalidArgumentError that says what to give."""
    call, said = CALLS[what]
    with pytest.raises(InvalidArgumentError, match=said):
        call(report)


def test_the_right_question_is_answered(report):
    """Control: names, groups and axes that exist raise nothing."""
    report.expect_equal("model.weight", over=[[0, 1]])
    report.expect_varying("x", "output")
    assert report.explain_drift("model.weight") == "model.weight is replica-equal."


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"aten::nope": "float32"}, "no op of this name; its ops are .*aten::addmm"),
        ({"aten.addmm": "float32"}, "near it are .*aten::addmm"),
        ({torch.ops.aten.addmm.default: "float32"}, "its ops are aten::addmm"),
        ("float32", "by the names of ops"),
    ],
)
def test_a_rule_for_an_op_that_the_step_does_not_have_is_refused(rules, said):
    """A rule that no op of the graph has would be silently ignored: refused, with near names; one that it has is taken."""
    model = nn.Linear(4, 2).to(torch.bfloat16)
    captured = capture(step, model, X.bfloat16(), world_size=1)
    rounding.assign_methods(captured, analyze(captured))
    with pytest.raises(InvalidArgumentError, match=said):
        rounding.lower(captured, seed=1, rules=rules)
    rounding.lower(captured, seed=1, rules={"aten::addmm": "float32", "aten::sum": "float32"})


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda r: Witness({}), "nothing to compare.*Give modules"),
        (lambda r: Witness(nn.Linear(2, 2)), "Linear is neither a Run"),
        (lambda r: Witness(nn.Linear(2, 2).state_dict()), "nothing to compare"),
        (lambda r: Witness({"m": nn.Linear(2, 2)}, ignore=["m.*"]), r"that ignore=\['m.\*'\] leaves"),
        (lambda r: Witness({"m": nn.Linear(2, 2)}, ignore="m.*"), "a list of patterns"),
        (lambda r: Witness({"m": nn.Linear(2, 2)}, r), "every=Report.*a report is report=report"),
        (lambda r: Witness({"m": nn.Linear(2, 2)}, report=r.step), "takes a report"),
    ],
)
def test_a_witness_of_nothing_is_refused(report, call, said):
    """A witness that would compare nothing says what to give; of a module and a report it is made."""
    with pytest.raises(InvalidArgumentError, match=said):
        call(report)
    alone = analyze(capture(step, nn.Linear(4, 2), X, world_size=1))
    Witness({"model": nn.Linear(2, 2)}, report=alone, ignore=["model.bias"])


def sent_objects(x):
    dist.all_gather_object([None, None], {"a": 1})


def coalesced(x):
    y = x * 1
    with dist._coalescing_manager():
        dist.all_reduce(y)


def nested(x):
    return torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged) * 2


def shown(x):
    return f"{x.sum():.3f}"


def compiled(x):
    return torch.compile(lambda a: a * 2)(x)


def wrapped(x):
    return nn.parallel.DistributedDataParallel(nn.Linear(4, 2))(x)


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (sent_objects, "object collective.*before the step"),
        (coalesced, "coalesced.*one after the other"),
        (nested, "nested tensors.*offsets"),
        (lambda x: x.numpy(), "reads the value"),
        (shown, "reads the value"),
        (compiled, "torch.compile.*that was compiled"),
        (wrapped, "samebits.replica.DataParallel"),
    ],
)
def test_what_torch_cannot_trace_is_refused_with_the_line_and_the_way_out(refused, said):
    """Object collectives, coalescing, nested tensors, values that are read, what is compiled or reduces in C++."""
    with pytest.raises(UnimplementedError, match=said) as caught:
        capture(refused, X, world_size=2)
    assert "[test_capture_misuse.py:" in str(caught.value)


def test_what_the_user_raises_comes_through():
    """Control: an error of the user's own code, and a shape that does not fit, are what they are."""

    def raises(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(raises, X, world_size=2)
    with pytest.raises(RuntimeError, match="reduction dim"):
        capture(lambda x: x @ torch.ones(3, 3), X, world_size=2)
    assert not dist.is_initialized()


def test_what_is_set_up_inside_of_a_step_is_refused():
    """A process group that the step makes, and an axis that its mesh does not have, are named with the line."""
    with pytest.raises(ConflictError, match=r"misuse.py:\d+: .*outside of the step"):
        capture(lambda x: dist.init_process_group("gloo"), X, world_size=2)
    with pytest.raises(InvalidArgumentError, match=r"misuse.py:\d+: .*'dp'"):
        capture(lambda x, mesh: mesh["tp"], X, mesh={"dp": 2})


@pytest.mark.parametrize("mesh", [(2, 2), [("dp", 2)], 4, "dp=2", {0: 2, 1: 2}])
def test_a_mesh_is_axes_by_name(mesh):
    """Sizes alone, a list of pairs, the command line's text and numbered axes are no mesh; names and sizes are."""
    with pytest.raises(InvalidArgumentError, match="names and sizes of its axes"):
        capture(step, nn.Linear(4, 2), X, mesh=mesh)
    with pytest.raises(InvalidArgumentError, match=r"mesh=\{'dp': 2\}"):
        capture(lambda x, mesh: x, X, world_size=2)
    capture(lambda x, mesh=None: x, X, world_size=2)


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    "world", [{"world_size": 10**9}, {"mesh": {"a": 10**6, "b": 10**6}}, {"world_size": MOST_RANKS + 1}]
)
def test_more_ranks_than_are_followed_are_refused(world):
    """A world whose ranks cannot be listed is refused at once with the cure; the largest that is followed is analyzed."""
    with pytest.raises(InvalidArgumentError, match="smaller world of the same shape"):
        capture(summed, X, **world)
    found = analyze(capture(summed, X, mesh={"dp": MOST_RANKS // 4, "tp": 4}))
    assert found.is_replica_equal("output") and not found.is_replica_equal("x")


def summed(x):
    return all_reduce(x, "sum", dist.group.WORLD)


def test_an_optimizer_that_needs_a_closure_is_refused():
    """LBFGS cannot make its state before the step, nor is its step one graph: the optimizer and the reason are named."""
    model = nn.Linear(4, 2)
    with pytest.raises(UnimplementedError, match=r"LBFGS makes its state .*closure"):
        capture(lambda model, opt, x: None, model, torch.optim.LBFGS(model.parameters()), X, world_size=2)
    capture(lambda model, opt, x: None, model, torch.optim.SGD(model.parameters()), X, world_size=2)


@pytest.mark.parametrize(
    "argument",
    [lambda: nn.Linear(4, 2), lambda: torch.ones(4), lambda: 3],
    ids=["module", "tensor", "number"],
)
def test_per_rank_takes_the_function_that_makes_it(argument):
    """A module is callable and makes nothing: refused as any other value; and so is a PerRank that nobody would call."""
    with pytest.raises(InvalidArgumentError, match="the function that makes it"):
        PerRank(argument())
    with pytest.raises(InvalidArgumentError, match="argument of the step itself"):
        capture(lambda made, x: x, [PerRank(argument)], X, world_size=2)


def test_a_nested_argument_is_refused():
    """An argument that is nested is refused before anything is traced."""
    for layout in (torch.jagged, torch.strided):
        given = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=layout)
        with pytest.raises(UnimplementedError, match="nested tensor.*offsets"):
            capture(lambda n: n * 2, given, world_size=2)


@pytest.mark.parametrize(
    "state", [3, {"key": ["a", "b"], "step": 1}, {"key": [1, 2], "step": None}, {"key": [1, 2]}]
)
def test_what_is_no_state_of_a_lowered_step_is_refused(state):
    """A number, words that are none, no step: refused before anything is changed; its own state is taken."""
    captured = capture(step, nn.Linear(4, 2).bfloat16(), X.bfloat16(), world_size=1)
    rounding.assign_methods(captured, analyze(captured))
    lowered = rounding.lower(captured, seed=1)
    before = lowered.state_dict()
    with pytest.raises(InvalidArgumentError, match="two 64-bit words"):
        lowered.load_state_dict(state)
    assert lowered.state_dict() == before
    lowered.load_state_dict({"key": [1, 2], "step": 5})
    assert lowered.step == 5


def test_two_parameters_of_one_name_are_refused():
    """Rounding is keyed by the name: two of one name would share their noise, in one group or in two; others do not."""
    model = nn.Linear(4, 2).bfloat16()
    with pytest.raises(InvalidArgumentError, match="named 'a'"):
        rounding.optim.SGD([("a", model.weight), ("a", model.bias)], lr=0.1)
    optimizer = rounding.optim.SGD([("a", model.weight)], lr=0.1)
    with pytest.raises(InvalidArgumentError, match="named 'a'"):
        optimizer.add_param_group({"params": [("a", model.bias)]})
    optimizer.add_param_group({"params": [("b", model.bias)]})
    assert len(optimizer.param_groups) == 2

"""Lowered steps: bitwise the captured one with rounding off, unbiased and equal where claimed with it on."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.fx.experimental.proxy_tensor import make_fx

import replica_oracle as oracle
import samebits
from samebits import replica, rounding
from samebits._context import at_import
from samebits.errors import InvalidArgumentError, UnimplementedError, UnseededError
from samebits.replica import Equal, Partition, PerReplica
from samebits.rounding._transform import lowering, rounded_ops

BF16, FP16 = torch.bfloat16, torch.float16


DRAWN = torch.Generator().manual_seed(0)


def square(dtype=BF16):
    return torch.randn(8, 8, generator=DRAWN).to(dtype)


def captured(step, *args, inputs=None, ranks=4):
    """A step without collectives, captured once for `ranks` ranks, with methods."""
    found = dataclasses.replace(replica.capture(step, *args, world_size=1), world_size=ranks)
    report = replica.analyze(found, inputs)
    rounding.assign_methods(found, report)
    return found, report


def on_ranks(step, args, seed=1, number=0):
    """What the arguments hold afterwards, and the results, of the lowered step as each rank."""
    runs = []
    for rank in range(step.world_size):
        held = [one.clone() for one in args]
        found = rounding.lower(step, seed=seed, rank=rank)(*held, step=number)
        runs.append([*held, *torch.utils._pytree.tree_leaves(found)])
    return runs


def same(one, other):
    return all(
        a.dtype == b.dtype
        and a.stride() == b.stride()
        and a.contiguous().view(torch.uint8).equal(b.contiguous().view(torch.uint8))
        for a, b in zip(one, other, strict=True)
    )


# --- random programs ---


def branch(a, b):
    return torch.cond(a.sum() > 0, lambda b: b * 1.1, lambda b: b / 3, (b,))


def loop(a, b):
    limit = (a.sum().abs()).int() % 4
    return while_loop(
        lambda i, n, c: i < n, lambda i, n, c: (i + 1, n.clone(), c * 1.1),
        (torch.zeros((), dtype=torch.int32), limit, b),
    )[2]  # fmt: skip


def call(a, b):
    return invoke_subgraph(_BODY, "region", a, b)[0]


_BODY = make_fx(lambda a, b: (a * 1.3 + b,), tracing_mode="fake")(
    *[torch.zeros(oracle.SIZE, 2, dtype=BF16)] * 2
)
FLOW = {"branch": branch, "loop": loop, "call": call}
PLAIN = [name for name in oracle.OPS if name not in oracle.COLLECTIVE and not name.startswith("dist.")]


def program(instructions):
    def step(x0, x1, x2):
        values = [x0, x1, x2]
        for name, one, two in instructions:
            a, b = values[one % len(values)], values[two % len(values)]
            values.append(FLOW[name](a, b) if name in FLOW else oracle.OPS[name](None, a, b))
        return values[3:]

    return step


def programs(names, most):
    return st.lists(
        st.tuples(st.sampled_from(names), st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=most
    )


WITH_FLOW = st.tuples(st.sampled_from(list(FLOW)), programs([*FLOW, *PLAIN], 3)).map(
    lambda one: [(one[0], 0, 1), *one[1]]
)
CLASSES = st.tuples(*[st.sampled_from(oracle.CLASSES)] * oracle.INPUTS)


def examples(number):
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def drawn(classes, seed):
    """For each rank its inputs, equal within a class."""
    held = oracle.drawn_inputs(classes, seed)
    return [[one[rank].to(BF16) for one in held] for rank in range(oracle.RANKS)]


def check_off(instructions, dtype):
    args = [one.to(dtype) for one in drawn(oracle.CLASSES[:3], 0)[1]]
    step = replica.capture(program(instructions), *args, world_size=1)
    runs = []
    for run in (step.module, rounding.lower(step, rounding=False)):
        torch.manual_seed(3)
        held = [one.clone() for one in args]
        runs.append([*held, *torch.utils._pytree.tree_leaves(run(*held))])
    assert same(*runs)


@pytest.mark.slow
@examples(30)
@given(programs(PLAIN, 8), st.sampled_from([BF16, FP16, torch.float32]))
def test_with_rounding_off_a_lowered_program_is_the_captured_one(instructions, dtype):
    """Random programs of ops, views, in-place writes and draws: the same bits, strides and dtypes."""
    check_off(instructions, dtype)


@pytest.mark.slow
@examples(5)
@given(WITH_FLOW)
def test_with_rounding_off_so_are_branches_loops_and_calls(instructions):
    """Random programs with control flow: the same bits."""
    check_off(instructions, BF16)


def check_equality(instructions, classes):
    step = replica.capture(program(instructions), *drawn(classes, 0)[0], world_size=1)
    step = dataclasses.replace(step, world_size=oracle.RANKS)
    report = replica.analyze(step, oracle.declarations(step, classes))
    rounding.assign_methods(step, report)
    runs = []
    for rank, held in enumerate(drawn(classes, 0)):
        torch.manual_seed(3)
        runs.append([*rounding.lower(step, seed=5, rank=rank)(*held), *held])
    names = [*step.output_names, *list(step.kinds)[:3]]
    for name, *values in zip(names, *runs, strict=True):
        for ranks in report.partition(name):
            for rank in ranks:
                assert same([values[ranks[0]]], [values[rank]]), name


@pytest.mark.slow
@examples(30)
@given(programs(PLAIN, 8), CLASSES)
def test_what_is_claimed_equal_stays_equal_under_rounding(instructions, classes):
    """Random programs, rounded, rank by rank: what the report claims equal has the same bits on those ranks."""
    check_equality(instructions, classes)


@examples(4)
@given(WITH_FLOW, CLASSES)
def test_what_is_claimed_equal_stays_equal_in_control_flow(instructions, classes):
    """The same with branches, loops and calls, each rank going its own way through them."""
    check_equality(instructions, classes)


def test_one_class_for_all_results_breaks_a_claim(monkeypatch):
    """Negative control of the check: with a stream for each rank, whatever is equal, it fails."""
    classes = ((0, 0, 0, 0), (0, 1, 2, 3), (0, 0, 1, 1))
    check_equality([("mul", 0, 0), ("add", 3, 3)], classes)
    monkeypatch.setattr(lowering._Body, "_label", lambda self, computed, index: self.whole.rank)
    with pytest.raises(AssertionError):
        check_equality([("mul", 0, 0), ("add", 3, 3)], classes)


# --- the bits ---


def test_an_update_through_views_and_lists_arrives_and_is_unbiased():
    """In place through a view, then over a list: the mean over 400 steps is the float32 result, which one step is not."""

    def step(p, g):
        p.view(-1)[:32].add_(g.view(-1)[:32], alpha=-0.003)
        torch._foreach_mul_([p], 0.999)

    p, g = square(), square()
    exact, near = p.float(), p.clone()
    step(exact, g.float())
    step(near, g)
    found, _ = captured(step, p, g, ranks=1)
    lowered = rounding.lower(found, seed=1, rank=0)
    runs = []
    for number in range(400):
        held = p.clone()
        lowered(held, g, step=number)
        runs.append(held.float())
    mean, digit = torch.stack(runs).mean(0), exact.abs() * 2.0**-7
    assert ((mean - exact).abs() < 0.2 * digit).all()
    assert (near.float() - exact).abs().mean() > 5 * (mean - exact).abs().mean()


def test_without_the_copy_back_the_update_is_lost(monkeypatch):
    """Negative control: ops that write to their float32 copies alone leave the weights as they were."""
    step = lambda p, g: (p.view(-1)[:4].add_(g.view(-1)[:4], alpha=-0.5), torch._foreach_mul_([p], 0.5))[0]
    p, g = square(), square()
    found, _ = captured(step, p, g, ranks=1)
    assert not on_ranks(found, [p, g])[0][0].equal(p)
    monkeypatch.setattr(rounded_ops, "round_into", lambda out, x, key: out)
    assert on_ranks(found, [p, g])[0][0].equal(p)


def test_every_result_is_one_of_the_two_neighbours():
    """A product computed in float32 lies between the two bfloat16 that it becomes, and becomes both."""
    a, b = square(), square()
    found, _ = captured(lambda a, b: a @ b, a, b, ranks=1)
    exact = a.float() @ b.float()
    runs = torch.stack([on_ranks(found, [a, b], number=k)[0][2].float() for k in range(20)])
    width = exact.abs() * 2.0**-7
    assert ((runs - exact).abs() <= width).all()
    assert ((runs < exact).any(0) & (runs > exact).any(0)).float().mean() > 0.75


def shards(step, ranks=8, numbers=300):
    """Variance of the rounding error summed over ranks that hold the same numbers, over that of one rank."""
    x = torch.full((4, 64), 1.003).to(BF16)
    found, _ = captured(step, x, inputs={"x": PerReplica()}, ranks=ranks)
    exact = step(x.float())
    lowered = [rounding.lower(found, seed=1, rank=rank) for rank in range(ranks)]
    errors = torch.stack(
        [torch.stack([one(x, step=k).float() - exact for one in lowered]) for k in range(numbers)]
    )
    return float(errors.sum(1).var() / errors.var())


def test_varying_values_round_by_numbers_of_their_own(monkeypatch):
    """8 shards: the variance of the summed error is 8 times that of one; with one shared stream (control) 64 times."""
    assert 6.5 < shards(lambda x: x * 1.001) < 9.5
    monkeypatch.setattr(lowering._Body, "_label", lambda self, computed, index: 0)
    assert 55 < shards(lambda x: x * 1.001) < 73


def test_ranks_of_one_class_share_their_noise_and_no_others():
    """Equal in groups {0, 1} and {2, 3}: same bits within a group, other bits across, from the same numbers."""
    x = square()
    found, _ = captured(lambda x: x * 1.7, x, inputs={"x": Partition([[0, 1], [2, 3]])})
    a, b, c, d = (run[1] for run in on_ranks(found, [x]))
    assert a.equal(b) and c.equal(d) and not a.equal(c)


def test_each_tensor_of_a_list_has_its_own_class(monkeypatch):
    """One op over an equal and a varying weight: the equal one stays equal; with one class for the op (control) it drifts."""
    step = lambda p, q, g, h: torch._foreach_add_([p, q], [g, h], alpha=0.01)
    args = [square() for _ in range(4)]
    equal = {name: Equal() for name in "pqg"}
    found, report = captured(step, *args, inputs=equal)
    assert report.is_replica_equal("p") and not report.is_replica_equal("q")
    runs = on_ranks(found, args)
    assert all(run[0].equal(runs[0][0]) for run in runs) and not any(
        run[1].equal(runs[0][1]) for run in runs[1:]
    )
    worst = lambda self, computed, index: max(
        int(self.frame.known.labels(one)[self.whole.rank]) for one in computed
    )
    monkeypatch.setattr(lowering._Body, "_label", worst)
    runs = on_ranks(found, args)
    assert not runs[0][0].equal(runs[1][0])


def test_two_calls_and_two_trips_do_not_share_their_noise():
    """One body called twice on one value, and a loop over it: other bits at each call and each trip."""
    x = square()
    body = make_fx(lambda x: (x * 1.001,), tracing_mode="fake")(x)
    twice, _ = captured(lambda x: [invoke_subgraph(body, "region", x)[0] for _ in range(2)], x, ranks=1)
    (_, one, other) = on_ranks(twice, [x])[0]
    assert not one.equal(other)
    trips, _ = captured(
        lambda c, z: scan(lambda c, e: (c + 0, c * e), c, z, dim=0)[1], x, torch.full((5, 1), 1.7).to(BF16)
    )
    rows = on_ranks(trips, [x, torch.full((5, 1), 1.7).to(BF16)])[0][2]
    assert not any(rows[i].equal(rows[j]) for i in range(5) for j in range(i))


def test_where_call_sites_disagree_each_has_its_own_body():
    """One body with an equal and a varying call: the equal result is equal on all ranks, the other rounds by class."""
    x = square()
    body = make_fx(lambda x: (x * 1.7,), tracing_mode="fake")(x)
    step = lambda x, y: (invoke_subgraph(body, "region", x)[0], invoke_subgraph(body, "region", y)[0])
    found, _ = captured(step, x, x.clone(), inputs={"x": Equal()})
    runs = on_ranks(found, [x, x])
    assert all(run[2].equal(runs[0][2]) for run in runs)
    assert not any(run[3].equal(runs[0][3]) for run in runs[1:])


def test_streams_do_not_move_with_edits_elsewhere():
    """A line added before moves no stream: the last product has the same bits with and without it."""
    x = square()

    def short(x):
        return x * 1.7

    def long(x):
        y = x * 0.3  # noqa: F841
        return x * 1.7

    assert on_ranks(captured(short, x)[0], [x])[0][1].equal(on_ranks(captured(long, x)[0], [x])[0][1])
    two, _ = captured(lambda x: ((x * 1.7), (x * 1.7)), x)
    assert not torch.equal(*on_ranks(two, [x])[0][1:])


def test_ops_that_write_silently_or_out_are_followed():
    """Running statistics, which no schema shows as written, an `out=`, and casts to 16 bits: all rounded, all there."""
    x, mean, var = square(), torch.zeros(8, dtype=BF16), torch.ones(8, dtype=BF16)

    def norm(x, mean, var):
        F.batch_norm(x, mean, var, training=True, momentum=0.1)

    found, _ = captured(norm, x, mean, var, ranks=1)
    runs = torch.stack([on_ranks(found, [x, mean, var], number=k)[0][1].float() for k in range(200)])
    assert torch.allclose(runs.mean(0), x.float().mean(0) * 0.1, atol=2e-4) and runs.std(0).max() > 0
    out, _ = captured(lambda p, g: torch.add(p, g, alpha=0.01, out=p), x, square(), ranks=1)
    assert not on_ranks(out, [x, square()])[0][0].equal(x)
    cast, _ = captured(lambda x: x.to(FP16), torch.full((4096,), 1.0001), ranks=1)
    values = on_ranks(cast, [torch.full((4096,), 1.0001)])[0][1]
    assert abs(float((values > 1).float().mean()) - 0.1024) < 0.03


def test_what_moves_or_draws_passes_through():
    """Views, copies, zeros, draws and gathers are run as captured: not one op of theirs is lowered."""

    def moves(x):
        y = torch.cat([x.view(-1)[:8], x[1]]).clone()
        return torch.rand_like(y), torch.where(y > 0, y, torch.zeros_like(y)).relu(), y[torch.tensor([1, 0])]

    found, _ = captured(moves, square(), ranks=1)
    lowered = rounding.lower(found, seed=1)
    assert "lowered_" not in str(lowered)


def test_an_op_without_a_rule_is_named():
    """A custom op with a bfloat16 result is refused by name and line, with the cure; given a rule, it is lowered by it."""
    library = torch.library.Library("rounding_rules", "DEF")
    library.define("scale(Tensor x) -> Tensor")
    library.impl("scale", lambda x: x * 1.001, "CompositeExplicitAutograd")
    library.impl("scale", torch.empty_like, "Meta")
    samebits.declare_op("rounding_rules::scale", deterministic=True)
    x = square()
    found, _ = captured(lambda x: torch.ops.rounding_rules.scale(x), x, inputs={"x": Equal()})
    with pytest.raises(UnimplementedError, match=r"rounding_rules::scale .*test_lowering.py.*rules="):
        rounding.lower(found, rank=0)
    by_rule = rounding.lower(found, seed=1, rank=0, rules={"rounding_rules::scale": "float32"})
    as_is = rounding.lower(found, seed=1, rank=0, rules={"rounding_rules::scale": "as it is"})
    assert as_is(x).equal(x * 1.001) and not by_rule(x).equal(x * 1.001)
    with pytest.raises(InvalidArgumentError, match="a rule is"):
        rounding.lower(found, rank=0, rules={"rounding_rules::scale": "nearest"})


def test_an_op_that_does_not_compute_in_float32_is_named():
    """A custom op that gives bfloat16 whatever it is given cannot be rounded by the rule "float32": an error with the cure."""
    library = torch.library.Library("rounding_narrow", "DEF")
    library.define("half(Tensor x) -> Tensor")
    library.impl("half", lambda x: x.to(BF16) * 1.5, "CompositeExplicitAutograd")
    library.impl("half", torch.empty_like, "Meta")
    found, _ = captured(lambda x: torch.ops.rounding_narrow.half(x), square(), ranks=1)
    lowered = rounding.lower(found, seed=1, rules={"rounding_narrow::half": "float32"})
    with pytest.raises(UnimplementedError, match=r"rounding_narrow.half.*as it is"):
        lowered(square())


def test_lists_that_share_memory_are_refused():
    """An op over lists works on copies: where two of them are one memory, it is named."""
    found, _ = captured(lambda p: torch._foreach_mul_([p, p[:2]], 1.1), square())
    with pytest.raises(UnimplementedError, match=r"_foreach_mul_.*share memory"):
        rounding.lower(found, rank=0)


# --- PopART's facts on the run time ---


def conditional_draw(w, x, g):
    noise = torch.cond(x[0, 0] == 0, lambda x: torch.rand_like(x), lambda x: x * 1, (x,))
    w.add_(g, alpha=0.01)
    return noise


def test_fact_17_a_draw_that_the_data_decide_leaks_into_no_stream():
    """PopART 17: rank 0 draws, rank 1 does not; the weights of both have the same bits after 5 steps."""
    w, x, g = square(FP16), square(FP16), square(FP16)
    found, report = captured(conditional_draw, w, x, g, inputs={"w": Equal(), "g": Equal()}, ranks=2)
    assert report.is_replica_equal("w") and not report.is_replica_equal("output")
    ends = []
    for rank in range(2):
        lowered = rounding.lower(found, seed=1, rank=rank)
        held, own = w.clone(), x.clone()
        own[0, 0] = float(rank)
        for _ in range(5):
            lowered(held, own, g)
        ends.append(held)
    assert ends[0].equal(ends[1]) and not ends[0].equal(w)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Dropout(0.2), nn.Linear(16, 4)).to(FP16)


def train(model, optimizer, x, y):
    loss = F.cross_entropy(model(x).float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


@pytest.fixture(scope="module")
def training():
    """(captured step of a network in float16 with momentum, its batch)."""
    torch.manual_seed(1)
    model = network()
    batch = torch.randn(6, 8).to(FP16), torch.randint(4, (6,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(model, optimizer, *batch)
    found, _ = captured(train, model, optimizer, *batch, inputs={"*": Equal()}, ranks=2)
    return found, batch


def trained(training, steps, rank=0, seed=1, lowered=None, torch_seed=4):
    """(weights after `steps` steps of a new model, losses, the lowered step)."""
    found, batch = training
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train(model, optimizer, *batch)
    lowered = lowered or rounding.lower(found, seed=seed, rank=rank)
    torch.manual_seed(torch_seed)
    losses = [lowered(model, optimizer, *batch)["loss"].item() for _ in range(steps)]
    return list(model.parameters()), losses, lowered


def test_fact_18_replicas_with_the_same_data_have_the_same_weights(training):
    """PopART 18: two ranks, the same data, 5 steps of modules and optimizers as arguments: bitwise equal weights, changed."""
    one, other = (trained(training, 5, rank)[0] for rank in range(2))
    assert same(one, other) and not same(one, trained(training, 4)[0])


@pytest.mark.parametrize("rank", [0, 1])
def test_fact_19_states_are_got_and_set(training, rank):
    """PopART 19: the state moves with each run, goes back and forth, restores the bits that follow; another length raises."""
    _, _, lowered = trained(training, 2, rank)
    state = lowered.state_dict()
    assert state["step"] == 2
    first = trained(training, 2, lowered=lowered)[0]
    assert lowered.state_dict() != state
    assert not same(first, trained(training, 2, lowered=lowered)[0])
    lowered.load_state_dict(state)
    assert lowered.state_dict() == state
    assert same(first, trained(training, 2, lowered=lowered)[0])
    lowered.load_state_dict({"key": [7, 8], "step": 900})  # any of the right size
    before = lowered.state_dict()
    for wrong in (
        {**state, "key": [1, 2, 3]},
        {"key": [1, 2]},
        {},
        {**state, "more": 1},
        {**state, "step": -1},
    ):
        with pytest.raises(InvalidArgumentError, match="two 64-bit words and a step"):
            lowered.load_state_dict(wrong)
    assert lowered.state_dict() == before


def test_fact_20_with_rounding_off_there_is_no_state():
    """PopART 20: where nothing rounds, the state is empty and setting it does nothing; a state of one that rounds is refused."""
    lowered = rounding.lower(replica.capture(lambda x: x * 1.7, square(), world_size=1), rounding=False)
    assert lowered.state_dict() == {}
    lowered.load_state_dict({})
    with pytest.raises(InvalidArgumentError, match="has no state"):
        lowered.load_state_dict({"key": [1, 2], "step": 0})


def test_fact_21_rounding_changes_results_and_a_seed_replays_them():
    """PopART 21: an addition in float16 differs from nearest; run 2 differs from run 1; another seed differs; the same replays both."""
    a, b = square(FP16), square(FP16)
    found, _ = captured(lambda a, b: a + b, a, b, ranks=1)
    runs = {seed: [rounding.lower(found, seed=seed)(a, b, step=k) for k in range(2)] for seed in (1, 2)}
    again = rounding.lower(found, seed=1)
    assert (
        not runs[1][0].equal(a + b) and not runs[1][0].equal(runs[1][1]) and not runs[1][0].equal(runs[2][0])
    )
    assert again(a, b).equal(runs[1][0]) and again(a, b).equal(runs[1][1])
    assert again(a, b, step=0).equal(runs[1][0]) and again.step == 2


def test_fact_22_a_checkpoint_goes_on_identically_in_whatever_order_it_is_set(training):
    """PopART 22: model, generator and state in a new lowered step: the same weights; seed first or state first."""
    whole, _, _ = trained(training, 4)
    found, batch = training
    ends = []
    for order in ("seed", "state"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        train(model, optimizer, *batch)
        first = rounding.lower(found, seed=1, rank=0)
        torch.manual_seed(4)
        for _ in range(2):
            first(model, optimizer, *batch)
        state, generator = first.state_dict(), torch.get_rng_state()
        second = rounding.lower(found, rank=0)
        torch.rand(5)
        calls = [lambda: second.set_seed(1), lambda: second.load_state_dict(state)]
        for call in calls if order == "seed" else calls[::-1]:
            call()
        torch.set_rng_state(generator)
        for _ in range(2):
            second(model, optimizer, *batch)
        ends.append(list(model.parameters()))
    assert same(whole, ends[0]) and same(whole, ends[1])


def test_fact_23_a_seed_may_be_set_where_no_op_rounds():
    """PopART 23: a step in float32 takes seed and state, rounds nothing, and keeps its bits."""
    x = torch.randn(4)
    found, _ = captured(lambda x: x * 1.7, x, ranks=1)
    lowered = rounding.lower(found, seed=1)
    lowered.set_seed(9)
    assert lowered(x).equal(x * 1.7) and lowered.state_dict()["step"] == 1


def test_without_a_seed_nothing_rounds(monkeypatch):
    """No seed of the step, of a run or of the process: an error before anything is changed; the process's seed serves."""
    torch.seed()
    monkeypatch.setattr(at_import, "torch_seed", torch.initial_seed())  # as in a process that nobody seeded
    x = square()
    found, _ = captured(lambda x: x.mul_(1.7), x, ranks=1)
    lowered, held = rounding.lower(found), x.clone()
    with pytest.raises(UnseededError, match="set_random_seed"):
        lowered(held)
    assert held.equal(x) and lowered.step == 0
    samebits.set_random_seed(5)
    lowered(held)
    other = x.clone()
    rounding.lower(found, seed=5)(other)
    assert held.equal(other)


def test_arguments_that_are_not_the_captured_ones_are_refused(training):
    """An optimizer without state, or another number of tensors: the message names what is missing; nothing is changed."""
    found, batch = training
    model = network()
    lowered = rounding.lower(found, seed=1, rank=0)
    with pytest.raises(InvalidArgumentError, match="momentum_buffer.*first step"):
        lowered(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), *batch)
    assert same(model.parameters(), network().parameters()) and lowered.step == 0
    with pytest.raises(InvalidArgumentError, match="ranks go from 0 to 1"):
        rounding.lower(found, rank=2)


def test_a_run_that_is_resumed_rounds_as_one_that_was_not(tmp_path, training):
    """The lowered step is part of a run's commit: 3 steps, a new process's objects, 3 more: the weights of 6 in one go."""
    found, batch = training

    def run(folder, dies=None):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        train(model, optimizer, *batch)
        lowered = rounding.lower(found, rank=0)
        seen = []
        with samebits.Run(
            folder, save=1, model=model, optimizer=optimizer, rounding=lowered, ignore=["seen"]
        ) as run:
            for step, _ in run.steps(samebits.data.DataLoader(list(range(6)), batch_size=1), epochs=1):
                if step.batch_index == dies:
                    raise RuntimeError("killed here")
                lowered(model, optimizer, *batch)
                seen.append(step.batch_index)
        return list(model.parameters()), lowered.step, seen

    samebits.set_random_seed(5)
    whole, steps, _ = run(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="killed here"):
        run(tmp_path / "parts", dies=3)
    resumed, again, seen = run(tmp_path / "parts")
    assert same(whole, resumed) and steps == again == 6 and seen == [3, 4, 5]
    samebits.set_random_seed(6)
    assert not same(whole, run(tmp_path / "other")[0])


def test_the_example_of_the_documentation_runs(root):
    """The example of docs/explanation/rounding.md that lowers a step runs as it stands."""
    text = (root / "docs" / "explanation" / "rounding.md").read_text()
    example = next(part for part in text.split("```python\n") if "rounding.lower(" in part).split("```")[0]
    space = {}
    exec(example, space)
    assert space["lowered"].step == 1 and space["loss"].dtype is torch.float32


def test_another_batch_than_the_captured_one_is_refused_and_not_averaged_by_the_wrong_number():
    """The mean over a batch divides by a number in the graph: without the check a smaller batch gets a smaller mean."""

    def step(x):
        return x.float().sum() / len(x)

    x = torch.ones(4, 8, dtype=BF16)
    lowered = rounding.lower(captured(step, x, ranks=1)[0], seed=1)
    # the negative control: the graph itself runs on
    assert lowered.module((0, 0), x[:2])[0] == 4 != step(x[:2])
    for wrong, said in (
        (x[:2], r"x was captured as torch.bfloat16 of shape \(4, 8\)"),
        (x.float(), "and is torch.float32"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            lowered(wrong)
    assert lowered.step == 0 and lowered(x) == step(x)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda lowered, w: lowered({"w": w}, w, 3), "takes 1 arguments, w; got 3"),
        (lambda lowered, w: lowered(w, step=-1), "step=-1 is no number of a step"),
        (lambda lowered, w: lowered(w, step="1"), "step='1' is no number of a step"),
        (lambda lowered, w: lowered.set_seed("1"), "a seed is an int, got '1'"),
        (lambda lowered, w: lowered.load_state_dict({"key": 1, "step": 0}), "a key of two 64-bit words"),
    ],
)
def test_wrong_calls_of_a_lowered_step(call, said):
    """Each is refused with what was given; the step and its number are as before."""
    w = square()
    lowered = rounding.lower(captured(lambda w: w.mul_(0.3), w, ranks=1)[0], seed=1)
    before = w.clone(), lowered.state_dict()
    with pytest.raises(InvalidArgumentError, match=said):
        call(lowered, w)
    assert torch.equal(w, before[0]) and lowered.state_dict() == before[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model, optimizer: optimizer.param_groups[0].update(lr=0.0), r"optimizer.param_groups.0.lr was captured as 0.1, and is 0.0"),
        (lambda model, optimizer: model[1].eval(), r"model.1.training was captured as True, and is False"),
    ],
)  # fmt: skip
def test_a_number_that_is_another_one_now_is_refused(change, said):
    """The graph holds the learning rate and the modes: a lowered step names what a scheduler or eval() has changed."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).to(BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model, optimizer, x):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    x = torch.ones(2, 4).to(BF16)
    lowered = rounding.lower(captured(step, model, optimizer, x, ranks=1)[0], seed=1)
    lowered(model, optimizer, x)
    before = model[0].weight.clone()
    change(model, optimizer)
    with pytest.raises(InvalidArgumentError, match=said):
        lowered(model, optimizer, x)
    assert model[0].weight.equal(before)

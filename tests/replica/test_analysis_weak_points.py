"""Where PopART's analysis and JAX's check_vma call values equal that really differ: told here, and rejected.

Each program is run rank by rank, so that what the ranks hold is no opinion; PopART's own rules are run on the same graph.
"""

import dataclasses
import logging

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch._higher_order_ops.while_loop import while_loop

import replica_oracle as oracle
from popart_rules import by_popart
from samebits.replica import Equal, Partition, analyze, capture

logging.getLogger("torch.__trace").propagate = False
RANKS = 4


def captured(step, *args):
    """A step without collectives: no code of the rank in it, so one capture is that of all."""
    return dataclasses.replace(capture(step, *args, world_size=1), world_size=RANKS)


def held_by_ranks(step, *of_ranks):
    """What each rank really returns; an argument that is a list has one tensor for each rank."""
    runs = []
    for rank in range(RANKS):
        own = [(one[rank] if isinstance(one, list) else one).clone() for one in of_ranks]
        with torch.no_grad():
            runs.append(torch.utils._pytree.tree_leaves(step.module(*own)))
    return [[value.tolist() for value in values] for values in zip(*runs, strict=True)]


def differ(values):
    return any(value != values[0] for value in values)


def numbers():
    return torch.arange(1.0, 5.0)


def apart(values):
    return [torch.tensor(value) for value in values]


# --- PopART's weak points ---


def test_weak_point_if_ignores_its_condition():
    """Two equal branch results, chosen by a condition that is not equal: PopART says equal, the ranks differ, we say so."""
    step = captured(
        lambda p, x: torch.cond(p, lambda x: x * 2, lambda x: x * 3, (x,)), torch.tensor(True), numbers()
    )
    assert by_popart(step, equal=["x"]) == [True]
    assert differ(held_by_ranks(step, apart([True, True, False, False]), numbers())[0])
    report = analyze(step, {"x": Equal()})
    assert not report.is_replica_equal("output") and "p (batch)" in report.explain("output")
    assert analyze(step, {"*": Equal()}).is_replica_equal("output")


def carried(x, z):
    return while_loop(
        lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b.clone(), b * z), (torch.tensor(0), x, x + 1)
    )


def test_weak_point_loop_has_no_fixpoint_of_its_carry():
    """(a, b) -> (b, unequal): after one pass over the body `a` looks equal to PopART; after two trips it is not."""
    step = captured(carried, numbers(), torch.tensor(2.0))
    assert by_popart(step, equal=["x"])[:2] == [True, True]
    trips, a, b = held_by_ranks(step, numbers(), apart([1.0, 2.0, 3.0, 4.0]))
    assert not differ(trips) and differ(a) and differ(b)
    report = analyze(step, {"x": Equal()})
    assert [report.is_replica_equal(f"output.{index}") for index in range(3)] == [True, False, False]
    assert analyze(step, {"*": Equal()}).is_replica_equal("output.1")


def counted(n, x):
    return while_loop(lambda i, a: i < n, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x))[1]


def test_weak_point_loop_ignores_its_trip_count():
    """A body that keeps what is equal equal, run another number of times on every rank: PopART says equal."""
    step = captured(counted, torch.tensor(3), numbers())
    assert by_popart(step, equal=["x"]) == [True]
    assert differ(held_by_ranks(step, apart([0, 1, 2, 3]), numbers())[0])
    report = analyze(step, {"x": Equal()})
    assert not report.is_replica_equal("output") and "n (batch)" in report.explain("output")
    assert analyze(step, {"*": Equal()}).is_replica_equal("output")


def through_a_store(buffer, offset, x):
    buffer.index_put_((offset,), x)
    return buffer[offset]


def test_weak_point_remote_buffers_are_not_tracked():
    """What varies, stored at an equal offset and loaded again from there: PopART knows the offset only, and says equal."""
    step = captured(through_a_store, torch.zeros(8), torch.tensor([2]), torch.tensor([1.0]))
    assert by_popart(step, equal=["buffer", "offset"], remote=["buffer"]) == [True]
    offset, own = torch.tensor([2]), apart([[1.0], [2.0], [3.0], [4.0]])
    assert differ(held_by_ranks(step, torch.zeros(8), offset, own)[0])
    report = analyze(step, {"buffer": Equal(), "offset": Equal()})
    assert not report.is_replica_equal("output") and not report.is_replica_equal("buffer")
    assert "x (batch)" in report.explain("output")
    assert analyze(step, {"*": Equal()}).is_replica_equal("output")


def test_weak_point_sub_groups_are_lost_in_one_bool():
    """all_reduce over tp, then over dp: all ranks have the sum; PopART's bool has no room for what is between."""
    step = capture(
        lambda x, mesh: fc.all_reduce(fc.all_reduce(x, "sum", (mesh, 1)), "sum", (mesh, 0)),
        numbers(),
        mesh={"dp": 2, "tp": 2},
    )
    assert by_popart(step) == [False]
    report = analyze(step)
    assert report.is_replica_equal("output")
    assert report.partition("all_reduce") == ((0, 1), (2, 3))


def test_weak_point_all_to_all_by_the_default_rule():
    """Equal inputs, of which every member gets another part: by PopART's default rule equal, on simulated ranks different."""
    step = capture(
        oracle.program([("all_to_all", 0, 0, "world")]), *[torch.ones(8, 2)] * 3, mesh={"a": 2, "b": 2}
    )
    equal = ["x0", "x1", "x2"]
    assert by_popart(step, equal)[3]
    really, _ = oracle.simulated(step, [(0, 0, 0, 0)] * 3, seed=0)
    assert len(set(really["all_to_all_single"])) == 4
    report = analyze(step, dict.fromkeys(equal, Equal()))
    assert report.partition("all_to_all_single") == ((0,), (1,), (2,), (3,))


def test_weak_point_variables_are_equal_however_they_were_loaded():
    """A sharded variable that is only read: PopART calls it and what comes of it equal; here its shards are declared."""
    step = captured(lambda w: w * 2, numbers())
    assert by_popart(step, equal=["w"]) == [True]  # a Variable is: nobody can say otherwise
    report = analyze(step, {"w": Partition([[0, 1], [2, 3]])})
    assert report.partition("output") == ((0, 1), (2, 3))


# --- the programs that check_vma of jax 0.10.2 accepts with out_specs=P(), and what four devices then hold ---


def jax_cond(x, r):
    return torch.cond(x > 1, lambda r: r * 2, lambda r: r * 3, (r,))


def jax_while(x, r):
    return while_loop(lambda i, c: i < x, lambda i, c: (i + 1, c * 2), (torch.tensor(0.0), r))[1]


def jax_fori(x, r):
    last = x.to(torch.int64)
    return while_loop(lambda i, c: i < last, lambda i, c: (i + 1, c * 2), (torch.tensor(0), r))[1]


def jax_switch(x, r):
    def chosen(number):
        if number == 3:
            return lambda x, r: r * 4
        return lambda x, r: torch.cond(x == number, lambda x, r: r * (number + 1), chosen(number + 1), (x, r))

    return chosen(0)(x, r)


@pytest.mark.parametrize(
    ("program", "on_devices"),
    [
        (jax_cond, [3, 3, 2, 2]),
        (jax_while, [1, 2, 4, 8]),
        (jax_fori, [1, 2, 4, 8]),
        (jax_switch, [1, 2, 3, 4]),
    ],
)
def test_jax_accepts_what_differs(program, on_devices):
    """cond, while, fori and switch over equal operands, decided by what varies: accepted there, rejected here by name."""
    step = captured(program, torch.tensor(0.0), torch.tensor(1.0))
    assert by_popart(step, equal=["r"]) == [True]
    assert held_by_ranks(step, apart([0.0, 1.0, 2.0, 3.0]), torch.tensor(1.0))[0] == on_devices
    report = analyze(step, {"r": Equal()})
    with pytest.raises(AssertionError, match=r"(?s)output varies: all differ.*x \(batch\)"):
        report.expect_equal("output")
    analyze(step, {"*": Equal()}).expect_equal("output")


def test_jax_accepts_a_callback_that_draws():
    """pure_callback of a host's random numbers, on an equal input: accepted there; here an op that nobody declared varies."""
    library = torch.library.Library("replica_weak", "DEF")
    library.define("callback(Tensor x) -> Tensor")
    library.impl("callback", lambda x: x + torch.rand(()), "CPU")
    library.impl("callback", torch.empty_like, "Meta")
    step = captured(lambda r: torch.ops.replica_weak.callback(r), torch.tensor(1.0))
    assert by_popart(step, equal=["r"]) == [True]
    assert len(set(held_by_ranks(step, torch.tensor(1.0))[0])) == RANKS
    with pytest.raises(AssertionError, match=r"replica_weak::callback is of unknown determinism"):
        analyze(step, {"r": Equal()}).expect_equal("output")


def test_the_rules_of_popart_are_right_where_popart_is():
    """Control of the control: on a training step PopART's rules, as written here, and ours say the same."""

    def train(w, x, reduce=True):
        leaf = w.detach().requires_grad_()
        (grad,) = torch.autograd.grad((x @ leaf).abs().sum(), leaf)
        grad = fc.all_reduce(grad, "sum", dist.group.WORLD) if reduce else grad
        w.sub_(grad)
        return w * 1

    for reduce, equal in ((True, True), (False, False)):
        step = capture(
            lambda w, x, reduce=reduce: train(w, x, reduce), torch.ones(4, 4), torch.ones(4, 4), world_size=4
        )
        assert by_popart(step, equal=["w"]) == [equal]
        assert analyze(step, {"w": Equal()}).is_replica_equal("output") == equal

"""Lowered steps with collectives, each rank a thread: what the report claims equal is equal under rounding."""

import threading
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._higher_order_ops.map import map as torch_map
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed import multi_threaded_pg

import replica_oracle as oracle
from samebits import replica, rounding
from samebits.errors import ConflictError, UnimplementedError
from samebits.replica import Partition, PerReplica
from samebits.rounding._transform import lowering

BF16 = torch.bfloat16
MESH = {"dp": 2, "tp": 2}
OPS = [name for name in oracle.OPS if not name.startswith("dist.")]


def as_ranks(number, work):
    """What `work(rank)` gives, each rank a thread with a process group of its own."""
    multi_threaded_pg._install_threaded_pg()
    multi_threaded_pg.ProcessLocalGroup.reset()
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    store, found, errors = dist.HashStore(), {}, []

    def thread(rank):
        dist.init_process_group("threaded", rank=rank, world_size=number, store=store)
        try:
            found[rank] = work(rank)
        except BaseException as error:
            errors.append(error)
            multi_threaded_pg.ProcessLocalGroup.exception_handle(error)
        finally:
            dist.destroy_process_group()

    threads = [threading.Thread(target=thread, args=(rank,)) for rank in range(number)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    torch._C._distributed_c10d._set_thread_isolation_mode(False)
    multi_threaded_pg._uninstall_threaded_pg()
    # of those that were stopped by another's
    for error in sorted(errors, key=lambda error: isinstance(error, SystemExit)):
        raise error
    return [found[rank] for rank in range(number)]


def assigned(step, *args, inputs=None, **world):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        captured = replica.capture(step, *args, **world)
    report = replica.analyze(captured, inputs(captured) if callable(inputs) else inputs)
    rounding.assign_methods(captured, report)
    return captured, report


def check(instructions, classes):
    zeros = [torch.zeros(oracle.SIZE, 2, dtype=BF16) for _ in range(oracle.INPUTS)]
    step, report = assigned(
        oracle.program(instructions),
        *zeros,
        mesh=MESH,
        inputs=lambda step: oracle.declarations(step, classes),
    )
    given_inputs = oracle.drawn_inputs(classes, 0)
    draws = any(name.startswith("generator") for name in step.kinds)

    def work(rank):
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        held = [one[rank].to(BF16) for one in given_inputs]
        return [*rounding.lower(step, seed=3)(*held), *held]

    runs = as_ranks(oracle.RANKS, work)
    names = [*step.output_names, *list(step.kinds)[: oracle.INPUTS]]
    for name, *values in zip(names, *runs, strict=True):
        for ranks in report.partition(name) if not draws else ():  # threads draw from one generator
            for rank in ranks:
                assert values[rank].equal(values[ranks[0]]), name


INSTRUCTION = st.tuples(
    st.sampled_from([name for name in OPS if name not in {"rand", "dropout", "uniform_"}]),
    st.integers(0, 20),
    st.integers(0, 20),
    st.sampled_from(["world", "dp", "tp"]),
)


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
@given(
    st.lists(INSTRUCTION, min_size=2, max_size=7),
    st.tuples(*[st.sampled_from(oracle.CLASSES)] * oracle.INPUTS),
)
def test_what_is_claimed_equal_stays_equal_over_collectives(instructions, classes):
    """Random programs of ops, views, writes and collectives over a 2 x 2 mesh, rounded: what is claimed equal is equal."""
    check(instructions, classes)


def test_a_stream_of_its_own_for_each_rank_is_caught(monkeypatch):
    """Negative control: a reduction rounded by each rank's own stream is not equal, and the check says so."""
    instructions, classes = [("all_reduce", 1, 1, "world"), ("sin", 3, 3, "")], oracle.CLASSES[:3]
    check(instructions, classes)
    monkeypatch.setattr(lowering._Body, "_label", lambda self, computed, index: self.whole.rank)
    with pytest.raises(AssertionError, match="output"):
        check(instructions, classes)


def fsdp(shard, x):
    """Weights gathered, the gradient scattered, each rank's part updated: what FSDP does to one weight."""
    whole = fc.all_gather_tensor(shard, 0, dist.group.WORLD).detach().requires_grad_()
    loss = (x @ whole).square().mean()
    (grad,) = torch.autograd.grad(loss, whole)
    shard.sub_(fc.reduce_scatter_tensor(grad, "avg", 0, dist.group.WORLD), alpha=0.03)
    return loss.detach(), fc.all_gather_tensor(shard, 0, dist.group.WORLD)


def test_shards_of_one_weight_train_and_gather_to_the_same_bits():
    """Sharded over 4 ranks: whole weights are equal everywhere after each of 5 steps; shards have noise of their own."""
    step, report = assigned(
        fsdp, torch.zeros(2, 8, dtype=BF16), torch.zeros(4, 8, dtype=BF16),
        world_size=4, inputs={"*": PerReplica()},
    )  # fmt: skip
    assert report.is_replica_equal("output.1") and not report.is_replica_equal("shard")

    def work(rank):
        lowered, shard = rounding.lower(step, seed=3), torch.ones(2, 8, dtype=BF16)
        x = torch.ones(4, 8, dtype=BF16)  # all shards have the same numbers: they differ by their noise alone
        return [lowered(shard, x)[1] for _ in range(5)]

    runs = as_ranks(4, work)
    for wholes in zip(*runs, strict=True):
        assert all(whole.equal(wholes[0]) for whole in wholes)
    parts = runs[0][-1].chunk(4)
    assert not any(parts[i].equal(parts[j]) for i in range(4) for j in range(i))


def test_arguments_that_depend_on_the_rank_are_those_of_the_rank():
    """The code multiplies by its rank: the graph of rank 0, lowered for rank 2, multiplies by 2; a tensor is refused."""
    x = torch.ones(4, dtype=BF16)
    step, _ = assigned(lambda x: x * (dist.get_rank() + 1.0), x, world_size=4)
    assert rounding.lower(step, seed=1, rank=2)(x).equal(x * 3)
    rounding.clear_methods(step)
    assert rounding.lower(step, rounding=False, rank=3)(x).equal(x * 4)
    fixed, _ = assigned(lambda x: x * torch.tensor([dist.get_rank() + 1.0]).to(BF16), x, world_size=2)
    with pytest.raises(UnimplementedError, match="those of rank 1 are not in the capture"):
        rounding.lower(fixed, seed=1, rank=1)


def test_a_process_group_that_does_not_fit_is_refused():
    """Another number of ranks, or no group of the ranks of a collective: an error that names both, before anything runs."""
    summed = lambda x, mesh: fc.all_reduce(x, "sum", (mesh, 0))
    step, _ = assigned(summed, torch.ones(4, dtype=BF16), mesh=MESH)
    with pytest.raises(ConflictError, match="captured for 4 ranks, and this process group has 1"):
        rounding.lower(step, seed=1)
    with pytest.raises(ConflictError, match=r"over ranks \[1, 3\].*init_process_group"):
        rounding.lower(step, seed=1, rank=3)
    with pytest.raises(ConflictError, match=r"all_reduce.*over ranks \[0, 2\].*init_device_mesh"):
        as_ranks(4, lambda rank: rounding.lower(step, seed=1, rank=0))


def test_a_higher_order_op_without_a_rule_is_named():
    """`map` over 16 bits is refused by name; over float32 it is run as captured."""
    step = lambda xs: torch_map(lambda x: x * 1.7, xs)
    narrow, _ = assigned(step, torch.ones(3, 2, dtype=BF16), world_size=1)
    with pytest.raises(UnimplementedError, match="how to round inside of map_impl"):
        rounding.lower(narrow, seed=1)
    xs = torch.randn(3, 2)
    wide, _ = assigned(step, xs, world_size=1)
    assert rounding.lower(wide, seed=1)(xs).equal(xs * 1.7)


def test_partitions_are_shown_by_the_report_and_kept_over_steps():
    """Hybrid sharding by hand: equal over dp, a stream per class, after 10 steps still equal over dp and not over tp."""
    update = lambda w, g, mesh: w.sub_(fc.all_reduce(g, "avg", (mesh, 0)), alpha=0.003)
    args = torch.ones(4, 8, dtype=BF16), torch.ones(4, 8, dtype=BF16)
    step, report = assigned(
        update, *args, mesh=MESH, inputs={"w": Partition([[0, 2], [1, 3]]), "g": PerReplica()}
    )
    assert report.is_replica_equal("w", over="dp") and not report.is_replica_equal("w")

    def work(rank):
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        lowered, w = rounding.lower(step, seed=3), args[0].clone()
        for _ in range(10):
            lowered(w, torch.full((4, 8), 0.3 + rank // 2).to(BF16))
        return w

    a, b, c, d = as_ranks(4, work)
    assert a.equal(c) and b.equal(d) and not a.equal(b)

"""The ways in which people train on many ranks, as whole steps: every value that is equal on two ranks is claimed, and no other.

Each step runs on its ranks in lockstep, several steps from each of five draws of batches and weights. A value is equal where
it has equal bits in all of them. 100%: nothing that is equal is missed, nothing is claimed that is not.
"""

import dataclasses
import logging

import pytest
import torch
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F

from replica_lockstep import Ranks, bits_of, kept_graphs
from replica_programs import labels_of
from samebits.replica import Partition, analyze, capture
from samebits.replica._analysis import collectives, op_rules

logging.getLogger("torch.__trace").propagate = False
MESH = {"dp": 2, "tp": 2}
TP, DP = [[0, 1], [2, 3]], [[0, 2], [1, 3]]
"""Ranks that differ in tp only, and in dp only."""
RANKS, ROWS, WIDE = 4, 8, 4


def grads(loss, *leaves):
    return torch.autograd.grad(loss, leaves)


def leaf(w):
    return w.detach().requires_grad_()


def mean(value, group):
    return fc.all_reduce(value, "avg", group)


def data_parallel(w, momentum, x, mesh):
    inner = leaf(w)
    loss = (x @ inner).sin().square().mean()
    (grad,) = grads(loss, inner)
    momentum.mul_(0.9).add_(mean(grad, (mesh, 0)))
    w.sub_(momentum, alpha=0.1)
    return mean(loss.detach(), (mesh, 0))


def bucketed(w, b, x, mesh):
    """DDP's buckets: gradients side by side in one flat tensor, views of which the optimizer reads."""
    inner, bias = leaf(w), leaf(b)
    found = grads((x @ inner + bias).sin().mean(), inner, bias)
    flat = fc.all_reduce(torch.cat([one.reshape(-1) for one in found]), "avg", (mesh, 0))
    torch._foreach_sub_([w, b], [flat[: w.numel()].view_as(w), flat[w.numel() :].view_as(b)], alpha=0.1)


def sharded(shard, x, mesh):
    """FSDP by hand: gather the weight, use it, scatter the sum of its gradients, update the own shard."""
    inner = leaf(fc.all_gather_tensor(shard, 0, (mesh, 0)))
    (grad,) = grads((x @ inner).sin().square().mean(), inner)
    shard.sub_(fc.reduce_scatter_tensor(grad, "avg", 0, (mesh, 0)), alpha=0.1)


def hybrid(shard, x, mesh):
    """HSDP: shards over tp, replicas of each over dp."""
    inner = leaf(fc.all_gather_tensor(shard, 0, (mesh, 1)))
    (grad,) = grads((x @ inner).sin().square().mean(), inner)
    mine = fc.reduce_scatter_tensor(grad, "avg", 0, (mesh, 1))
    shard.sub_(fc.all_reduce(mine, "avg", (mesh, 0)), alpha=0.1)


def column_then_row(up, down, x, mesh):
    """Megatron's two linears: each rank of tp has its columns of the first and its rows of the second."""
    first, second, given = leaf(up), leaf(down), leaf(x)
    partial = F.gelu(given @ first) @ second
    output = leaf(fc.all_reduce(partial, "sum", (mesh, 1)))
    loss = output.sin().square().mean()
    (outer,) = grads(loss, output)
    into, one, two = torch.autograd.grad(partial, (given, first, second), outer)
    for weight, grad in ((up, one), (down, two)):
        weight.sub_(mean(grad, (mesh, 0)), alpha=0.1)
    return fc.all_reduce(into, "sum", (mesh, 1)), loss.detach()


def sequence_parallel(scale, x, mesh):
    """Norm on the own part of a sequence, gather before the matmul, scatter behind it; the norm's gradient over tp, too."""
    inner = leaf(scale)
    normed = F.rms_norm(x, (WIDE,)) * inner
    whole = fc.all_gather_tensor(normed.detach(), 0, (mesh, 1))
    back = fc.reduce_scatter_tensor(whole.sin() * 2, "sum", 0, (mesh, 1))
    (grad,) = torch.autograd.grad(normed, inner, back)
    scale.sub_(mean(mean(grad, (mesh, 1)), (mesh, 0)), alpha=0.1)
    return whole, back


def hierarchical(x, mesh):
    """All-reduce in two levels: scatter in a node, reduce over nodes, gather in the node."""
    mine = fc.reduce_scatter_tensor(x, "sum", 0, (mesh, 1))
    return fc.all_gather_tensor(fc.all_reduce(mine, "sum", (mesh, 0)), 0, (mesh, 1)), fc.all_reduce(
        x, "sum", (mesh, 1)
    )


def first_weights(w, x, mesh):
    """What DDP does when it is made: everybody gets the weights of rank 0, over both axes."""
    w.copy_(fc.broadcast(fc.broadcast(w, 0, (mesh, 0)), 0, (mesh, 1)))
    return x @ w


def clipped(shard, w, x, mesh):
    """Clipping by the norm of all: of what is sharded over tp, the sum of the squares; of what is replicated, once."""
    mine, all_of = leaf(shard), leaf(w)
    loss = ((x @ mine).sin() @ all_of).square().mean()
    one, two = (mean(grad, (mesh, 0)) for grad in grads(loss, mine, all_of))
    two = mean(two, (mesh, 1))
    norm = (fc.all_reduce(one.square().sum(), "sum", (mesh, 1)) + two.square().sum()).sqrt()
    scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([one := one + 0, two := two + 0], [scale, scale])
    torch._foreach_sub_([shard, w], [one, two], alpha=0.1)
    return norm


def synchronized_norm(running, x, mesh):
    """SyncBatchNorm: sums and squares are reduced, the running mean is the same everywhere, the output each rank's own."""
    world = fc.all_reduce(
        fc.all_reduce(torch.stack([x.mean(0), x.square().mean(0)]), "avg", (mesh, 0)), "avg", (mesh, 1)
    )
    center, square = world.unbind(0)
    running.lerp_(center, 0.1)
    return (x - center) * torch.rsqrt(square - center.square() + 1e-5)


def averaged_weights(w, average, x, mesh):
    inner = leaf(w)
    (grad,) = grads((x @ inner).sin().mean(), inner)
    w.sub_(mean(mean(grad, (mesh, 0)), (mesh, 1)), alpha=0.1)
    average.lerp_(w, 0.01)


def scaled_loss(w, scale, good, x, mesh):
    """GradScaler: one rank's overflow skips the update of all and halves the scale of all."""
    inner, x = leaf(w), torch.where(x[0, 0].abs() > 1, x / 0, x)
    (grad,) = grads((x @ inner).sin().mean() * scale, inner)
    found, tracker = torch.zeros(()), good.to(torch.int32)
    torch._amp_foreach_non_finite_check_and_unscale_([grad := grad + 0], found, scale.reciprocal())
    found = fc.all_reduce(fc.all_reduce(found, "max", (mesh, 0)), "max", (mesh, 1)) + 0
    w.copy_(torch.where(found > 0, w, w - 0.1 * mean(mean(grad, (mesh, 0)), (mesh, 1))))
    torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2)
    good.copy_(tracker)
    return found


def zero_one(w, moment, x, mesh):
    """ZeRO-1: all have the weights, each has the optimizer state of a part and updates that; the parts are gathered."""
    inner = leaf(w)
    (grad,) = grads((x @ inner).sin().square().mean(), inner)
    mine = fc.reduce_scatter_tensor(grad, "avg", 0, (mesh, 0))
    moment.lerp_(mine, 0.1)
    part = fc.reduce_scatter_tensor(w, "avg", 0, (mesh, 0))  # the own rows: the mean of equal bits
    w.copy_(fc.all_gather_tensor(part - 0.1 * moment, 0, (mesh, 0)))


def metrics(right, seen, x, mesh):
    """Counts that every rank keeps of its own, and their sums over all, of which the mean is made."""
    right.add_((x > 0).sum())
    seen.add_(x.numel())
    both = torch.stack([right, seen])
    both = fc.all_reduce(fc.all_reduce(both, "sum", (mesh, 0)), "sum", (mesh, 1))
    return both[0] / both[1]


def contrastive(w, x, mesh):
    """Embeddings of all are gathered; each rank compares its own with all; gradients are averaged."""
    inner = leaf(w)
    hidden = x @ inner
    own = hidden * torch.rsqrt(hidden.square().sum(1, keepdim=True) + 1e-6)
    others = fc.all_gather_tensor(fc.all_gather_tensor(own.detach(), 0, (mesh, 1)), 0, (mesh, 0))
    loss = -(own @ others.t() / 0.1).log_softmax(1).diagonal().mean()
    (grad,) = grads(loss, inner)
    w.sub_(mean(mean(grad, (mesh, 0)), (mesh, 1)), alpha=0.1)
    return others, loss.detach()


def experts(gate, expert, x, mesh):
    """Tokens are sent to the rank of tp that has their expert, and back; the gate is replicated, experts are not."""
    sent = fc.all_to_all_single(x, None, None, (mesh, 1))
    back = fc.all_to_all_single((sent @ expert).sin(), None, None, (mesh, 1))
    expert.sub_(mean(sent.t() @ sent, (mesh, 0)), alpha=0.001)
    gate.sub_(mean(mean((back * x).mean(0), (mesh, 0)), (mesh, 1)), alpha=0.1)
    return back * gate


def ring(x, mesh):
    """Each rank hands what it has to the next one (ring attention): after a round it has its own again."""
    once = fc.permute_tensor(x.reshape(-1), [1, 0], (mesh, 1))
    return once, fc.permute_tensor(once, [1, 0], (mesh, 1))


def dropped_out(w, x, mesh):
    """Dropout of every rank's own, over a generator that each rank seeded itself; gradients are averaged."""
    inner = leaf(w)
    (grad,) = grads(F.dropout((x @ inner).sin(), 0.5).mean(), inner)
    w.sub_(mean(mean(grad, (mesh, 0)), (mesh, 1)), alpha=0.1)


def accumulated(w, total, x, mesh):
    """Gradients of micro-batches are added up on each rank, and reduced once."""
    inner = leaf(w)
    total.zero_()
    for rows in x.split(2):
        total.add_(grads((rows @ inner).sin().sum(), inner)[0])
    w.sub_(mean(mean(total, (mesh, 0)), (mesh, 1)), alpha=0.01)


def forgotten(w, b, x, mesh):
    """The bias is outside of what is reduced: it drifts, and takes the weight's gradient with it, not the weight."""
    inner, bias = leaf(w), leaf(b)
    one, two = grads((x @ inner + bias).sin().mean(), inner, bias)
    w.sub_(mean(mean(one, (mesh, 0)), (mesh, 1)), alpha=0.1)
    b.sub_(two, alpha=0.1)


def local_sgd(w, anchor, x, mesh):
    """Ranks of tp step together, those of dp on their own: weights vary over dp until they are averaged."""
    inner = leaf(w)
    (grad,) = grads((x @ inner).sin().square().mean(), inner)
    w.sub_(mean(grad, (mesh, 1)), alpha=0.1)
    anchor.copy_(mean(w, (mesh, 0)))


@dataclasses.dataclass
class Pattern:
    step: object
    shapes: dict[str, tuple[int, ...]]
    starts: dict[str, list | None]
    """Groups of each input within which it starts equal; what is not named is equal on all ranks, None: on none."""


OWN = {"x": None}
SQUARE = (WIDE, WIDE)
BATCH = (ROWS, WIDE)
PATTERNS = [
    Pattern(data_parallel, {"w": SQUARE, "momentum": SQUARE, "x": BATCH}, {"x": TP}),
    Pattern(bucketed, {"w": SQUARE, "b": (WIDE,), "x": BATCH}, {"x": TP}),
    Pattern(sharded, {"shard": (2, WIDE), "x": BATCH}, {"shard": TP, "x": TP}),
    Pattern(hybrid, {"shard": (2, WIDE), "x": BATCH}, {"shard": DP, **OWN}),
    Pattern(
        column_then_row, {"up": (WIDE, 2), "down": (2, WIDE), "x": BATCH}, {"up": DP, "down": DP, "x": TP}
    ),
    Pattern(sequence_parallel, {"scale": (WIDE,), "x": BATCH}, OWN),
    Pattern(hierarchical, {"x": BATCH}, OWN),
    Pattern(first_weights, {"w": SQUARE, "x": BATCH}, {"w": None, **OWN}),
    Pattern(clipped, {"shard": SQUARE, "w": (WIDE, 1), "x": BATCH}, {"shard": DP, "x": TP}),
    Pattern(synchronized_norm, {"running": (WIDE,), "x": BATCH}, OWN),
    Pattern(averaged_weights, {"w": SQUARE, "average": SQUARE, "x": BATCH}, OWN),
    Pattern(scaled_loss, {"w": SQUARE, "scale": (), "good": (), "x": BATCH}, OWN),
    Pattern(zero_one, {"w": SQUARE, "moment": (2, WIDE), "x": BATCH}, {"moment": TP, "x": TP}),
    Pattern(metrics, {"right": (), "seen": (), "x": (64, 64)}, {"right": None, **OWN}),
    Pattern(contrastive, {"w": SQUARE, "x": BATCH}, OWN),
    Pattern(experts, {"gate": (WIDE,), "expert": SQUARE, "x": BATCH}, {"expert": DP, **OWN}),
    Pattern(ring, {"x": BATCH}, OWN),
    Pattern(dropped_out, {"w": SQUARE, "x": BATCH}, {"generator:cpu": None, **OWN}),
    Pattern(accumulated, {"w": SQUARE, "total": SQUARE, "x": BATCH}, OWN),
    Pattern(forgotten, {"w": SQUARE, "b": (WIDE,), "x": BATCH}, OWN),
    Pattern(local_sgd, {"w": SQUARE, "anchor": SQUARE, "x": BATCH}, {"x": None, "w": TP}),
]


def groups(starts, name):
    found = starts.get(name, [list(range(RANKS))])
    return [[rank] for rank in range(RANKS)] if found is None else found


def drawn(pattern, name, source):
    held = [None] * RANKS
    for group in groups(pattern.starts, name):
        value = torch.randn(pattern.shapes[name], generator=source)
        for rank in group:
            held[rank] = value.clone()
    return held


def really(pattern, step, graphs, draws=5, steps=3):
    """For each value of each step: one tuple of labels per draw and step."""
    found = {}
    for draw in range(draws):
        source = torch.Generator().manual_seed(draw)
        seeds = {
            rank: index for index, one in enumerate(groups(pattern.starts, "generator:cpu")) for rank in one
        }
        ranks = Ranks(graphs, [100 * draw + seeds[rank] for rank in range(RANKS)])
        state = {name: drawn(pattern, name, source) for name in pattern.shapes}
        for _ in range(steps):
            state["x"] = drawn(pattern, "x", source)
            ranks.step([[state[name][rank] for name in pattern.shapes] for rank in range(RANKS)])
            ends = {name: list(map(bits_of, one)) for name, one in state.items()}
            for name, bits in {**ranks.seen, **ends}.items():
                found.setdefault(name, []).append(labels_of(bits))
    return found


def compared(pattern):
    """(values claimed equal on two ranks that are not, equal on two ranks and not claimed), by name."""
    zeros = [torch.zeros(shape) for shape in pattern.shapes.values()]
    with kept_graphs(RANKS, tuple(MESH.values())) as graphs:
        step = capture(pattern.step, *zeros, mesh=MESH)
    inputs = {name: Partition(groups(pattern.starts, name)) for name in step.kinds}
    report = analyze(step, inputs)
    claims = {**report.values, **report.ends}
    with torch.no_grad():
        found = really(pattern, step, graphs)
    wrong, missed = set(), set()
    for name, seen in found.items():
        claim = report.partitions.labels(claims[name].partition)
        for a in range(RANKS):
            for b in range(a):
                equal = all(one[a] == one[b] for one in seen)
                wrong |= {name} if claim[a] == claim[b] and not equal else set()
                missed |= {name} if equal and claim[a] != claim[b] else set()
    return wrong, missed


def test_a_pattern_that_is_not_what_it_seems_is_seen(monkeypatch):
    """With a rule that calls everything varying, or one that calls parts the same, a pattern is not known exactly."""
    pattern = next(one for one in PATTERNS if one.step is sharded)
    monkeypatch.setattr(op_rules, "_nondeterminism", lambda node, target: "nobody knows")
    assert compared(pattern)[1]
    monkeypatch.undo()
    scatter = "_c10d_functional::reduce_scatter_tensor"
    monkeypatch.setitem(
        collectives.COLLECTIVES, scatter, collectives.Collective(collectives.TOGETHER, "input")
    )
    assert compared(pattern)[0]


@pytest.mark.first_case_quick
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: one.step.__name__)
def test_a_pattern_is_known_exactly(pattern):
    """Of each value of the step, the claimed partition is the one that the ranks have."""
    assert compared(pattern) == (set(), set())

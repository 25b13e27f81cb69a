"""The instructions that random programs are made of: each takes two values of shape [ROWS, 2] and gives one, or writes one.

`c` is the context of the program: its groups, its own generator, its rank. `k` is a small number that says which rows,
which dim, which variant.
"""

import random

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from samebits import declare_op

ROWS = 24
"""A multiple of every size of a group."""


@torch.library.custom_op("replica_programs::blend", mutates_args={"x"})
def blend(x: torch.Tensor, y: torch.Tensor, much: float) -> None:
    x.mul_(1 - much).add_(y, alpha=much)


@torch.library.custom_op("replica_programs::halves", mutates_args=())
def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x[: ROWS // 2].clone(), x[ROWS // 2 :] * 2


halves.register_fake(lambda x: (x[: ROWS // 2].clone(), x[ROWS // 2 :].clone()))


@torch.library.custom_op("replica_programs::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + random.random()


noisy.register_fake(torch.empty_like)
declare_op("replica_programs::blend", deterministic=True)
declare_op("replica_programs::halves", deterministic=True)


def real(a):
    """As float32, of the size that functions like best."""
    return a if a.dtype == torch.float32 else a.float() / (8 if a.dtype == torch.int64 else 1)


def whole(a):
    return (
        a
        if a.dtype == torch.int64
        else (real(a) * 3).nan_to_num(0.0, 9.0, -9.0).clamp(-99, 99).to(torch.int64)
    )


def index(a):
    return whole(a)[:, 0] % ROWS


def as_of(a, b):
    """A copy of `b` in the dtype of `a`, for writing: some ops refuse to write what they read."""
    return b.clone() if a.dtype == b.dtype else whole(b).to(a.dtype)


def rows(k):
    low = (k * 5) % (ROWS - 6)
    return slice(low, low + 2 + k % 5)


def then(*values):
    return values[-1]


def tiled(a):
    """Any tensor of an even number of elements as a value of a program."""
    flat = a.reshape(-1)
    need = ROWS * 2
    return (flat.repeat(-(-need // flat.numel())) if flat.numel() < need else flat)[:need].view(ROWS, 2)


ELEMENTWISE = {
    "add": lambda c, a, b, k: a + b,
    "mul": lambda c, a, b, k: a * b,
    "sub": lambda c, a, b, k: torch.sub(real(a), real(b), alpha=k + 0.5),
    "sin": lambda c, a, b, k: real(a).sin(),
    "gelu": lambda c, a, b, k: F.gelu(real(a)),
    "where": lambda c, a, b, k: torch.where(a > 0, a, b),
    "lerp": lambda c, a, b, k: torch.lerp(real(a), real(b), 0.25),
    "clamp": lambda c, a, b, k: real(a).clamp(-1.5, 0.25 * k),
    "addcmul": lambda c, a, b, k: torch.addcmul(real(a), real(b), real(a), value=0.5),
    "maximum": lambda c, a, b, k: torch.maximum(real(a), real(b)),
    "masked_fill": lambda c, a, b, k: a.masked_fill(b > 0, 1),
    "host": lambda c, a, b, k: real(a) * torch.tensor([[0.5, float(k)]]),
    "arange": lambda c, a, b, k: real(a) + torch.arange(ROWS * 2.0).view(ROWS, 2),
    "zeros_like": lambda c, a, b, k: torch.zeros_like(a) + k,
    "full_like": lambda c, a, b, k: torch.full_like(real(a), 0.5) * real(b),
}
DTYPES = {
    "bf16": lambda c, a, b, k: real(a).bfloat16(),
    "bf16_add": lambda c, a, b, k: real(a).bfloat16() + real(b).bfloat16(),
    "int64": lambda c, a, b, k: whole(a),
    "bool": lambda c, a, b, k: real(a) > real(b) * 0.5,
    "logical": lambda c, a, b, k: (a > 0) ^ (real(b) > 1),
    "half_float": lambda c, a, b, k: real(a).half().float(),
    "bits": lambda c, a, b, k: real(a).view(torch.int32) & 0x7FFFFF,
}
REDUCTIONS = {
    "sum": lambda c, a, b, k: real(a).sum() + b,
    "mean": lambda c, a, b, k: real(a).mean(k % 2, keepdim=True) + real(b),
    "var": lambda c, a, b, k: real(b) * real(a).var(0),
    "norm": lambda c, a, b, k: real(b) / (real(a).norm() + 1),
    "amax": lambda c, a, b, k: real(a).amax(1, keepdim=True) - real(b),
    "any": lambda c, a, b, k: torch.where((a > 1).any(1, keepdim=True), real(a), real(b)),
    "cumsum": lambda c, a, b, k: real(a).cumsum(0),
    "softmax": lambda c, a, b, k: real(a).softmax(k % 2),
    "logsumexp": lambda c, a, b, k: real(a).logsumexp(0) + real(b),
    "argmax": lambda c, a, b, k: real(b)[real(a).argmax(0)].repeat(ROWS // 2, 1),
    "sort": lambda c, a, b, k: real(a).sort(0)[k % 2] + 0,
    "topk": lambda c, a, b, k: tiled(real(a).topk(6, 0)[k % 2]),
    "matmul": lambda c, a, b, k: real(a) @ (real(a).t() @ real(b)),
    "linear": lambda c, a, b, k: F.linear(real(a), real(b)[:2], real(b)[2]),
    "bmm": lambda c, a, b, k: torch.bmm(real(a).reshape(6, 4, 2), real(b).reshape(6, 2, 4)).reshape(ROWS, 4)[
        :, :2
    ],
    "embedding": lambda c, a, b, k: F.embedding(index(a), real(b)),
    "gather": lambda c, a, b, k: b.gather(0, whole(a) % ROWS),
    "layer_norm": lambda c, a, b, k: F.layer_norm(
        real(a).reshape(4, 12), (12,), real(b)[:6].reshape(12)
    ).view(ROWS, 2),
    "batch_norm": lambda c, a, b, k: F.batch_norm(
        real(a), *c.statistics(), real(b)[0], real(b)[1], training=k % 3 > 0
    ),
    "cross_entropy": lambda c, a, b, k: F.cross_entropy(real(a), whole(b)[:, 0] % 2) + real(b),
    "grad": lambda c, a, b, k: gradient(real(a), real(b), k),
    "unique_counts": lambda c, a, b, k: torch.bincount(index(a), minlength=ROWS)[:ROWS, None] * whole(b),
}
VIEWS = {
    "view": lambda c, a, b, k: a.view(-1).view(ROWS, 2) if a.is_contiguous() else a,
    "same_rows": lambda c, a, b, k: a[:],
    "transposed_twice": lambda c, a, b, k: a.t().t(),
    "roll": lambda c, a, b, k: a.roll(k, 0),
    "flip": lambda c, a, b, k: a.flip(k % 2),
    "cat": lambda c, a, b, k: torch.cat([a[: 2 * k], b[2 * k :]]),
    "stack": lambda c, a, b, k: torch.stack([real(a)[:, 0], real(b)[:, 1]], 1),
    "chunk": lambda c, a, b, k: a.chunk(2)[k % 2].repeat(2, 1),
    "split": lambda c, a, b, k: torch.cat([*a.split([k + 1, ROWS - k - 1])][::-1]),
    "unbind": lambda c, a, b, k: a.unbind(0)[k] * b,
    "diagonal": lambda c, a, b, k: a.diagonal() + b,
    "select": lambda c, a, b, k: a[k] + b,
    "expand": lambda c, a, b, k: a[k : k + 1].expand(ROWS, 2) * b,
    "pad": lambda c, a, b, k: F.pad(a, (0, 0, k, 0))[:ROWS],
    "column": lambda c, a, b, k: (a[:, :1] + b[:, 1:]).repeat(1, 2),
    "as_strided": lambda c, a, b, k: torch.as_strided(a, (ROWS // 2, 2), (2, 1), 2 * k).repeat(2, 1),
    "narrow": lambda c, a, b, k: tiled(a.narrow(0, k, 4)),
    "detach": lambda c, a, b, k: a.detach(),
    "clone": lambda c, a, b, k: a.clone(),
    "unfold": lambda c, a, b, k: real(a).unfold(0, 3, 1).sum(-1).roll(k, 0).repeat(2, 1)[:ROWS],
    "index_select": lambda c, a, b, k: a.index_select(0, index(b)),
}
WRITES = {
    "add_": lambda c, a, b, k: a.add_(as_of(a, b)),
    "rows_add_": lambda c, a, b, k: then(a[rows(k)].add_(as_of(a, b[rows(k)])), a),
    "row_copy_": lambda c, a, b, k: then(a[k].copy_(b[(k * 7) % ROWS]), a),
    "column_copy_": lambda c, a, b, k: then(a[:, 0].copy_(b[:, 1]), a),
    "halves_copy_": lambda c, a, b, k: then(a[:12].copy_(b[:12]), a[12:].copy_(b[12:]), a),
    "copy_": lambda c, a, b, k: a.copy_(b),
    "transposed_mul_": lambda c, a, b, k: then(a.t().mul_(as_of(a, b).t()), a),
    "diagonal_fill_": lambda c, a, b, k: then(a.diagonal().fill_(k), a),
    "zero_": lambda c, a, b, k: a.zero_(),
    "rows_zero_": lambda c, a, b, k: then(a[rows(k)].zero_(), a),
    "masked_fill_": lambda c, a, b, k: a.masked_fill_(b > 0, 1),
    "index_put_": lambda c, a, b, k: a.index_put_((index(b)[:1],), as_of(a, b)[:1]),
    "permuted_put_": lambda c, a, b, k: a.index_put_((real(b)[:, 0].argsort(),), as_of(a, b)),
    "index_add_": lambda c, a, b, k: a.index_add_(0, torch.arange(4), as_of(a, b)[:4]),
    "index_copy_": lambda c, a, b, k: a.index_copy_(0, torch.tensor([k, k + 1]), as_of(a, b)[:2]),
    "scatter_": lambda c, a, b, k: a.scatter_(0, whole(b)[:1] % ROWS, as_of(a, b)[:1]),
    "out_add": lambda c, a, b, k: torch.add(a, as_of(a, b), out=a),
    "out_rows": lambda c, a, b, k: then(torch.add(as_of(a, b)[rows(k)], 1, out=a[rows(k)]), a),
    "data_add_": lambda c, a, b, k: then(a.data.add_(as_of(a, b)), a),
    "unbound_copy_": lambda c, a, b, k: then(a.unbind(1)[k % 2].copy_(b[:, 0]), a),
    "split_sub_": lambda c, a, b, k: then(real(a).split(8)[k % 3].sub_(0.5), a),
    "foreach": lambda c, a, b, k: torch._foreach_add([real(a), real(b)], [real(a) * 2, real(b)])[k % 2],
    "foreach_": lambda c, a, b, k: then(torch._foreach_mul_([real(a).clone(), real(b)], 1.5), b),
    "foreach_lerp_": lambda c, a, b, k: then(torch._foreach_lerp_([real(a)], [real(b)], 0.5), a),
    "foreach_shared_": lambda c, a, b, k: then(
        torch._foreach_add_([real(a), real(a)[:4]], [real(b), torch.ones(4, 2)]), a
    ),
    "foreach_copy_": lambda c, a, b, k: then(torch._foreach_copy_([a[:4], a[8:12]], [b[4:8], b[:4]]), a),
    "foreach_norm": lambda c, a, b, k: torch._foreach_norm([real(a), real(b)])[k % 2] + real(b),
    "foreach_addcdiv_": lambda c, a, b, k: then(
        torch._foreach_addcdiv_(
            [real(a)[:12], real(a)[12:]], [real(b)[:12]] * 2, [real(b)[12:].abs() + 1] * 2
        ),
        a,
    ),
    "empty_filled": lambda c, a, b, k: then(
        e := torch.empty_like(a), e[:k].copy_(b[:k]), e[k:].copy_(a[k:]), e
    ),
    "closed_over": lambda c, a, b, k: then(c.buffer[:k].add_(real(a)[:k]), c.buffer * 1),
    "closed_over_row": lambda c, a, b, k: then(c.row.mul_(0.5).add_(real(a)[0]), c.buffer + real(b)),
    "custom_": lambda c, a, b, k: then(blend(real(a), real(b), 0.25), a),
    "custom_rows_": lambda c, a, b, k: then(blend(real(a)[rows(k)], real(b)[rows(k)], 0.25), a),
    "custom": lambda c, a, b, k: halves(real(a))[k % 2].repeat(2, 1) + real(b),
    "noisy": lambda c, a, b, k: noisy(real(a)),
}
DRAWS = {
    "rand": lambda c, a, b, k: torch.rand(ROWS, 2) + real(a),
    "randn_like": lambda c, a, b, k: torch.randn_like(real(a)),
    "randperm": lambda c, a, b, k: a[torch.randperm(ROWS)],
    "randint": lambda c, a, b, k: torch.randint(0, 9, (ROWS, 2)),
    "dropout": lambda c, a, b, k: F.dropout(real(a), 0.5),
    "uniform_": lambda c, a, b, k: then(real(a)[rows(k)].uniform_(), a),
    "bernoulli_": lambda c, a, b, k: then(a[:k].bernoulli_(0.5), a),
    "bernoulli_of": lambda c, a, b, k: real(a).sigmoid().nan_to_num(0.5).bernoulli(),
    "normal_": lambda c, a, b, k: real(a).normal_(0, 2),
    "multinomial": lambda c, a, b, k: real(b)[
        torch.multinomial(real(a)[:, 0].sigmoid().nan_to_num(0.5) + 0.1, 8)
    ].repeat(3, 1),
    "own_generator": lambda c, a, b, k: torch.rand(ROWS, 2, generator=c.generator) + real(a),
}
COLLECTIVES = {
    "all_reduce": lambda c, a, b, k, g: fc.all_reduce(real(a), ("sum", "avg", "max", "min")[k % 4], g) + 0,
    "whole_reduce": lambda c, a, b, k, g: fc.all_reduce(whole(a), "sum", g),
    "scalar_reduce": lambda c, a, b, k, g: real(b) * fc.all_reduce(real(a).sum(), "sum", g),
    "all_gather": lambda c, a, b, k, g: fc.all_gather_tensor(a, 0, g)[rows(k)].repeat(ROWS, 1)[:ROWS],
    "part_gather": lambda c, a, b, k, g: fc.all_gather_tensor(a[: ROWS // g.size()].contiguous(), 0, g),
    "whole_gather": lambda c, a, b, k, g: (
        fc.all_gather_tensor(real(a), 0, g).view(-1, ROWS, 2).sum(0) + real(b)
    ),
    "column_gather": lambda c, a, b, k, g: fc.all_gather_tensor(real(a), 1, g).sum(1, keepdim=True) + real(b),
    "reduce_scatter": lambda c, a, b, k, g: tiled(
        fc.reduce_scatter_tensor(real(a), ("sum", "avg")[k % 2], 0, g)
    ),
    "zero_update": lambda c, a, b, k, g: fc.all_gather_tensor(
        fc.reduce_scatter_tensor(real(a), "sum", 0, g) * 0.5, 0, g
    ),
    "broadcast": lambda c, a, b, k, g: fc.broadcast(real(a), k % g.size(), g) + 0,
    "all_to_all": lambda c, a, b, k, g: fc.all_to_all_single(a.contiguous(), None, None, g) + 0,
    "coalesced_reduce": lambda c, a, b, k, g: (
        fc.all_reduce_coalesced([real(a), real(b)], "sum", g)[k % 2] + 0
    ),
    "coalesced_gather": lambda c, a, b, k, g: fc.all_gather_into_tensor_coalesced([real(a), real(b)], g)[
        k % 2
    ][-ROWS:],
    "coalesced_scatter": lambda c, a, b, k, g: tiled(
        fc.reduce_scatter_tensor_coalesced([real(a), real(b)], "sum", [0, 0], g)[k % 2]
    ),
    "all_reduce_": lambda c, a, b, k, g: then(
        x := dense(a), torch.ops._c10d_functional.all_reduce_(x, "sum", g.group_name), x
    ),
    "broadcast_": lambda c, a, b, k, g: then(
        x := dense(a), torch.ops._c10d_functional.broadcast_(x, k % g.size(), g.group_name), x
    ),
    "coalesced_reduce_": lambda c, a, b, k, g: then(
        x := dense(a),
        y := real(b).clone(),
        torch.ops._c10d_functional.all_reduce_coalesced_([x, y], "sum", g.group_name),
        x + y,
    ),
    "gather_out": lambda c, a, b, k, g: then(
        e := torch.empty(ROWS * g.size(), 2),
        torch.ops._c10d_functional.all_gather_into_tensor_out(
            real(a).contiguous(), g.size(), g.group_name, out=e
        ),
        e[k * g.size() :][:12].repeat(2, 1)[:ROWS],
    ),
    "dist.all_reduce": lambda c, a, b, k, g: then(x := dense(a), dist.all_reduce(x, group=g), x),
    "dist.all_reduce_async": lambda c, a, b, k, g: then(
        x := dense(a), dist.all_reduce(x, group=g, async_op=True).wait(), x
    ),
    "dist.rows_reduce": lambda c, a, b, k, g: then(x := dense(a), dist.all_reduce(x[rows(k)], group=g), x),
    "dist.broadcast": lambda c, a, b, k, g: then(
        x := dense(a), dist.broadcast(x, group_src=k % g.size(), group=g), x
    ),
    "dist.reduce": lambda c, a, b, k, g: then(
        x := dense(a), dist.reduce(x, group_dst=k % g.size(), group=g), x
    ),
    "dist.all_gather": lambda c, a, b, k, g: then(
        e := [torch.empty(ROWS, 2) for _ in range(g.size())],
        dist.all_gather(e, real(a).contiguous(), group=g),
        e[k % g.size()] + e[-1],
    ),
    "dist.all_gather_into": lambda c, a, b, k, g: then(
        e := torch.empty(ROWS * g.size(), 2),
        dist.all_gather_into_tensor(e, real(a).contiguous(), group=g),
        e.roll(k, 0)[:ROWS],
    ),
    "dist.reduce_scatter": lambda c, a, b, k, g: then(
        e := torch.empty(ROWS, 2),
        dist.reduce_scatter(e, [real(a) * (one + 1) for one in range(g.size())], group=g),
        e,
    ),
    "dist.reduce_scatter_tensor": lambda c, a, b, k, g: then(
        e := torch.empty(ROWS // g.size(), 2),
        dist.reduce_scatter_tensor(e, real(a).contiguous(), group=g),
        tiled(e),
    ),
    "dist.all_to_all": lambda c, a, b, k, g: then(
        e := [torch.empty(ROWS // g.size(), 2) for _ in range(g.size())],
        dist.all_to_all(e, list(real(a).contiguous().chunk(g.size())), group=g),
        torch.cat(e[::-1]),
    ),
    "dist.all_to_all_single": lambda c, a, b, k, g: then(
        e := torch.empty(ROWS, 2), dist.all_to_all_single(e, real(a).contiguous(), group=g), e
    ),
}
BY_RANK = {
    "rank_scale": lambda c, a, b, k: real(a) * (c.rank + 1),
    "rank_parity": lambda c, a, b, k: real(a) + float(c.rank % 2),
    "rank_rows": lambda c, a, b, k: a[c.rank : c.rank + 4].repeat(6, 1),
    "rank_write": lambda c, a, b, k: then(a[c.rank].copy_(b[k]), a),
    "rank_constant": lambda c, a, b, k: real(a) + torch.tensor([float(c.rank // 2), 1.0]),
    "rank_full": lambda c, a, b, k: torch.full((ROWS, 2), 0.5 * (c.rank % 3)),
}
BY_RANK_COLLECTIVES = {
    "permute": lambda c, a, b, k, g: fc.permute_tensor(
        real(a).reshape(-1), [(one + 1 + k) % g.size() for one in range(g.size())], g
    ).view(ROWS, 2),
    "uneven_all_to_all": lambda c, a, b, k, g: uneven(real(a).contiguous(), g),
}
FLOW = {
    "cond": lambda c, a, b, k: torch.cond(real(a).sum() > 0, lambda x: x + 1, lambda x: x * 2, (real(b),)),
    "cond_draws": lambda c, a, b, k: torch.cond(
        real(a)[k, 0] > 0,
        lambda x, y: torch.rand_like(y),
        lambda x, y: y * 2 + x,
        (real(a).clone(), real(b).clone()),
    ),
    "while": lambda c, a, b, k: while_loop(
        lambda i, n, x, y: i < n,
        lambda i, n, x, y: (i + 1, n.clone(), y.clone(), x * 0.5),
        (torch.zeros((), dtype=torch.int64), whole(a)[k, 0].abs() % 4, real(b).clone(), real(b) + 1),
    )[2],
    "while_carry": lambda c, a, b, k: while_loop(
        lambda i, x, y: i < 3,
        lambda i, x, y: (i + 1, y.clone(), y * real(a)),
        (torch.zeros((), dtype=torch.int64), real(b).clone(), real(b) + 1),
    )[1],
    "scan": lambda c, a, b, k: scan(lambda x, e: (x + e, x * 2), real(a)[k].clone(), real(b), dim=0)[1],
    "region": lambda c, a, b, k: REGION(real(a)) + REGION(real(b)),
}
FLOW_COLLECTIVES = {
    "cond_reduces": lambda c, a, b, k, g: torch.cond(
        real(a).sum() > 0, lambda x: fc.all_reduce(x, "sum", g) + 1, lambda x: x * 2, (real(b),)
    ),
    "cond_agreed": lambda c, a, b, k, g: torch.cond(
        fc.all_reduce(real(a).sum(), "sum", g) > 0,
        lambda x: fc.all_reduce(x, "sum", g) + 1,
        lambda x: x * 2,
        (real(b),),
    ),
}
REGION = torch.compiler.nested_compile_region(lambda x: x.cos() * x.sum())
PLAIN = {**ELEMENTWISE, **DTYPES, **REDUCTIONS, **VIEWS, **WRITES, **DRAWS, **BY_RANK, **FLOW}
GROUPED = {**COLLECTIVES, **BY_RANK_COLLECTIVES, **FLOW_COLLECTIVES}
EVERYWHERE = {*BY_RANK, *BY_RANK_COLLECTIVES}
"""What only a program whose code runs as every rank may have."""


def gradient(a, b, k):
    leaf = a.detach().requires_grad_()
    loss = (leaf * b).sigmoid().sum() + (leaf[:k] ** 2).sum()
    return torch.autograd.grad(loss, leaf)[0]


def uneven(a, g):
    """Each member keeps most of what it has, and sends the others two rows each."""
    size, me = g.size(), dist.get_group_rank(g, dist.get_rank())
    splits = [ROWS - 2 * (size - 1) if one == me else 2 for one in range(size)]
    return fc.all_to_all_single(a, splits, splits, g)


def dense(a):
    """A float tensor without gaps, to be written by a collective: the value itself where it is one."""
    return a if a.dtype == torch.float32 and a.is_contiguous() else real(a).contiguous()

"""Every reduction of `across="machines"` at many sizes, layouts and types: digests, also as a program for
played machines.
"""

import json
import sys

import torch
import torch.nn.functional as F

from exact_cases import digest, numbers, with_gradients
from op_testing import replaced
from samebits.determinism._ops import (
    attention,
    batch_norm,
    embedding_bag,
    grid_sample,
    group_norm,
    layer_norm,
    losses,
    softmax,
    sums,
    vector_norms,
)

MODULES = (
    sums,
    softmax,
    layer_norm,
    batch_norm,
    group_norm,
    losses,
    vector_norms,
    attention,
    embedding_bag,
    grid_sample,
)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
LAYOUTS = {
    "plain": lambda x: x,
    "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "transposed": lambda x: x.t().contiguous().t(),
}
OVER_DIMS = {
    "sum": lambda x, d: x.sum(d),
    "mean": lambda x, d: x.mean(d),
    "nansum": lambda x, d: x.nansum(d),
    "norm 0": lambda x, d: torch.linalg.vector_norm(x, 0, d),
    "norm 1": lambda x, d: torch.linalg.vector_norm(x, 1, d),
    "norm 2": lambda x, d: torch.linalg.vector_norm(x, 2, d),
    "var": lambda x, d: torch.var(x, d, correction=0),
    "std_mean": lambda x, d: torch.stack(torch.std_mean(x, d, correction=0)),
    "prod": lambda x, d: (1 + x / 64).prod(d) if isinstance(d, int) else (1 + x / 64).prod(),
}
OF_ROWS = {
    "softmax": lambda x: F.softmax(x, 1),
    "softmax 0": lambda x: F.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "log_softmax 0": lambda x: F.log_softmax(x, 0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True) if len(x) > 1 else x * 1,
    "group_norm": lambda x: F.group_norm(x.unsqueeze(0), 1),
}


def targets(count, classes):
    made = torch.arange(count) * 7 % classes
    made[::5] = -100
    return made


def cases(lengths):
    for dtype in DTYPES:
        for length in lengths:
            rows = 3 if length > 100 else 5
            for layout, laid_out in LAYOUTS.items():
                x = laid_out(numbers(rows, length, dtype=dtype) + 0.25)
                for name, call in OVER_DIMS.items():
                    for dim in (0, 1, (0, 1)):
                        yield (
                            f"{name} {dim} {layout} {dtype} {length}",
                            lambda call=call, x=x, dim=dim: call(x, dim),
                        )
                for name, call in OF_ROWS.items():
                    yield f"{name} {layout} {dtype} {length}", lambda call=call, x=x: with_gradients(call, x)
            x, g = numbers(rows, length, dtype=dtype), numbers(length, seed=2, dtype=dtype)
            t = targets(rows, length)
            yield (
                f"layer_norm affine {dtype} {length}",
                lambda x=x, g=g: with_gradients(lambda x, w, b: F.layer_norm(x, w.shape, w, b), x, g, g + 1),
            )
            for weight in (None, g.abs()):
                for reduction in ("none", "mean", "sum"):
                    yield (
                        f"nll {weight is None} {reduction} {dtype} {length}",
                        lambda x=x, t=t, w=weight, r=reduction: with_gradients(
                            lambda x: F.nll_loss(x, t, w, reduction=r), x
                        ),
                    )
    yield from images()
    yield from others()


def images():
    for dtype in DTYPES:
        for shape in ((2, 6, 3, 5), (3, 20, 9, 11), (5, 4, 1, 1), (9, 34)):
            for last in (False, True)[: 1 + (len(shape) == 4)]:
                x = numbers(*shape, dtype=dtype)
                x = x.to(memory_format=torch.channels_last) if last else x
                w = numbers(shape[1], seed=1, dtype=dtype)
                statistics = (
                    numbers(shape[1], seed=2, dtype=dtype),
                    numbers(shape[1], seed=3, dtype=dtype).abs(),
                )
                for training in (True, False):
                    yield (
                        f"batch_norm {training} {shape} {last} {dtype}",
                        lambda x=x, w=w, s=statistics, t=training: [
                            *with_gradients(lambda x, w, b: F.batch_norm(x, *s, w, b, t, 0.3), x, w, w + 1),
                            *(each.clone() for each in s),
                        ],
                    )
                yield (
                    f"group_norm {shape} {last} {dtype}",
                    lambda x=x, w=w: with_gradients(lambda x, w, b: F.group_norm(x, 2, w, b), x, w, w + 1),
                )
                if len(shape) == 4:
                    yield (
                        f"sums {shape} {last} {dtype}",
                        lambda x=x: [x.sum((0, 2, 3)), x.sum((1, 3)), x.mean((0, 2))],
                    )
        for length in (70000, 140000):
            x = numbers(length, dtype=dtype)
            yield (
                f"long {length} {dtype}",
                lambda x=x: [
                    *(x.sum(), x.mean(), x.var(), x.norm(), F.softmax(x, 0), F.log_softmax(x, 0)),
                    x.view(-1, 7).sum(0),
                ],
            )


def others():
    for dtype in DTYPES:
        x = numbers(9, 20, 5, dtype=dtype)
        for dim in (0, 1, 2):
            yield f"logcumsumexp {dim} {dtype}", lambda x=x, dim=dim: x.logcumsumexp(dim)
        yield (
            f"weight_norm {dtype}",
            lambda x=x: with_gradients(lambda v, g: torch._weight_norm(v, g, 0), x, x[:, :1, :1]),
        )
        if dtype in (torch.float32, torch.float64):
            p, target = x.log_softmax(2).detach(), torch.arange(80).view(20, 4) % 4 + 1
            lengths = torch.arange(20) % 4 + 1
            yield (
                f"ctc_loss {dtype}",
                lambda p=p, t=target, n=lengths: with_gradients(
                    lambda p: F.ctc_loss(p, t, torch.full((20,), 9), n, reduction="none"), p
                ),
            )
        for p in (0.0, 1.0, 2.0, float("inf")):
            if dtype in (torch.float32, torch.float64):
                y = x[0]
                yield (
                    f"cdist {p} {dtype}",
                    lambda y=y, p=p: with_gradients(lambda a: torch.cdist(a, y + 1, p), y),
                )
                yield f"pdist {p} {dtype}", lambda y=y, p=p: with_gradients(lambda a: torch.pdist(a, p), y)
        index, offsets = torch.arange(30) * 7 % 20, torch.tensor([0, 3, 3, 11])
        for mode in ("sum", "mean", "max"):
            yield (
                f"embedding_bag {mode} {dtype}",
                lambda x=x, mode=mode: with_gradients(
                    lambda w: F.embedding_bag(index, w, offsets, mode=mode), x[0]
                ),
            )


def run(lengths, modules=MODULES):
    with replaced(*modules):
        return {name: digest(call()) for name, call in cases(lengths)}


SHORT = (1, 2, 7, 15, 16, 17, 33, 100, 257)
LONG = (*range(1, 50), 63, 64, 65, 79, 80, 81, 99, 100, 128, 255, 256, 257, 511, 1000, 4097)
"""Three vectors of 16 lanes with each rest, and more of them with a rest of one before and after."""

if __name__ == "__main__":
    chosen, threads, *torchs = sys.argv[1:]
    found = []
    for count in threads.split(","):
        torch.set_num_threads(int(count))
        found.append(run(LONG if chosen == "long" else SHORT, () if torchs else MODULES))
    json.dump(found, sys.stdout)

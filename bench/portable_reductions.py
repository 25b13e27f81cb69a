"""Reductions of `across="machines"` against torch's default: the ratio of medians, interleaved, in one
process.

python bench/portable_reductions.py [part of a case's name]
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._ops import batch_norm, group_norm, layer_norm, losses, softmax, sums, vector_norms
from samebits.determinism._reviewed_schemas import installable

MODULES = (sums, softmax, layer_norm, batch_norm, group_norm, losses, vector_norms)
ROUNDS = 9
A = torch.ops.aten


def cases():
    x = torch.randn(2048, 2048)
    for kind in (torch.float32, torch.bfloat16):
        name = str(kind)[6:]
        long, square = torch.randn(3_000_000).to(kind), x.to(kind)
        yield f"sum of 3,000,000 {name}", lambda long=long: long.sum()
        yield f"sum of 2048 x 2048 over 0 {name}", lambda x=square: x.sum(0)
        yield f"sum of 2048 x 2048 over 1 {name}", lambda x=square: x.sum(1)
        for rows, columns in ((512, 1000), (4096, 64)):
            x_ = torch.randn(rows, columns).to(kind)
            y, g = F.softmax(x_, 1), torch.randn(rows, columns).to(kind)
            yield f"softmax of {rows} x {columns} {name}", lambda x=x_: A._softmax(x, 1, False)
            yield (
                f"softmax gradient of {rows} x {columns} {name}",
                lambda y=y, g=g, k=kind: A._softmax_backward_data(g, y, 1, k),
            )
        yield from layers(kind, name)
    for rows, columns in ((64, 10), (512, 32000)):
        logits, target = torch.randn(rows, columns, requires_grad=True), torch.randint(0, columns, (rows,))
        yield (
            f"cross entropy of {rows} x {columns}, both ways",
            lambda z=logits, t=target: F.cross_entropy(z, t).backward(),
        )
    small = torch.randn(4, 8)
    w = torch.randn(8)
    yield "small sum", small.sum
    yield "small sum over 0", lambda: small.sum(0)
    yield "small mean", lambda: small.mean(1)
    yield "small norm", lambda: torch.linalg.vector_norm(small)
    yield "small softmax", lambda: A._softmax(small, 1, False)
    yield "small layer_norm", lambda: A.native_layer_norm(small, [8], w, w, 1e-5)


def layers(kind, name):
    x, g = torch.randn(4096, 768).to(kind), torch.randn(4096, 768).to(kind)
    w = torch.randn(768).to(kind)
    _, mean, rstd = A.native_layer_norm(x, [768], w, w, 1e-5)
    yield f"layer_norm of 4096 x 768 {name}", lambda: A.native_layer_norm(x, [768], w, w, 1e-5)
    yield (
        f"layer_norm gradients of 4096 x 768 {name}",
        lambda: A.native_layer_norm_backward(g, x, [768], mean, rstd, w, w, [True] * 3),
    )
    for last in (False, True):
        form = torch.channels_last if last else torch.contiguous_format
        image = torch.randn(32, 64, 32, 32).to(kind).contiguous(memory_format=form)
        grad = torch.randn(32, 64, 32, 32).to(kind).contiguous(memory_format=form)
        p, m, v = torch.randn(64), torch.zeros(64), torch.ones(64)
        _, saved, istd = A.native_batch_norm(image, p, p, m, v, True, 0.1, 1e-5)
        where = f"{'channels last ' if last else ''}{name}"
        yield (
            f"batch_norm of 32 x 64 x 32 x 32 {where}",
            lambda i=image, p=p, m=m, v=v: A.native_batch_norm(i, p, p, m, v, True, 0.1, 1e-5),
        )
        yield (
            f"batch_norm gradients of 32 x 64 x 32 x 32 {where}",
            lambda i=image, g=grad, p=p, m=m, v=v, s=saved, t=istd: A.native_batch_norm_backward(
                g, i, p, m, v, s, t, True, 1e-5, [True] * 3
            ),
        )


def seconds(call, repeats):
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def compare(call):
    """Medians and minima of rounds of both, one after the other, in seconds."""
    overrides = KernelOverrides()
    call()
    repeats = max(1, int(0.004 / seconds(call, 3)))
    torchs, ours = [], []
    for _ in range(ROUNDS):
        seconds(call, 5)  # until the allocator keeps the memory of results
        torchs.append(seconds(call, repeats))
        for module in MODULES:
            for one in installable(module.REPLACEMENTS):
                overrides.put(one.op, one.device, one.make)
        seconds(call, 5)
        ours.append(seconds(call, repeats))
        overrides.remove()
    return statistics.median(torchs), statistics.median(ours), min(torchs), min(ours)


if __name__ == "__main__":
    wanted = " ".join(sys.argv[1:])
    print(f"{'case':62} {'threads':>7} {'torch us':>9} {'ours us':>9} {'ratio':>6} {'of minima':>9}")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for name, call in cases():
            if wanted in name:
                torchs, ours, *best = compare(call)
                print(
                    f"{name:62} {threads:7} {torchs * 1e6:9.1f} {ours * 1e6:9.1f} {ours / torchs:6.2f} "
                    f"{best[1] / best[0]:9.2f}",
                    flush=True,
                )

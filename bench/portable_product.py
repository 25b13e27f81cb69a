"""Products with one definition for every machine, against torch's default.

    python bench/portable_product.py [--threads 1,2] [--dtype float32] [--only TEXT] [--seconds 0.5]

Both take turns, call by call; printed are torch's median time, and its ratio to ours (above 1: ours is faster).
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._ops import products, sums


def linear(rows: int, inputs: int, outputs: int) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """A layer's forward, input gradient and weight gradient."""
    x, weight, bias, grad = (
        torch.randn(rows, inputs),
        torch.randn(outputs, inputs),
        torch.randn(outputs),
        torch.randn(rows, outputs),
    )
    name = f"{rows} x {inputs} -> {outputs}"
    yield f"linear {name}", F.linear, (x, weight, bias)
    yield "  its input's gradient", torch.mm, (grad, weight)
    yield "  its weight's gradient", lambda g, x: torch.mm(g.t(), x), (grad, x)


def cases() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Products of bench/ops.py, of steps of a transformer and an MLP, and small ones."""
    square, normal = torch.randn(512, 512), torch.randn(4096, 768)
    rows, head = torch.randn(65536, 64), torch.randn(65536, 10)
    long = torch.randn(1_000_003)
    yield "mm 512", torch.mm, (square, square)
    yield "mm 64 x 512 x 512", torch.mm, (square[:64], square)
    yield "mm 1024 x 1024 x 256", torch.mm, (normal[:1024, :256].t(), normal[:1024])
    yield "linear head's weight gradient", torch.mm, (head.t(), rows)
    yield "mv 4096 x 768", torch.mv, (normal, torch.ones(768))
    yield "bmm 32 x 128 x 64 x 128", torch.bmm, (torch.randn(32, 128, 64), torch.randn(32, 64, 128))
    yield "dot", torch.dot, (long, long.clone())
    big = torch.randn(2048, 2048)
    yield "mm 2048", torch.mm, (big, big)
    yield from linear(1024, 256, 1024)  # bench/ops.py's transformer: 4 x 256 tokens of width 256
    yield from linear(1024, 1024, 256)
    yield from linear(1024, 256, 768)
    yield from linear(1024, 256, 256)
    yield from linear(1024, 256, 1000)
    q, k = torch.randn(16, 256, 64), torch.randn(16, 256, 64)
    yield "attention's scores", lambda q, k: torch.bmm(q, k.mT), (q, k)
    scores = torch.randn(16, 256, 256)
    yield "attention's values", torch.bmm, (scores, k)
    yield "  gradient of values", lambda s, g: torch.bmm(s.mT, g), (scores, q)
    yield from linear(256, 784, 1024)  # its MLP
    yield from linear(256, 1024, 1024)
    yield from linear(256, 1024, 10)
    yield from linear(64, 512, 512)
    yield from linear(16, 512, 512)
    yield from linear(8, 4096, 4096)
    yield from linear(2, 1024, 1024)
    yield from linear(1, 1024, 4096)
    yield (
        "mv 1024 x 1024, by columns",
        lambda a, v: torch.mv(a.t(), v),
        (big[:1024, :1024].clone(), big[0, :1024]),
    )
    for size in (1, 4, 16, 32, 64, 100, 128):
        yield f"mm {size}", torch.mm, (square[:size, :size].clone(), square[:size, :size].clone())
    yield from linear(32, 64, 64)
    yield from linear(64, 64, 10)
    yield "mv 64", torch.mv, (square[:64, :64].clone(), square[0, :64].clone())
    yield "dot 64", torch.dot, (square[0, :64].clone(), square[1, :64].clone())
    yield "bmm 8 x 16 x 16 x 16", torch.bmm, (torch.randn(8, 16, 16), torch.randn(8, 16, 16))


class Overridden:
    """Our kernels, called as the dispatcher calls them."""

    def __init__(self) -> None:
        self._overrides = KernelOverrides()

    def __enter__(self) -> None:
        for one in (*products.REPLACEMENTS, *sums.REPLACEMENTS):
            self._overrides.put(one.op, one.device, one.make)

    def __exit__(self, *_: object) -> None:
        self._overrides.remove()


def times(call: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds of torch's and of ours: medians of short turns."""
    begin = time.perf_counter()
    call()
    call()
    calls = max(1, int(0.004 / ((time.perf_counter() - begin) / 2)))
    made: tuple[list[float], list[float]] = ([], [])
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(made[1]) < 7:
        for which in (0, 1):
            if which:
                with Overridden():
                    call()
                    made[1].append(_turn(call, calls, clock))
            else:
                call()
                made[0].append(_turn(call, calls, clock))
    return statistics.median(made[0]), statistics.median(made[1])


def _turn(call: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    begin = clock()
    for _ in range(calls):
        call()
    return (clock() - begin) / calls


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--cpu", action="store_true", help="CPU time, on a busy machine")
    asked = parser.parse_args()
    clock = time.process_time if asked.cpu else time.perf_counter
    dtype = getattr(torch, asked.dtype)
    for threads in map(int, asked.threads.split(",")):
        torch.set_num_threads(threads)
        print(f"\n{asked.dtype}, {threads} thread(s){'':24}torch       ours    ratio")
        for name, function, tensors in cases():
            if asked.only not in name:
                continue
            inputs = [x.to(dtype) for x in tensors]
            torchs, ours = times(partial(function, *inputs), asked.seconds, clock)
            print(
                f"{name:36}{torchs * 1e6:10.1f} {ours * 1e6:10.1f} {torchs / ours:8.2f} {(ours - torchs) * 1e6:+10.1f} us",
                flush=True,
            )


if __name__ == "__main__":
    main()

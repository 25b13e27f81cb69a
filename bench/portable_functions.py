"""Times of our elementwise functions against torch's kernels, in one run, interleaved: medians, nanoseconds an element.

python bench/portable_functions.py [--threads 1 2] [--elements 16384 1048576] [--optimizers] [names ...]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._ops.replacements import ELEMENTWISE

aten = torch.ops.aten
ROUNDS = 15


ONE = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt erf erfc erfinv sin cos tan asin acos atan sinh cosh tanh asinh atanh "
    "sigmoid silu mish gelu softplus elu logit log_sigmoid_forward"
)
TWO = "pow atan2 hypot logaddexp xlogy fmod tanh_backward sigmoid_backward silu_backward gelu_backward add"
_RESULTS: dict[torch.Size, Tensor] = {}


def _of_one(name: str) -> Callable[[Tensor, Tensor], Any]:
    """Returns the function with a result that exists: a new one of megabytes takes up to 30 times as long to get."""
    op = getattr(aten, name)
    if "out" not in op.overloads():
        return lambda x, _: op(x)

    def call(x: Tensor, _: Tensor) -> Any:
        if x.shape not in _RESULTS:
            _RESULTS[x.shape] = torch.empty_like(x)
        return op.out(x, out=_RESULTS[x.shape])

    return call


CALLS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    **{name: _of_one(name) for name in ONE.split()},
    **{name: getattr(aten, name) for name in TWO.split()},
    "gelu tanh": lambda x, _: aten.gelu(x, approximate="tanh"),
    "x ** 2": lambda x, _: x**2,
    "x ** 2.5": lambda x, _: x**2.5,
    "add alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "x + 1": lambda x, _: x + 1.0,
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
}
"""Functions of two tensors with numbers between 0 and 1."""


class Measured:
    """Times of one call with torch's kernels and with ours, taken in turn."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.times = call, ([], [])

    def measure(self, place: int, seconds: float = 2e-3) -> None:
        """Adds the shortest of some calls to those of torch (0) or ours (1)."""
        shortest, calls, end = float("inf"), 0, time.perf_counter() + seconds
        while time.perf_counter() < end or calls < 5:  # garbage is collected in one of the first
            start = time.perf_counter()
            self.call()
            shortest, calls = min(shortest, time.perf_counter() - start), calls + 1
        self.times[place].append(shortest)

    def medians(self) -> tuple[float, float]:
        """Returns the medians of both, in seconds."""
        return statistics.median(self.times[0]), statistics.median(self.times[1])


def interleaved(measured: dict[str, Measured], rounds: int = ROUNDS) -> None:
    """Measures all of them with torch's kernels and with ours, in turn."""
    for place in [0, 1] * rounds:
        overrides = KernelOverrides()
        for it in ELEMENTWISE if place else ():
            overrides.put(it.op, it.device, it.make)
        for one in measured.values():
            one.call()  # compiled, and in the cache
            one.measure(place)
        overrides.remove()


def optimizer_step(kind: str) -> Callable[[], Any]:
    """Returns a step of AdamW for a transformer layer's parameters."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024)
    options = {"fused": True} if kind == "fused" else {"foreach": kind == "foreach"}
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3, **options)
    for p in layer.parameters():
        p.grad = torch.randn_like(p)
    return optimizer.step


def main() -> None:
    """Prints a line for each function."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--elements", type=int, nargs="*", default=[64, 16384, 1048576])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--optimizers", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    for threads in options.threads:
        torch.set_num_threads(threads)
        if options.optimizers:
            measured = {
                f"AdamW {kind}": Measured(optimizer_step(kind)) for kind in ("single", "foreach", "fused")
            }
            interleaved(measured)
            for name, one in measured.items():
                torchs, ours = (1e6 * seconds for seconds in one.medians())
                print(
                    f"{threads} threads {name:16} torch {torchs:8.0f} us   ours {ours:8.0f} us   {ours / torchs:.2f}"
                )
            continue
        for elements in options.elements:
            x, y = torch.rand(2, elements, generator=torch.Generator().manual_seed(0)).to(
                getattr(torch, options.dtype)
            )
            measured = {
                name: Measured(partial(call, x, y))
                for name, call in CALLS.items() if not options.names or name in options.names
            }  # fmt: skip
            interleaved(measured)
            for name, one in measured.items():
                torchs, ours = (1e9 * seconds / elements for seconds in one.medians())
                print(
                    f"{threads} threads {elements:8} {name:20} torch {torchs:7.2f} ns   ours {ours:7.2f} ns   "
                    f"{ours / torchs:.2f}"
                )


if __name__ == "__main__":
    main()

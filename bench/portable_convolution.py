"""Convolutions of `across="threads"` and `across="machines"`: their time over that of torch's default.

Calls are interleaved, and the medians compared. With one thread it is CPU time, which a busy machine disturbs less. The steps have torch's own
kernels for all but convolutions. Usage: OMP_WAIT_POLICY=PASSIVE python bench/portable_convolution.py [--threads 2] [--steps] [--only NAME] [--seconds 1]
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._ops import convolution

sys.path.insert(0, str(Path(__file__).parent))
from ops import convnet, training_step

aten = torch.ops.aten
SHAPES = {  # batch, input channels, output channels, groups, side, kernel, stride
    "ResNet 7x7 /2": (8, 3, 64, 1, 224, 7, 2),
    "ResNet 3x3 64": (8, 64, 64, 1, 56, 3, 1),
    "one sample 3x3": (1, 64, 64, 1, 56, 3, 1),
    "three samples": (3, 64, 64, 1, 56, 3, 1),
    "ResNet 3x3 128": (8, 128, 128, 1, 28, 3, 1),
    "ResNet 3x3 512": (8, 512, 512, 1, 7, 3, 1),
    "ResNet 3x3 /2": (8, 128, 256, 1, 28, 3, 2),
    "1x1 down": (8, 256, 64, 1, 56, 1, 1),
    "1x1 up": (8, 64, 256, 1, 56, 1, 1),
    "1x1 /2": (8, 256, 512, 1, 28, 1, 2),
    "CIFAR first": (64, 3, 16, 1, 32, 3, 1),
    "CIFAR 16": (64, 16, 16, 1, 32, 3, 1),
    "CIFAR 32": (64, 32, 32, 1, 16, 3, 1),
    "CIFAR 64": (64, 64, 64, 1, 8, 3, 1),
    "MNIST first": (64, 1, 32, 1, 28, 3, 1),
    "MNIST second": (64, 32, 64, 1, 26, 3, 1),
    "depthwise 56": (8, 96, 96, 96, 56, 3, 1),
    "depthwise 14": (8, 384, 384, 384, 14, 3, 1),
    "grouped": (8, 128, 128, 32, 28, 3, 1),
    "tiny": (8, 16, 16, 1, 8, 3, 1),
    "portable.md 8x32": (8, 32, 64, 1, 64, 3, 1),
    "portable.md 8x64": (8, 64, 64, 1, 64, 3, 1),
    "portable.md 8x128": (8, 128, 128, 1, 32, 3, 1),
    "portable.md 1x64": (1, 64, 64, 1, 64, 3, 1),
    "ops.py 32x64": (32, 64, 64, 1, 32, 3, 1),
    "ops.py 1 x 1": (32, 64, 64, 1, 32, 1, 1),
    "ops.py batch 1": (1, 64, 64, 1, 32, 3, 1),
}


def small_convnet() -> nn.Module:
    """Of the size of the examples on MNIST."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 49, 10),
    )  # fmt: skip


def steps() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Whole steps of training."""
    images, classes = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    digits, labels = torch.randn(64, 1, 28, 28), torch.randint(10, (64,))
    for dtype in (torch.float32, torch.bfloat16):
        yield (
            f"step of a convnet like ResNet, {str(dtype)[6:]}",
            training_step(convnet, images, classes, dtype),
        )
        yield (
            f"step of a small convnet, {str(dtype)[6:]}",
            training_step(small_convnet, digits, labels, dtype),
        )
    last = images.to(memory_format=torch.channels_last)
    made = lambda: convnet().to(memory_format=torch.channels_last)  # noqa: E731
    yield "step of a convnet like ResNet, channels last", training_step(made, last, classes, torch.float32)


def ops() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each shape's output, and its two gradients."""
    for name, (n, c, o, groups, side, kernel, stride) in SHAPES.items():
        x, w = torch.randn(n, c, side, side), torch.randn(o, c // groups, kernel, kernel)
        pad = kernel // 2
        rest = ([stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups)
        grad = torch.randn_like(aten.convolution(x, w, None, *rest))
        yield f"{name}, output", lambda x=x, w=w, rest=rest: aten.convolution(x, w, None, *rest)
        for which, mask in (("input", [True, False, False]), ("weight", [False, True, False])):
            yield (
                f"{name}, {which}",
                lambda x=x, w=w, grad=grad, rest=rest, mask=mask: aten.convolution_backward(
                    grad, x, w, None, *rest, mask
                ),
            )


def medians(call: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> list[float]:
    """Seconds of a call with torch's kernels, and with ours."""
    times: list[list[float]] = [[], []]
    tables: list[tuple[Any, ...]] = [(), convolution.REPLACEMENTS]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for found, table in zip(times, tables, strict=True):
            overrides = KernelOverrides()
            for it in table:
                overrides.put(it.op, it.device, it.make)
            call()
            for _ in range(3):
                begin = clock()
                call()
                found.append(clock() - begin)
            overrides.remove()
    return [statistics.median(found) for found in times]


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    clock = time.thread_time if asked.threads == 1 else time.perf_counter
    print(f"{'threads: ' + str(asked.threads):52}{'torch us':>10}{'ours':>9}")
    for name, call in steps() if asked.steps else ops():
        if asked.only in name:
            torchs, ours = medians(call, asked.seconds, clock)
            print(f"{name:52}{torchs * 1e6:10.0f}{ours / torchs:9.2f}", flush=True)


if __name__ == "__main__":
    main()

"""Convolutions and bfloat16 products with the switch's replacements, against torch's own kernels at the same threads.

Calls are interleaved and the shortest of each is compared. `--cpu` compares CPU time of one thread instead, which a
busy machine disturbs less. Usage: OMP_WAIT_POLICY=PASSIVE python bench/threads_conv.py [--cpu] [--bf16] [repeats]
"""

import sys
import time

import torch

from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._kernels import convolution, matmul

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
}
PRODUCTS = {  # weight gradients of linear layers: outputs, rows, inputs
    "head": (10, 4096, 64),
    "long head": (10, 65536, 64),
    "small layer": (64, 4096, 64),
    "transformer": (768, 4096, 768),
    "narrow input": (2000, 4096, 10),
    "short batch": (512, 512, 512),
}


def compare(call, modules, repeats, clock):
    """Seconds of torch's kernel and of ours, shortest of interleaved calls."""
    best = [1e9, 1e9]
    overrides = KernelOverrides()
    for _ in range(repeats):
        for ours in (0, 1):
            if ours:
                for r in (r for module in modules for r in module.REPLACEMENTS):
                    overrides.put(r.op, r.device, r.make)
            for first in (True, False):
                begin = clock()
                call()
                if not first:
                    best[ours] = min(best[ours], clock() - begin)
            overrides.remove()
    return best


def convolutions(name, dtype):
    n, c, o, groups, side, kernel, stride = SHAPES[name]
    x = torch.randn(n, c, side, side).to(dtype)
    w = torch.randn(o, c // groups, kernel, kernel).to(dtype)
    rest = ([stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], groups)
    grad = torch.randn_like(torch.ops.aten.convolution(x, w, None, *rest))

    def backward(*mask):
        return lambda: torch.ops.aten.convolution_backward(grad, x, w, None, *rest, [*mask, False])

    return {
        "output": lambda: torch.ops.aten.convolution(x, w, None, *rest),
        "input": backward(True, False),
        "weight": backward(False, True),
        "both": backward(True, True),
    }


def product(name, dtype):
    outputs, rows, inputs = PRODUCTS[name]
    g, x = torch.randn(rows, outputs).to(dtype), torch.randn(rows, inputs).to(dtype)
    return {"weight": lambda: g.t() @ x}


def main():
    numbers = [int(a) for a in sys.argv[1:] if a.isdigit()]
    clock = time.thread_time if "--cpu" in sys.argv else time.perf_counter
    dtype = torch.bfloat16 if "--bf16" in sys.argv else torch.float32
    tables = [(SHAPES, convolutions, (convolution,))]
    if dtype == torch.bfloat16:
        tables.append((PRODUCTS, product, (matmul,)))
    for names, make, modules in tables:
        for name in names:
            line = [f"{name:16}"]
            for threads in (1,) if "--cpu" in sys.argv else (1, 2):
                torch.set_num_threads(threads)
                for what, call in make(name, dtype).items():
                    torchs, ours = compare(call, modules, numbers[0] if numbers else 10, clock)
                    line.append(f"{what} {ours * 1e3:.2f}/{torchs * 1e3:.2f} ms = {ours / torchs:.2f}x")
                line.append("|")
            print(*line, flush=True)


if __name__ == "__main__":
    main()

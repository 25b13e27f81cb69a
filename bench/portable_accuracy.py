"""The error of `across="machines"` against float64, over that of torch's default: root mean squares over
seeds.

    python bench/portable_accuracy.py [--seeds 20] [--only TEXT]

Inputs are rounded to the type first, so that an op alone is judged; errors are relative to the root mean square of the exact
result. A ratio of 1 is torch's error, and the goal is at most 2. For functions of one number the largest error in units of the
last place is in tests/determinism/machine.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import samebits


def gradients(op: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """Returns the gradients of an op's inputs, for a random gradient of its result that follows from the first input."""

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = op(*leaves)
        generator = torch.Generator().manual_seed(int(inputs[0].flatten()[0].double() * 2**20))
        grad = torch.randn(out.shape, generator=generator).bfloat16()  # the same numbers in every type
        return torch.autograd.grad(out, leaves, grad.to(out.dtype))

    return run


def cases() -> Iterator[tuple[str, Callable[..., Any], list[tuple[int, ...]]]]:
    """Each op with the shapes of its inputs."""
    yield "mm, K = 64", torch.mm, [(64, 64), (64, 64)]
    yield "mm, K = 1024", torch.mm, [(64, 1024), (1024, 64)]
    yield "mm, K = 20,000", torch.mm, [(16, 20000), (20000, 16)]
    yield "mv, K = 4096", torch.mv, [(64, 4096), (4096,)]
    yield "dot of 1,000,003", torch.dot, [(1_000_003,), (1_000_003,)]
    yield "linear, K = 784", F.linear, [(64, 784), (128, 784), (128,)]
    for size, channels, images in ((8, 16, 4), (13, 8, 3), (32, 16, 16)):
        name = f"conv2d 3 x 3, {images} images of {channels} x {size} x {size}"
        shapes = [(images, channels, size, size), (channels, channels, 3, 3)]
        yield name, lambda x, w: F.conv2d(x, w, padding=1), shapes
        yield f"{name}, gradients", gradients(lambda x, w: F.conv2d(x, w, padding=1)), shapes
    yield "conv1d 5, gradients", gradients(F.conv1d), [(4, 16, 100), (16, 16, 5)]
    yield "attention", F.scaled_dot_product_attention, [(2, 4, 64, 32)] * 3
    yield "attention, gradients", gradients(F.scaled_dot_product_attention), [(2, 4, 64, 32)] * 3
    for length in (100, 10_000, 1_000_003):
        yield f"sum of {length:,}", torch.sum, [(length,)]
        yield f"mean of {length:,}", torch.mean, [(length,)]
        yield f"norm of {length:,}", torch.linalg.vector_norm, [(length,)]
        yield f"var of {length:,}", torch.var, [(length,)]
    yield "sum of 1000 x 300 over 0", lambda x: x.sum(0), [(1000, 300)]
    yield "sum of 300 x 1000 over 1", lambda x: x.sum(1), [(300, 1000)]
    yield "cumsum of 1000", lambda x: x.cumsum(0), [(1000,)]
    for name, op in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        yield f"{name} 64 x 1000", lambda x, op=op: op(x, 1), [(64, 1000)]
        yield f"{name} 64 x 1000, gradient", gradients(lambda x, op=op: op(x, 1)), [(64, 1000)]
    target = torch.arange(64) % 50
    yield "cross_entropy", lambda x: F.cross_entropy(x, target), [(64, 50)]
    yield "cross_entropy, gradient", gradients(lambda x: F.cross_entropy(x, target)), [(64, 50)]
    norms = {
        "layer_norm": (lambda x, w, b: F.layer_norm(x, (300,), w, b), [(64, 300), (300,), (300,)]),
        "batch_norm": (
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
            [(32, 16, 10, 10), (16,), (16,)],
        ),
        "group_norm": (lambda x, w, b: F.group_norm(x, 4, w, b), [(8, 16, 10, 10), (16,), (16,)]),
    }
    for name, (op, shapes) in norms.items():
        yield name, op, shapes
        yield f"{name}, gradients", gradients(op), shapes
    for name in ("exp", "tanh", "sigmoid", "erf", "sin", "cos"):
        yield name, getattr(torch, name), [(10_000,)]
    yield "gelu", F.gelu, [(10_000,)]
    yield "gelu, gradient", gradients(F.gelu), [(10_000,)]
    yield "silu", F.silu, [(10_000,)]
    yield "log", lambda x: x.abs().log(), [(10_000,)]
    yield "pow 2.5", lambda x: x.abs() ** 2.5, [(10_000,)]


def error(op: Callable[..., Any], inputs: list[Tensor]) -> list[float]:
    """Returns the mean square of the relative error of each result."""
    made, exact = op(*inputs), op(*(x.double() for x in inputs))
    pairs = zip(made, exact, strict=True) if isinstance(made, tuple) else [(made, exact)]
    return [float((x.double() - y).square().mean() / y.square().mean()) for x, y in pairs]


def main() -> None:
    """Prints a line for each op and type."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, op, shapes in cases():
        if not any(text in name for text in asked.only.split(",")):
            continue
        for dtype in (torch.float32, torch.bfloat16):
            squares: list[list[list[float]]] = [[], []]
            for seed in range(asked.seeds):
                generator = torch.Generator().manual_seed(seed)
                inputs = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
                squares[0].append(error(op, inputs))
                with samebits.enable_op_determinism(across="machines"):
                    squares[1].append(error(op, inputs))
            theirs, ours = (torch.tensor(one).mean(0).sqrt() for one in squares)
            ratios = ", ".join(f"{r:.2f}" for r in (ours / theirs.clamp_min(1e-300)).tolist())
            print(f"{name:52}{str(dtype)[6:]:>10}   torch {theirs.max():.1e}   ours {ours.max():.1e}   ratio {ratios}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()

"""Calls of elementwise ops of which torch's kernel stays under `across="machines"`, by overload, and their
digests.

`python exact_calls.py` prints the digests as JSON, for the vector width that ATEN_CPU_CAPABILITY says.
"""

import hashlib
import json
import sys

import torch

aten = torch.ops.aten
ONE = {
    name: getattr(aten, name)
    for name in (
        "neg abs relu floor ceil round trunc frac sign sgn signbit isnan isinf isposinf isneginf reciprocal logical_not "
        "hardsigmoid hardswish nan_to_num"
    ).split()
}
TWO = {
    name: getattr(aten, name)
    for name in (
        "maximum minimum fmax fmin eq ne lt le gt ge copysign heaviside logical_and logical_or logical_xor mul div add sub "
        "floor_divide nextafter hardsigmoid_backward"
    ).split()
}
OTHER = {
    "clamp": lambda x, y: aten.clamp(x, -0.3, 0.7),
    "clamp.Tensor": lambda x, y: aten.clamp(x, y, y + 1),
    "clamp_min": lambda x, y: aten.clamp_min(x, -0.3),
    "clamp_max": lambda x, y: aten.clamp_max(x, 0.3),
    "hardtanh": lambda x, y: aten.hardtanh(x, -0.7, 0.9),
    "hardtanh_backward": lambda x, y: aten.hardtanh_backward(x, y, -0.7, 0.9),
    "leaky_relu": lambda x, y: aten.leaky_relu(x, 0.013),
    "leaky_relu_backward": lambda x, y: aten.leaky_relu_backward(x, y, 0.013, False),
    "threshold": lambda x, y: aten.threshold(x, 0.1, 0.3),
    "threshold_backward": lambda x, y: aten.threshold_backward(x, y, 0.1),
    "hardshrink": lambda x, y: aten.hardshrink(x, 0.3),
    "hardshrink_backward": lambda x, y: aten.hardshrink_backward(x, y, 0.3),
    "softshrink_backward": lambda x, y: aten.softshrink_backward(x, y, 0.3),
    "_prelu_kernel": lambda x, y: aten._prelu_kernel(x, y),
    "_prelu_kernel_backward": lambda x, y: torch.stack(aten._prelu_kernel_backward(x, y, x)),
    "where": lambda x, y: aten.where(x > y, x, y),
    "masked_fill": lambda x, y: aten.masked_fill(x, y > 0, 0.3),
    "mul.Scalar": lambda x, y: x * 0.3,
    "div.Scalar": lambda x, y: x / 0.3,
    "div.Tensor_mode floor": lambda x, y: aten.div(x, y, rounding_mode="floor"),
    "div.Tensor_mode trunc": lambda x, y: aten.div(x, y, rounding_mode="trunc"),
    "add.Scalar": lambda x, y: x + 0.3,
    "addcdiv": lambda x, y: aten.addcdiv(x, y, x, value=0.3),
    "mse_loss": lambda x, y: aten.mse_loss(x, y, 0),
    "mse_loss_backward": lambda x, y: aten.mse_loss_backward(x, x, y, 0),
    "mse_loss_backward mean": lambda x, y: aten.mse_loss_backward(torch.tensor(0.7, dtype=x.dtype), x, y, 1),
    "smooth_l1_loss": lambda x, y: aten.smooth_l1_loss(x, y, 0, 0.7),
    "huber_loss": lambda x, y: aten.huber_loss(x, y, 0, 0.7),
    "binary_cross_entropy_backward": lambda x, y: aten.binary_cross_entropy_backward(
        x, x.abs().clamp(max=1), y.abs().clamp(max=1), None, 0
    ),
    "native_dropout_backward": lambda x, y: aten.native_dropout_backward(x, y > 0, 1.3),
    "deg2rad": lambda x, y: torch.deg2rad(x),
    "ldexp": lambda x, y: torch.ldexp(x, (y.nan_to_num() > 0).int() * 3),
    "bitwise_and": lambda x, y: aten.bitwise_and((x * 100).to(torch.int32), (y * 100).to(torch.int32)),
    "integers add": lambda x, y: aten.add((x * 100).to(torch.int64), (y * 100).to(torch.int64), alpha=3),
    "integers pow": lambda x, y: (x * 10).to(torch.int64) ** 3,
}
CALLS = {
    **{name: (lambda x, y, op=op: op(x)) for name, op in ONE.items()},
    **{name: (lambda x, y, op=op: op(x, y)) for name, op in TWO.items()},
    **OTHER,
}
MOVING = {
    name: (lambda x, y, op=getattr(aten, name): op(x))
    for name in ("sigmoid", "silu", "mish", "sinh", "exp2", "softplus")
}
"""Ops whose bits do depend on the vector width: the negative control."""
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), 1.0, -1.0, 1e-40, float("nan"))
COUNT = 192


def operands(dtype):
    """Ordinary numbers, each pair of special ones, and numbers of every exponent."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, COUNT, generator=generator) * 1.5
    special = torch.tensor(SPECIAL)
    x[40:104], y[40:104] = special.repeat_interleave(8), special.repeat(8)
    words = torch.randint(-(2**31), 2**31, (2, 64), generator=generator).to(torch.int32)
    x[104:168], y[104:168] = words.view(torch.float32)
    return x.to(dtype), y.to(dtype)


def results(op, dtype):
    """Results at lengths 1 to 100, at offsets, with steps, of a transposed matrix, and with one number for all."""
    x, y = operands(dtype)
    for n in range(1, 101):
        for start in (0, 40, 92):
            yield op(x[start : start + n], y[start : start + n])
    for i in (1, 3, 5):
        yield op(x[i:], y[i:])
        yield op(x[:: i + 1], y[:: i + 1])
        yield op(x[:144].reshape(12, 12).t()[i:], y[:144].reshape(12, 12)[i:])
    yield op(x, y[:1].expand(COUNT))
    yield op(x[:1].expand(COUNT), y)
    yield op(x.repeat(400), y.repeat(400))


def digest(op, dtype):
    hasher = hashlib.sha256()
    try:
        for result in results(op, dtype):
            plain = result.contiguous()
            if plain.is_floating_point():
                plain = torch.where(plain.isnan(), torch.full_like(plain, float("nan")), plain)
            hasher.update(plain.view(torch.uint8).numpy().tobytes())
    except (RuntimeError, NotImplementedError) as error:
        return f"raises {str(error).splitlines()[0][:80]}"
    return hasher.hexdigest()


def digests(calls):
    return {f"{name} {str(dtype)[6:]}": digest(op, dtype) for name, op in calls.items() for dtype in DTYPES}


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    json.dump({"exact": digests(CALLS), "moving": digests(MOVING)}, sys.stdout)

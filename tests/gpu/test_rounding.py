"""`stochastic_round`: a GPU's bits are the CPU's, for each dtype, and the mean is the number that was rounded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from samebits import random
from samebits.rounding import stochastic_round
from samebits.selfcheck.agreement import agree
from samebits.selfcheck.case import Case, Measured, Results, Target

DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
_SIZES = (1, 3, 7, 1023, 4097, 65_539)
_FAR = 5.0
"""Standard deviations that a share may be off: chance alone takes it further once in 1.7 million."""


def cases() -> Iterator[Case]:
    """Yields two cases for each dtype."""
    for name, dtype in DTYPES.items():
        yield Case(f"to {name}", partial(_measure, dtype), agree, limit_s=120)
    for name, dtype in DTYPES.items():
        yield Case(f"the mean of {name}", partial(_mean, dtype), _unbiased)


def inputs(dtype: torch.dtype, count: int = 20_000) -> torch.Tensor:
    """Returns float32 of every size and both signs: any bits, and around the subnormal numbers and the largest one of a
    dtype.
    """
    generator = torch.Generator().manual_seed(1)
    anything = random.bits(random.key(11), count).view(torch.float32)
    info = torch.finfo(dtype)
    normal = torch.randn(count, generator=generator)
    small = normal[: count // 4] * info.smallest_normal
    tiny = normal[: count // 4] * info.smallest_normal * info.eps
    large = (1 + torch.rand(count // 4, generator=generator) / 4) * info.max * normal[: count // 4].sign()
    x = torch.cat([anything, normal, small, tiny, large])
    return torch.where(x.isnan(), 1.5, x)


def special() -> torch.Tensor:
    """Returns infinities, NaNs with payloads, zeros and subnormal numbers of float32."""
    words = torch.tensor(
        [0x7F800000, 0x7F800001, 0x7FFFFFFF, 0x7FA50000, 0, 1, 0x7FFFFF, 0x33000001], dtype=torch.int32
    )
    return torch.cat([words, words | -0x80000000]).view(torch.float32)


def codes(x: torch.Tensor) -> torch.Tensor:
    """Returns the bits of a tensor, on the CPU: payloads of NaN count."""
    x = x.detach().cpu().clone(memory_format=torch.contiguous_format)
    return x.view(torch.uint8 if x.itemsize == 1 else torch.int16)


def _measure(dtype: torch.dtype, target: Target) -> Measured:
    x, wrapping = inputs(dtype, 2_000 if target.small else 200_000), _key(2**64 - 1, 2**64 - 100)
    given = {
        "numbers of every size": x,
        "what is special": special(),
        "normal numbers": random.normal(_key(4), 1000 if target.small else 1 << 20),
        "not contiguous": random.normal(_key(5), 33, 70).t()[:, ::2],
        "of bfloat16": random.normal(_key(6), 1001).bfloat16(),
        "of float16": random.normal(_key(6), 1001).half(),
        **{f"{size} numbers": x[:size].clone() for size in _SIZES if size <= len(x)},
    }
    results: Results = {}
    for name, one in given.items():
        here = codes(stochastic_round(one, dtype, wrapping))
        there, key = one.to(target.device), wrapping.to(target.device)
        results[name] = {
            "the CPU": here,
            "the GPU": codes(stochastic_round(there, dtype, key)),
            "the GPU again": codes(stochastic_round(there, dtype, key)),
            "the GPU, out=": codes(stochastic_round(there, dtype, key, out=_empty(one, dtype, target))),
        }
    return Measured({**results, "gradient": _gradient(dtype, target)})


def _key(seed: int, offset: int = 0) -> torch.Tensor:
    return torch.tensor([seed, offset], dtype=torch.uint64, device="cpu")


def _empty(like: torch.Tensor, dtype: torch.dtype, target: Target) -> torch.Tensor:
    """Returns an empty tensor whose elements are not adjacent."""
    return torch.empty(*like.shape, 2, dtype=dtype, device=target.device)[..., 0]


def _gradient(dtype: torch.dtype, target: Target) -> dict[str, torch.Tensor]:
    def of(device: str) -> torch.Tensor:
        x = random.normal(_key(7), 1001).to(device).requires_grad_()
        rounded = stochastic_round(x, dtype, _key(8).to(device))
        (gradient,) = torch.autograd.grad(rounded.float().square().sum(), x)
        return gradient.cpu()

    return {"the CPU": of("cpu"), "the GPU": of(target.device)}


def _mean(dtype: torch.dtype, target: Target) -> Measured:
    """Measures the distance of the share that is rounded up from its probability, in standard deviations."""
    count, key, results = 1 << 12 if target.small else 1 << 22, _key(9).to(target.device), {}
    step = torch.finfo(dtype).eps
    for number, part in enumerate((0.001, 0.3, 0.5, 0.97)):
        x = torch.tensor(1 + part * step, dtype=torch.float32)
        chance = (x.item() - 1) / step
        own = random.fold_in(key, number)
        rounded = stochastic_round(x.to(target.device).expand(count), dtype, own)
        up = int((rounded.float() > 1).sum())
        results[f"{part} of a step"] = (up - count * chance) / math.sqrt(count * chance * (1 - chance))
    return Measured(results, dict(results))


def _unbiased(results: Results) -> Iterator[str]:
    for name, far in results.items():
        if not abs(far) < _FAR:
            yield f"{name}: the share that was rounded up is {far:.1f} standard deviations from its chance"

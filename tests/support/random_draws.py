"""Every function of samebits.random that draws from a key on the key's device: by these the back ends are compared."""

import torch

from samebits import random

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

KEYS = {
    "one key": ((), (2050,)),
    "rows": ((33, 1), (33, 37)),
    "a number each": ((300,), (300,)),
}
"""Shapes of keys and of numbers: one key whose numbers end within a block and a program,
keys with rows that end within a block, one number per key."""


def key_of(batch):
    """Keys on the CPU; the first has an offset that wraps, and a seed of all ones."""
    keys = random.split(random.key(len(batch)), max(1, torch.Size(batch).numel()))
    keys[0] = torch.tensor([2**64 - 1, 2**64 - 2], dtype=torch.uint64)
    return keys.view(*batch, 2)


def numbers(shape, device, dtype):
    """Numbers of every size and both signs, infinities and zeros."""
    count = torch.Size(shape).numel()
    bits = random.bits(random.key(9), count * dtype.itemsize, dtype=torch.uint8)
    x = bits.view(dtype).nan_to_num(posinf=torch.inf, neginf=-torch.inf)
    x[:4] = torch.tensor([torch.inf, -torch.inf, 0.0, torch.finfo(dtype).max]).to(dtype)[:count]
    return x.view(*shape).to(device)


def _dropout_and_gradient(key, shape, dtype):
    x = numbers(shape, key.device, dtype).requires_grad_()
    y = random.dropout(key, x, 0.3)
    (gradient,) = torch.autograd.grad(y, x, numbers(shape, key.device, dtype))
    return torch.stack([y.detach(), gradient])


def _with_each(key, shape):
    p = torch.tensor([0.0, 2.0**-33, 0.3, 1 - 2.0**-33, 1.0], dtype=torch.float64)
    count = torch.Size(shape).numel()
    return random.bernoulli(key, shape, p=p.repeat(count)[:count].view(*shape).to(key.device))


def _few(key):
    return key if key.dim() == 1 else key.reshape(-1, 2)[:3]


def _logits(key):
    return torch.linspace(-3, 3, 7, device="cpu").to(key.device)


def _weights(key):
    return torch.linspace(-3, 3, 7, device="cpu").exp().to(key.device)  # a GPU's exp has other bits


def _in_place(f, key, shape, dtype):
    """Draws into a tensor, and into one that is not contiguous."""
    plain = torch.zeros(*shape, dtype=dtype, device=key.device)
    apart = torch.zeros(*shape, 2, dtype=dtype, device=key.device)
    f(key, apart[..., 1])
    return torch.cat([f(key, plain).flatten(), apart.flatten()])


def _images(key, shape):
    return torch.cat([
        random.permute_index(each, torch.arange(n - 200, n, device=key.device), n)
        for n in (300, 2**31 + 5, 2**48)
        for each in _few(key).view(-1, 2)
    ])  # fmt: skip


def _folded(key, _shape):
    """Keys as int64: not every torch concatenates uint64 on a GPU."""
    data = torch.tensor([0, -1, 2**40], device=key.device).view(3, *[1] * (key.dim() - 1))
    parts = (0, 1, 2**63 - 1, -1, "a name", ("a", 7, -(2**63)))
    folded = [random.fold_in(key, part).unsqueeze(0) for part in parts] + [random.fold_in(key, data)]
    return torch.cat([one.view(torch.int64) for one in folded])


_CONTINUOUS = {
    "uniform": random.uniform,
    "uniform 1.5 to 5.2": lambda *given, dtype: random.uniform(*given, low=1.5, high=5.2, dtype=dtype),
    "normal": random.normal,
    "normal of its own": lambda *given, dtype: random.normal(*given, mean=0.1, std=3.7, dtype=dtype),
    "exponential": random.exponential,
    "gumbel": lambda *given, dtype: random.gumbel(*given, loc=0.1, scale=2.5, dtype=dtype),
    "truncated_normal": random.truncated_normal,
    "truncated_normal one-sided": lambda *given, dtype: random.truncated_normal(
        *given, mean=0.3, std=0.9, low=5, high=7, dtype=dtype
    ),
    "truncated_normal far above": lambda *given, dtype: random.truncated_normal(
        *given, low=40, high=41, dtype=dtype
    ),
    "truncated_normal far below": lambda *given, dtype: random.truncated_normal(
        *given, low=-torch.inf, high=-50, dtype=dtype
    ),
}
_INTO = {
    "uniform_": (random.uniform_, {"low": 1.5, "high": 5.2}),
    "normal_": (random.normal_, {"mean": 0.1, "std": 3.7}),
    "bernoulli_": (random.bernoulli_, {"p": 0.3}),
}
_RANGES = (
    (-5, 5, torch.int8),
    (-128, 128, torch.int8),
    (0, 2**31 + 1, torch.int64),  # half of the words are rejected
    (-(2**31), 2**31, torch.int64),
    (0, 2**32 + 1, torch.uint64),
    (-(2**62) - 1, 2**62, torch.int64),  # half of the words are rejected
    (0, 2**64, torch.uint64),
)


def _of_dtypes(f, **given):
    return lambda key, shape: f(key, shape, **given)


DRAWS = {
    "split": lambda key, _: random.split(key, 5),
    "fold_in": _folded,
    **{
        f"bits {dtype}": _of_dtypes(random.bits, dtype=dtype)
        for dtype in (torch.uint8, torch.int16, torch.uint32, torch.int64)
    },
    **{
        f"{name} {dtype}": _of_dtypes(f, dtype=dtype) for dtype in FLOATING for name, f in _CONTINUOUS.items()
    },
    **{
        f"bernoulli {dtype}": _of_dtypes(random.bernoulli, p=0.3, dtype=dtype)
        for dtype in (*FLOATING, torch.bool, torch.uint8, torch.int64)
    },
    **{f"bernoulli of {p}": _of_dtypes(random.bernoulli, p=p) for p in (0.0, 1 - 2.0**-33, 1.0)},
    "bernoulli each": _with_each,
    **{
        f"{name} {dtype}": lambda key, shape, f=f, given=given, dtype=dtype: _in_place(
            lambda key, out: f(key, out, **given), key, shape, dtype
        )
        for dtype in (torch.float32, torch.bfloat16)
        for name, (f, given) in _INTO.items()
    },
    **{
        f"dropout {dtype}": lambda key, shape, dtype=dtype: _dropout_and_gradient(key, shape, dtype)
        for dtype in FLOATING
    },
    **{
        f"randint {low} to {high} {dtype}": _of_dtypes(random.randint, low=low, high=high, dtype=dtype)
        for low, high, dtype in _RANGES
    },
    **{
        f"permutation of {n}": lambda key, _, n=n: random.permutation(_few(key), n)
        for n in (1, 40, 64, 65, 600)
    },
    "permute_index": _images,
    "choice": lambda key, shape: random.choice(key, 1000, shape),
    "choice without": lambda key, shape: random.choice(
        _few(key), 3_000_000, shape[-1:] if key.dim() == 1 else (3,), replace=False
    ),
    "choice weighted": lambda key, shape: random.choice(key, 7, shape, weights=_weights(key)),
    "choice weighted without": lambda key, _: random.choice(
        _few(key), 7, (5,) if key.dim() == 1 else (3,), weights=_weights(key), replace=False
    ),
    "categorical": lambda key, shape: random.categorical(key, *shape, logits=_logits(key)),
}
"""By name, each of (key, shape). The first word of a name is the function's; numbers of `split`, `fold_in`, the orders and
`permute_index` do not depend on the shape."""

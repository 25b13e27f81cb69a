"""Every function of samebits.random that draws from a key on the key's device: what the back ends are compared by."""

import torch

import samebits.random as sr

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# What a key is drawn from: one key whose numbers end within a block and a program, keys with rows that end within a
# block, one number per key. Keys are some whose offset wraps, and a seed of all ones.
KEYS = {"one key": ((), (2050,)), "rows": ((33, 1), (33, 37)), "a number each": ((300,), (300,))}


def key_of(batch):
    keys = sr.split(sr.key(len(batch)), max(1, torch.Size(batch).numel()))
    keys[0] = torch.tensor([2**64 - 1, 2**64 - 2], dtype=torch.uint64)
    return keys.view(*batch, 2)


def same_bits(a, b):
    """Equality that tells 0 from -0; a NaN is a NaN."""
    a, b = a.contiguous(), b.contiguous()
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if a.dtype.is_floating_point:
        nan = a.isnan()
        a, b = (torch.where(nan, 0, a), torch.where(nan, 0, b)) if torch.equal(nan, b.isnan()) else (a, b)
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def numbers(shape, device, dtype):
    """Numbers of every size and both signs, infinities and zeros."""
    count = torch.Size(shape).numel()
    bits = sr.bits(sr.key(9), count * dtype.itemsize, dtype=torch.uint8)
    x = bits.view(dtype).nan_to_num(posinf=torch.inf, neginf=-torch.inf)
    x[:4] = torch.tensor([torch.inf, -torch.inf, 0.0, torch.finfo(dtype).max]).to(dtype)[:count]
    return x.view(shape).to(device)


def _dropout_and_gradient(key, shape, dtype):
    x = numbers(shape, key.device, dtype).requires_grad_()
    y = sr.dropout(key, x, 0.3)
    (gradient,) = torch.autograd.grad(y, x, numbers(shape, key.device, dtype))
    return torch.stack([y.detach(), gradient])


def _with_each(key, shape):
    p = torch.tensor([0.0, 2.0**-33, 0.3, 1 - 2.0**-33, 1.0], dtype=torch.float64)
    return sr.bernoulli(
        key,
        shape,
        p=p.repeat(torch.Size(shape).numel())[: torch.Size(shape).numel()].view(shape).to(key.device),
    )


def _few(key):
    return key if key.dim() == 1 else key.reshape(-1, 2)[:3]


def _logits(key):
    return torch.linspace(-3, 3, 7).to(key.device)


def _weights(key):
    return torch.linspace(-3, 3, 7).exp().to(key.device)  # on the CPU: a GPU's exp has other bits


# name: f(key, shape)
DRAWS = {
    **{
        f"bits {dtype}": lambda key, shape, dtype=dtype: sr.bits(key, shape, dtype=dtype)
        for dtype in (torch.uint8, torch.int16, torch.uint32, torch.int64)
    },
    **{
        f"{name} {dtype}": lambda key, shape, f=f, dtype=dtype: f(key, shape, dtype=dtype)
        for dtype in FLOATING
        for name, f in {
            "uniform": sr.uniform,
            "uniform 1.5 to 5.2": lambda *given, dtype: sr.uniform(*given, low=1.5, high=5.2, dtype=dtype),
            "normal": sr.normal,
            "normal of its own": lambda *given, dtype: sr.normal(*given, mean=0.1, std=3.7, dtype=dtype),
            "exponential": sr.exponential,
            "gumbel": lambda *given, dtype: sr.gumbel(*given, loc=0.1, scale=2.5, dtype=dtype),
            "truncated": sr.truncated_normal,
            "truncated one-sided": lambda *given, dtype: sr.truncated_normal(
                *given, mean=0.3, std=0.9, low=5, high=7, dtype=dtype
            ),
            "truncated far above": lambda *given, dtype: sr.truncated_normal(*given, low=40, high=41, dtype=dtype),
            "truncated far below": lambda *given, dtype: sr.truncated_normal(
                *given, low=-torch.inf, high=-50, dtype=dtype
            ),
        }.items()
    },
    **{
        f"bernoulli {dtype}": lambda key, shape, dtype=dtype: sr.bernoulli(key, shape, p=0.3, dtype=dtype)
        for dtype in (*FLOATING, torch.bool, torch.uint8, torch.int64)
    },
    **{f"bernoulli of {p}": lambda key, shape, p=p: sr.bernoulli(key, shape, p=p) for p in (0.0, 1 - 2.0**-33, 1.0)},
    "bernoulli each": _with_each,
    **{
        f"dropout {dtype}": lambda key, shape, dtype=dtype: _dropout_and_gradient(key, shape, dtype)
        for dtype in FLOATING
    },
    **{
        f"randint {low} to {high} {dtype}": lambda key, shape, low=low, high=high, dtype=dtype: sr.randint(
            key, shape, low=low, high=high, dtype=dtype
        )
        for low, high, dtype in (
            (-5, 5, torch.int8),
            (-128, 128, torch.int8),
            (0, 2**31 + 1, torch.int64),  # half of the words are rejected
            (-(2**31), 2**31, torch.int64),
            (0, 2**32 + 1, torch.uint64),
            (-(2**62) - 1, 2**62, torch.int64),  # half of the words are rejected
            (0, 2**64, torch.uint64),
        )
    },
    **{f"permutation of {n}": lambda key, shape, n=n: sr.permutation(_few(key), n) for n in (1, 40, 64, 65, 600)},
    "permute_index": lambda key, shape: torch.cat([
        sr.permute_index(each, torch.arange(n - 200, n, device=key.device), n)
        for n in (300, 2**31 + 5, 2**48)
        for each in _few(key).view(-1, 2)
    ]),
    "choice": lambda key, shape: sr.choice(key, 1000, shape),
    "choice without": lambda key, shape: sr.choice(_few(key), 5000, shape[-1:] if key.dim() == 1 else (3,), replace=False),
    "choice weighted": lambda key, shape: sr.choice(key, 7, shape, weights=_weights(key)),
    "categorical": lambda key, shape: sr.categorical(key, *shape, logits=_logits(key)),
}  # fmt: skip

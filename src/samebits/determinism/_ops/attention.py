"""Attention on the CPU, composed of products and softmax, for the scores that fit in a cache at a time.

Scores are (query scale) key + mask in float32 (float64 for float64), also for bfloat16 and float16; the
result is rounded once. A query that sees no key gets zeros, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.product import product, scratch_tensor
from samebits.arithmetic.reductions import MEMORY, lanes_type
from samebits.arithmetic.softmax import attention_weights, softmax_gradient
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import NotCoveredError, replacements

_SCORES = 1 << 18
"""Scores computed at a time on each thread, about: its core's cache holds them. At least one head's."""


def _flash(kernel: Kernel) -> Kernel:
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        takes("_scaled_dot_product_flash_attention_for_cpu", query.dtype)
        if not _valid(query, key, value, dropout_p, attn_mask, is_causal=is_causal):
            rest = (dropout_p, is_causal)
            return _of_torch(kernel, query, key, value, *rest, attn_mask=attn_mask, scale=scale)
        out, logsumexp = _empty_like(query), _empty_like(query[..., 0], lanes_type(query))
        q, (k, v) = _scaled(query, scale), (_wider(x, query.shape[1]) for x in (key, value))
        made = out if out.dtype == v.dtype else _empty_like(query, v.dtype)
        with _scores(query, key, v.dtype, 1) as memory:
            for some in _groups(query, key):
                mask = _masked(attn_mask, query, key, some)
                weights, sums = _weights(q[some], k[some], mask, memory[0], is_causal)
                _into(made[some], weights, _matrices(v[some]))
                logsumexp[some] = sums.view(logsumexp[some].shape)
        return out if made is out else out.copy_(made), logsumexp

    return attention


def _of_torch(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Calls torch's kernel, which raises, or has nothing to compute; what else it takes is not covered."""
    made = kernel(*args, **kwargs)
    if all(x.numel() for x in args[:3]):
        raise NotCoveredError("aten::scaled_dot_product_attention", "of these arguments")
    return made


Group = tuple[slice, slice]
"""Items of the batch, and their heads."""


def _sizes(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Returns the numbers of items and of heads that are computed at a time."""
    one, heads = query.shape[2] * key.shape[2], query.shape[1]
    fit = max(1, _SCORES * torch.get_num_threads() // one)
    return (min(len(query), fit // heads), heads) if fit >= heads else (1, fit)


def _groups(query: Tensor, key: Tensor) -> Iterator[Group]:
    """Yields groups computed at a time; heads of one item are read in place, several items are copied."""
    items, heads = _sizes(query, key)
    for start in range(0, len(query), items):
        for head in range(0, query.shape[1], heads):
            yield slice(start, start + items), slice(head, head + heads)


@contextmanager
def _scores(query: Tensor, key: Tensor, dtype: torch.dtype, count: int) -> Iterator[Tensor]:
    """Memory for the scores of a group, `count` times."""
    each = math.prod((*_sizes(query, key), query.shape[2], key.shape[2]))
    with scratch_tensor(count * each, dtype) as flat:
        yield flat.view(count, each)


def _masked(mask: Tensor | None, query: Tensor, key: Tensor, some: Group) -> Tensor | None:
    """Returns the part of a mask for some items of the batch."""
    return None if mask is None else mask.expand(*query.shape[:3], key.shape[2])[some]


def _factor(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[3]) if scale is None else scale


def _wider(x: Tensor, heads: int = 0) -> Tensor:
    """Returns the tensor in the type of the computation; a key's or value's heads are repeated to `heads`."""
    x = x.to(lanes_type(x))
    return x if heads in (0, x.shape[1]) else x.repeat_interleave(heads // x.shape[1], 1)


def _of_groups(grad: Tensor, x: Tensor) -> Tensor:
    """Returns the gradient of a key or value: the sum over the heads that share its heads, in its type."""
    if grad.shape[1] == x.shape[1]:
        return grad.to(x.dtype)
    shared = grad.unflatten(1, (x.shape[1], -1)).sum(2)
    return shared.to(x.dtype).transpose(1, 2).contiguous().transpose(1, 2)


def _scaled(query: Tensor, scale: float | None) -> Tensor:
    return _wider(query) * _factor(query, scale)


def _empty_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Returns an empty (batch, head, place, ...), stored by batch, place, head, like torch's results."""
    sizes = len(x), x.shape[2], x.shape[1], *x.shape[3:]
    return x.new_empty(sizes, dtype=dtype or x.dtype).transpose(1, 2)


def _product(a: Tensor, b: Tensor, memory: Tensor) -> Tensor:
    """Returns the products of batches of matrices, in that memory."""
    shape = (*a.shape[:2], b.shape[2])
    out = memory[: math.prod(shape)].view(shape)
    made = product(a, b, out=out)
    assert made is out  # `_valid` has looked at the types, and nothing is empty
    return out


def _into(out: Tensor, a: Tensor, b: Tensor, factor: float = 1) -> None:
    """Writes the products of batches of matrices to `out` (batch, head, place, width)."""
    for item, place in enumerate(out):
        heads = slice(item * len(place), (item + 1) * len(place))
        made = product(a[heads], b[heads], alpha=factor, out=place)
        assert made is place


def _valid(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, mask: Tensor | None, *, is_causal: bool
) -> bool:
    """Returns True for what torch's kernel takes."""
    return (
        query.dtype == key.dtype == value.dtype
        and query.dtype in MEMORY
        and query.dim() == key.dim() == value.dim() == 4
        and 0 not in (*query.shape, *key.shape)
        and len(query) == len(key) == len(value)
        and key.shape[1] == value.shape[1]
        and query.shape[1] % key.shape[1] == 0
        and query.shape[3] == key.shape[3] == value.shape[3]
        and key.shape[2] == value.shape[2]
        and dropout == 0
        and not (is_causal and mask is not None)
        and (mask is None or mask.dtype in (query.dtype, torch.float32))
    )


def _matrices(x: Tensor) -> Tensor:
    """Returns (batch x heads, places, width)."""
    return x[0] if len(x) == 1 else x.reshape(-1, *x.shape[2:])


def _weights(
    q: Tensor, k: Tensor, mask: Tensor | None, memory: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor]:
    queries, keys = _matrices(q), _matrices(k).transpose(1, 2)
    scores = _product(queries, keys, memory)
    if mask is not None:
        scores.view(mask.shape).add_(mask)
    weights, sums = attention_weights(scores, q.shape[2] if is_causal else 0)
    if mask is not None and sums.isnan().any():
        again = product(queries, keys)
        assert again is not None
        scores = again.view(mask.shape) + mask
        blind = (scores == float("-inf")).all(-1).view(sums.shape)
        weights, sums = weights.masked_fill_(blind.unsqueeze(-1), 0), sums.masked_fill_(blind, 0)
    return weights, sums


def _flash_backward(kernel: Kernel) -> Kernel:
    def gradients(
        grad_out: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        logsumexp: Tensor,
        dropout_p: float,
        is_causal: bool,
        *,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
    ) -> Any:
        takes("_scaled_dot_product_flash_attention_for_cpu_backward", query.dtype)
        if not _valid(query, key, value, dropout_p, attn_mask, is_causal=is_causal):
            rest = (value, out, logsumexp, dropout_p, is_causal)
            return _of_torch(kernel, grad_out, query, key, *rest, attn_mask=attn_mask, scale=scale)
        if grad_out is None:
            return None, None, None
        q, (k, v, g) = _scaled(query, scale), (_wider(x, query.shape[1]) for x in (key, value, grad_out))
        made = [_empty_like(x) for x in (q, k, v)]
        with _scores(query, key, v.dtype, 2) as memory:
            for some in _groups(query, key):
                mask = _masked(attn_mask, query, key, some)
                weights, _ = _weights(q[some], k[some], mask, memory[0], is_causal)
                errors = _matrices(g[some])
                slopes = _product(errors, _matrices(v[some]).transpose(1, 2), memory[1])
                softmax_gradient(slopes, weights, -1, weights.dtype, log=False, out=slopes)
                _into(made[0][some], slopes, _matrices(k[some]), _factor(query, scale))
                _into(made[1][some], slopes.transpose(1, 2), _matrices(q[some]))
                _into(made[2][some], weights.transpose(1, 2), errors)
        return tuple(_of_groups(one, x) for one, x in zip(made, (query, key, value), strict=True))

    return gradients


def _multi_head(kernel: Kernel) -> Kernel:
    """The fast path of `nn.MultiheadAttention` in evaluation."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        embed_dim: int,
        num_head: int,
        qkv_weight: Tensor,
        qkv_bias: Tensor,
        proj_weight: Tensor,
        proj_bias: Tensor,
        mask: Tensor | None = None,
        need_weights: bool = True,
        average_attn_weights: bool = True,
        mask_type: int | None = None,
    ) -> Any:
        takes("_native_multi_head_attention", query.dtype)
        valid = query.dim() == 3 and embed_dim % num_head == 0 and not query.is_nested and query.numel() > 0
        if not valid or query.dtype not in MEMORY or key.shape != value.shape:
            return _of_torch(
                kernel,
                *(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias),
                *(mask, need_weights, average_attn_weights, mask_type),
            )
        heads = [
            torch.addmm(b, x.reshape(-1, embed_dim), w.t())
            .view(*x.shape[:2], num_head, -1)
            .transpose(1, 2)
            .reshape(-1, x.shape[1], embed_dim // num_head)
            for x, w, b in zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        ]
        scores = torch.bmm(heads[0] * (1 / math.sqrt(embed_dim // num_head)), heads[1].transpose(1, 2))
        scores = scores.view(len(query), num_head, query.shape[1], key.shape[1])
        if mask is None:
            weights = torch.softmax(scores, -1)
        else:
            weights = torch._masked_softmax(scores, mask.to(torch.bool), 3, mask_type)
        made = torch.bmm(weights.view(-1, *weights.shape[2:]), heads[2]).view(*weights.shape[:3], -1)
        made = made.transpose(1, 2).reshape(-1, embed_dim)
        out = torch.addmm(proj_bias, made, proj_weight.t()).view(query.shape)
        if not need_weights:
            return out, None
        return out, weights.mean(1) if average_attn_weights else weights

    return attention


@contextmanager
def one_path() -> Iterator[None]:
    """A block in which evaluation runs the ops of training, without the layout of nested tensors."""
    mha = torch.backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


_REASON = (
    "one opaque kernel, with the vendor's products and sums of the machine's lanes: composed of ops that are "
    "covered"
)

REPLACEMENTS = (
    *replacements(["_scaled_dot_product_flash_attention_for_cpu"], _flash, _REASON),
    *replacements(["_scaled_dot_product_flash_attention_for_cpu_backward"], _flash_backward, _REASON),
    *replacements(["_native_multi_head_attention"], _multi_head, _REASON),
)

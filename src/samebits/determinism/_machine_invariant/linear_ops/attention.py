"""Attention on the CPU, composed of the products of matrices, softmax and copies, all through the dispatcher.

Scores are (query scale) key + mask in float32 (float64 for float64), also for bfloat16 and float16; the result is rounded
once. A query that sees no key gets zeros, as in torch.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits.determinism._arithmetic.reductions.tensors import MEMORY
from samebits.determinism._arithmetic.softmax.tensors import attention_weights, softmax_gradient
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._machine_invariant.operands import takes
from samebits.determinism._replacement import replacements


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
            return kernel(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)
        _, k, v = (_matrices(t) for t in (query, key, value))
        weights, sums = _weights(_scaled(query, scale), k, query, attn_mask, is_causal=is_causal)
        out = torch.bmm(weights, v).view(*query.shape[:3], value.shape[3])
        # As torch: in the order batch, query, head.
        out = out.transpose(1, 2).to(query.dtype).contiguous().transpose(1, 2)
        return out, sums.view(query.shape[:3]).transpose(1, 2).contiguous().transpose(1, 2)

    return attention


def _valid(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, mask: Tensor | None, *, is_causal: bool
) -> bool:
    """Returns True for what torch's kernel takes."""
    return (
        query.dtype == key.dtype == value.dtype
        and query.dtype in MEMORY
        and query.dim() == key.dim() == value.dim() == 4
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.shape[3] == key.shape[3] == value.shape[3]
        and key.shape[2] == value.shape[2]
        and 0 not in (*query.shape, *key.shape)
        and dropout == 0
        and not (is_causal and mask is not None)
        and (mask is None or mask.dtype in (query.dtype, torch.float32))
    )


def _matrices(x: Tensor) -> Tensor:
    """Returns (batch x heads, places, width) in the type that is computed in."""
    x = x if x.dtype == torch.float64 else x.float()
    return x.reshape(-1, *x.shape[2:])


def _scaled(query: Tensor, scale: float | None) -> Tensor:
    return _matrices(query) * (1 / math.sqrt(query.shape[3]) if scale is None else scale)


def _weights(
    q: Tensor, k: Tensor, query: Tensor, mask: Tensor | None, *, is_causal: bool
) -> tuple[Tensor, Tensor]:
    scores = torch.bmm(q, k.transpose(1, 2))
    if mask is not None:
        scores.view(*query.shape[:3], k.shape[1]).add_(mask)
    weights, sums = attention_weights(scores.contiguous(), query.shape[2] if is_causal else 0)
    if mask is not None and sums.isnan().any():
        scores = torch.bmm(q, k.transpose(1, 2)).view(*query.shape[:3], k.shape[1]) + mask
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
            rest = (out, logsumexp, dropout_p, is_causal)
            return kernel(grad_out, query, key, value, *rest, attn_mask=attn_mask, scale=scale)
        if grad_out is None:
            return None, None, None
        factor = 1 / math.sqrt(query.shape[3]) if scale is None else scale
        q, k, v, g = _scaled(query, factor), *(_matrices(t) for t in (key, value, grad_out))
        weights, _ = _weights(q, k, query, attn_mask, is_causal=is_causal)
        slopes = softmax_gradient(torch.bmm(g, v.transpose(1, 2)), weights, -1, weights.dtype, log=False)
        made = (
            (torch.bmm(slopes, k) * factor, query),
            (torch.bmm(slopes.transpose(1, 2), q), key),
            (torch.bmm(weights.transpose(1, 2), g), value),
        )
        return tuple(_like(made_, like) for made_, like in made)

    return gradients


def _like(grad: Tensor, x: Tensor) -> Tensor:
    """Returns a gradient in the shape of its operand, in the order batch, place, head, as torch does."""
    return grad.view(x.shape).transpose(1, 2).to(x.dtype).contiguous().transpose(1, 2)


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
            raise_it = kernel  # torch's kernel says what is wrong
            return raise_it(
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


_REASON = "one opaque kernel, with the vendor's products and sums of the machine's lanes: composed of ops that are covered"

REPLACEMENTS = (
    *replacements(["_scaled_dot_product_flash_attention_for_cpu"], _flash, _REASON, only_machine=True),
    *replacements(
        ["_scaled_dot_product_flash_attention_for_cpu_backward"], _flash_backward, _REASON, only_machine=True
    ),
    *replacements(["_native_multi_head_attention"], _multi_head, _REASON, only_machine=True),
)

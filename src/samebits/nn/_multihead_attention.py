"""Multi-head attention whose dropout of attention weights is drawn from the module's key."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from samebits.nn._layer_keys import OwnsRandomness
from samebits.nn._masks import dropout, probability

# Torch's functions, from a stub that lacks them.
_shape_check, _project_packed, _project = (
    getattr(F, name) for name in ("_mha_shape_check", "_in_projection_packed", "_in_projection")
)


class MultiheadAttention(OwnsRandomness, torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` that owns its randomness. Arguments as torch's, and `name`.

    In training with dropout the attention weights are computed explicitly, as torch does on the CPU and
    wherever `need_weights=True`; in eval mode, or without dropout, torch's forward and its kernels run.

    Example:
        >>> layer, x = samebits.nn.MultiheadAttention(4, num_heads=2, dropout=0.5), torch.ones(5, 4)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> output, weights = layer(x, x, x)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(x, x, x)[0], output), torch.equal(layer(x, x, x)[0], output)
        (True, False)
    """

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs torch's forward: query (L, N, E), (N, L, E) if batch_first, or (L, E); key, value: S for L.

        Returns the output, of the query's shape, and the attention weights after dropout if `need_weights`:
        (N, L, S), or (N, heads, L, S) unless averaged; without N for an unbatched query.
        """
        p = probability(self, self.dropout)
        if not self.training or p == 0.0:
            return super().forward(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
            )
        batched = _shape_check(query, key, value, key_padding_mask, attn_mask, self.num_heads)
        if self.batch_first and batched:
            query, key, value = self._sequence_first(query, key, value)
        if not batched:
            query, key, value = (x.unsqueeze(1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        # Torch then ignores attn_mask's values.
        causal = is_causal and key_padding_mask is None and not need_weights
        mask = self._mask(query, key, attn_mask, key_padding_mask, is_causal=is_causal)
        q, k, v = self._heads(query, key, value)
        if causal:
            mask = _causal_mask(q, k)
        weights = _weights(q, k, mask, rows_may_be_empty=not need_weights)
        weights = dropout(self.next_key(query.device), weights, p)
        output = self._output(torch.bmm(weights, v), query.shape)
        if self.batch_first and batched:
            output = output.transpose(1, 0)
        shown = (
            self._returned_weights(weights, query.shape[1], average_attn_weights) if need_weights else None
        )
        if batched:
            return output, shown
        return output.squeeze(1), None if shown is None else shown.squeeze(0)

    def _sequence_first(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Transposes inputs; equal inputs stay one tensor, so that they are projected in one product."""
        turned = {id(x): x.transpose(1, 0) for x in inputs}
        return tuple(turned[id(x)] for x in inputs)

    def _mask(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        attn_mask: torch.Tensor | None,
        padding: torch.Tensor | None,
        *,
        is_causal: bool,
    ) -> torch.Tensor | None:
        """Returns the sum of both masks, to add to the scores: (1 or N * heads, L or 1, S and added keys)."""
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")  # torch's words
        length, batch, source = query.shape[0], query.shape[1], key.shape[0]
        added = (self.bias_k is not None) + self.add_zero_attn
        if padding is not None:
            padding = F._canonical_mask(
                padding, "key_padding_mask", F._none_or_dtype(attn_mask), "attn_mask", query.dtype
            )
            assert padding is not None
            padding = F.pad(padding, (0, added)).view(batch, 1, 1, source + added)
            padding = padding.expand(-1, self.num_heads, -1, -1)
            padding = padding.reshape(batch * self.num_heads, 1, source + added)
        if attn_mask is None:
            return padding
        attn_mask = F._canonical_mask(attn_mask, "attn_mask", None, "", query.dtype, check_other=False)
        assert attn_mask is not None
        expected = (length, source) if attn_mask.dim() == 2 else (batch * self.num_heads, length, source)
        if attn_mask.shape != expected:
            raise RuntimeError(f"The shape of the attn_mask is {attn_mask.shape}, but should be {expected}.")
        attn_mask = F.pad(attn_mask if attn_mask.dim() == 3 else attn_mask.unsqueeze(0), (0, added))
        return attn_mask if padding is None else attn_mask + padding

    def _heads(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
        """Returns projected queries, keys and values, each (N * heads, L or S, head's size)."""
        if self._qkv_same_embed_dim:
            q, k, v = _project_packed(query, key, value, self.in_proj_weight, self.in_proj_bias)
        else:
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            q, k, v = _project(query, key, value, *weights, *biases)
        batch = query.shape[1]
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.repeat(1, batch, 1)])
            v = torch.cat([v, self.bias_v.repeat(1, batch, 1)])
        q, k, v = (
            x.view(x.shape[0], batch * self.num_heads, self.head_dim).transpose(0, 1) for x in (q, k, v)
        )
        if self.add_zero_attn:
            k, v = (torch.cat([x, x.new_zeros(x.shape[0], 1, x.shape[2])], dim=1) for x in (k, v))
        return [q, k, v]

    def _output(self, heads: torch.Tensor, shape: torch.Size) -> torch.Tensor:
        """Concatenates the heads' results (N * heads, L, head's size) and projects them: (L, N, E)."""
        length, batch, _ = shape
        joined = heads.transpose(0, 1).reshape(length * batch, self.embed_dim)
        return F.linear(joined, self.out_proj.weight, self.out_proj.bias).view(length, batch, -1)

    def _returned_weights(self, weights: torch.Tensor, batch: int, average: bool) -> torch.Tensor:
        weights = weights.view(batch, self.num_heads, *weights.shape[1:])
        return weights.mean(dim=1) if average else weights


def _weights(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, *, rows_may_be_empty: bool
) -> torch.Tensor:
    """Returns softmax(q k^T / sqrt(size) + mask) of F.multi_head_attention_forward, (N * heads, L, S).

    A fully masked row is NaN there, and zero in F.scaled_dot_product_attention (without `need_weights`).
    """
    scaled = q * math.sqrt(1.0 / q.shape[-1])
    turned = k.transpose(-2, -1)
    scores = torch.bmm(scaled, turned) if mask is None else torch.baddbmm(mask, scaled, turned)
    return torch.ops.aten._safe_softmax(scores, -1) if rows_may_be_empty else F.softmax(scores, dim=-1)


def _causal_mask(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Returns the mask of keys after query i, to be added to the scores, (1, L, S)."""
    hidden = torch.full((q.shape[1], k.shape[1]), -math.inf, dtype=q.dtype, device=q.device)
    return hidden.triu_(1).unsqueeze(0)

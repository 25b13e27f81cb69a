"""Calls of convolutions, normalisations, attention and recurrent layers, with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from elementwise import _tried
from operands import FLOATS, tensor, with_gradients
from torch import nn

Cases = Iterator[tuple[str, Callable[[], Any]]]
CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((5, 6, 301), (8, 6, 5), {"padding": 2}),
    "1d.stride": ((2, 6, 1001), (4, 3, 7), {"stride": 3, "groups": 2}),
    "2d": ((9, 3, 31, 29), (16, 3, 3, 3), {"padding": 1}),
    "2d.one": ((1, 16, 28, 28), (8, 16, 3, 3), {}),
    "2d.pointwise": ((8, 32, 14, 14), (16, 32, 1, 1), {}),
    "2d.depthwise": ((6, 12, 20, 21), (12, 1, 3, 3), {"groups": 12, "padding": 1}),
    "2d.dilated": ((4, 5, 33, 35), (7, 5, 3, 5), {"dilation": 2, "stride": (2, 1)}),
    "2d.large": ((33, 16, 16, 16), (32, 16, 5, 5), {"padding": 2}),
    "3d": ((3, 2, 9, 10, 11), (4, 2, 3, 3, 3), {"padding": 1}),
    "transposed1d": ((5, 6, 101), (6, 4, 5), {"stride": 2}),
    "transposed2d": ((7, 8, 13, 15), (8, 5, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "transposed2d.groups": ((4, 8, 13, 15), (8, 3, 3, 3), {"groups": 2}),
    "transposed3d": ((2, 4, 5, 6, 7), (4, 3, 3, 3, 3), {"stride": 2}),
}


def convolutions() -> Cases:
    """Each kind, with channels first and last, with and without bias."""
    for dtype in (*FLOATS, torch.float16):
        for name, (size, kernel, options) in CONVOLUTIONS.items():
            yield (
                f"{name}/{str(dtype)[6:]}",
                partial(_tried, partial(_convolved, name, size, kernel, options, dtype)),
            )


def _convolved(name: str, size: Any, kernel: Any, options: dict[str, Any], dtype: torch.dtype) -> list[Any]:
    transposed = name.startswith("transposed")
    function = partial(getattr(F, f"conv{'_transpose' * transposed}{len(size) - 2}d"), **options)
    x, weight = tensor(*size, dtype=dtype), tensor(*kernel, dtype=dtype, seed=2)
    bias = tensor(kernel[1] * options.get("groups", 1) if transposed else kernel[0], dtype=dtype)
    out = [
        with_gradients(function, x, weight, bias),
        with_gradients(function, x[:1], weight),
        with_gradients(function, x[..., ::2].detach(), weight),
    ]
    if len(size) == 4:
        out.append(
            with_gradients(
                function,
                x.to(memory_format=torch.channels_last),
                weight.to(memory_format=torch.channels_last),
                bias,
            )
        )
    return out


def normalizations() -> Cases:
    """Layer, batch, group, instance and RMS normalisation, local response, gated units."""
    for dtype in FLOATS:
        for name, run in _normalized(dtype).items():
            yield f"{name}/{str(dtype)[6:]}", partial(_tried, run)


def _normalized(dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    calls: dict[str, Callable[[], Any]] = {}
    for rows, width in ((1, 4099), (331, 65), (4099, 7)):
        x, w, b = (
            tensor(rows, width, dtype=dtype),
            tensor(width, dtype=dtype),
            tensor(width, dtype=dtype, seed=2),
        )
        calls[f"layer_norm.{rows}"] = lambda x=x, w=w, b=b: [
            with_gradients(lambda x, w, b: F.layer_norm(x, w.shape, w, b), y, w, b)
            for y in (x, x.mT.contiguous().mT)
        ]
        calls[f"rms_norm.{rows}"] = lambda x=x, w=w: with_gradients(
            lambda x, w: F.rms_norm(x, w.shape, w), x, w
        )
    for name, size in {
        "1d": (513, 12),
        "2d": (9, 12, 17, 19),
        "2d.one": (1, 12, 57, 59),
        "3d": (3, 12, 5, 6, 7),
        "long": (5, 12, 3001),
    }.items():
        x, w, b = tensor(*size, dtype=dtype), tensor(12, dtype=dtype), tensor(12, dtype=dtype, seed=2)
        images = [
            x,
            *([x.to(memory_format=torch.channels_last)] if len(size) == 4 else []),
            x.transpose(0, -1).contiguous().transpose(0, -1),
        ]
        for training in (True, False):
            calls[f"batch_norm.{name}.{training}"] = lambda i=images, w=w, b=b, t=training: [
                _batch_norm(x, w, b, t) for x in i
            ]
        calls[f"group_norm.{name}"] = lambda i=images, w=w, b=b: [
            with_gradients(lambda x, w, b: F.group_norm(x, 3, w, b), x, w, b) for x in i
        ]
        if len(size) > 2:
            calls[f"instance_norm.{name}"] = lambda i=images, w=w, b=b: [
                with_gradients(lambda x, w, b: F.instance_norm(x, weight=w, bias=b), x, w, b) for x in i
            ]
            calls[f"local_response.{name}"] = lambda x=x: with_gradients(
                lambda x: F.local_response_norm(x, 3), x
            )
        calls[f"glu.{name}"] = lambda i=images: [with_gradients(lambda x: F.glu(x, 1), x) for x in i]
    return calls


def _batch_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, training: bool) -> list[Any]:
    mean, var = torch.zeros_like(w), torch.ones_like(w)
    out = with_gradients(lambda x, w, b: F.batch_norm(x, mean, var, w, b, training), x, w, b)
    if training:
        aten = torch.ops.aten
        y, *saved, reserve = aten._batch_norm_with_update(x, w, b, mean.clone(), var.clone(), 0.1, 1e-5)
        out += [
            y,
            *saved,
            *aten.batch_norm_backward(y, x, w, mean, var, *saved, True, 1e-5, [True] * 3, reserve),
        ]
    return [out, mean, var]


def attention() -> Cases:
    """Scaled dot products: causal, masked, grouped heads, long and odd; the layer; embeddings of a transformer's block."""
    for dtype in (*FLOATS, torch.float16):
        for name, (length, options) in {
            "plain": (65, {}), "causal": (129, {"is_causal": True}), "masked": (65, {"attn_mask": torch.ones(65, 65).tril(9).bool()}),
            "biased": (65, {"attn_mask": tensor(65, 65, dtype=dtype)}), "long": (1025, {}), "one": (1, {}), "scaled": (33, {"scale": 0.3}),
        }.items():  # fmt: skip
            q, k, v = (tensor(2, 4, length, 24, dtype=dtype, seed=seed) for seed in range(3))
            yield (
                f"{name}/{str(dtype)[6:]}",
                partial(with_gradients, partial(F.scaled_dot_product_attention, **options), q, k, v),
            )
        q, k = tensor(2, 8, 65, 16, dtype=dtype), tensor(2, 2, 65, 16, dtype=dtype, seed=1)
        yield (
            f"grouped/{str(dtype)[6:]}",
            partial(with_gradients, partial(F.scaled_dot_product_attention, enable_gqa=True), q, k, k),
        )
        yield (
            f"layer/{str(dtype)[6:]}",
            partial(_layer, lambda: nn.MultiheadAttention(32, 4, batch_first=True), (5, 33, 32), dtype, 3),
        )
        yield (
            f"encoder/{str(dtype)[6:]}",
            partial(_layer, lambda: nn.TransformerEncoderLayer(32, 4, 64, 0.0), (33, 5, 32), dtype, 1),
        )


def recurrent() -> Cases:
    """RNN, LSTM, GRU: layers, both directions, batches first, packed; and their cells."""
    kinds = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}
    shapes = {"plain": (1, False, False), "both": (2, True, False), "first": (2, False, True)}
    for dtype in FLOATS:
        for kind, make in kinds.items():
            for shape, (depth, both, first) in shapes.items():
                layer = partial(make, 17, 33, depth, bidirectional=both, batch_first=first)
                yield f"{kind}.{shape}/{str(dtype)[6:]}", partial(_layer, layer, (19, 9, 17), dtype, 1)
        for cell in (nn.RNNCell, nn.LSTMCell, nn.GRUCell):
            yield (
                f"{cell.__name__}/{str(dtype)[6:]}",
                partial(_layer, partial(cell, 17, 33), (65, 17), dtype, 1),
            )


def _layer(make: Callable[[], nn.Module], size: tuple[int, ...], dtype: torch.dtype, times: int) -> list[Any]:
    layer = make().to(dtype)
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(tensor(*parameter.shape, dtype=dtype, low=-0.3, high=0.3, seed=number))
    x = tensor(*size, dtype=dtype).requires_grad_()
    outs = layer(*[x] * times)
    out = outs[0] if isinstance(outs, tuple) else outs
    out.square().sum().backward()
    with torch.no_grad():
        evaluated = layer.eval()(*[x] * times)
    first = evaluated[0] if isinstance(evaluated, tuple) else evaluated
    return [out, x.grad, [p.grad for p in layer.parameters()], first]

"""LSTM layers of float32 and bfloat16: products and one kernel a step. Others are composed of covered ops.

Under autocast a layer is one of bfloat16, outputs and states too, as oneDNN's is; torch would compose it of
both types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from samebits.arithmetic.lstm import DTYPES, LstmMemory, lstm_gradients, lstm_outputs
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import Replacement


class _LstmLayer(torch.autograd.Function):
    """One direction of a layer: outputs (steps, batch, hidden), the last h and the last c."""

    @staticmethod
    def forward(ctx: Any, composed: Kernel, x: Tensor, h: Tensor, c: Tensor, *parameters: Tensor) -> Any:
        biases = (parameters[2], parameters[3]) if len(parameters) == 4 else None
        made = lstm_outputs(x, h, c, (parameters[0], parameters[1]), biases)
        ctx.composed = composed
        ctx.save_for_backward(x, h, c, *parameters, *made)
        return (
            made.outputs[1:],
            made.outputs[-1].clone(),
            made.c[-1].t().contiguous(),
        )

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        x, h, c, *parameters = saved[:-4]
        if torch.is_grad_enabled():  # a gradient that is differentiated again
            outputs = ctx.composed(x, [h.unsqueeze(0), c.unsqueeze(0)], parameters)
            states = [one.unsqueeze(0) for one in grads[1:]]
            wanted = [one for one in (x, h, c, *parameters) if one.requires_grad]
            found = iter(torch.autograd.grad(outputs, wanted, [grads[0], *states], create_graph=True))
            return None, *(next(found) if one.requires_grad else None for one in (x, h, c, *parameters))
        of_x, of_h, of_c, of_weights, of_bias = lstm_gradients(
            x, (parameters[0], parameters[1]), LstmMemory(*saved[-4:]), *grads
        )
        biases = (of_bias, of_bias.clone()) if len(parameters) == 4 else ()
        return None, of_x, of_h, of_c, *of_weights, *biases


def _lstm(kernel: Kernel) -> Kernel:
    def lstm(
        input: Tensor,  # noqa: A002 (torch's name)
        hx: Sequence[Tensor],
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        if torch.is_autocast_enabled("cpu"):
            input, hx, params = _autocast(input, hx, params)  # noqa: A001
        per_layer = 4 if has_biases else 2
        directions = 2 if bidirectional else 1
        if not (
            _takes(input, hx, params)
            and _fit(input, hx, params, per_layer, directions, num_layers, batch_first=batch_first)
        ):
            return kernel(
                input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
            )

        def composed(x: Tensor, states: Sequence[Tensor], parameters: Sequence[Tensor]) -> Any:
            return kernel(x, states, parameters, has_biases, 1, 0.0, train, False, False)

        x = input.transpose(0, 1) if batch_first else input
        last: list[list[Tensor]] = [[], []]
        for layer in range(num_layers):
            outputs = []
            for direction in range(directions):
                place = directions * layer + direction
                given = x.flip(0) if direction else x
                own = params[per_layer * place : per_layer * (place + 1)]
                y, h, c = _LstmLayer.apply(composed, given, hx[0][place], hx[1][place], *own)
                outputs.append(y.flip(0) if direction else y)
                last[0].append(h)
                last[1].append(c)
            x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
            if dropout and train and layer < num_layers - 1:
                x = torch.dropout(x, dropout, train)
        return x.transpose(0, 1) if batch_first else x, torch.stack(last[0]), torch.stack(last[1])

    return lstm


def _autocast(x: Tensor, *lists: Sequence[Tensor]) -> Any:
    """Returns the tensors in autocast's type if that is one of ours, as torch hands them to oneDNN."""
    dtype = torch.get_autocast_dtype("cpu")
    every = (x, *lists[0], *lists[1])
    if dtype not in DTYPES or not all(one.dtype in (dtype, torch.float32) for one in every):
        return x, *lists
    return x.to(dtype), *([one.to(dtype) for one in tensors] for tensors in lists)


def _takes(x: Tensor, states: Sequence[Tensor], parameters: Sequence[Tensor]) -> bool:
    """Returns True for dense tensors of one of the types that nothing but the reverse mode differentiates."""
    every = (x, *states, *parameters)
    return (
        x.dtype in DTYPES
        and all(type(one) in (Tensor, torch.nn.Parameter) for one in every)
        and all(one.dtype == x.dtype and one.layout == torch.strided for one in every)
        and forward_ad._current_level < 0
    )


def _fit(
    x: Tensor,
    states: Sequence[Tensor],
    parameters: Sequence[Tensor],
    per_layer: int,
    directions: int,
    layers: int,
    *,
    batch_first: bool,
) -> bool:
    """Returns True for shapes that fit together, without projections; torch's function explains others."""
    if x.dim() != 3 or len(states) != 2 or states[0].dim() != 3 or x.numel() * states[0].numel() == 0:
        return False
    batch, hidden = x.shape[0 if batch_first else 1], states[0].shape[2]
    expected = []
    for layer in range(layers):
        features = x.shape[2] if layer == 0 else directions * hidden
        shapes = [(4 * hidden, features), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
        expected += directions * shapes[:per_layer]
    return [tuple(one.shape) for one in parameters] == expected and all(
        one.shape == (layers * directions, batch, hidden) for one in states
    )


_REASON = "oneDNN has one opaque kernel, and torch composes the layer of some twenty small ops for each step"

REPLACEMENTS = (Replacement("aten::lstm.input", _lstm, _REASON, device="AutogradCPU"),)


# LSTM layers are composed of products, sigmoid and tanh, which are covered: oneDNN has one opaque kernel
# for them.


@contextmanager
def composed() -> Iterator[None]:
    """A block in which torch composes LSTM layers: its oneDNN flag is off, which other covered ops ignore."""
    torchs = torch._C  # at the end of the process the module's own names are gone
    before = torchs._get_mkldnn_enabled()
    torchs._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torchs._set_mkldnn_enabled(before)

"""LSTM and GRU layers of float32 and bfloat16: products, and one kernel a step. torch composes others.

Under autocast an LSTM layer is one of bfloat16, outputs and states too, as oneDNN's is, where torch would
compose it of both types; of both types torch composes a GRU layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from samebits.arithmetic.recurrent import (
    DTYPES,
    GRU,
    LSTM,
    LayerMemory,
    Recurrence,
    layer_gradients,
    layer_outputs,
)
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import replacements


class _Layer(torch.autograd.Function):
    """One direction of a layer: outputs (steps, batch, hidden), and the last states."""

    @staticmethod
    def forward(ctx: Any, kind: Recurrence, composed: Kernel, x: Tensor, *given: Tensor) -> Any:
        ctx.states = 1 + kind.has_c
        states, parameters = given[: ctx.states], given[ctx.states :]
        biases = (parameters[2], parameters[3]) if len(parameters) == 4 else None
        made = layer_outputs(kind, x, states, (parameters[0], parameters[1]), biases)
        ctx.kind, ctx.composed = kind, composed
        ctx.save_for_backward(x, *given, *made)
        last = [made.outputs[-1].clone()]
        if kind.has_c:
            last.append(made.states[-1].t().contiguous())
        return made.outputs[1:], *last

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        inputs = saved[:-3]
        x, states, parameters = inputs[0], inputs[1 : 1 + ctx.states], inputs[1 + ctx.states :]
        if torch.is_grad_enabled():  # a gradient that is differentiated again
            outputs = ctx.composed(x, [one.unsqueeze(0) for one in states], parameters)
            of_states = [one.unsqueeze(0) for one in grads[1:]]
            wanted = [one for one in inputs if one.requires_grad]
            found = iter(torch.autograd.grad(outputs, wanted, [grads[0], *of_states], create_graph=True))
            return None, None, *(next(found) if one.requires_grad else None for one in inputs)
        of_x, of_states, of_weights, of_biases = layer_gradients(
            ctx.kind, x, (parameters[0], parameters[1]), LayerMemory(*saved[-3:]), grads[0], grads[1:]
        )
        return None, None, of_x, *of_states, *of_weights, *(of_biases if len(parameters) == 4 else ())


def _replaced(kind: Recurrence, kernel: Kernel) -> Kernel:
    def recurrent(
        input: Tensor,  # noqa: A002 (torch's name)
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        is_autocast = torch.is_autocast_enabled("cpu")
        if is_autocast and kind.has_c:
            input, hx, params = _autocast(input, hx, params)  # noqa: A001
        states = hx if kind.has_c else [hx]
        per_layer = 4 if has_biases else 2
        directions = 2 if bidirectional else 1
        if (
            (is_autocast and not kind.has_c)
            or not _takes(input, states, params)
            or not _fit(kind, input, states, params, per_layer, directions, num_layers, batch_first)
        ):
            return kernel(
                input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first
            )

        def composed(x: Tensor, states: Sequence[Tensor], parameters: Sequence[Tensor]) -> Any:
            given = states if kind.has_c else states[0]
            return kernel(x, given, parameters, has_biases, 1, 0.0, train, False, False)

        x = input.transpose(0, 1) if batch_first else input
        last: list[list[Tensor]] = [[] for _ in states]
        for layer in range(num_layers):
            outputs = []
            for direction in range(directions):
                place = directions * layer + direction
                given = x.flip(0) if direction else x
                own = params[per_layer * place : per_layer * (place + 1)]
                y, *made = _Layer.apply(kind, composed, given, *(one[place] for one in states), *own)
                outputs.append(y.flip(0) if direction else y)
                for every, one in zip(last, made, strict=True):
                    every.append(one)
            x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
            if dropout and train and layer < num_layers - 1:
                x = torch.dropout(x, dropout, train)
        return x.transpose(0, 1) if batch_first else x, *map(torch.stack, last)

    return recurrent


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
    kind: Recurrence,
    x: Tensor,
    states: Sequence[Tensor],
    parameters: Sequence[Tensor],
    per_layer: int,
    directions: int,
    layers: int,
    batch_first: bool,
) -> bool:
    """Returns True for shapes that fit together, without projections; torch's function explains others."""
    if (
        x.dim() != 3
        or len(states) != 1 + kind.has_c
        or states[0].dim() != 3
        or x.numel() * states[0].numel() == 0
    ):
        return False
    batch, hidden = x.shape[0 if batch_first else 1], states[0].shape[2]
    if x.dtype == torch.bfloat16 and kind.gates * hidden % 2:  # the gradient's products take pairs
        return False
    expected = []
    for layer in range(layers):
        features = x.shape[2] if layer == 0 else directions * hidden
        rows = kind.gates * hidden
        shapes = [(rows, features), (rows, hidden), (rows,), (rows,)]
        expected += directions * shapes[:per_layer]
    return [tuple(one.shape) for one in parameters] == expected and all(
        one.shape == (layers * directions, batch, hidden) for one in states
    )


_COMPOSED = "torch composes the layer of some twenty small ops for each step"
REPLACEMENTS = (
    *replacements(
        ["lstm.input"],
        partial(_replaced, LSTM),
        f"oneDNN has one opaque kernel, and {_COMPOSED}",
        "AutogradCPU",
    ),
    *replacements(["gru.input"], partial(_replaced, GRU), _COMPOSED, "AutogradCPU"),
)


@contextmanager
def composed() -> Iterator[None]:
    """A block in which torch composes recurrent layers: oneDNN's flag is off. Other covered ops ignore it."""
    torchs = torch._C  # at the end of the process the module's own names are gone
    before = torchs._get_mkldnn_enabled()
    torchs._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torchs._set_mkldnn_enabled(before)

"""One direction of an LSTM layer: products of the definition, and one kernel for each step's cell.

Inside, states are stored with the batch last, (features, batch): a gate is then one dense piece of memory, and no weight is
transposed. The outputs have the bits of the ops that torch composes the layer of; the gradient of a weight is one chain over
steps and batch, in this order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits.determinism._arithmetic.elementwise_kernel import ElementwiseKernel
from samebits.determinism._arithmetic.functions.recurrent_cells import lstm_cell, lstm_cell_backward
from samebits.determinism._arithmetic.product import product

_CELL = ElementwiseKernel(lstm_cell, "float32", "lstm_cell", inputs=9, outputs=7)
_CELL_BACKWARD = ElementwiseKernel(lstm_cell_backward, "float32", "lstm_cell_backward", inputs=8, outputs=5)


class LstmMemory(NamedTuple):
    """Saved for the gradient, per step: gates (steps, 4, hidden, batch), states (steps + 1, hidden, batch), tanh(c)."""

    gates: Tensor
    h: Tensor
    c: Tensor
    squashed: Tensor


def lstm_outputs(
    x: Tensor, h: Tensor, c: Tensor, weights: tuple[Tensor, Tensor], biases: tuple[Tensor, Tensor] | None
) -> LstmMemory:
    """Returns all that the steps make of inputs (steps, batch, features) and the first states (batch, hidden).

    `weights` (4 hidden, features) and (4 hidden, hidden), `biases` (4 hidden), as `torch.nn.LSTM` orders its gates.
    """
    steps, batch, _ = x.shape
    hidden = h.shape[1]
    made = LstmMemory(
        x.new_empty(steps, 4, hidden, batch),
        x.new_empty(steps + 1, hidden, batch),
        x.new_empty(steps + 1, hidden, batch),
        x.new_empty(steps, hidden, batch),
    )
    made.h[0], made.c[0] = h.t(), c.t()
    of_x, of_h = (None, None) if biases is None else (bias.unsqueeze(1) for bias in biases)
    pieces = _product(weights[0].expand(steps, -1, -1), x.transpose(1, 2), of_x)
    for step in range(steps):
        fed_back = _product(weights[1], made.h[step], of_h)
        _run(
            _CELL,
            hidden * batch,
            (*fed_back.view(4, -1), *pieces[step].view(4, -1), made.c[step]),
            (*made.gates[step], made.c[step + 1], made.squashed[step], made.h[step + 1]),
        )
    return made


def lstm_gradients(
    x: Tensor,
    weights: tuple[Tensor, Tensor],
    made: LstmMemory,
    grad_output: Tensor,
    grad_c: Tensor,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """Returns the gradients of the inputs, of both first states, of the weights, and of a bias (that of both biases).

    `grad_output` (steps, batch, hidden) has that of the last h added to its last step; `grad_c` is that of the last c.
    """
    steps, batch, features = x.shape
    hidden = grad_c.shape[1]
    grads = grad_output.transpose(1, 2).contiguous()
    of_c = grad_c.t().contiguous()
    of_gates = torch.empty_like(made.gates)
    back = weights[1].t()
    of_h = grads[-1]
    for step in reversed(range(steps)):
        inputs = (of_h, of_c, *made.gates[step], made.c[step], made.squashed[step])
        of_c = torch.empty_like(of_c)
        _run(_CELL_BACKWARD, hidden * batch, inputs, (*of_gates[step], of_c))
        added = grads[step - 1] if step else None
        of_h = _product(back, of_gates[step].view(4 * hidden, batch), added)
    # (4 hidden, steps x batch): the chains of the weights' gradients
    rows = of_gates.view(steps, 4 * hidden, batch).transpose(0, 1).reshape(4 * hidden, -1)
    states = made.h[:-1].transpose(1, 2).reshape(-1, hidden)
    inputs_ = x.reshape(-1, features)
    of_x = _product(rows.t(), weights[0]).view(x.shape)
    of_weights = _product(rows, inputs_), _product(rows, states)
    return of_x, of_h.t(), of_c.t(), of_weights, rows.sum(1)


def _product(a: Tensor, b: Tensor, added: Tensor | None = None) -> Tensor:
    made = product(a, b, added)
    assert made is not None  # the caller has checked types and shapes
    return made.contiguous()  # a cell's kernel takes dense gates


def _run(kernel: ElementwiseKernel, elements: int, inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    steps = [number for one in inputs for number in (one.data_ptr(), 1)]
    kernel(elements, *steps, *(one.data_ptr() for one in outputs))

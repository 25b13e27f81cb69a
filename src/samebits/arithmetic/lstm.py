"""One direction of an LSTM layer: products of the definition, and one kernel for each step's cell.

Inside, states are stored with the batch last, (features, batch): a gate is then one dense piece of memory,
and no weight is transposed. The outputs have the bits of the ops that torch composes the layer of; the
gradient of a weight is one chain over steps and batch, in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits._native.float_bits import bfloat16_bits, in_bfloat16, number_of_bfloat16
from samebits._native.formula import FormulaNumber, fma
from samebits._native.kernel_rounds import run_rounds
from samebits.arithmetic.elementwise_kernel import ElementwiseKernel, Moved
from samebits.arithmetic.functions.hyperbolic import tanh_wide
from samebits.arithmetic.functions.narrow_activations import sigmoid_narrow
from samebits.arithmetic.product import product, product_calls
from samebits.arithmetic.product.scratch import scratch_tensor

# The cell of an LSTM layer and its gradient, for one element: its four gates, and the states that it keeps.
#
# Sums and products are those that torch composes the layer of, each rounded to the layer's type
# (`rounded`), of float32 numbers; the gradient is computed in float64, and rounded once.


def _tanh(x: Any) -> Any:
    return tanh_wide(x.as_float64()).as_float32()


def lstm_cell(rounded: Callable[[Any], Any], *numbers: Any) -> list[Any]:
    """Returns input gate, forget gate, candidate, output gate, new c, its tanh, and h.

    It takes the products of h for the four gates in this order, those of the input, and c (Hochreiter and
    Schmidhuber 1997).
    """
    gates = [rounded(x + y) for x, y in zip(numbers[:4], numbers[4:8], strict=True)]
    functions = (sigmoid_narrow, sigmoid_narrow, _tanh, sigmoid_narrow)
    i, f, g, o = (rounded(function(gate)) for function, gate in zip(functions, gates, strict=True))
    c = rounded(rounded(f * numbers[8]) + rounded(i * g))
    squashed = rounded(_tanh(c))
    return [i, f, g, o, c, squashed, o * squashed]


def lstm_cell_backward(
    rounded: Callable[[Any], Any],
    grad_h: Any,
    grad_c: Any,
    i: Any,
    f: Any,
    g: Any,
    o: Any,
    c: Any,
    squashed: Any,
) -> list[Any]:
    """Returns the gradients of the four gates before their functions, and of the old c.

    It takes those of h and of the new c, and what `lstm_cell` was given (c) and made.
    """
    total = rounded(fma(grad_h * o, fma(-squashed, squashed, 1.0), grad_c))
    return [
        total * g * (i * (1.0 - i)),
        total * c * (f * (1.0 - f)),
        total * i * fma(-g, g, 1.0),
        grad_h * squashed * (o * (1.0 - o)),
        total * f,
    ]


def _kept(x: Any) -> Any:
    return x


def _as_bfloat16(x: FormulaNumber) -> FormulaNumber:
    return number_of_bfloat16(bfloat16_bits(x))


_CELLS = {
    getattr(torch, element): (
        ElementwiseKernel(
            partial(lstm_cell, narrow), element, "lstm_cell", inputs=9, outputs=7, wide=False, registers=4
        ),
        ElementwiseKernel(
            partial(lstm_cell_backward, wide),
            element,
            "lstm_cell_backward",
            inputs=8,
            outputs=5,
            registers=4,
        ),
    )
    for element, narrow, wide in (
        ("float32", _kept, FormulaNumber.in_float32),
        ("bfloat16", _as_bfloat16, in_bfloat16),
    )
}
DTYPES = frozenset(_CELLS)
"""The types of layers that are computed here."""


class LstmMemory(NamedTuple):
    """What the steps make: gates (steps, 4, hidden, batch), c (steps + 1, hidden, batch), tanh(c), outputs.

    The outputs (steps + 1, batch, hidden) have the first h in front, as c has the first c.
    """

    gates: Tensor
    c: Tensor
    squashed: Tensor
    outputs: Tensor


def lstm_outputs(
    x: Tensor, h: Tensor, c: Tensor, weights: tuple[Tensor, Tensor], biases: tuple[Tensor, Tensor] | None
) -> LstmMemory:
    """Returns all that the steps make of inputs (steps, batch, features) and first states (batch, hidden).

    `weights` (4 hidden, features) and (4 hidden, hidden), `biases` (4 hidden), as `torch.nn.LSTM` orders its
    gates.
    """
    steps, batch, _ = x.shape
    hidden, back = h.shape[1], weights[1].contiguous()
    odd = hidden % 2 if x.dtype == torch.bfloat16 else 0  # pairs have no rest
    states = x.new_empty(steps + 1, hidden + odd, batch)
    states[0, :hidden] = h.t()
    if odd:
        states[:, hidden] = 0
        back = torch.nn.functional.pad(back, (0, 1))
    gates, squashed = x.new_empty(steps, 4, hidden, batch), x.new_empty(steps, hidden, batch)
    cs = x.new_empty(steps + 1, hidden, batch)
    cs[0] = c.t()
    # The same for each sequence of the batch, and dense: so the product adds it in its last step.
    of_x, of_h = (None, None) if biases is None else (one.unsqueeze(1).repeat(1, batch) for one in biases)
    cell, _ = _CELLS[x.dtype]
    fed_back = x.new_empty(4, hidden, batch)
    with scratch_tensor(gates.numel(), x.dtype) as pieces:
        of_inputs = pieces.view(steps, 4 * hidden, batch)
        _product(weights[0].expand(steps, -1, -1), x.transpose(1, 2), of_x, of_inputs)
        with product_calls(back, states[0], of_h, fed_back, (0, _bytes(states), 0, 0)) as calls:
            given = (
                *((gate.data_ptr(), 0) for gate in fed_back),
                *_gates_from(pieces.view(gates.shape), 0),
                _from(cs, 0),
            )
            results = *_gates_from(gates, 0), _from(cs, 1), _from(squashed, 0), _from(states, 1)
            run_rounds([*calls, cell.call(hidden * batch, given, results)], steps)
    return LstmMemory(gates, cs, squashed, states[:, :hidden].transpose(1, 2).contiguous())


def lstm_gradients(
    x: Tensor,
    weights: tuple[Tensor, Tensor],
    made: LstmMemory,
    grad_outputs: Tensor,
    grad_h: Tensor,
    grad_c: Tensor,
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """Returns the gradients of the inputs, of both first states, of the weights, and of each of both biases.

    It takes those of the outputs (steps, batch, hidden), of the last h and of the last c.
    """
    steps, batch, features = x.shape
    hidden = grad_c.shape[1]
    of_h, of_c = (grad_outputs[-1] + grad_h).t().contiguous(), grad_c.t().contiguous()
    back = weights[1].contiguous().t()
    if x.dtype == torch.bfloat16:  # pairs are read where they stand
        back = back.contiguous()
    # What is added to each step's gradient of h: that of the output before it; -0 changes no number.
    added = x.new_empty(steps, hidden, batch)
    added[0], added[1:] = -0.0, grad_outputs[:-1].transpose(1, 2)
    _, cell = _CELLS[x.dtype]
    with scratch_tensor(made.gates.numel(), x.dtype) as flat, scratch_tensor(len(flat), x.dtype) as more:
        of_gates = flat.view(steps, 4 * hidden, batch)
        last, states = steps - 1, ((of_h.data_ptr(), 0), (of_c.data_ptr(), 0))
        given = *states, *_gates_from(made.gates, last), _from(made.c, last), _from(made.squashed, last)
        # An element's gradient is written after its old one is read.
        results = *_gates_from(flat.view(made.gates.shape), last), states[1]
        moves = 0, -_bytes(of_gates), -_bytes(added), 0
        with product_calls(back, of_gates[last], added[last], of_h, moves) as calls:
            backwards = cell.call(
                hidden * batch, *([_reversed(one) for one in places] for places in (given, results))
            )
            run_rounds([backwards, *calls], steps)
        # (4 hidden, steps x batch): the chains of the weights' gradients
        rows = more.view(4 * hidden, steps, batch).copy_(of_gates.transpose(0, 1)).view(4 * hidden, -1)
        of_weights = (
            _product(rows, x.reshape(-1, features)),
            _product(rows, made.outputs[:-1].view(-1, hidden)),
        )
        of_x = _product(of_gates.transpose(1, 2), weights[0].expand(steps, -1, -1))
        return of_x, of_h.t(), of_c.t(), of_weights, rows.sum(1)


def _product(a: Tensor, b: Tensor, added: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    made = product(a, b, added, out=out)
    assert made is not None  # the caller has checked types and shapes
    return made


def _bytes(steps: Tensor) -> int:
    """Returns the bytes from one step to the next."""
    return steps.stride(0) * steps.element_size()


def _from(steps: Tensor, first: int) -> Moved:
    """Returns where the first step's part is, and the bytes to the next."""
    return steps[first].data_ptr(), _bytes(steps)


def _gates_from(gates: Tensor, first: int) -> list[Moved]:
    """The same for each of the four gates."""
    return [_from(gates[:, gate], first) for gate in range(4)]


def _reversed(place: Moved) -> Moved:
    return place[0], -place[1]

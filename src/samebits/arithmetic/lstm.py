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
from samebits.arithmetic.elementwise_kernel import ElementwiseKernel
from samebits.arithmetic.functions.narrow_activations import sigmoid_narrow
from samebits.arithmetic.functions.narrow_functions import tanh_narrow
from samebits.arithmetic.product import product
from samebits.arithmetic.product.scratch import scratch_tensor

# The cell of an LSTM layer and its gradient, for one element: its four gates, and the states that it keeps.
#
# Sums and products are those that torch composes the layer of, each rounded to the layer's type
# (`rounded`), of float32 numbers; the gradient is computed in float64, and rounded once.


def _tanh(x: Any) -> Any:
    return tanh_narrow(x)


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
    """For the gradient: gates (steps, 4, hidden, batch), states (steps + 1, hidden, batch), tanh(c)."""

    gates: Tensor
    h: Tensor
    c: Tensor
    squashed: Tensor


def lstm_outputs(
    x: Tensor, h: Tensor, c: Tensor, weights: tuple[Tensor, Tensor], biases: tuple[Tensor, Tensor] | None
) -> LstmMemory:
    """Returns all that the steps make of inputs (steps, batch, features) and first states (batch, hidden).

    `weights` (4 hidden, features) and (4 hidden, hidden), `biases` (4 hidden), as `torch.nn.LSTM` orders its
    gates.
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
    # The same for each sequence of the batch, and dense: so the product adds it in its last step.
    of_x, of_h = (None, None) if biases is None else (one.unsqueeze(1).repeat(1, batch) for one in biases)
    cell, _ = _CELLS[x.dtype]
    plane = hidden * batch * x.element_size()
    at = _Addresses(made, plane)
    states = made.h.unbind()
    with scratch_tensor(made.gates.numel(), x.dtype) as pieces:
        of_inputs = pieces.view(steps, 4 * hidden, batch)
        _product(weights[0].expand(steps, -1, -1), x.transpose(1, 2), of_x, of_inputs)
        for step in range(steps):
            fed_back = _product(weights[1], states[step], of_h)
            first, second = fed_back.data_ptr(), pieces.data_ptr() + 4 * step * plane
            given = (*at.four(first), *at.four(second), at.c(step))
            made_here = (*at.gates(step), at.c(step + 1), at.squashed(step), at.h(step + 1))
            _run(cell, hidden * batch, given, made_here)
    return made


def lstm_gradients(
    x: Tensor, weights: tuple[Tensor, Tensor], made: LstmMemory, grad_output: Tensor, grad_c: Tensor
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, Tensor], Tensor]:
    """Returns the gradients of the inputs, of both first states, of the weights, and of each of both biases.

    `grad_output` (steps, batch, hidden) has that of the last h added to its last step; `grad_c` is that of
    the last c.
    """
    steps, batch, features = x.shape
    hidden = grad_c.shape[1]
    of_c = grad_c.t().contiguous()
    back = weights[1].t()
    _, cell = _CELLS[x.dtype]
    plane = hidden * batch * x.element_size()
    at = _Addresses(made, plane)
    with scratch_tensor(made.gates.numel(), x.dtype) as flat, scratch_tensor(len(flat), x.dtype) as more:
        of_gates = flat.view(steps, 4 * hidden, batch)
        grads = grad_output.transpose(1, 2).contiguous()
        of_h, added, products = grads[-1], grads.unbind(), of_gates.unbind()
        for step in reversed(range(steps)):
            given = (of_h.data_ptr(), of_c.data_ptr(), *at.gates(step), at.c(step), at.squashed(step))
            # an element's gradient is written after its old one is read
            _run(cell, hidden * batch, given, (*at.four(products[step].data_ptr()), of_c.data_ptr()))
            of_h = _product(back, products[step], added[step - 1] if step else None)
        # (4 hidden, steps x batch): the chains of the weights' gradients
        rows = more.view(4 * hidden, steps, batch).copy_(of_gates.transpose(0, 1)).view(4 * hidden, -1)
        states = made.h[:-1].transpose(1, 2).reshape(-1, hidden)
        of_weights = _product(rows, x.reshape(-1, features)), _product(rows, states)
        of_x = _product(of_gates.transpose(1, 2), weights[0].expand(steps, -1, -1))
        return of_x, of_h.t(), of_c.t(), of_weights, rows.sum(1)


def _product(a: Tensor, b: Tensor, added: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    made = product(a, b, added, out=out)
    assert made is not None  # the caller has checked types and shapes
    return made.contiguous()  # a cell's kernel takes dense gates


class _Addresses:
    """Where each step's part of an `LstmMemory` begins; a plane is the bytes of (hidden, batch)."""

    def __init__(self, made: LstmMemory, plane: int) -> None:
        self.plane = plane
        self._gates, self._h, self._c, self._squashed = (one.data_ptr() for one in made)

    def four(self, first: int) -> tuple[int, int, int, int]:
        """Returns the addresses of four planes, one behind the other."""
        return first, first + self.plane, first + 2 * self.plane, first + 3 * self.plane

    def gates(self, step: int) -> tuple[int, int, int, int]:
        return self.four(self._gates + 4 * step * self.plane)

    def h(self, step: int) -> int:
        return self._h + step * self.plane

    def c(self, step: int) -> int:
        return self._c + step * self.plane

    def squashed(self, step: int) -> int:
        return self._squashed + step * self.plane


def _run(kernel: ElementwiseKernel, elements: int, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
    steps = [number for one in inputs for number in (one, 1)]
    kernel(elements, *steps, *outputs)

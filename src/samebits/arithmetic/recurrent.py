"""One direction of an LSTM or GRU layer: products of the definition, and one kernel for each step's cell.

Inside, states are stored with the batch last, (features, batch): a gate is then one dense piece of memory,
and no weight is transposed. The outputs have the bits of the ops that torch composes the layer of; the
gradient of a weight is one chain over steps and batch, in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits._native.float_bits import bfloat16_bits, in_bfloat16, number_of_bfloat16
from samebits._native.formula import FormulaNumber, fma
from samebits._native.kernel_rounds import run_rounds
from samebits.arithmetic.elementwise_kernel import ElementwiseKernel, Moved
from samebits.arithmetic.functions.hyperbolic import tanh_narrow
from samebits.arithmetic.functions.narrow_activations import sigmoid_narrow
from samebits.arithmetic.product import product, product_calls
from samebits.arithmetic.product.scratch import scratch_tensor

# The cells and their gradients, for one element: its gates, and the states that it keeps.
#
# Sums and products are those that torch composes the layer of, each rounded to the layer's type
# (`rounded`), of float32 numbers; the gradient is computed in float64, and rounded once.


def _gate(rounded: Callable[[Any], Any], x: Any, y: Any) -> Any:
    return rounded(sigmoid_narrow(rounded(x + y)))


def lstm_cell(rounded: Callable[[Any], Any], *numbers: Any) -> list[Any]:
    """Returns input gate, forget gate, candidate, output gate, tanh of the new c, new c, and h.

    It takes the products of h for the four gates in this order, those of the input, and c (Hochreiter and
    Schmidhuber 1997).
    """
    fed_back, given, c = numbers[:4], numbers[4:8], numbers[8]
    i, f, o = (_gate(rounded, fed_back[place], given[place]) for place in (0, 1, 3))
    g = rounded(tanh_narrow(rounded(fed_back[2] + given[2])))
    c = rounded(rounded(f * c) + rounded(i * g))
    squashed = rounded(tanh_narrow(c))
    return [i, f, g, o, squashed, c, o * squashed]


def lstm_cell_backward(
    rounded: Callable[[Any], Any],
    grad_h: Any,
    grad_output: Any,
    i: Any,
    f: Any,
    g: Any,
    o: Any,
    squashed: Any,
    c: Any,
    grad_c: Any,
) -> list[Any]:
    """Returns the gradients of the four gates before their functions, and of the old c.

    It takes those of h, from the next step and as an output, and of the new c, and what `lstm_cell` was given
    (c) and made.
    """
    of_h = grad_h + grad_output
    total = rounded(fma(of_h * o, fma(-squashed, squashed, 1.0), grad_c))
    return [
        total * g * (i * (1.0 - i)),
        total * c * (f * (1.0 - f)),
        total * i * fma(-g, g, 1.0),
        of_h * squashed * (o * (1.0 - o)),
        total * f,
    ]


def gru_cell(rounded: Callable[[Any], Any], *numbers: Any) -> list[Any]:
    """Returns reset gate, update gate, candidate, the product of h for the candidate, and the new h.

    It takes the products of h for the two gates and the candidate in this order, those of the input, and h
    (Cho et al. 2014; the reset gate comes after the product, as in cuDNN).
    """
    fed_back, given, h = numbers[:3], numbers[3:6], numbers[6]
    r, z = (_gate(rounded, fed_back[place], given[place]) for place in (0, 1))
    n = rounded(tanh_narrow(rounded(given[2] + rounded(fed_back[2] * r))))
    return [r, z, n, fed_back[2], rounded(rounded(h - n) * z) + n]


def gru_cell_backward(
    grad_h: Any, grad_output: Any, r: Any, z: Any, n: Any, fed_back: Any, h: Any
) -> list[Any]:
    """Returns the gradients of the product of h for the candidate, of both gates and of the candidate before
    their functions, and that of the old h but for the gates' share.

    It takes those of h, from the next step and as an output, and what `gru_cell` was given (h) and made.
    """
    of_h = grad_h + grad_output
    of_n = of_h * (1.0 - z) * fma(-n, n, 1.0)
    return [of_n * r, of_n * fed_back * (r * (1.0 - r)), of_h * (h - n) * (z * (1.0 - z)), of_n, of_h * z]


def _kept(x: Any) -> Any:
    return x


def _as_bfloat16(x: FormulaNumber) -> FormulaNumber:
    return number_of_bfloat16(bfloat16_bits(x))


_ROUNDED = {"float32": (_kept, FormulaNumber.in_float32), "bfloat16": (_as_bfloat16, in_bfloat16)}
DTYPES = frozenset(getattr(torch, element) for element in _ROUNDED)
"""The types of layers that are computed here."""


@dataclass(frozen=True)
class Recurrence:
    """The gates, states and kernels of a kind of layer."""

    gates: int
    """Of a weight: it has (gates hidden) rows."""
    kept: int
    """The numbers that an element's cell makes for the gradient."""
    has_c: bool
    """The cell takes and makes a second state, which is what its gradient needs; else that is h."""
    rolled: int
    """By how many gates those of h come later among the cell's gradients than among the rows of a weight."""
    cells: dict[torch.dtype, tuple[ElementwiseKernel, ElementwiseKernel]]


GRADIENTS = 4
"""Of the gates of a cell: the last ones are those of the input's products, the first ones those of h's."""


def _cells(
    name: str, forward: Callable[..., Any], backward: Callable[[Any], Any], inputs: int, outputs: int
) -> dict[torch.dtype, tuple[ElementwiseKernel, ElementwiseKernel]]:
    back, cells = f"{name}_backward", {}
    made = partial(ElementwiseKernel, inputs=inputs, registers=4)
    for element, (narrow, wide) in _ROUNDED.items():
        cells[getattr(torch, element)] = (
            made(partial(forward, narrow), element, name, outputs=outputs, wide=False),
            made(backward(wide), element, back, outputs=5),
        )
    return cells


LSTM = Recurrence(
    4, 5, True, 0, _cells("lstm_cell", lstm_cell, lambda wide: partial(lstm_cell_backward, wide), 9, 7)
)
GRU = Recurrence(3, 4, False, 1, _cells("gru_cell", gru_cell, lambda _wide: gru_cell_backward, 7, 5))


class LayerMemory(NamedTuple):
    """The results of all steps: numbers of the cells (steps, `kept`, hidden, batch), states and outputs.

    The states (steps + 1, hidden, batch), c or h, have the first one in front; so have the outputs (steps +
    1, batch, hidden).
    """

    cells: Tensor
    states: Tensor
    outputs: Tensor


def layer_outputs(
    kind: Recurrence,
    x: Tensor,
    states: tuple[Tensor, ...],
    weights: tuple[Tensor, Tensor],
    biases: tuple[Tensor, Tensor] | None,
) -> LayerMemory:
    """Returns all that the steps make of inputs (steps, batch, features) and first states (batch, hidden).

    `states` are h and, of an LSTM, c; `weights` (gates hidden, features) and (gates hidden, hidden), `biases`
    (gates hidden), as `torch.nn.LSTM` and `torch.nn.GRU` order their gates.
    """
    steps, batch, _ = x.shape
    hidden, back = states[0].shape[1], weights[1].contiguous()
    odd = hidden % 2 if x.dtype == torch.bfloat16 else 0  # pairs have no rest
    h = x.new_empty(steps + 1, hidden + odd, batch)
    h[0, :hidden] = states[0].t()
    if odd:
        h[:, hidden] = 0
        back = torch.nn.functional.pad(back, (0, 1))
    carried = h[:, :hidden]
    if kind.has_c:
        carried = x.new_empty(steps + 1, hidden, batch)
        carried[0] = states[1].t()
    cells = x.new_empty(steps, kind.kept, hidden, batch)
    fed_back = x.new_empty(kind.gates, hidden, batch)
    # The same for each sequence of the batch, and dense: so the product adds it in its last step.
    of_x, of_h = (None, None) if biases is None else (one.unsqueeze(1).repeat(1, batch) for one in biases)
    cell, _ = kind.cells[x.dtype]
    with scratch_tensor(steps * fed_back.numel(), x.dtype) as pieces:
        of_inputs = pieces.view(steps, kind.gates * hidden, batch)
        _product(weights[0].expand(steps, -1, -1), x.transpose(1, 2), of_x, of_inputs)
        with product_calls(back, h[0], of_h, fed_back, (0, _bytes(h), 0, 0)) as calls:
            given = (
                *((gate.data_ptr(), 0) for gate in fed_back),
                *_planes_from(pieces.view(steps, *fed_back.shape), 0),
                _from(carried, 0),
            )
            made = [_from(carried, 1), _from(h, 1)] if kind.has_c else [_from(h, 1)]
            run_rounds([*calls, cell.call(hidden * batch, given, [*_planes_from(cells, 0), *made])], steps)
    return LayerMemory(cells, carried, h[:, :hidden].transpose(1, 2).contiguous())


def layer_gradients(
    kind: Recurrence,
    x: Tensor,
    weights: tuple[Tensor, Tensor],
    made: LayerMemory,
    grad_outputs: Tensor,
    grad_states: tuple[Tensor, ...],
) -> tuple[Tensor, list[Tensor], list[Tensor], list[Tensor]]:
    """Returns the gradients of the inputs, of the first states, of the weights, and of the biases.

    It takes those of the outputs (steps, batch, hidden) and of the last states, h and perhaps c.
    """
    steps, batch, features = x.shape
    hidden = grad_outputs.shape[2]
    # Of an LSTM the gradient of c, else that of h but for the gates' share, which the product adds.
    of_h, beside = (one.t().contiguous() for one in (grad_states[0], grad_states[-1]))
    back = _rolled(weights[1].contiguous(), kind.rolled * hidden).t()
    if x.dtype == torch.bfloat16:  # pairs are read where they stand
        back = back.contiguous()
    of_outputs = grad_outputs.transpose(1, 2).contiguous()
    _, cell = kind.cells[x.dtype]
    size, last, rows_of_h = steps * GRADIENTS * hidden * batch, steps - 1, kind.gates * hidden
    with scratch_tensor(size, x.dtype) as flat, scratch_tensor(size, x.dtype) as more:
        of_gates = flat.view(steps, GRADIENTS, hidden, batch)
        given = [(of_h.data_ptr(), 0), _from(of_outputs, last), *_planes_from(made.cells, last)]
        given.append(_from(made.states, last))
        # An element's gradient is written after its old one is read.
        there = beside.data_ptr(), 0
        results = [*_planes_from(of_gates, last), there]
        call = cell.call(
            hidden * batch,
            *(
                [(place, -step) for place, step in all_of]
                for all_of in ([*given, there] if kind.has_c else given, results)
            ),
        )
        of_gates = flat.view(steps, -1, batch)
        added = None if kind.has_c else beside
        moves = 0, -_bytes(of_gates), 0, 0
        with product_calls(back, of_gates[last, :rows_of_h], added, of_h, moves) as calls:
            run_rounds([call, *calls], steps)
        # (gradients hidden, steps x batch): the chains of the weights' gradients
        rows = more.view(-1, steps, batch).copy_(of_gates.transpose(0, 1)).view(GRADIENTS * hidden, -1)
        of_inputs = rows[-rows_of_h:]
        of_weights = (
            _product(of_inputs, x.reshape(-1, features)),
            _product(rows[:rows_of_h], made.outputs[:-1].view(-1, hidden)),
        )
        of_x = _product(
            of_gates[:, -rows_of_h:].transpose(1, 2), weights[0].contiguous().expand(steps, -1, -1)
        )
        sums, back_again = rows.sum(1), -kind.rolled * hidden
        return (
            of_x,
            [of_h.t(), beside.t()][: 1 + kind.has_c],
            [of_weights[0], _rolled(of_weights[1], back_again)],
            [sums[-rows_of_h:].clone(), _rolled(sums[:rows_of_h], back_again)],
        )


def _product(a: Tensor, b: Tensor, added: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    made = product(a, b, added, out=out)
    assert made is not None  # the caller has checked types and shapes
    return made


def _rolled(rows: Tensor, shift: int) -> Tensor:
    return rows.roll(shift, 0) if shift else rows


def _bytes(steps: Tensor) -> int:
    """Returns the bytes from one step to the next."""
    return steps.stride(0) * steps.element_size()


def _from(steps: Tensor, first: int) -> Moved:
    """Returns where the first step's part is, and the bytes to the next."""
    return steps[first].data_ptr(), _bytes(steps)


def _planes_from(planes: Tensor, first: int) -> list[Moved]:
    """The same for each of the planes of a step."""
    return [_from(planes[:, place], first) for place in range(planes.shape[1])]

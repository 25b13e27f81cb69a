"""The cell of an LSTM layer and its gradient, for one element: its four gates, and the states that it keeps.

Sums and products are those that torch composes the layer of, each rounded to the layer's type (`rounded`); the gradient is
rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from samebits._native.formula import fma
from samebits.arithmetic.functions.activations import sigmoid_wide
from samebits.arithmetic.functions.hyperbolic import tanh_wide


def lstm_cell(rounded: Callable[[Any], Any], *numbers: Any) -> list[Any]:
    """Returns input gate, forget gate, candidate, output gate, new c, its tanh, and h.

    It takes the products of h for the four gates in this order, those of the input, and c (Hochreiter and Schmidhuber 1997).
    """
    gates = [rounded(x + y) for x, y in zip(numbers[:4], numbers[4:8], strict=True)]
    functions = (sigmoid_wide, sigmoid_wide, tanh_wide, sigmoid_wide)
    i, f, g, o = (rounded(function(gate)) for function, gate in zip(functions, gates, strict=True))
    c = rounded(rounded(f * numbers[8]) + rounded(i * g))
    squashed = rounded(tanh_wide(c))
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

"""A Triton kernel for each formula: the text that its traced numbers write, compiled by `triton.jit`."""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import triton
import triton.language as tl

from lab.cuda.kernels import (
    magnitude,
    read,
    row_of,
    with_sign_of,
    write,
)
from lab.cuda.traced_numbers import Trace, TracedNumber
from samebits.random._triton.elementary import divided, fma, negated, sqrt

_USED = {
    "tl": tl,
    "divided": divided,
    "fma": fma,
    "magnitude": magnitude,
    "negated": negated,
    "read": read,
    "row_of": row_of,
    "sqrt": sqrt,
    "with_sign_of": with_sign_of,
    "write": write,
}


@cache
def kernel_of(
    define: Callable[..., Any], name: str, dtype: str, inputs: int, numbers: int
) -> tuple[Any, list[Sequence[Sequence[float]]]]:
    """Returns the Triton kernel of a formula that computes in `dtype`, and its tables.

    Its arguments: the inputs, the outputs (the first is `out`), the tables, the numbers (float64), how many elements.
    """
    text, tables = text_of(define, name, dtype, inputs, numbers)
    file = f"<samebits kernel {name} {dtype} {inputs} {numbers}>"
    # triton.jit reads the source of a function from its file
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    scope = {**_USED, "__name__": __name__}
    exec(compile(text, file, "exec"), scope)  # noqa: S102  # text of our own
    return triton.jit(scope[name]), tables


def text_of(
    define: Callable[..., Any], name: str, dtype: str, inputs: int, numbers: int
) -> tuple[str, list[Sequence[Sequence[float]]]]:
    """Returns the source of the kernel, and its tables."""
    trace = Trace()
    given = [f"read(x_{i} + at, inside, tl.{dtype})" for i in range(inputs)]
    given += [f"tl.full((BLOCK,), n_{i}, tl.float64).to(tl.{dtype})" for i in range(numbers)]
    results = define(*(TracedNumber(trace, dtype, one) for one in given))
    results = results if isinstance(results, list) else [results]
    outputs = ["out", *(f"out_{i}" for i in range(1, len(results)))]
    arguments = [
        *(f"x_{i}" for i in range(inputs)),
        *outputs,
        *(f"table_{i}" for i in range(len(trace.tables))),
        *(f"n_{i}: tl.float64" for i in range(numbers)),
        "elements",
        "BLOCK: tl.constexpr",
    ]
    lines = [
        "at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)",
        "inside = at < elements",
        *trace.lines,
        *(f"write({o} + at, {r.name}, inside)" for o, r in zip(outputs, results, strict=True)),
    ]
    body = "".join(f"    {line}\n" for line in lines)
    return f"def {name}({', '.join(arguments)}):\n{body}", trace.tables

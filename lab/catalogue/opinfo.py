"""Torch's own samples for every op (OpInfo), and the same ops at 200,003 elements.

The samples are small (few pass the 32,768 elements from which torch uses threads): they cover overloads, arguments
and broadcasting. The large ones cover the vector tail and the chunks of threads.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lab.catalogue.case import (
    ALL_DTYPES,
    F32,
    ReviewCase,
    Run,
    gradients,
    normal,
    positive,
    with_gradients,
)

TAIL = 200_003
_MOST_MADE = 400
"""Samples of one case that are made; a few ops have more than a thousand."""
_NO_BYTES = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
"""Ops that return memory which nobody wrote: there is nothing to compare."""
# (Jiterator's ops run on GPUs only.)
_RARE = (torch.int64, torch.bool, torch.complex64)
"""Tried in this order for ops that take no floating-point numbers."""


@cache
def sample_cases() -> tuple[ReviewCase, ...]:
    """One case for each op, variant and dtype, with all of its samples."""
    return tuple(_sampled(op, dtype) for op in _ops() for dtype in _dtypes(op))


@cache
def sweep_cases() -> tuple[ReviewCase, ...]:
    """One case for each pointwise op and reduction, and each floating-point dtype."""
    return tuple(
        ReviewCase("sweep", f"{_label(op)} [{_short(dtype)}]", build, repeats=2, source="sweep")
        for op in _ops()
        for dtype in ALL_DTYPES
        if dtype in _dtypes(op) and (build := _large(op, dtype)) is not None
    )


@cache
def _ops() -> tuple[Any, ...]:
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # Torch's samples stand in a module that needs one base class of it, for torch's own tests.
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal import common_methods_invocations as known  # noqa: PLC0415 (4 s, and needs the above)

    return tuple(op for op in known.op_db if op.name not in _NO_BYTES and not op.name.startswith("jiterator"))


def _dtypes(op: Any) -> tuple[torch.dtype, ...]:
    supported = op.supported_dtypes("cpu")
    found = tuple(dtype for dtype in ALL_DTYPES if dtype in supported)
    return found or tuple(dtype for dtype in _RARE if dtype in supported)[:1]


def _sampled(op: Any, dtype: torch.dtype) -> ReviewCase:
    """The samples with their gradients; in float32 also in place and into `out=`, where the op has these forms."""
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
    forms = [_call]
    if dtype is F32 and op.inplace_variant is not None:
        forms.append(_call_in_place)
    if dtype is F32 and op.supports_out:
        forms.append(_call_out)

    def build() -> Iterator[Run]:
        torch.default_generator.manual_seed(0)
        samples = list(islice(op.sample_inputs("cpu", dtype, requires_grad=grad), _MOST_MADE))
        return (partial(form, op, sample) for form in forms for sample in samples)

    return ReviewCase("opinfo", f"{_label(op)} [{_short(dtype)}]", build, repeats=2, source="opinfo")


def _call(op: Any, sample: Any) -> Any:
    outputs = op(sample.input, *sample.args, **sample.kwargs)
    return outputs, gradients(outputs, (sample.input, sample.args, sample.kwargs))


def _call_in_place(op: Any, sample: Any) -> Any:
    with torch.no_grad():
        return op.inplace_variant(sample.input.clone(), *sample.args, **sample.kwargs)


def _call_out(op: Any, sample: Any) -> Any:
    with torch.no_grad():
        expected = op(sample.input, *sample.args, **sample.kwargs)
        buffers = pytree.tree_map(torch.zeros_like, expected)
        return op(sample.input, *sample.args, **sample.kwargs, out=buffers)


def _large(op: Any, dtype: torch.dtype) -> Callable[[], Iterator[Run]] | None:
    kinds: dict[str, Callable[[Any], list[Any]]] = {
        "UnaryUfuncInfo": lambda x: [x[:TAIL], x[: 2 * TAIL : 2]],
        "BinaryUfuncInfo": lambda x: [x[:TAIL], x[: 2 * TAIL : 2]],
        "ReductionOpInfo": lambda x: [x[: 5 * TAIL], x[: 4 * TAIL : 2], x[: 4 * TAIL].view(4, TAIL).t()],
    }
    kind = type(op).__name__
    if kind not in kinds:
        return None
    pairs = kind == "BinaryUfuncInfo"
    grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")

    def build() -> Iterator[Run]:
        for x, y in zip(
            kinds[kind](normal(5 * TAIL, scale=2.0)(dtype)),
            kinds[kind](positive(5 * TAIL)(dtype)),
            strict=True,
        ):
            arguments = [x, y] if pairs else [x]
            options = op.sample_kwargs("cpu", dtype, x)[0] if hasattr(op, "sample_kwargs") else {}
            call = partial(op, **options)
            yield partial(with_gradients, call, arguments) if grad else partial(call, *arguments)

    return build


def _label(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

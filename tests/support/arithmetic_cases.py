"""The arithmetic with one definition: a GPU's bits of products, functions and sums are the CPU's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from itertools import product as pairs
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from samebits import random
from samebits.determinism._arithmetic import product as cpu_product
from samebits.determinism._arithmetic.elementwise_functions import FUNCTIONS, ElementwiseFunction
from samebits.determinism._arithmetic.reductions.tensors import reduce
from samebits.selfcheck.agreement import agree
from samebits.selfcheck.case import Case, Measured, Part, Results, Target

SHAPES = ((1, 1, 1), (3, 5, 7), (1, 300, 40), (33, 257, 1), (9, 520, 5))
"""Rows, inner dimension and columns of products."""
_LARGE = ((129, 1030, 70), (1024, 2048, 1000))
_LENGTHS = (1, 2, 15, 16, 17, 255, 256, 257, 1000, 65_537)
_TYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16}
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 88.8, -104.0, 2.0**24, 1e16)
_NUMBERS = (0.3, 0.7, 1.1)


def special() -> Tensor:
    """Returns zeros, subnormal and large numbers, infinities and NaNs of both signs, as float32."""
    words = torch.tensor([0x7F800000, 0x7FC00000, 0x7FC00001, 0x7FFFFFFF], dtype=torch.int32)
    return torch.cat([torch.tensor(_SPECIAL), torch.cat([words, words | -0x80000000]).view(torch.float32)])


def operands(count: int, inputs: int) -> list[Tensor]:
    """Returns operands of functions: every pair (or triple) of what is special, any bits, and usual numbers."""
    groups = [torch.stack(torch.meshgrid(*[special()] * inputs, indexing="ij")).reshape(inputs, -1)]
    groups.append(random.bits(_key(1), (inputs, count)).view(torch.float32))
    groups += [
        scale * random.normal(_key(number), (inputs, count))
        for number, scale in enumerate((1.0, 8.0, 60.0), 2)
    ]
    return list(torch.cat(groups, 1))


def applied(function: ElementwiseFunction, inputs: Sequence[Tensor], *numbers: float) -> list[Tensor]:
    """Returns what the CPU's kernel makes of contiguous tensors."""
    outs = [torch.empty_like(inputs[0]) for _ in range(function.outputs)]
    places = [place for one in inputs for place in (one.data_ptr(), 1)]
    function.kernels[inputs[0].dtype](inputs[0].numel(), *places, *(out.data_ptr() for out in outs), *numbers)
    return outs


def _summed(x: Tensor, y: Tensor | None = None) -> Tensor:
    x = x.contiguous()
    if y is None:
        return reduce("sum", x, (x.dim() - 1,))
    return reduce("dot", x, (x.dim() - 1,), y=y.contiguous())


CPU = SimpleNamespace(applied=applied, product=cpu_product.product, summed=_summed)


def back_end(device: str) -> Any:
    """Returns the functions for a device: in a rehearsal those of the CPU."""
    return CPU if device == "cpu" else import_module("samebits.determinism._arithmetic._triton.launch")


def cases() -> Iterator[Case]:
    """Yields the cases; a function's kernels take the CPU a second each to compile, so a rehearsal measures none."""
    for name, dtype in _TYPES.items():
        yield Case(f"products of {name}", partial(_products, dtype), agree, limit_s=120)
    for name, dtype in _TYPES.items():
        yield Case(f"sums of {name}", partial(_sums, dtype), agree, limit_s=120)
    for name in FUNCTIONS:
        example: Results = {"float32": {"the CPU": torch.ones(3), "the GPU": torch.ones(3)}}
        yield Case(f"function {name}", partial(measure_function, name), agree, limit_s=120, example=example)


def _key(seed: int) -> Tensor:
    return random.key(seed, device="cpu")


def _codes(x: Tensor) -> Tensor:
    """Returns the bits of a tensor, on the CPU: payloads of NaN count."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize]
    return x.detach().cpu().clone(memory_format=torch.contiguous_format).view(kind)


def _compared(name: str, target: Target, *arguments: Any) -> dict[str, Any]:
    """Returns the bits of a function of the back ends: of the CPU's, and twice of the device's."""

    def bits(made: Any) -> Any:
        return _codes(made) if isinstance(made, Tensor) else [_codes(one) for one in made]

    there = [_moved(one, target.device) for one in arguments]
    run = getattr(back_end(target.device), name)
    here = bits(getattr(CPU, name)(*arguments))
    return {"the CPU": here, "the GPU": bits(run(*there)), "the GPU again": bits(run(*there))}


def _moved(one: Any, device: str) -> Any:
    if isinstance(one, list):
        return [_moved(each, device) for each in one]
    return one.to(device) if isinstance(one, Tensor) else one


def _products(dtype: torch.dtype, target: Target) -> Measured:
    results: Results = {}
    for rows, inner, columns in SHAPES if target.small else (*SHAPES, *_LARGE):
        a = random.normal(_key(10), 2, rows, inner).to(dtype)
        b = random.normal(_key(11), 2, columns, inner).to(dtype).mT
        bias = random.normal(_key(12), columns).to(dtype)
        name = f"{rows} x {inner} x {columns}"
        results[name] = _compared("product", target, a[0], b[0])
        results[f"{name}, added"] = _compared("product", target, a[0], b[0], bias, 0.3, -1.7)
        results[f"{name}, batches"] = _compared("product", target, a, b)
        results[f"{name}, transposed"] = _compared("product", target, b[0].mT, a[0].mT.contiguous())
        results[f"{name}, vector"] = _compared("product", target, a[0], b[0][:, 0])
    every = torch.tensor(list(pairs(special().tolist(), repeat=2)))
    a, b = (one.reshape(-1, 4).to(dtype) for one in every.T.contiguous())
    return Measured({**results, "special numbers": _compared("product", target, a, b.mT[:, :50])})


def _sums(dtype: torch.dtype, target: Target) -> Measured:
    results: Results = {}
    for length in _LENGTHS[:-1] if target.small else _LENGTHS:
        x, y = random.normal(_key(20), 2, 3, length).to(dtype)
        results[f"{length} numbers"] = _compared("summed", target, x)
        results[f"{length} products"] = _compared("summed", target, x, y)
    every = torch.tensor(list(pairs(special().tolist(), repeat=2))).to(dtype)
    return Measured({**results, "special numbers": _compared("summed", target, every)})


def measure_function(name: str, target: Target) -> Measured:
    """Measures a function in each type that it takes."""
    function = FUNCTIONS[name]
    count = 500 if target.small else 100_000
    given = operands(count, function.inputs)
    numbers = _NUMBERS[: function.numbers]
    results: Results = {}
    for dtype in function.kernels:
        inputs = [one.to(dtype) for one in given]
        results[str(dtype).removeprefix("torch.")] = _compared("applied", target, function, inputs, *numbers)
    return Measured(results)


PART = Part("arithmetic", "products, functions and sums by their definitions have the CPU's bits", 7, cases)

"""The arithmetic with one definition: products, functions and sums of two back ends, on numbers of every kind."""

from importlib import import_module
from itertools import product as pairs
from types import SimpleNamespace

import torch

from agreement import codes
from samebits import random
from samebits.arithmetic import product as cpu_product
from samebits.arithmetic.elementwise_functions import FUNCTIONS
from samebits.arithmetic.reductions.tensors import reduce

SHAPES = ((1, 1, 1), (3, 5, 7), (1, 300, 40), (33, 257, 1), (9, 520, 5))
"""Rows, inner dimension and columns of products."""
LARGE = ((129, 1030, 70), (1024, 2048, 1000))
LENGTHS = (1, 2, 15, 16, 17, 255, 256, 257, 1000, 65_537)
DTYPES = (torch.float32, torch.float64, torch.float16)
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 88.8, -104.0, 2.0**24, 1e16)


def special():
    """Zeros, subnormal and large numbers, infinities and NaNs of both signs, as float32."""
    words = torch.tensor([0x7F800000, 0x7FC00000, 0x7FC00001, 0x7FFFFFFF], dtype=torch.int32)
    return torch.cat([torch.tensor(_SPECIAL), torch.cat([words, words | -0x80000000]).view(torch.float32)])


def operands(count, inputs):
    """Operands of functions: every pair (or triple) of what is special, any bits, and usual numbers."""
    groups = [torch.stack(torch.meshgrid(*[special()] * inputs, indexing="ij")).reshape(inputs, -1)]
    groups.append(random.bits(_key(1), (inputs, count)).view(torch.float32))
    for number, scale in enumerate((1.0, 8.0, 60.0), 2):
        groups.append(scale * random.normal(_key(number), (inputs, count)))
    return list(torch.cat(groups, 1))


def applied(function, inputs, *numbers):
    """The results of the CPU's kernel for contiguous tensors."""
    outs = [torch.empty_like(inputs[0]) for _ in range(function.outputs)]
    places = [place for one in inputs for place in (one.data_ptr(), 1)]
    function.kernels[inputs[0].dtype](inputs[0].numel(), *places, *(out.data_ptr() for out in outs), *numbers)
    return outs


def summed(x, y=None):
    x = x.contiguous()
    if y is None:
        return reduce("sum", x, (x.dim() - 1,))
    return reduce("dot", x, (x.dim() - 1,), y=y.contiguous())


CPU = SimpleNamespace(applied=applied, product=cpu_product.product, summed=summed)


def back_end(device):
    """The functions for a device: in a rehearsal those of the CPU."""
    return CPU if device == "cpu" else import_module("lab.cuda.launch")


def _key(seed):
    return random.key(seed, device="cpu")


def compared(name, target, *arguments):
    """The bits of a function of the back ends: of the CPU's, and twice of the device's."""

    def bits(made):
        return codes(made) if isinstance(made, torch.Tensor) else [codes(one) for one in made]

    def moved(one):
        if isinstance(one, list):
            return [moved(each) for each in one]
        return one.to(target.device) if isinstance(one, torch.Tensor) else one

    there, run = [moved(one) for one in arguments], getattr(back_end(target.device), name)
    own = bits(getattr(CPU, name)(*arguments))
    return {"the CPU": own, "the GPU": bits(run(*there)), "the GPU again": bits(run(*there))}


def products(target, dtype):
    results = {}
    for rows, inner, columns in SHAPES if target.small else (*SHAPES, *LARGE):
        a = random.normal(_key(10), 2, rows, inner).to(dtype)
        b = random.normal(_key(11), 2, columns, inner).to(dtype).mT
        bias = random.normal(_key(12), columns).to(dtype)
        name = f"{rows} x {inner} x {columns}"
        results[name] = compared("product", target, a[0], b[0])
        results[f"{name}, added"] = compared("product", target, a[0], b[0], bias, 0.3, -1.7)
        results[f"{name}, batches"] = compared("product", target, a, b)
        results[f"{name}, transposed"] = compared("product", target, b[0].mT, a[0].mT.contiguous())
        results[f"{name}, vector"] = compared("product", target, a[0], b[0][:, 0])
    every = torch.tensor(list(pairs(special().tolist(), repeat=2)))
    a, b = (one.reshape(-1, 4).to(dtype) for one in every.T.contiguous())
    return {**results, "special numbers": compared("product", target, a, b.mT[:, :50])}


def sums(target, dtype):
    results = {}
    for length in LENGTHS[:-1] if target.small else LENGTHS:
        x, y = random.normal(_key(20), 2, 3, length).to(dtype)
        results[f"{length} numbers"] = compared("summed", target, x)
        results[f"{length} products"] = compared("summed", target, x, y)
    every = torch.tensor(list(pairs(special().tolist(), repeat=2))).to(dtype)
    return {**results, "special numbers": compared("summed", target, every)}


def function_values(target, name):
    """The values of a function in each type that it takes."""
    function, results = FUNCTIONS[name], {}
    given = operands(500 if target.small else 100_000, function.inputs)
    for dtype in function.kernels:
        inputs = [one.to(dtype) for one in given]
        numbers = (0.3, 0.7, 1.1)[: function.numbers]
        results[str(dtype)] = compared("applied", target, function, inputs, *numbers)
    return results

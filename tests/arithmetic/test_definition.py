"""Each family of `arithmetic` has the bits of its definition in plain Python, below the switch: one table."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import definitions
from exact_sums import reduced, square, times
from op_testing import numbers
from product_reference import fma32, fma64, reference
from samebits.arithmetic import convolution, fourier, linear_algebra, normalization, softmax
from samebits.arithmetic.complex_numbers import COMPLEX
from samebits.arithmetic.elementwise_functions import FUNCTIONS
from samebits.arithmetic.losses import MEAN, likelihood
from samebits.arithmetic.normalization import batch_tensors
from samebits.arithmetic.product import product
from samebits.arithmetic.recurrent import LSTM, layer_outputs
from samebits.arithmetic.reductions import reduce

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


class Family(NamedTuple):
    """The kernel of a family (of tensors), its definition (of arrays), and another one that is deliberately wrong.

    16 bits are read as float32 and rounded at the end, unless the definition is `own`, and takes tensors.
    """

    kernel: Callable
    definition: Callable
    wrong: Callable
    shapes: Callable
    """The shapes of the operands, from a length."""
    dtypes: tuple = (F32, F64, BF16, F16)
    own: bool = False


def rows(function):
    """A definition of one row, for all rows of a matrix and the operands that they share."""
    return lambda x, *others: np.stack([function(row, *others) for row in x])


def both(function, x, g):
    return np.stack([function(*pair) for pair in zip(x, g, strict=True)])


def backwards(x, **options):
    return reduced(x[::-1].copy(), **options)


def evaluated(functions, dtype, *operands):
    """The results of the elementwise kernel of a function."""
    function, operands = functions, [one.contiguous() for one in operands]
    out = torch.empty_like(operands[0])
    places = [number for one in operands for number in (one.data_ptr(), 1)]
    function.kernels[dtype](out.numel(), *places, out.data_ptr())
    return out


def steps(stride=1, padding=0, dilation=1):
    three = ((1, stride, stride), (0, padding, padding), (1, dilation, dilation))
    return convolution.ConvolutionSteps(*three, 1)


def deep(x):
    """Planes as tensors of three dimensions."""
    return x.unsqueeze(2)


LENGTHS = (1, 2, 7, 16, 33, 100, 257, 600)
"""Around the lanes of a sum, a vector, and a block."""


def summed(what, definition, wrong):
    return Family(lambda x: reduce(what, x, (1,)), rows(definition), rows(wrong), lambda n: ((3, n),))


FAMILIES = {
    "product": Family(
        lambda a, b, c: product(a, b, c, 0.3, -1.7),
        lambda a, b, c: reference(a, b, c.expand(len(a), -1), 0.3, -1.7),
        lambda a, b, c: reference(a.flip(1), b.flip(0), c.expand(len(a), -1), 0.3, -1.7),
        lambda n: ((5, n), (n, 9), (9,)),
        own=True,
    ),
    "product of few rows": Family(
        product,
        reference,
        lambda a, b: reference(a.flip(1), b.flip(0)),
        lambda n: ((2, n), (n, 35)),
        own=True,
    ),
    "sum": summed("sum", reduced, backwards),
    "norm": summed("norm1", lambda x: reduced(abs(x)), lambda x: backwards(abs(x))),
    "squares": summed("square", lambda x: reduced(x, square), lambda x: reduced(x * x)),
    "dot": Family(
        lambda x, y: reduce("dot", x, (1,), y=y),
        lambda x, y: both(lambda a, b: reduced(np.stack([a, b], 1), times), x, y),
        lambda x, y: both(lambda a, b: reduced(a * b), x, y),
        lambda n: ((3, n), (3, n)),
    ),
    "softmax": Family(
        lambda x: softmax.softmax(x, 1, x.dtype, log=False),
        rows(definitions.softmax),
        rows(lambda x: np.exp(x) / reduced(np.exp(x))),
        lambda n: ((2, min(n, 300)),),
        (F32, F64, BF16),
    ),
    "log-softmax of columns": Family(
        lambda x: softmax.softmax(x.t().contiguous(), 0, x.dtype, log=True).t(),
        rows(lambda x: definitions.softmax(x, log=True)),
        rows(lambda x: np.log(definitions.softmax(x))),
        lambda n: ((2, min(n, 300)),),
        (F32, F64, BF16),
    ),
    "softmax's gradient": Family(
        lambda g, y: softmax.softmax_gradient(g, y, 1, y.dtype, log=False),
        lambda g, y: both(definitions.softmax_gradient, g, y),
        lambda g, y: both(lambda g, y: y * (g - reduced(g * y)), g, y),
        lambda n: ((3, n), (3, n)),
    ),
    "layer norm": Family(
        lambda x, w, b: normalization.normalized_rows(x, x.shape[1], (len(x),), w, b, 1e-5)[0],
        rows(lambda x, w, b: definitions.layer_norm(x, w, b, 1e-5)),
        rows(lambda x, w, b: definitions.layer_norm(x, w, np.zeros_like(b), 1e-5) + b),
        lambda n: ((3, n), (n,), (n,)),
    ),
    "batch norm": Family(
        lambda x, w, b: batch_tensors.normalized(
            x, batch_tensors.in_training(x, w, (None, None), 0.1, 1e-5), b
        ),
        lambda x, w, b: (
            np.stack([definitions.batch_norm(*one, 1e-5) for one in zip(x.T, w, b, strict=True)]).T
        ),
        lambda x, w, b: (
            np.stack([definitions.batch_norm(*one, 1e-4) for one in zip(x.T, w, b, strict=True)]).T
        ),
        lambda n: ((n, 3), (3,), (3,)),
    ),
    "convolution": Family(
        lambda x, w, b: convolution.gathered(deep(x), deep(w), b, (1, 5, 4), steps(padding=1)).squeeze(2),
        lambda x, w, b: definitions.convolution(x, w, b, (5, 4), padding=1),
        lambda x, w, b: definitions.convolution(x[:, ::-1], w[:, ::-1], b, (5, 4), padding=1),
        lambda n: ((2, min(n, 60), 5, 4), (3, min(n, 60), 3, 3), (3,)),
        (F32, F64),
    ),
    "convolution in steps": Family(
        lambda x, w, b: convolution.gathered(deep(x), deep(w), b, (1, 3, 2), steps(2, 2, 2)).squeeze(2),
        lambda x, w, b: definitions.convolution(x, w, b, (3, 2), padding=2, stride=2, dilation=2),
        lambda x, w, b: (
            definitions.convolution(x, w, 0 * b, (3, 2), padding=2, stride=2, dilation=2)
            + 2 * b[:, None, None]
        ),
        lambda n: ((2, min(n, 60), 5, 4), (3, min(n, 60), 3, 3), (3,)),
        (F32, F64),
    ),
    "convolution's input gradient": Family(
        lambda g, w: convolution.spread(deep(g), deep(w), None, (1, 5, 4), steps(padding=1)).squeeze(2),
        lambda g, w: definitions.convolution_input_gradient(g, w, (5, 4), 1),
        lambda g, w: definitions.convolution_input_gradient(g[:, ::-1], w[::-1], (5, 4), 1),
        lambda n: ((2, min(n, 60), 5, 4), (min(n, 60), 3, 3, 3)),
        (F32, F64),
    ),
    "convolution's weight gradient": Family(
        lambda x, g: convolution.weight_gradient(deep(x), deep(g), (1, 3, 3), steps(padding=1)).squeeze(2),
        lambda x, g: definitions.convolution_weight_gradient(x, g, (3, 3), padding=1),
        lambda x, g: definitions.convolution_weight_gradient(x[::-1], g[::-1], (3, 3), padding=1),
        lambda n: ((min(n, 40), 2, 5, 4), (min(n, 40), 3, 5, 4)),
        (F32, F64),
    ),
    "likelihood": Family(
        lambda x, w: likelihood(x, targets(len(x)), w, MEAN, -100)[0],
        lambda x, w: definitions.likelihood(x, targets(len(x)).numpy(), w, -100),
        lambda x, w: definitions.likelihood(x[::-1], targets(len(x)).numpy()[::-1], w, -100),
        lambda n: ((n, 4), (4,)),
        (F32, F64),
    ),
    "transform": Family(
        lambda x: fourier.complex_transform(x, 1, inverse=False),
        lambda x: in_parts(definitions.fourier, x),
        lambda x: torch.from_numpy(np.fft.fft(x.numpy())).to(x.dtype),
        lambda n: ((3, 256 if n == 257 else n),),
        (torch.complex64, torch.complex128),
        own=True,
    ),
    "transform of real numbers": Family(
        fourier.real_transform,
        lambda x: as_complex(definitions.fourier_of_real(x.numpy(), fma32 if x.dtype == F32 else fma64)),
        lambda x: torch.from_numpy(np.fft.rfft(x.numpy())).to(x.dtype.to_complex()),
        lambda n: ((3, 2 * (256 if n == 257 else n)),),
        (F32, F64),
        own=True,
    ),
    "LSTM": Family(
        lambda x, h, c, *w: layer_outputs(LSTM, x, (h, c), w[:2], w[2:]).outputs[1:],
        lambda x, h, c, *w: definitions.lstm(x, h, c, w[:2], w[2:]),
        lambda x, h, c, *w: definitions.lstm(x, h, c, w[:2], (w[2] + w[3], 0 * w[3])),
        lambda n: ((2, 3, min(n, 33)), (3, 5), (3, 5), (20, min(n, 33)), (20, 5), (20,), (20,)),
        (F32,),
    ),
    "Cholesky's factor": Family(
        lambda x: (linear_algebra.cholesky_factor(a := definite(x)[None]), a[0].triu())[1],
        lambda x: torch.from_numpy(np.triu(definitions.cholesky(definite(x).numpy()))),
        lambda x: torch.linalg.cholesky(definite(x)).T.contiguous(),
        lambda n: ((min(n, 80), min(n, 80)),),
        (F64,),
        own=True,
    ),
    "LU": Family(
        lambda x: (linear_algebra.lu_factor(a := x.clone()[None]), a[0])[1],
        lambda x: torch.from_numpy(definitions.lu_of(x.numpy())[0]),
        lambda x: torch.linalg.lu_factor(x)[0].contiguous(),
        lambda n: ((min(n, 70), min(n, 80)),),
        (F64,),
        own=True,
    ),
    "triangular system": Family(
        lambda t, b: linear_algebra.solve_triangular(t[None], b.clone()[None], upper=False, unit=True)[0],
        lambda t, b: torch.from_numpy(definitions.solved(t.numpy(), b.numpy(), unit=True)),
        lambda t, b: torch.from_numpy(definitions.solved(t.numpy(), b.numpy(), unit=False)),
        lambda n: ((min(n, 80), min(n, 80)), (min(n, 80), 3)),
        (F64,),
        own=True,
    ),
    **{
        f"complex {name}": Family(
            lambda x, y, name=name: evaluated(COMPLEX[name], x.dtype, x, y),
            lambda x, y, name=name: in_type(definitions.complex_parts(name, x, y), x.dtype),
            lambda x, y, name=name: in_type(
                definitions.complex_parts(name, y, x.conj().resolve_conj()), x.dtype
            ),
            lambda n: ((n,), (n,)),
            (torch.complex64, torch.complex128),
            own=True,
        )
        for name in ("mul", "div")
    },
}


def targets(count):
    """Classes of items; every fourth is to be ignored."""
    return torch.tensor([-100 if item % 4 == 3 else item % 3 for item in range(count)])


def definite(x):
    return product(x, x.t()) + len(x) * torch.eye(len(x), dtype=x.dtype)


def as_complex(parts):
    return torch.view_as_complex(torch.from_numpy(np.ascontiguousarray(parts.transpose(1, 2, 0))))


def in_parts(definition, x):
    parts = np.ascontiguousarray(torch.view_as_real(x).numpy().transpose(2, 0, 1))
    return as_complex(definition(parts, fma32 if x.dtype == torch.complex64 else fma64))


def in_type(parts, dtype):
    return torch.complex(*(torch.from_numpy(one).to(dtype.to_real()) for one in parts))


def drawn(family, dtype, length, seed=0):
    shapes = family.shapes(length)
    if dtype.is_complex:
        shapes = [(*shape, 2) for shape in shapes]
    found = [
        numbers(shape, dtype.to_real() if dtype.is_complex else dtype, seed + i)
        for i, shape in enumerate(shapes)
    ]
    return [torch.view_as_complex(one) for one in found] if dtype.is_complex else found


def defined(family, definition, operands):
    """What a definition says of tensors of any type."""
    if family.own:
        return definition(*operands)
    dtype = operands[0].dtype
    wide = [one.float() if dtype in (BF16, F16) else one for one in operands]
    return torch.from_numpy(np.asarray(definition(*(one.numpy() for one in wide)))).to(dtype)


def equal(found, expected):
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    found, expected = (
        one.resolve_conj().contiguous().view(-1).view(torch.uint8) for one in (found, expected)
    )
    return torch.equal(found, expected)


EVERY = [(name, dtype) for name, family in FAMILIES.items() for dtype in family.dtypes]


@pytest.mark.parametrize(("name", "dtype"), EVERY, ids=str)
def test_a_family_has_the_bits_of_its_definition(name, dtype):
    """At lengths around lanes, vectors and blocks, on one thread and on three."""
    family = FAMILIES[name]
    lengths = {family.shapes(length): length for length in LENGTHS}
    for length in [*lengths.values()][:: 1 if dtype in (F32, torch.complex64) else 3]:
        operands = drawn(family, dtype, length)
        expected = defined(family, family.definition, operands)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert equal(family.kernel(*operands), expected), (length, threads)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_wrong_definition_is_seen(name):
    """Negative control: another order of the same sums, or one rounding more, gives other bits than the kernel's."""
    family = FAMILIES[name]
    draws = (drawn(family, family.dtypes[0], length, seed) for length in LENGTHS[5:] for seed in range(3))
    assert any(not equal(family.kernel(*one), defined(family, family.wrong, one)) for one in draws)


@pytest.mark.parametrize("name", ["sum", "dot", "product of few rows", "layer norm"])
@settings(max_examples=12, derandomize=True, deadline=None)
@given(length=st.integers(1, 700), seed=st.integers(0, 99), threads=st.integers(1, 3))
def test_any_length_has_its_bits(name, length, seed, threads):
    """Lengths that no list thought of."""
    torch.set_num_threads(threads)
    family = FAMILIES[name]
    operands = drawn(family, F32, length, seed)
    assert equal(family.kernel(*operands), defined(family, family.definition, operands))


LIBRARY = {
    "exp": math.exp, "log": math.log, "log1p": math.log1p, "sin": math.sin, "tanh": math.tanh, "sinh": math.sinh, "erf": math.erf, "erfc": math.erfc,
    "lgamma": math.lgamma, "atan": math.atan, "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "pow": math.pow, "atan2": math.atan2, "hypot": math.hypot,
}  # fmt: skip
"""Functions of each file, and those of C, which round correctly or nearly."""


@pytest.mark.parametrize("dtype", (F32, F64, BF16), ids=str)
@pytest.mark.parametrize("name", LIBRARY)
def test_a_function_has_the_bits_of_its_formula(name, dtype):
    """A function of any file of `functions` is its formula, one operation at a time; C's has other bits somewhere."""
    function = FUNCTIONS[name]
    operands = [numbers((40,), dtype, seed).abs() + 0.01 for seed in range(function.inputs)]
    found, kernel = evaluated(function, dtype, *operands), function.kernels[dtype]
    arrays = [(one if dtype == F64 else one.float()).numpy() for one in operands]
    expected = definitions.applied(kernel.define, *arrays, wide=kernel.wide)
    assert equal(found, torch.from_numpy(expected).to(dtype))


def test_cs_functions_are_told_from_ours():
    """Negative control: C's functions, rounded to float32, differ from ours, which are within 1 ulp of them."""
    differing = set()
    for name, library in LIBRARY.items():
        operands = [numbers((2000,), F32, seed).abs() + 0.01 for seed in range(FUNCTIONS[name].inputs)]
        found = evaluated(FUNCTIONS[name], F32, *operands)
        exact = torch.tensor([library(*row) for row in zip(*(one.tolist() for one in operands), strict=True)])
        ulps = (found.view(torch.int32) - exact.view(torch.int32)).abs().max()
        assert ulps <= 1 or name in {"lgamma", "erfc", "gelu"}, (name, ulps)
        if ulps:
            differing.add(name)
    assert {"exp", "erf", "sin", "tanh", "sigmoid"} <= differing

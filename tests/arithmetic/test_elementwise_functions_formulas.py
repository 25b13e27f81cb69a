"""Formulas: what is compiled for vectors is, bit for bit, the sequence of IEEE operations that a formula says."""

import math

import numpy as np
import pytest
import torch

from exact_numbers import ExactNumber
from samebits._native import kernel
from samebits.arithmetic.elementwise_functions import FUNCTIONS
from samebits.arithmetic.functions.exponential import exp_wide
from samebits.arithmetic.functions.logarithm import log_wide

pytestmark = pytest.mark.slow

NUMBERS = {
    "softplus": (1.5, 20.0), "softplus_backward": (1.5, 20.0), "elu": (1.7, 1.05, 0.9), "elu_backward": (1.7, 1.05, 0.9),
    "elu_backward_of_result": (1.7, 1.05, 0.9), "logit_clamped": (0.1, 0.9), "logit_backward_clamped": (0.1, 0.9),
    "smooth_l1_backward": (0.1, 1.5), "huber_backward": (0.1, 1.5), "softshrink": (0.3,), "add_scaled": (0.1,), "add_number": (0.7, 0.1), "number_add": (0.7, 0.1), "addcmul": (0.1,),
    "addcdiv": (0.1,), "lerp_number": (0.7,), "pow_number": (2.7,), "number_pow": (1.7,),
}  # fmt: skip
"""Arguments for the functions that take Python numbers."""
SPECIAL = (
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    1.0,
    -1.0,
    0.5,
    2.0,
    -3.0,
    1e-45,
    3e38,
    -88.7,
    1e16,
    2.0**90,
)


def samples(inputs, dtype, count=20):
    """Operands with ordinary values, every exponent, and special values in every combination of two."""
    generator = torch.Generator().manual_seed(inputs)
    columns = []
    for place in range(inputs):
        ordinary = torch.randn(count, generator=generator) * 3
        unit = torch.rand(count, generator=generator) * 2 - 1
        anything = (
            torch.randint(-(2**31), 2**31, (count,), generator=generator).to(torch.int32).view(torch.float32)
        )
        special = torch.tensor(SPECIAL)
        if inputs > 1:
            special = special[:9].repeat_interleave(9) if place == 0 else special[:9].repeat(9)
        columns.append(torch.cat((ordinary, unit, anything, special)).to(dtype))
    return columns


def evaluated(function, operands, numbers=()):
    """The results of the compiled kernel for contiguous operands."""
    operands = [operand.contiguous() for operand in operands]
    results = [torch.empty_like(operands[0]) for _ in range(function.outputs)]
    addresses = [number for operand in operands for number in (operand.data_ptr(), 1)]
    addresses += [result.data_ptr() for result in results]
    function.kernels[operands[0].dtype](operands[0].numel(), *addresses, *numbers)
    return results


def expected(function, operands, numbers):
    """The same by exact numbers, one element at a time."""
    kernel = function.kernels[operands[0].dtype]
    dtype = operands[0].dtype
    kind = "float64" if kernel.wide or dtype == torch.float64 else "float32"
    if dtype != torch.float64:
        numbers = [float(np.float32(number)) for number in numbers]
    columns = [[] for _ in range(function.outputs)]
    for row in zip(*(operand.double().tolist() for operand in operands), strict=True):
        arguments = [ExactNumber(number, kind) for number in (*row, *numbers)]
        found = kernel.define(*arguments)
        for column, result in zip(columns, found if isinstance(found, list) else [found], strict=True):
            column.append(result.value)
    results = [torch.tensor(column, dtype=torch.float64) for column in columns]
    if dtype == torch.float64:
        return results
    return [result.float().to(dtype) for result in results]


def bits(tensor):
    """The bits, with the one NaN of our results for every NaN."""
    tensor = torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor)
    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_compiled_functions_follow_their_formulas(name):
    """Every function in every type has the bits of its formula, computed one operation at a time."""
    function, numbers = FUNCTIONS[name], NUMBERS.get(name, ())
    for dtype in function.kernels:
        operands = samples(function.inputs, dtype)
        if dtype in (torch.bfloat16, torch.float16):  # the same formula: only reading and rounding are new
            operands = [operand[::9] for operand in operands]
        found = evaluated(function, operands, numbers)
        for result, exact in zip(found, expected(function, operands, numbers), strict=True):
            wrong = (bits(result) != bits(exact)).nonzero().flatten().tolist()
            assert not wrong, [
                ([operand[i].item() for operand in operands], result[i].item(), exact[i].item())
                for i in wrong[:3]
            ]


def test_a_nan_has_one_pattern_of_bits():
    """NaNs of any sign and payload give the quiet NaN 0x7fc00000, and 0x7fc0 and 0x7e00 in the shorter types."""
    payloads = torch.tensor([-1, 0x7F800001, 0x7FC12345], dtype=torch.int32).view(torch.float32)
    for dtype, pattern, word in (
        (torch.float32, 0x7FC00000, torch.int32),
        (torch.bfloat16, 0x7FC0, torch.int16),
        (torch.float16, 0x7E00, torch.int16),
    ):
        found = evaluated(FUNCTIONS["exp"], [payloads.to(dtype)])[0]
        assert found.view(word).tolist() == [pattern] * 3


def test_every_float16_and_bfloat16_is_read_and_rounded_as_torch_does():
    """All 65536 numbers of each short type pass through, and float32 is rounded to them, with torch's bits."""
    words = torch.arange(-(2**15), 2**15).to(torch.int16)
    identity = FUNCTIONS["lerp_number"]  # x + 0 (y - x)
    for dtype in (torch.bfloat16, torch.float16):
        x = words.view(dtype)
        found = evaluated(identity, [x, torch.zeros_like(x)], (0.0,))[0]
        finite = x.isfinite() & (x != 0)  # -0 + 0 is 0
        assert torch.equal(bits(found)[finite], bits(x)[finite])
        squares = evaluated(FUNCTIONS["square"], [x])[0]
        assert torch.equal(bits(squares), bits((x.float() * x.float()).to(dtype)))


@kernel("float64(float64)")
def exp_and_log_in_a_kernel(x):
    """A kernel that calls formulas as functions of one number."""
    return exp_wide(x) + log_wide(x)


def test_formulas_are_functions_in_kernels():
    """Called with a number in a kernel, formulas have the bits that they have for exact numbers."""
    for x in (0.5, 1.0, 3.7, 1e-30):
        expected = exp_wide(ExactNumber(x)) + log_wide(ExactNumber(x))
        assert exp_and_log_in_a_kernel(x) == expected.value

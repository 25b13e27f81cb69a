"""The arithmetic with one definition: a GPU's bits of products, functions and sums are the CPU's."""

import pytest
import torch

from agreement import agree
from arithmetic_cases import DTYPES, function_values, products, sums
from samebits.arithmetic.elementwise_functions import FUNCTIONS


@pytest.mark.slow
@pytest.mark.limit(120)
@pytest.mark.parametrize("measure", [products, sums])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_and_sums_have_the_bits_of_the_cpu(target, dtype, measure):
    """Every shape that ends within a tile, batches, strides, special numbers; and the same bits again."""
    target.check(agree, measure, dtype)


@pytest.mark.limit(120)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_bits_of_the_cpu(target, name):
    """Every type that the function takes, of usual and of special numbers.

    The CPU's kernels take a second each to compile, so a rehearsal measures none.
    """
    example = {"float32": {"the CPU": torch.ones(3), "the GPU": torch.ones(3)}}
    target.check(agree, function_values, name, example=example)

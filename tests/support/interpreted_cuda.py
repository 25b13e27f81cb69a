"""The arithmetic's Triton kernels in Triton's interpreter: run by test_cuda.py in a process with TRITON_INTERPRET=1.

Interpreter only: NumPy computes here, and the CPU's instruction fuses, so this shows that the kernels are right, not
that a GPU runs them so.
"""

import os
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl

import arithmetic_cases as arithmetic
from agreement import agree
from lab.cuda import formula_kernels, launch
from lab.cuda.kernels import block_sums
from samebits._native.formula import fma
from samebits.arithmetic.elementwise_functions import FUNCTIONS

assert os.environ.get("TRITON_INTERPRET") == "1" and triton.knobs.runtime.interpret

SMALL = SimpleNamespace(device="cpu", small=True)
CASES = [
    *((measure, dtype) for measure in (arithmetic.products, arithmetic.sums) for dtype in arithmetic.DTYPES),
    *((arithmetic.function_values, name) for name in FUNCTIONS),
]


@pytest.fixture
def on_triton(monkeypatch):
    """The cases compare with Triton's kernels."""
    monkeypatch.setattr(arithmetic, "back_end", lambda device: launch)
    monkeypatch.setattr(
        launch, "_ELEMENTS", 4096
    )  # the interpreter takes milliseconds for a call, not for an element


@pytest.mark.parametrize("measure, given", CASES)
def test_the_kernels_have_the_bits_of_the_cpu(on_triton, measure, given):
    """Products, sums and every function, in every type, of usual and of special numbers."""
    assert list(agree(measure(SMALL, given))) == []


def bits(x):
    return arithmetic.codes(x)


@pytest.mark.parametrize("name", ["exp", "gelu", "sin"])
def test_every_length_has_the_same_elements(name):
    """Lengths 1 to 100: an element's bits depend neither on its place nor on how many there are."""
    x = 8 * torch.randn(100, generator=torch.Generator().manual_seed(1))
    (whole,) = launch.applied(FUNCTIONS[name], [x])
    for length in range(1, 101):
        (made,) = launch.applied(FUNCTIONS[name], [x[:length]])
        (cpu,) = arithmetic.applied(FUNCTIONS[name], [x[:length].clone()])
        assert torch.equal(bits(made), bits(cpu)) and torch.equal(bits(made), bits(whole[:length]))


def test_products_of_every_inner_length():
    """Inner dimensions 1 to 100, and rows and columns that are slices."""
    generator = torch.Generator().manual_seed(2)
    a, b = torch.randn(9, 200, generator=generator), torch.randn(200, 11, generator=generator)
    for inner in range(1, 101):
        left, right = a[1:, : 2 * inner : 2], b[:inner, ::3]
        expected = arithmetic.CPU.product(left, right)
        assert torch.equal(bits(launch.product(left, right)), bits(expected)), inner


def test_what_no_kernel_takes_is_none():
    """Shapes and types that the kernel of products does not take, as with the CPU's."""
    x = torch.ones(2, 3)
    for a, b in (
        (x, x),
        (x, x.mT.double()),
        (x[:0], x.mT),
        (x[:, :0], x.mT[:0]),
        (x.bfloat16(), x.mT.bfloat16()),
    ):
        assert launch.product(a, b) is None


def plain_fma(x, y, z):
    return x * y + z


def test_a_product_that_is_rounded_is_seen():
    """Negative control: a b + c in two operations is not the fused one."""
    x, y, z = torch.randn(3, 4096, generator=torch.Generator().manual_seed(3))
    made = []
    for name, define in (("fused", fma), ("plain", plain_fma)):
        run, _ = formula_kernels.kernel_of(define, name, "float32", 3, 0)
        out = torch.empty_like(x)
        run[(16,)](x, y, z, out, 4096, BLOCK=256)
        made.append(out)
    exact = (x.double() * y.double() + z.double()).float()  # rounded twice, seldom another number
    assert (made[0] != made[1]).sum() > 500 and (made[0] != exact).sum() < 5


def test_another_order_is_seen(monkeypatch):
    """Negative control: chunks of 128 in a product, blocks of 128 in a sum."""
    x = torch.randn(3, 1000, generator=torch.Generator().manual_seed(4))
    chunks = launch.product_tile.fn.__globals__
    monkeypatch.setitem(chunks, "CHUNK", tl.constexpr(128))
    assert not torch.equal(bits(launch.product(x, x.mT)), bits(arithmetic.CPU.product(x, x.mT)))
    halves = torch.stack([launch.summed(one) for one in x.split(500, dim=1)]).sum(0)
    assert not torch.equal(bits(halves), bits(arithmetic.CPU.summed(x)))
    assert block_sums is launch.block_sums

"""Products and convolutions touch no byte beyond their operands: each ends (or begins) at a page that nobody may read."""

import ctypes
import os
import random
import signal
import subprocess
import sys

import pytest
import torch

import samebits
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT

pytestmark = pytest.mark.slow

PAGE = 4096
CASES = 150
LENGTHS = (1, 2, 3, 5, 7, 12, 13, 16, 17, 24, 31, 33, 48, 60, 61, 64, 65, 129, 257, 300)
DTYPES = (torch.float32, torch.bfloat16, torch.bfloat16, torch.float64)


class Fenced:
    """Copies of tensors in memory of their own, between two pages that raise SIGSEGV."""

    def __init__(self, chance):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.mmap.restype = ctypes.c_void_p
        self.libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        self.libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self.chance = chance

    def __call__(self, t):
        """The same values, strides and type: at the end of a page mostly, else at the beginning. (The memory stays.)"""
        order = sorted(range(t.dim()), key=t.stride, reverse=True)
        dense = t.permute(order).contiguous()
        pages = -(-dense.nbytes // PAGE)
        base = self.libc.mmap(None, (pages + 2) * PAGE, 3, 0x22, -1, 0)
        last = base + (pages + 1) * PAGE
        for fence in (base, last):
            assert self.libc.mprotect(fence, PAGE, 0) == 0
        place = last - dense.nbytes if self.chance.random() < 0.8 else base + PAGE
        raw = (ctypes.c_char * dense.nbytes).from_address(place)
        there = torch.frombuffer(raw, dtype=t.dtype).view(dense.shape).copy_(dense)
        return there.permute([order.index(dim) for dim in range(t.dim())])


def multiply(chance, fenced):
    dtype, (m, k, n) = chance.choice(DTYPES), chance.choices(LENGTHS, k=3)
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    a, b = (t if chance.random() < 0.5 else t.t().contiguous().t() for t in (a, b))
    c = torch.randn(n).to(dtype)
    assert torch.equal(torch.addmm(fenced(c), fenced(a), fenced(b)), torch.addmm(c, a, b))
    assert torch.equal(fenced(a.expand(3, m, k)) @ fenced(b.expand(3, k, n)), a.expand(3, m, k) @ b)


def convolve(chance, fenced):
    dtype, groups, kernel = chance.choice(DTYPES), chance.choice((1, 1, 2, 3)), chance.choice((1, 2, 3))
    x = torch.randn(
        chance.choice((1, 2, 3)), chance.choice((1, 2, 3, 16, 20)) * groups, 7, chance.choice((5, 8, 17, 33))
    )
    w = torch.randn(chance.choice((1, 2, 12, 33)) * groups, x.shape[1] // groups, kernel, kernel).to(dtype)
    form = torch.channels_last if chance.random() < 0.4 else torch.contiguous_format
    x, b = x.to(dtype).contiguous(memory_format=form), torch.randn(len(w)).to(dtype)
    rest = ([chance.choice((1, 2))] * 2, [chance.choice((0, 1))] * 2, [1, 1], False, [0, 0], groups)
    y = torch.ops.aten.convolution(x, w, b, *rest)
    assert torch.equal(torch.ops.aten.convolution(fenced(x), fenced(w), fenced(b), *rest), y)
    back, masks = torch.ops.aten.convolution_backward, [True, True, True]
    expected = back(y, x, w, [len(w)], *rest, masks)
    found = back(fenced(y), fenced(x), fenced(w), [len(w)], *rest, masks)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def main(wrong):
    chance = random.Random(0)
    fenced = Fenced(chance)
    samebits.set_random_seed(1)
    if wrong:
        chance.random = lambda: 0.0
        ctypes.string_at(fenced(torch.ones(7)).data_ptr(), 29)
    with samebits.enable_op_determinism(across="machines"):
        for _ in range(CASES):
            torch.set_num_threads(chance.choice((1, 2)))
            chance.choice((multiply, convolve))(chance, fenced)


def exit_status(variables, *arguments):
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(
        command, env={**os.environ, **variables}, check=False, capture_output=True
    ).returncode


@pytest.mark.parametrize("variables", [{}, AVX2_ENVIRONMENT], ids=["this CPU", "one with AVX2"])
def test_nothing_is_read_beyond_an_operand(variables):
    """Products, convolutions and their gradients over fenced operands end, with the bits of others, on this CPU and one with AVX2."""
    assert exit_status(variables) == 0


def test_a_byte_beyond_an_operand_is_fatal():
    """Negative control: to read one byte more than a fenced tensor has ends the process by SIGSEGV."""
    assert exit_status({}, "wrong") == -signal.SIGSEGV


if __name__ == "__main__":
    main(sys.argv[1:] == ["wrong"])

"""stochastic_round to bfloat16 in vectors, against the rule for one number and the cipher in a loop."""

import numpy as np
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import samebits.random as sr
from samebits._native import kernel
from samebits.random._cpu.philox import block
from samebits.rounding import stochastic_round
from samebits.rounding._cpu.number_formats import bfloat16_by

ANYTHING = sr.bits(sr.key(3), 4096).view(torch.float32)
"""One of 128 is a NaN, or infinite with a low half."""
UNTOUCHED = 0x5A5A
words = st.integers(0, 2**64 - 1)


@kernel("void(uint64, uint64, float32[::1], uint16[::1])")
def one_by_one(seed, offset, x, out):
    for j in range(x.size):
        word = block(seed, offset + np.uint64(j // 8))[j % 8 // 2]
        out[j] = bfloat16_by(x[j], np.uint16(word >> np.uint64(16 * (j % 2))))


def expected(seed, offset, x):
    out = np.zeros(x.numel(), np.uint16)
    one_by_one(seed, offset, x.numpy(), out)
    return torch.from_numpy(out)


@given(st.integers(0, 1000), st.integers(0, 63), st.integers(0, 63), words, words)
@example(1000, 1, 1, 2**64 - 1, 2**32 - 3)
@example(1000, 0, 33, 2**32, 2**64 - 3)
@settings(derandomize=True)
def test_vectors_are_the_rule_for_each_number(count, skipped, begin, seed, offset):
    """Any bits, at any address and of any number, become what the rule says for each; nothing beside them is written."""
    x = ANYTHING[skipped : skipped + count]
    memory = torch.full((begin + count + 64,), UNTOUCHED, dtype=torch.uint16)
    out = memory[begin : begin + count]
    stochastic_round(
        x, torch.bfloat16, torch.tensor([seed, offset], dtype=torch.uint64), out=out.view(torch.bfloat16)
    )
    assert torch.equal(out, expected(seed, offset, x))
    assert (memory[:begin] == UNTOUCHED).all() and (memory[begin + count :] == UNTOUCHED).all()
    if count > 100:  # control: the next block of the key
        assert not torch.equal(out, expected(seed, (offset + 1) % 2**64, x))


def test_every_low_half():
    """All 2**16 low halves, and NaNs with each of them, are rounded by the rule in vectors, too."""
    low = torch.arange(1 << 16, dtype=torch.int32)
    x = torch.cat([low | upper << 16 for upper in (0, 0x3F80, 0x7F7F, 0x7F80, -0x80, -0x3D09)])
    key = sr.key(7)
    ours = stochastic_round(x.view(torch.float32), torch.bfloat16, key).view(torch.uint16)
    seed, offset = key.tolist()
    assert torch.equal(ours, expected(seed, offset, x.view(torch.float32)))
    assert not torch.equal(ours, expected(seed, offset, (x ^ 0x8000).view(torch.float32)))  # control

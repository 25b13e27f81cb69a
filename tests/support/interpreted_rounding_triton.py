"""Stochastic rounding in Triton's interpreter: run by test_rounding_triton.py in a process with TRITON_INTERPRET=1."""

import os

import pytest
import torch
import triton

import samebits.random as sr
from agreement import equal
from rounding_reference import DTYPES, inputs, special
from samebits.rounding import _stochastic_round as device_kernels
from samebits.rounding import _triton, stochastic_round

assert os.environ.get("TRITON_INTERPRET") == "1" and triton.knobs.runtime.interpret


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_kernels_round_to_the_bits_of_the_cpu(dtype, monkeypatch):
    """Numbers of every size become the same bits by the CPU's kernels and by Triton's, payloads of NaN included."""
    x = torch.cat([inputs(dtype, 2_000), special()])
    key = torch.tensor([2**64 - 1, 2**64 - 100], dtype=torch.uint64)  # its offset wraps
    ours = stochastic_round(x, dtype, key)
    monkeypatch.setattr(device_kernels, "_CPU", _triton)
    theirs = stochastic_round(x, dtype, key)
    assert torch.equal(theirs.view(torch.uint8), ours.view(torch.uint8))
    other = stochastic_round(x, dtype, sr.key(3))  # control: another key
    assert not equal(other, ours)

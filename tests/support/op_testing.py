"""Shared by the tests of op determinism: thread counts, tensors, and replacements put in front without the rest of the switch."""

import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial

import torch
from hypothesis import strategies as st

from samebits._digest import of_value
from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._guards.uninitialized_memory import without_fill
from samebits.determinism._ops import refusal
from samebits.determinism._reviewed_schemas import installable

THREADS = (1, 2, 3, 4, 8)


@contextmanager
def replaced(*modules):
    """The replacements of these modules (or tuples of replacements); what they do not cover raises, as across machines."""
    overrides = KernelOverrides()
    try:
        for module in modules:
            for one in installable(getattr(module, "REPLACEMENTS", module)):
                overrides.put(one.op, one.device, partial(_installed, one))
        yield
    finally:
        overrides.remove()


def _installed(replacement, kernel):
    otherwise = refusal.policy(warn=False).otherwise(replacement.op, kernel)
    return without_fill(replacement.make(kernel), otherwise)


def over_threads(compute, counts=THREADS):
    """The digests of what `compute` returns at each thread count, and its last value; the count is put back by conftest."""
    seen = set()
    for count in counts:
        torch.set_num_threads(count)
        value = compute()
        seen.add(of_value(value))
    return seen, value


def printed_elsewhere(*words, **environment):
    """The output of Python with these words, in a process of its own: its environment may play another CPU."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def close(value, expected, dtype, *, scale=1.0, torchs=None):
    """As near to the value in double as the type allows, or at least as torch's own is."""
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.complex64: 2e-6}.get(
        dtype, 1e-13
    )
    assert value.dtype == dtype
    expected = expected.to(torch.complex128 if value.is_complex() else torch.float64)
    slack = 0 if torchs is None else 2 * (torchs - expected).abs().max()
    assert (value - expected).abs().max() <= tolerance * scale * max(1.0, expected.abs().max().item()) + slack


def numbers(shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


layouts = st.sampled_from(("plain", "strided", "transposed", "expanded"))


def laid_out(shape, dtype, seed, layout):
    rows, columns = shape
    if layout == "strided":
        return numbers((rows, 2 * columns), dtype, seed)[:, ::2]
    if layout == "transposed":
        return numbers((columns, rows), dtype, seed).t()
    if layout == "expanded":
        return numbers((rows, 1), dtype, seed).expand(rows, columns)
    return numbers(shape, dtype, seed)

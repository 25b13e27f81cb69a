"""Kernels of ours, installed without the switch; what they do not cover raises, as under `across="machines"`."""

from contextlib import contextmanager

import pytest

from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._guards.uninitialized_memory import without_fill
from samebits.determinism._ops import refusal


@pytest.fixture
def machine_invariant_kernels():
    """`with machine_invariant_kernels(REPLACEMENTS):` installs them, and removes them at the end."""

    @contextmanager
    def installed(replacements):
        overrides = KernelOverrides()
        try:
            for it in replacements:
                overrides.put(it.op, it.device, lambda kernel, it=it: covered(it, kernel))
            yield
        finally:
            overrides.remove()

    return installed


def covered(it, kernel):
    return without_fill(it.make(kernel), refusal.otherwise(it.op, kernel))

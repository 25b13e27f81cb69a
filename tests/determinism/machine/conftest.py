"""Kernels of `across="machines"`, installed without the switch."""

from contextlib import contextmanager

import pytest

from samebits.determinism._dispatcher import KernelOverrides


@pytest.fixture
def machine_invariant_kernels():
    """`with machine_invariant_kernels(REPLACEMENTS):` installs them, and removes them at the end."""

    @contextmanager
    def installed(replacements):
        overrides = KernelOverrides()
        try:
            for it in replacements:
                overrides.put(it.op, it.device, it.make)
            yield
        finally:
            overrides.remove()

    return installed

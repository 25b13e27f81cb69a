"""Kernels of ours, installed without the switch; what they do not cover raises, as under `across="machines"`."""

import pytest

from op_testing import replaced


@pytest.fixture
def machine_invariant_kernels():
    """`with machine_invariant_kernels(REPLACEMENTS):` installs them, and removes them at the end."""
    return replaced

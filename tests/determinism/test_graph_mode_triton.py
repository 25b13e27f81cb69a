"""Inductor's code for GPUs under the switch, as far as it is decided without one: what is refused before it is written."""

import pytest

import samebits
from samebits.errors import UnimplementedError

pytest.importorskip("triton")


LATER = """
import samebits
samebits.enable_op_determinism()
import torch._inductor.compile_fx
from torch._inductor.codegen import triton, triton_split_scan
print(triton.TritonKernel.store.__wrapped__, triton_split_scan.TritonSplitScanKernel.scan.__wrapped__)
"""


@pytest.fixture
def codegen():
    """Inductor's modules for Triton."""
    from torch._inductor.codegen import triton, triton_split_scan

    return triton.TritonKernel, triton_split_scan.TritonSplitScanKernel


def test_atomics_are_refused(codegen):
    """A sum by atomics in a Triton kernel raises under the switch, before anything is written, and not without it."""
    kernel, _ = codegen
    before = kernel.store
    import torch._inductor.compile_fx  # noqa: F401 (it patches what the switch wraps)

    with samebits.enable_op_determinism():
        assert kernel.store is not before
        with pytest.raises(UnimplementedError, match="adds to buf0 with atomics"):
            kernel.store(None, "buf0", 0, None, "atomic_add")
        with pytest.raises(AttributeError):  # any other goes on to torch's
            kernel.store(None, "buf0", 0, None, None)
    assert kernel.store is before


def test_a_scan_in_blocks_is_refused_for_floats(codegen):
    """A cumsum over blocks that wait for each other raises for floats under the switch; integers have one sum in any order."""
    _, kernel = codegen
    before = kernel.scan
    import torch._inductor.compile_fx  # noqa: F401 (it patches what the switch wraps)

    with samebits.enable_op_determinism():
        for dtype in (torch.float32, torch.bfloat16):
            with pytest.raises(UnimplementedError, match="cumsum.* in blocks"):
                kernel.scan(None, (dtype,), None, None)
        with pytest.raises(TypeError, match="unpack"):
            kernel.scan(None, (torch.int64,), None, None)
    assert kernel.scan is before


@pytest.mark.slow
def test_they_are_refused_whenever_inductor_is_imported(python):
    """Imported under the switch, Inductor is changed as it is when it was there before."""
    told = python(LATER)
    assert "TritonKernel.store" in told.stdout and "TritonSplitScanKernel.scan" in told.stdout

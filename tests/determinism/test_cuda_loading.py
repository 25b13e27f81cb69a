"""The formulations for CUDA are imported by nobody who has no CUDA tensor."""

import datetime

import pytest
import torch

from samebits.determinism import _cuda_loading as cuda_loading
from samebits.determinism._dispatcher import KernelOverrides
from samebits.determinism._verified_on_gpu import GpuVerification

COUNT = "import sys\nfound = [m for m in sys.modules if 'cuda_decompositions' in m]\nprint('loaded', len(found))\n"
STEP = """
import torch, samebits
samebits.set_random_seed(1)
samebits.enable_op_determinism(across="threads")
model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Dropout(0.1), torch.nn.Linear(8, 3))
optimizer = torch.optim.AdamW(model.parameters())
loss = torch.nn.functional.cross_entropy(model(torch.randn(4, 1, 4, 4)), torch.arange(4) % 3)
loss.backward()
optimizer.step()
torch.zeros(3).put_(torch.tensor([1, 1]), torch.ones(2))
"""
FAKE = """
from torch._subclasses.fake_tensor import FakeTensorMode
with FakeTensorMode():
    try:
        torch.ones(4, device="cuda").histc()
    except samebits.errors.UnimplementedError:
        pass
"""


def loaded(python, program):
    return int(python(program + COUNT).stdout.split()[-1])


@pytest.mark.slow
def test_a_training_step_on_the_cpu_imports_no_formulation_for_cuda(python):
    """import samebits, the switch, a whole step, and a `put_` of ours: 0 of the package's modules."""
    assert loaded(python, STEP) == 0


@pytest.mark.slow
def test_a_cuda_tensor_and_the_op_table_import_them(python):
    """Negative control: all 9 modules are there once a fake CUDA tensor met a refused op, or the table was asked."""
    unverified = "import samebits.determinism._verified_on_gpu as verified\nverified.read = list\n"
    assert loaded(python, unverified + STEP + FAKE) == 9
    assert loaded(python, STEP + "samebits.determinism.table.lookup('aten::put_', 'cuda')\n") == 9


def test_what_a_gpu_has_verified_is_imported_at_its_first_call(python):
    """The override stands without the package; its first call imports it, and gives the formulation's result."""
    program = """
import datetime, torch
from samebits.determinism import _cuda_loading as cuda
from samebits.determinism._dispatcher import KernelOverrides as Overrides
from samebits.determinism._verified_on_gpu import GpuVerification as Verification
entry = Verification("aten::cumsum", "a GPU", datetime.date(2026, 1, 31), "2.13.0", 1.0)
(one,) = cuda.installable([entry, entry])
overrides = Overrides()
overrides.put(one.op, "CPU", one.make)
""" + COUNT + """
torch._C._set_deterministic_algorithms(True)
print(torch.ones(5).cumsum(0).tolist())
""" + COUNT  # fmt: skip
    assert python(program).stdout.splitlines() == ["loaded 0", "[1.0, 2.0, 3.0, 4.0, 5.0]", "loaded 9"]


@pytest.mark.parametrize("op", ["aten::histc", "aten::kthvalue.values"])
def test_an_override_that_loads_late_has_the_bits_of_the_formulation(op):
    """Called twice through the dispatcher: the same as the formulation called by itself."""
    (one,) = cuda_loading.installable(
        [GpuVerification(op, "a GPU", datetime.date(2026, 1, 31), "2.13.0", 1.0)]
    )
    x = torch.randn(50, generator=torch.Generator().manual_seed(0))
    call = (lambda: x.histc(7)) if op == "aten::histc" else (lambda: x.kthvalue(3).values)
    plain, overrides = call(), KernelOverrides()
    overrides.put(op, "CPU", one.make)
    try:
        assert torch.equal(call(), plain) and torch.equal(call(), plain)
    finally:
        overrides.remove()
    assert set(cuda_loading.all_formulations()) >= {op} and one.device == "CUDA"


def test_an_op_is_computed_by_itself_or_by_its_out_form():
    """`median.dim` is computed by `median.dim_values`, `kthvalue` by `kthvalue.values`, and `scatter` by no `scatter_reduce`."""
    ops = cuda_loading.all_formulations()
    assert all(
        cuda_loading.computes(f"aten::{name}", ops) for name in ("median.dim", "kthvalue", "histc", "put_")
    )
    assert not any(
        cuda_loading.computes(f"aten::{name}", ops)
        for name in ("scatter.reduce", "median", "_ctc_loss_backward.Tensor")
    )

"""What no kernel of ours computes runs torch's on one thread under `across="threads"`."""

import pytest
import torch

import samebits
from op_testing import numbers, over_threads
from samebits.determinism import table
from samebits.determinism._dispatcher import has_kernel
from samebits.determinism._ops import coverage
from samebits.determinism._ops.replacements import REPLACEMENTS
from samebits.determinism.table._verdicts import op_table

U, V = (torch.complex(*numbers((2, 100_003), torch.float32, seed)) for seed in (1, 2))
X = numbers((100_003,), torch.float32, 3)
WIDE = torch.arange(300.0).view(300, 1).expand(300, 400)

CALLS = {
    "complex log": lambda: U.log(),
    "complex log1p, strided": lambda: U[::2].log1p(),
    "complex sqrt": lambda: V.sqrt(),
    "complex product of all": lambda: U[:100].prod(),
    "complex products so far": lambda: V[:200].cumprod(0),
    "complex powers": lambda: U**V,
    "complex sine": lambda: U.sin(),
    "complex tanh": lambda: V.tanh(),
    "i0": lambda: torch.special.i0(X),
    "igamma": lambda: torch.igamma(X.abs(), X.flip(0).abs()),
    "i0e": lambda: torch.special.i0e(X),
    "sparse, complex": lambda: torch.sparse.mm(U[:900].view(30, 30).to_sparse(), V[:900].view(30, 30)),
    "quantized": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8).sigmoid().dequantize(),
    "into another shape": lambda: torch.log(U, out=torch.empty(0, dtype=U.dtype)),
}


@pytest.fixture(autouse=True)
def seeded():
    samebits.set_random_seed(1)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_not_ours_has_the_bits_of_one_thread(name):
    """Complex numbers, special functions and sparse or quantized tensors: at any thread count torch's bits at one thread."""
    torch.set_num_threads(1)
    alone = CALLS[name]()
    with samebits.enable_op_determinism(across="threads"):
        seen, value = over_threads(CALLS[name])
    assert len(seen) == 1 and torch.equal(value, alone)


def test_torchs_own_vary():
    """Negative control: without the mode some of them have several results, which depends on the CPU; a large sum on each."""
    large = numbers((1_000_003,), torch.float32, 3)
    assert sum(len(over_threads(call)[0]) > 1 for call in (*CALLS.values(), large.sum)) >= 1


def test_nothing_is_written_before_torchs_kernel_takes_over():
    """A fused step of float64, whose gradients are scaled, is torch's at one thread: scale and step are taken once."""

    def step():
        parameters = [
            torch.nn.Parameter(numbers((5_000,), dtype, 1)) for dtype in (torch.float32, torch.float64)
        ]
        optimizer = torch.optim.Adam(parameters, fused=True, lr=0.1)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(0.0)
        for one in parameters:
            one.grad = numbers((5_000,), one.dtype, 2)
        optimizer.step()
        return [tensor.detach() for one in parameters for tensor in (one, one.grad)]

    torch.set_num_threads(1)
    alone = step()
    with samebits.enable_op_determinism(across="threads"):
        seen, value = over_threads(step)
    assert len(seen) == 1 and all(map(torch.equal, value, alone))


def test_one_thread_is_for_the_op_only():
    """After such an op, and after its error, the thread count is the user's; a real product uses all threads before and after."""
    torch.set_num_threads(3)
    with samebits.enable_op_determinism(across="threads"):
        CALLS["complex log"]()
        with pytest.raises(RuntimeError, match="must match"):
            U ** V[:-1]
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            U[:6].view(2, 3) @ V[:6].view(2, 3)
        torch.linalg.qr(WIDE[:20, :20])
        with pytest.raises(torch.linalg.LinAlgError):
            torch.linalg.cholesky(-torch.eye(3))
        assert torch.get_num_threads() == 3


def test_every_kernel_that_is_not_known_to_be_equal_runs_on_one_thread():
    """Of each overload that no kernel of ours computes and that machines refuse: one thread, or the table knows it as equal."""
    serial = {(full, key) for full, key, _ in op_table().serial_kernels()}
    ours = frozenset((it.op, it.device) for it in REPLACEMENTS)
    others = [(full, key) for full, key, _ in coverage.refusals(ours) if (full, key) not in serial]
    dense = {full for full, key in others if key == "CPU"}
    assert {key for _, key in others} <= {"CPU", "MkldnnCPU"} and len(serial) > 500
    assert {table.lookup(full, "cpu").verdict for full in dense} <= {
        "deterministic over threads",
        "has an alternative here",  # a form that torch generates of one
    }
    assert all(has_kernel(full, key) for full, key in serial if key != "CPU")


WITHOUT_VECTORS = """
import torch, samebits
from samebits._digest import of_value
x = torch.linspace(-3, 3, 100_003)
calls = (lambda: x.sum(), lambda: x[:90_000].view(300, 300) @ x[:90_000].view(300, 300), lambda: x.exp(),
         lambda: torch.nn.functional.grid_sample(x[:90_000].view(1, 1, 300, 300), x[:200].view(1, 10, 10, 2) / 3,
                                                 align_corners=False),
         lambda: torch.nn.LSTM(7, 5)(x[:140].view(10, 2, 7))[0].detach())
def found():
    torch.manual_seed(0)
    return [of_value(call()) for call in calls]
torch.set_num_threads(1)
alone = found()[:3]
with samebits.enable_op_determinism(across="threads"):
    seen = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        seen.append(found())
print(torch.backends.cpu.get_cpu_capability(), seen[0] == seen[1] == seen[2], seen[0][:3] == alone)
"""


@pytest.mark.slow
def test_without_avx2_everything_runs_on_one_thread(python):
    """Where torch has no vectors, ours are not installed: the bits are torch's at one thread, for any number of threads."""
    assert python(WITHOUT_VECTORS, env={"ATEN_CPU_CAPABILITY": "default"}).stdout.split() == [
        "DEFAULT",
        "True",
        "True",
    ]

"""Linear algebra: the same bits at any thread count, forward and backward, and lstsq from run to run too."""

import pytest
import torch
from torch import linalg

import samebits
from op_testing import over_threads
from samebits.determinism import _reviewed_schemas as reviewed_schemas

SIZE = 192


def matrices(dtype, *batch, n=SIZE):
    torch.manual_seed(1)
    a = torch.randn(*batch, n, n, dtype=dtype)
    return {
        "a": a,
        "definite": a @ a.mH / n + torch.eye(n, dtype=dtype),
        "hermitian": (a + a.mH) / 2,
        "b": torch.randn(*batch, n, 24, dtype=dtype),
        "tall": torch.randn(*batch, 2 * n, n, dtype=dtype),
        "upper": a.triu() + n * torch.eye(n, dtype=dtype),
    }


CASES = {
    "cholesky": lambda m: linalg.cholesky(m["definite"]),
    "cholesky_solve": lambda m: torch.cholesky_solve(m["b"], m["definite"].tril()),
    "cholesky_inverse": lambda m: torch.cholesky_inverse(m["definite"].tril()),
    "lu_factor": lambda m: linalg.lu_factor(m["a"]),
    "lu": lambda m: linalg.lu(m["a"]),
    "lu_solve": lambda m: linalg.lu_solve(
        m["upper"], torch.arange(1, SIZE + 1, dtype=torch.int32).expand(m["a"].shape[:-1]), m["b"]
    ),
    "solve": lambda m: linalg.solve(m["a"], m["b"]),
    "inv": lambda m: linalg.inv(m["a"]),
    "det": lambda m: torch.ops.aten._linalg_det(m["a"] / SIZE**0.5),
    "slogdet": lambda m: linalg.slogdet(m["a"]),
    "qr": lambda m: linalg.qr(m["tall"]),
    "qr complete": lambda m: linalg.qr(m["tall"], "complete"),
    "geqrf": lambda m: torch.geqrf(m["tall"]),
    "householder_product": lambda m: linalg.householder_product(*torch.geqrf(m["tall"])),
    "ormqr": lambda m: torch.ormqr(*torch.geqrf(m["a"]), m["b"]),
    "eigh": lambda m: linalg.eigh(m["hermitian"]),
    "eigvalsh": lambda m: linalg.eigvalsh(m["hermitian"]),
    "eig": lambda m: linalg.eig(m["a"]),
    "eigvals": lambda m: linalg.eigvals(m["a"]),
    "svd": lambda m: linalg.svd(m["tall"], full_matrices=False),
    "svdvals": lambda m: linalg.svdvals(m["tall"]),
    "solve_triangular": lambda m: linalg.solve_triangular(m["upper"], m["b"].mT, upper=True, left=False),
    "triangular_solve": lambda m: torch.triangular_solve(m["b"], m["upper"]),
    "ldl_factor": lambda m: linalg.ldl_factor(m["hermitian"]),
    "ldl_solve": lambda m: linalg.ldl_solve(*linalg.ldl_factor(m["hermitian"]), m["b"]),
    "lstsq gels": lambda m: linalg.lstsq(m["tall"], m["tall"][..., :3], driver="gels"),
    "lstsq gelsd": lambda m: linalg.lstsq(m["tall"], m["tall"][..., :3], driver="gelsd"),
    "lstsq gelss": lambda m: linalg.lstsq(m["tall"], m["tall"][..., :3], driver="gelss"),
    "cond": lambda m: linalg.cond(m["a"]),
}
if reviewed_schemas.exists("aten::cholesky"):  # not in torch 2.15: linalg.cholesky is its only name there
    CASES["cholesky (old name)"] = lambda m: torch.cholesky(m["definite"])
if reviewed_schemas.exists("aten::linalg_polar"):  # new in torch 2.15, made of what was there
    CASES["polar"] = lambda m: torch.ops.aten.linalg_polar(m["a"])
    CASES["matrix_sqrth"] = lambda m: torch.ops.aten.linalg_matrix_sqrth(m["definite"])


WITH_OURS = {"det", "slogdet", "lstsq gels", "lstsq gelsd", "lstsq gelss"}
"""Beside LAPACK, a product or a sum."""
TORCHS = {
    "eigh", "eigvalsh", "eig", "eigvals", "svd", "svdvals", "ldl_factor", "ldl_solve", "cond", "polar", "matrix_sqrth",
}  # fmt: skip
"""Those that are LAPACK's for real matrices, too; the others have kernels of ours."""


@pytest.mark.filterwarnings(
    "ignore:torch.cholesky is deprecated", "ignore:torch.triangular_solve is deprecated"
)
@pytest.mark.parametrize("name", CASES)
def test_one_result_at_any_thread_count(name):
    """Float32 and complex64 matrices of 192: one result at 1, 2, 3, 4 and 8 threads, and where we have no kernel it is torch's at one thread."""
    for dtype in (torch.float32, torch.complex64):
        m = matrices(dtype)
        torchs, _ = over_threads(lambda m=m: CASES[name](m), (1,))
        with samebits.enable_op_determinism(across="threads"):
            ours, _ = over_threads(lambda m=m: CASES[name](m))
        assert len(ours) == 1, dtype
        has_ours = name in WITH_OURS or (dtype == torch.float32 and name not in TORCHS)
        assert has_ours or ours == torchs, dtype


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:torch.cholesky is deprecated", "ignore:torch.triangular_solve is deprecated"
)
def test_torchs_own_vary():
    """Negative control: without ours most of them have several results; which, depends on the CPU."""
    m = matrices(torch.float64)
    vary = [name for name, case in CASES.items() if len(over_threads(lambda case=case: case(m))[0]) > 1]
    assert len(vary) > 0.5 * len(CASES), sorted(set(CASES) - set(vary))


@pytest.mark.parametrize(("batch", "n"), [(64, 8), (5, 100), (6, 160), (2, 200)])
def test_batches(batch, n):
    """LU, solve and inverse of batches have one result; torch's are wrong for n > 150 once set_num_threads was called."""
    m = matrices(torch.float64, batch, n=n)
    with samebits.enable_op_determinism(across="threads"):
        for case in (
            lambda: linalg.lu_factor(m["a"]),
            lambda: linalg.solve(m["a"], m["b"]),
            lambda: linalg.det(m["a"] / n**0.5),
        ):
            assert len(over_threads(case)[0]) == 1
        torch.set_num_threads(2)
        torch.testing.assert_close(
            m["a"] @ linalg.inv(m["a"]), torch.eye(n, dtype=torch.float64).expand_as(m["a"])
        )


def test_gradients():
    """Gradients through cholesky, solve, eigh and qr have one result at any thread count."""
    m = matrices(torch.float64, n=96)

    def gradient(function, x):
        leaf = x.clone().requires_grad_()
        sum((t.abs() ** 2).sum() for t in flat_with_grad(function(leaf))).backward()
        return leaf.grad

    def flat_with_grad(result):
        return [result] if torch.is_tensor(result) else list(result)

    with samebits.enable_op_determinism(across="threads"):
        for function, x in (
            (linalg.cholesky, m["definite"]),
            (linalg.inv, m["a"]),
            (linalg.qr, m["a"]),
            (linalg.eigvalsh, m["hermitian"]),
        ):
            assert len(over_threads(lambda function=function, x=x: gradient(function, x))[0]) == 1


def runs_of_lstsq(enough=60):
    """How many different results 60 calls have, at 1 and 2 threads, in memory that other tensors have used."""
    found = set()
    torch.manual_seed(1)
    a = torch.randn(200, 60)
    for run in range(60):
        if len(found) == enough:
            break
        torch.set_num_threads(1 + run % 2)
        rubbish = [torch.full((60,), run * k, dtype=torch.int32) for k in range(50)]
        rubbish += [torch.full((run * 3 + 60,), k, dtype=torch.int32) for k in range(20)]
        del rubbish
        found.add(linalg.lstsq(a, a[:, :2]).solution.numpy().tobytes())
    return len(found)


def test_lstsq_is_the_same_in_every_run():
    """60 calls of lstsq at 1 and 2 threads, with the global memory fill off, have one result under the switch."""
    torch.manual_seed(1)
    with samebits.enable_op_determinism(across="threads"):
        torch.utils.deterministic.fill_uninitialized_memory = False
        try:
            assert runs_of_lstsq() == 1
            assert not torch.utils.deterministic.fill_uninitialized_memory
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = True


def test_lstsq_without_ours_varies():
    """Negative control: torch's switch without memory fill leaves lstsq with several results in 60 calls."""
    before = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        assert runs_of_lstsq(enough=2) == 2
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = before

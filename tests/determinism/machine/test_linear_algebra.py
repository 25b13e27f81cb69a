"""Factorisations and linear systems under `across="machines"`: the definition, torch's meaning, one result everywhere."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import linalg

import samebits
from definitions import cholesky, lu_of, solved
from op_testing import numbers, over_threads, printed_elsewhere, replaced
from samebits.arithmetic.linear_algebra import cholesky_factor, lu_factor, solve_triangular
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.determinism import _reviewed_schemas as reviewed_schemas
from samebits.determinism._ops import linear_algebra
from samebits.errors import UnimplementedError

pytestmark = pytest.mark.filterwarnings("ignore:torch.(cholesky|triangular_solve|qr) is deprecated")


def matrices(dtype, *batch, n=37, seed=1):
    a, b = numbers((*batch, n, n), dtype, seed), numbers((*batch, n, 24), dtype, seed + 1)
    unit = torch.eye(n, dtype=dtype)
    return {
        "a": a, "b": b, "definite": (a.double() @ a.double().mT / n).to(dtype) + unit,
        "tall": numbers((*batch, 2 * n, n), dtype, seed + 2), "upper": a.triu() / n + unit,
    }  # fmt: skip


CASES = {
    "cholesky": lambda m: linalg.cholesky(m["definite"]),
    "cholesky upper": lambda m: linalg.cholesky_ex(m["definite"], upper=True),
    "cholesky out": lambda m: linalg.cholesky_ex(m["definite"], out=empties(m, 1, torch.int32)),
    "cholesky_solve": lambda m: torch.cholesky_solve(m["b"], m["upper"].mT),
    "cholesky_solve upper": lambda m: torch.cholesky_solve(m["b"], m["upper"], upper=True),
    "cholesky_inverse": lambda m: torch.cholesky_inverse(m["upper"].mT),
    "cholesky_inverse upper": lambda m: torch.cholesky_inverse(m["upper"], upper=True),
    "lu_factor": lambda m: linalg.lu_factor(m["a"]),
    "lu_factor tall": lambda m: linalg.lu_factor_ex(m["tall"]),
    "lu_factor wide": lambda m: linalg.lu_factor_ex(m["tall"].mT),
    "lu": lambda m: linalg.lu(m["tall"]),
    "lu_solve": lambda m: linalg.lu_solve(*linalg.lu_factor(m["a"]), m["b"]),
    "lu_solve adjoint": lambda m: linalg.lu_solve(*linalg.lu_factor(m["a"]), m["b"], adjoint=True),
    "lu_solve right": lambda m: linalg.lu_solve(*linalg.lu_factor(m["a"]), m["b"].mT, left=False),
    "solve": lambda m: linalg.solve(m["a"], m["b"]),
    "solve transposed": lambda m: linalg.solve(m["a"].mT, m["b"]),
    "solve right": lambda m: linalg.solve(m["a"], m["b"].mT, left=False),
    "solve vector": lambda m: linalg.solve(m["a"].flatten(0, -3)[0] if m["a"].dim() > 2 else m["a"], m["b"].reshape(-1, m["b"].shape[-2], 24)[0, :, 0]),
    "inv": lambda m: linalg.inv(m["a"]),
    "inv out": lambda m: linalg.inv(m["a"], out=empties(m, 1)[0]),
    "det": lambda m: linalg.det(m["a"] / m["a"].shape[-1] ** 0.5),
    "det out": lambda m: torch.ops.aten._linalg_det.result(m["a"] / m["a"].shape[-1] ** 0.5, result=empties(m, 1)[0], LU=empties(m, 1)[0], pivots=empties(m, 0, torch.int32)[0]),
    "slogdet": lambda m: linalg.slogdet(m["a"]),
    "logdet": lambda m: torch.logdet(m["definite"]),
    "qr": lambda m: linalg.qr(m["tall"]),
    "qr wide": lambda m: linalg.qr(m["tall"].mT),
    "qr complete": lambda m: linalg.qr(m["tall"], "complete"),
    "qr r": lambda m: linalg.qr(m["tall"], "r"),
    "qr out": lambda m: linalg.qr(m["tall"], out=empties(m, 2)),
    "geqrf": lambda m: torch.geqrf(m["tall"]),
    "householder_product": lambda m: linalg.householder_product(*torch.geqrf(m["tall"])),
    "ormqr": lambda m: torch.ormqr(*torch.geqrf(m["a"]), m["b"]),
    "ormqr transposed": lambda m: torch.ormqr(*torch.geqrf(m["a"]), m["b"], transpose=True),
    "ormqr right": lambda m: torch.ormqr(*torch.geqrf(m["a"]), m["b"].mT, left=False),
    "ormqr right transposed": lambda m: torch.ormqr(*torch.geqrf(m["a"]), m["b"].mT, False, True),
    "triangular_solve": lambda m: torch.triangular_solve(m["b"], m["upper"]),
    "triangular_solve transposed": lambda m: torch.triangular_solve(m["b"], m["upper"], transpose=True),
    "cross": lambda m: linalg.cross(m["a"][..., :3], m["b"][..., 4:7]),
}  # fmt: skip
for upper, left, unit in itertools.product((True, False), repeat=3):
    CASES[f"solve_triangular {upper} {left} {unit}"] = lambda m, upper=upper, left=left, unit=unit: (
        linalg.solve_triangular(
            m["upper"] if upper else m["upper"].mT,
            m["b"] if left else m["b"].mT,
            upper=upper, left=left, unitriangular=unit,
        )
    )  # fmt: skip
if reviewed_schemas.exists("aten::cholesky"):  # not in torch 2.15
    CASES["cholesky (old name)"] = lambda m: torch.cholesky(m["definite"])


def empties(m, count, last=None):
    found = [m["a"].new_empty(0) for _ in range(count)]
    return (*found, torch.empty(0, dtype=last)) if last else tuple(found)


def flat(found):
    return [found] if torch.is_tensor(found) else [*found]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("name", CASES)
def test_every_form_is_ours_and_means_what_torchs_means(name, dtype):
    """Each form has torch's shapes and strides, is near torch's float64 result, alone and in a batch, and is one over threads."""
    for m in (matrices(dtype), matrices(dtype, 2, 3), matrices(dtype, n=150)):
        torchs, exact = flat(CASES[name](m)), flat(CASES[name]({key: x.double() for key, x in m.items()}))
        with samebits.enable_op_determinism(across="machines"):
            seen, ours = over_threads(lambda m=m: CASES[name](m), (1, 2, 3, 5))
        assert len(seen) == 1
        for x, torchs_x, exact_x in zip(flat(ours), torchs, exact, strict=True):
            assert (x.dtype, x.shape) == (torchs_x.dtype, torchs_x.shape)
            assert x.stride() == torchs_x.stride() or name.endswith(" out")  # ours makes it contiguous
            tolerance = 1e-5 if dtype == torch.float32 else 1e-11
            torch.testing.assert_close(x.double(), exact_x.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("n", (1, 20, 64, 80))
def test_systems_and_factors_are_the_definition(n):
    """Triangular systems, Cholesky's factor and LU have the bits of plain loops over exact fused multiply-adds."""
    m = matrices(torch.float64, n=n)
    a, b, t = m["definite"].numpy(), m["b"][:, :5].contiguous().numpy(), m["upper"].numpy()
    for upper, unit in itertools.product((False, True), repeat=2):
        triangle = t if upper else t.T
        found = solve_triangular(
            torch.from_numpy(triangle)[None], torch.from_numpy(b.copy())[None], upper=upper, unit=unit
        )
        assert (found[0].numpy() == solved(triangle, b, upper=upper, unit=unit)).all()
    found = m["definite"].clone()[None]
    assert not cholesky_factor(found).any()
    assert (found[0].triu().numpy() == np.triu(cholesky(a))).all()


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(20, 20), (80, 70), (5, 80)])
def test_lu_is_the_definition(shape):
    """LU has the bits of plain loops: the first largest element is the pivot, also among equal ones."""
    for a in (numbers(shape, torch.float64, 3), numbers(shape, torch.float64, 4).sign()):
        a += torch.eye(*shape) * 0.5
        found = a.clone()[None]
        expected, pivots = lu_of(a.numpy())
        places, infos = lu_factor(found)
        assert not infos.any()
        assert places[0].tolist() == pivots
        assert (found[0].numpy() == expected).all()


@pytest.mark.slow
def test_the_error_is_at_most_twice_torchs():
    """A - QR, Q'Q - I, A - LL', the residuals of systems: at most twice those of LAPACK, in float32 and float64."""
    for dtype, n in itertools.product((torch.float32, torch.float64), (30, 200)):
        m = matrices(dtype, n=n)

        def errors(m=m, n=n):
            q, r = linalg.qr(m["tall"])
            factor, x = linalg.cholesky(m["definite"]), linalg.solve(m["definite"], m["b"])
            y, inverse = linalg.solve_triangular(m["upper"], m["b"], upper=True), linalg.inv(m["definite"])
            long = lambda t: t.numpy().astype(np.longdouble)  # noqa: E731
            return [
                np.abs(long(q) @ long(r) - long(m["tall"])).max(),
                np.abs(long(q).T @ long(q) - np.eye(n)).max(),
                np.abs(long(factor) @ long(factor).T - long(m["definite"])).max(),
                np.abs(long(m["definite"]) @ long(x) - long(m["b"])).max(),
                np.abs(long(m["upper"]) @ long(y) - long(m["b"])).max(),
                np.abs(long(m["definite"]) @ long(inverse) - np.eye(n)).max(),
            ]

        torchs = errors()
        with samebits.enable_op_determinism(across="machines"):
            ours = errors()
        assert all(x <= 2 * y for x, y in zip(ours, torchs, strict=True)), (dtype, n, ours, torchs)


def test_what_a_triangle_leaves_out_is_not_read():
    """NaN in the other triangle, or below reflections of a matrix that is zero, reach no result; layouts and batches neither."""
    m = matrices(torch.float32, n=70)
    nans = torch.full((70, 70), math.nan)
    with replaced(linear_algebra):
        for upper in (True, False):
            one = m["definite"].triu() if upper else m["definite"].tril()
            spoiled = one + torch.where(one == 0, nans, 0.0)
            assert torch.equal(
                linalg.cholesky(spoiled, upper=upper), linalg.cholesky(m["definite"], upper=upper)
            )
            triangle = m["upper"] if upper else m["upper"].mT
            dirty = triangle + torch.where(triangle == 0, nans, 0.0)
            clean = linalg.solve_triangular(triangle, m["b"], upper=upper)
            assert torch.equal(linalg.solve_triangular(dirty, m["b"], upper=upper), clean)
            strided = torch.stack([dirty, dirty], 2)[..., 0]
            assert torch.equal(
                linalg.solve_triangular(strided, m["b"].mT.contiguous().mT, upper=upper), clean
            )
            batch = linalg.solve_triangular(
                dirty.expand(3, 70, 70), torch.stack([m["b"], -m["b"], 2 * m["b"]]), upper=upper
            )
            assert torch.equal(batch[0], clean)
        q, r = linalg.qr(torch.zeros(5, 3))
        assert torch.equal(q, torch.eye(5, 3))
        assert not r.any()
        large = matrices(torch.float64)["a"]
        for size in (1e-305, 1e300):  # whose squares are no numbers
            q, r = linalg.qr(large * size)
            torch.testing.assert_close(q @ (r / size), large)


def test_what_is_not_ours_is_torchs():
    """Matrices that have no factor give torch's infos and errors; empty and wrong ones torch's result; NaN is one NaN."""
    unit = torch.eye(3)
    calls = (
        lambda: linalg.cholesky(-unit), lambda: linalg.cholesky(torch.stack([unit, unit - 2 * unit[2:] * unit[2]])),
        lambda: linalg.cholesky(unit * math.nan), lambda: linalg.inv(0 * unit), lambda: linalg.solve(0 * unit, unit),
        lambda: linalg.lu_factor(0 * unit), lambda: linalg.cholesky_ex(torch.stack([unit, -unit])).info,
        lambda: linalg.lu_factor_ex(torch.stack([unit, unit.diag().diag() * (unit.diag() - unit[1]).diag()])).info,
        lambda: linalg.inv(torch.ones(2, 3)), lambda: linalg.qr(unit.int()), lambda: linalg.qr(unit, "x"),
        lambda: linalg.qr(torch.empty(0, 3)), lambda: linalg.qr(torch.empty(2, 0, 3)), lambda: linalg.det(torch.empty(0, 0)),
        lambda: linalg.cholesky(torch.empty(0, 2, 2)), lambda: linalg.solve(unit, torch.empty(3, 0)),
        lambda: linalg.solve_triangular(unit, torch.ones(4, 2), upper=True), lambda: linalg.solve(unit, torch.ones(4)),
        lambda: linalg.cross(torch.ones(2), torch.ones(2)), lambda: linalg.cross(unit.int(), unit.int() + 1),
        lambda: linalg.householder_product(unit[:, :2], torch.ones(3)), lambda: torch.ormqr(unit, unit[0], torch.ones(2, 2)),
        lambda: linalg.qr(torch.ones(1, 1)), lambda: linalg.lu(torch.ones(1, 1)), lambda: linalg.inv(2 * torch.ones(1, 1)),
    )  # fmt: skip
    expected = [outcome(call) for call in calls]
    with samebits.enable_op_determinism(across="machines"):
        assert [outcome(call) for call in calls] == expected
        for call in (linalg.qr, linalg.inv, lambda x: linalg.cholesky_ex(x).L, linalg.lu):
            found = torch.cat([x.flatten() for x in flat(call(-unit.clone().fill_(-math.nan)))])
            assert set(found[found.isnan()].view(torch.int32).tolist()) == {0x7FC00000}
        with pytest.raises(UnimplementedError, match="of complex64"):
            linalg.qr(unit.cfloat())


def outcome(call):
    try:
        return [(x.shape, x.tolist()) for x in flat(call())]
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"


def test_what_is_refused_says_what_to_use_instead():
    """Eigenvalues, singular values and least squares raise, and name another way; the way that least squares names is right."""
    a, b = numbers((9, 4), torch.float64, 1), numbers((9, 2), torch.float64, 2)
    expected = linalg.lstsq(a, b).solution
    with samebits.enable_op_determinism(across="machines"):
        for call, cure in (
            (lambda: linalg.lstsq(a, b), r"solve_triangular\(r, q.mT @ b"),
            (lambda: linalg.eigh(a.mT @ a), "cholesky"),
            (lambda: linalg.svd(a), "Newton"),
            (lambda: linalg.eig(a[:4]), "across=.threads"),
            (lambda: linalg.matrix_exp(a[:4]), "across=.threads"),
        ):
            with pytest.raises(UnimplementedError, match=cure):
                call()
        q, r = linalg.qr(a)
        torch.testing.assert_close(linalg.solve_triangular(r, q.mT @ b, upper=True), expected)


GRADIENTS = {
    "cholesky": lambda x: linalg.cholesky(definite(x)),
    "cholesky_solve": lambda x: torch.cholesky_solve(x[..., :2], linalg.cholesky(definite(x))),
    "cholesky_inverse": lambda x: torch.cholesky_inverse(linalg.cholesky(definite(x))),
    "solve_triangular": lambda x: linalg.solve_triangular(
        x.triu() + 4 * torch.eye(4), x, upper=True, left=False
    ),
    "qr": lambda x: linalg.qr(x[..., :3]),
    "qr complete": lambda x: linalg.qr(x, "complete"),
    "solve": lambda x: linalg.solve(x, x[..., :2] ** 2),
    "solve transposed": lambda x: linalg.solve(x.mT, x[..., :2]),
    "solve right": lambda x: linalg.solve(x, x, left=False),
    "inv": linalg.inv,
    "det": linalg.det,
    "det transposed": lambda x: linalg.det(x.mT),
    "slogdet": linalg.slogdet,
    "slogdet transposed": lambda x: linalg.slogdet(x.mT),
    "lu": lambda x: linalg.lu(x)[1:],
    "lu_solve": lambda x: linalg.lu_solve(*linalg.lu_factor(x), x),
    "cross": lambda x: linalg.cross(x[..., :3], x[..., 1:] ** 2),
    "householder_product": lambda x: linalg.householder_product(x[..., :3], x[..., 0, :3]),
}


def definite(x):
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    """gradcheck under the mode, of a matrix and of a batch: torch's formulas run on our kernels, and find their factors as torch's are."""
    with samebits.enable_op_determinism(across="machines"):
        for shape in ((4, 4), (2, 4, 4)):
            x = numbers(shape, torch.float64, 7).requires_grad_()
            assert torch.autograd.gradcheck(GRADIENTS[name], (x,), fast_mode=True)


TRAINING = """
import sys, torch, samebits
from samebits._digest import of_value
samebits.set_random_seed(1)
samebits.enable_op_determinism(across="machines")
def gaussian_process():
    x = torch.linspace(0, 1, 90)[:, None]
    y, scales = torch.sin(6 * x), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([scales], 0.1)
    for _ in range(3):
        length, size, noise = scales.exp().unbind()
        kernel = size * torch.exp(-0.5 * ((x - x.mT) / length) ** 2) + (0.01 * noise + 1e-3) * torch.eye(90)
        factor = torch.linalg.cholesky(kernel)
        loss = (y * torch.cholesky_solve(y, factor)).sum() / 2 + factor.diagonal().log().sum()
        optimizer.zero_grad(), loss.backward(), optimizer.step()
    return scales.detach(), loss.detach()
def normal():
    mean, root = torch.zeros(5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    made = torch.distributions.MultivariateNormal(mean, root @ root.mT + torch.eye(5))
    loss = made.log_prob(torch.randn(7, 5)).sum() + made.entropy() + made.rsample().sum()
    return loss.detach(), *torch.autograd.grad(loss, (mean, root))
def orthogonal():
    layer = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(90, 40), orthogonal_map="cayley")
    layer(torch.randn(3, 90)).square().sum().backward()
    return torch.nn.init.orthogonal_(torch.empty(40, 3, 5, 5)), [one.grad for one in layer.parameters()]
def all_forms():
    sys.path[:0] = sys.argv[1:]
    import test_linear_algebra as forms
    return [forms.flat(case(forms.matrices(dtype, n=n))) for n in (3, 66, 150)
            for dtype in (torch.float32, torch.float64) for case in forms.CASES.values()]
for compute in (gaussian_process, normal, orthogonal, all_forms):
    found = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads), torch.manual_seed(0)
        found.append(str(of_value(compute())))
    print(compute.__name__, *sorted(set(found)))
"""


@pytest.mark.slow
def test_the_same_bits_on_another_cpu():
    """Gaussian processes, normal densities, orthogonal layers and all forms: one result over threads, and with AVX2's kernels."""
    folder = Path(__file__).parent
    here = printed_elsewhere("-W", "ignore", "-c", TRAINING, folder)
    assert [len(line.split()) for line in here.splitlines()] == [2, 2, 2, 2]
    assert here == printed_elsewhere("-W", "ignore", "-c", TRAINING, folder, **AVX2_ENVIRONMENT)


@pytest.mark.slow
def test_torchs_own_differ_on_another_cpu():
    """Negative control: with torch's kernels in place of ours MKL's other path has other bits."""
    torchs = TRAINING.replace('samebits.enable_op_determinism(across="machines")', "pass")
    words = "-W", "ignore", "-c", torchs, Path(__file__).parent
    assert printed_elsewhere(*words) != printed_elsewhere(*words, MKL_CBWR="COMPATIBLE")

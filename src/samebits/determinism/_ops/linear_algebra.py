"""Factorisations (QR, Cholesky, LU), linear systems, inverses, determinants: `arithmetic.linear_algebra`.

Eigenvalues, singular values and least squares are not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.elementwise_functions import FUNCTIONS
from samebits.arithmetic.linear_algebra import (
    cholesky_factor,
    lu_factor,
    lu_solve,
    multiplied,
    multiply,
    orthogonal,
    readable,
    reflectors,
    result,
    solve_triangular,
    wide,
)
from samebits.arithmetic.reductions import reduce
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._ops.elementwise import evaluate
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import Replacement, or_torchs, replacements

_TYPES = (torch.float32, torch.float64)


def _fits(op: str, *matrices: Tensor, square: bool = False) -> bool:
    """Returns True for matrices that are ours; the others are empty, or torch raises for them.

    `square`: the first one must be.
    """
    first = matrices[0]
    takes(op, *(x.dtype for x in matrices))
    return (
        all(x.dim() > 1 and x.numel() and x.dtype == first.dtype for x in matrices)
        and first.dtype in _TYPES
        and not (square and first.shape[-1] != first.shape[-2])
    )


def _broadcast(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """Returns two matrices with one batch; None if there is none."""
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError:
        return None
    return a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])


def _solved(t: Tensor, b: Tensor, *, upper: bool, unit: bool = False, left: bool = True) -> Tensor | None:
    """Returns the solution of a triangular system; None if the arguments do not fit."""
    both = _broadcast(t, b)
    if both is None or t.shape[-1] != t.shape[-2] or t.shape[-1] != b.shape[-2 if left else -1]:
        return None
    t, b = both
    if left:
        return result(solve_triangular(readable(t), wide(b), upper=upper, unit=unit), b)
    return result(solve_triangular(readable(t).mT, wide(b.mT), upper=not upper, unit=unit).mT, b)


def _solve_triangular(
    self: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False, **_out: Tensor
) -> Tensor | None:
    if not _fits("linalg_solve_triangular", self, b):
        return None
    return _solved(self, b, upper=upper, unit=unitriangular, left=left)


def _triangular_solve(
    self: Tensor,
    a: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    **_out: Tensor,
) -> tuple[Tensor, Tensor] | None:
    if not _fits("triangular_solve", a, self):
        return None
    t = a.mT if transpose else a
    x = _solved(t, self, upper=upper != transpose, unit=unitriangular)
    return None if x is None else (x, a.expand(*x.shape[:-2], *a.shape[-2:]).mT.contiguous().mT)


def _cholesky_ex(
    self: Tensor, *, upper: bool = False, check_errors: bool = False, name: str = "linalg.cholesky_ex",
    **_out: Tensor,
) -> tuple[Tensor, Tensor] | None:  # fmt: skip
    if not _fits("linalg_cholesky_ex", self, square=True):
        return None
    u = wide(self if upper else self.mT)
    info = cholesky_factor(u).to(torch.int32).view(self.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, name, is_matrix=self.dim() == 2)
    return result(u.triu_() if upper else u.triu_().mT, self), info


def _cholesky(self: Tensor, upper: bool = False, **_out: Tensor) -> Tensor | None:
    made = _cholesky_ex(self, upper=upper, check_errors=True, name="cholesky")
    return None if made is None else made[0]


def _cholesky_solve(self: Tensor, a: Tensor, upper: bool, **_out: Tensor) -> Tensor | None:
    if not _fits("cholesky_solve", a, self, square=True):
        return None
    u, x = readable(a if upper else a.mT), wide(self)
    solve_triangular(u.mT, x, upper=False)
    return result(solve_triangular(u, x, upper=True), self)


def _cholesky_inverse(self: Tensor, upper: bool = False, **_out: Tensor) -> Tensor | None:
    if not _fits("cholesky_inverse", self, square=True):
        return None
    u = readable(self if upper else self.mT)
    root = solve_triangular(u.mT, torch.eye(self.shape[-1]).to(u).repeat(len(u), 1, 1), upper=False)
    return result(multiplied(root.mT, root), self)


def _qr(a: Tensor, mode: str = "reduced", **_out: Tensor) -> tuple[Tensor, Tensor] | None:
    if mode not in ("reduced", "complete", "r") or not _fits("linalg_qr", a):
        return None
    columns = wide(a.mT)
    tau = reflectors(columns)
    count = a.shape[-2] if mode == "complete" else tau.shape[-1]
    r = result(columns[:, :, :count].mT.triu(), a)
    return a.new_empty(0) if mode == "r" else result(orthogonal(columns, tau, count).mT, a), r


def _geqrf(self: Tensor, **_out: Tensor) -> tuple[Tensor, Tensor] | None:
    if not _fits("geqrf", self):
        return None
    columns = wide(self.mT)
    tau = reflectors(columns)
    return result(columns.mT, self), result(tau.unsqueeze(-1), self).squeeze(-1)


def _householder_product(input: Tensor, tau: Tensor, **_out: Tensor) -> Tensor | None:  # noqa: A002
    rows, count = input.shape[-2:] if input.dim() > 1 else (0, 0)
    if not _fits("linalg_householder_product", input, tau.unsqueeze(-1)) or not _is_tau(input, tau):
        return None
    return None if rows < count else result(orthogonal(readable(input.mT), _flat(tau), count).mT, input)


def _is_tau(vectors: Tensor, tau: Tensor) -> bool:
    return tau.shape[:-1] == vectors.shape[:-2] and tau.shape[-1] <= min(vectors.shape[-2:])


def _flat(tau: Tensor) -> Tensor:
    return wide(tau.unsqueeze(-2)).squeeze(1)


def _ormqr(
    self: Tensor, input2: Tensor, input3: Tensor, left: bool = True, transpose: bool = False, **_out: Tensor
) -> Tensor | None:
    if not _fits("ormqr", self, input2.unsqueeze(-1), input3) or not _is_tau(self, input2):
        return None
    if input2.shape[-1] != min(input3.shape[-2 if left else -1], self.shape[-1]):
        return None
    if self.shape[:-2] != input3.shape[:-2] or self.shape[-2] != input3.shape[-2 if left else -1]:
        return None
    c = wide(input3.mT if left else input3)
    made = multiply(readable(self.mT), _flat(input2), c, transpose=transpose == left)
    return result(made.mT if left else made, input3)


def _factored(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the factors (batch, rows, columns) in float64, pivots and infos, int64."""
    factors = wide(a)
    return factors, *lu_factor(factors)


def _given(a: Tensor, factors: Tensor, pivots: Tensor) -> tuple[Tensor, Tensor]:
    return result(factors, a), pivots.to(torch.int32).view(*a.shape[:-2], -1)


def _lu_factor_ex(
    a: Tensor, *, pivot: bool = True, check_errors: bool = False, **_out: Tensor
) -> tuple[Tensor, ...] | None:
    if not pivot or not _fits("linalg_lu_factor_ex", a):
        return None
    factors, pivots, infos = _factored(a)
    info = infos.to(torch.int32).view(a.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.lu_factor_ex", is_matrix=a.dim() == 2)
    return *_given(a, factors, pivots), info


def _lu(a: Tensor, *, pivot: bool = True, **_out: Tensor) -> tuple[Tensor, ...] | None:
    if not pivot or not _fits("linalg_lu", a):
        return None
    factors, pivots, _ = _factored(a)
    p, lower, upper = torch.lu_unpack(*_given(a, factors, pivots))
    return p, lower, upper


def _lu_solve(
    factors: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False, **_out: Tensor
) -> Tensor | None:
    if not _fits("linalg_lu_solve", factors, b, square=True) or pivots.shape != factors.shape[:-1]:
        return None
    both = _broadcast(factors, b)
    if bool(((pivots < 1) | (pivots > factors.shape[-1])).any()):
        return None
    if both is None or pivots.dtype != torch.int32 or factors.shape[-1] != b.shape[-2 if left else -1]:
        return None
    factors, b = both
    places = pivots.to(torch.int64).expand(factors.shape[:-1]).reshape(-1, pivots.shape[-1])
    return _with_factors(readable(factors), places, b, left=left, adjoint=adjoint)


def _with_factors(factors: Tensor, pivots: Tensor, b: Tensor, *, left: bool, adjoint: bool) -> Tensor:
    if left:
        return result(lu_solve(factors, pivots, wide(b), adjoint=adjoint), b)
    return result(lu_solve(factors, pivots, wide(b.mT), adjoint=not adjoint), b.mT).mT


def _solve_ex(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False, transposed: bool
) -> tuple[Tensor, ...] | None:
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    b = b.unsqueeze(-1) if is_vector else b
    if not _fits("_linalg_solve_ex", a, b, square=True) or (is_vector and not left):
        return None
    both = _broadcast(a, b)
    if both is None or a.shape[-1] != b.shape[-2 if left else -1]:
        return None
    factors, pivots, infos = _factored(a.mT if transposed else a)
    info = infos.to(torch.int32).view(a.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, "torch.linalg.solve_ex", is_matrix=a.dim() == 2)
    b, batch = both[1], both[0].shape[:-2]
    all_factors = factors.view(*a.shape).expand(*batch, *a.shape[-2:]).reshape(-1, *a.shape[-2:])
    all_pivots = pivots.view(a.shape[:-1]).expand(*batch, -1).reshape(-1, a.shape[-1])
    x = _with_factors(all_factors, all_pivots, b, left=left, adjoint=transposed)
    if is_vector:  # torch lays a batch of vectors out as a matrix
        x = x.squeeze(-1)
        x = x if x.dim() < 2 else x.mT.contiguous().mT
    return x, *_given(a, factors, pivots), info


def _inv_ex(a: Tensor, *, check_errors: bool = False, **_out: Tensor) -> tuple[Tensor, ...] | None:
    if not _fits("linalg_inv_ex", a, square=True):
        return None
    factors, pivots, infos = _factored(a)
    info = infos.to(torch.int32).view(a.shape[:-2])
    if check_errors:
        torch._linalg_check_errors(info, "linalg.inv_ex", is_matrix=a.dim() == 2)
    unit = torch.eye(a.shape[-1]).to(factors).repeat(len(factors), 1, 1)
    return result(lu_solve(factors, pivots, unit), a), info


def _signs(pivots: Tensor) -> Tensor:
    """Returns the sign of each permutation, in float64."""
    moved = pivots != torch.arange(1, pivots.shape[1] + 1)
    return 1.0 - 2.0 * (moved.sum(1) & 1).to(torch.float64)


def _diagonal(a: Tensor, transposed: bool) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Returns the diagonal of U and the sign of the permutation, and the factors for torch."""
    factors, pivots, _ = _factored(a.mT if transposed else a)
    return factors.diagonal(0, 1, 2).contiguous(), _signs(pivots), _given(a, factors, pivots)


def _numbers(x: Tensor, a: Tensor) -> Tensor:
    return result(x.view(-1, 1, 1), a).view(a.shape[:-2])


def _det(a: Tensor, *, transposed: bool) -> tuple[Tensor, ...] | None:
    if not _fits("_linalg_det", a, square=True):
        return None
    diagonal, signs, factors = _diagonal(a, transposed)
    return _numbers(reduce("prod", diagonal, (1,)) * signs, a), *factors


def _slogdet(a: Tensor, *, transposed: bool) -> tuple[Tensor, ...] | None:
    if not _fits("_linalg_slogdet", a, square=True):
        return None
    diagonal, signs, factors = _diagonal(a, transposed)
    sign = reduce("prod", diagonal.sign(), (1,)) * signs
    logarithm = reduce("sum", evaluate((FUNCTIONS["log"], (diagonal.abs(),), ())), (1,))
    return _numbers(sign, a), _numbers(logarithm, a), *factors


def _cross(self: Tensor, other: Tensor, *, dim: int = -1, **_out: Tensor) -> Tensor | None:
    """Each component is a difference of two products, each rounded to the type."""
    if not takes("linalg_cross", self.dtype, other.dtype) or self.dtype != other.dtype:
        return None
    if self.dim() != other.dim() or not -self.dim() <= dim < self.dim() or self.shape[dim] != 3:
        return None
    try:
        a, b = torch.broadcast_tensors(self, other)
    except RuntimeError:
        return None
    if a.shape[dim] != b.shape[dim]:
        return None
    a1, a2, b1, b2 = a.roll(-1, dim), a.roll(-2, dim), b.roll(-1, dim), b.roll(-2, dim)
    return a1.mul_(b2).sub_(a2.mul_(b1))


_PROBE = ((1.0, 0.0), (2.0, 1.0))
"""Its first pivot is row 2, and that of its transpose row 1."""


def _as_torchs(compute: Callable[..., Any], operands: int) -> Callable[[Kernel], Kernel]:
    """Returns a `Replacement.make` for `compute(..., transposed)`: whether it factors the transposed matrix.

    Versions of torch do so for contiguous matrices or not, op by op, and their gradients expect it.
    """

    def make(kernel: Kernel) -> Kernel:
        @cache
        def transposes() -> bool:
            found = kernel(*[torch.tensor(_PROBE)] * operands)
            return next(int(x[0]) for x in found if x.dtype == torch.int32) == 1

        def as_torchs(a: Tensor, *args: Any, **kwargs: Any) -> Any:
            return compute(a, *args, transposed=a.is_contiguous() and transposes(), **kwargs)

        return or_torchs(as_torchs)(kernel)

    return make


def _functional(*args: Any, op: str, out: tuple[str, ...], **kwargs: Any) -> Any:
    """Calls the form without `out`."""
    return getattr(torch.ops.aten, op)(*args, **{name: kwargs[name] for name in kwargs if name not in out})


_REASON = "LAPACK's order follows the CPU, its vendor and the threads: ours is blocks of 64, in float64"
_REASON_CROSS = "a compiler may fuse a product and the difference: ours rounds each"
_OPS: dict[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "linalg_solve_triangular": (_solve_triangular, "out", ("out",)),
    "triangular_solve": (_triangular_solve, "X", ("X", "M")),
    "linalg_cholesky_ex": (_cholesky_ex, "L", ("L", "info")),
    "cholesky": (_cholesky, "out", ("out",)),
    "_cholesky_solve_helper": (_cholesky_solve, "", ()),
    "cholesky_inverse": (_cholesky_inverse, "out", ("out",)),
    "linalg_qr": (_qr, "out", ("Q", "R")),
    "geqrf": (_geqrf, "a", ("a", "tau")),
    "linalg_householder_product": (_householder_product, "out", ("out",)),
    "ormqr": (_ormqr, "out", ("out",)),
    "linalg_lu_factor_ex": (_lu_factor_ex, "out", ("LU", "pivots", "info")),
    "linalg_lu": (_lu, "out", ("P", "L", "U")),
    "linalg_lu_solve": (_lu_solve, "out", ("out",)),
    "linalg_inv_ex": (_inv_ex, "inverse", ("inverse", "info")),
    "linalg_cross": (_cross, "out", ("out",)),
}
_WITH_FACTORS: dict[str, tuple[Callable[..., Any], int, tuple[str, ...]]] = {
    "_linalg_solve_ex": (_solve_ex, 2, ("result", "LU", "pivots", "info")),
    "_linalg_det": (_det, 1, ("result", "LU", "pivots")),
    "_linalg_slogdet": (_slogdet, 1, ("sign", "logabsdet", "LU", "pivots")),
}
"""Those whose factors torch's gradients read: the function, its operands, the results."""


def _replacements() -> Iterator[Replacement]:
    for op, (compute, form, out) in _OPS.items():
        names = (op, f"{op}.{form}") if form else (op,)
        reason = _REASON_CROSS if op == "linalg_cross" else _REASON
        yield from replacements(names, or_torchs(compute, out), reason)
    for op, (compute, operands, out) in _WITH_FACTORS.items():
        yield from replacements([op], _as_torchs(compute, operands), _REASON)
        into_out = or_torchs(partial(_functional, op=op, out=out), out)
        yield from replacements([f"{op}.{out[0]}"], into_out, _REASON)


REPLACEMENTS = tuple(_replacements())

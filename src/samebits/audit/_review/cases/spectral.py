"""Fourier transforms and dense linear algebra."""

from __future__ import annotations

import torch

from samebits.audit._review.case import F32, F64, ReviewCase, backward, forward, mapped, normal

N = 1 << 20
_BOTH = (F32, F64)
_F, _L = "fft", "linalg"
_square = normal(300, 300)
_definite = mapped(lambda a: a @ a.mT + 400 * torch.eye(400, dtype=a.dtype), normal(400, 400))
_batch = mapped(lambda a: a @ a.mT + 40 * torch.eye(40, dtype=a.dtype), normal(64, 40, 40))
_LSTSQ_CALLS = 60
"""gelsy reads a pivot array that nobody wrote: it takes some calls to meet other bytes there."""


def _least_squares(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    found = []
    for number in range(_LSTSQ_CALLS):
        for size in (2, 4, 8, 16, 32, 64, 128):
            torch.full((size,), 7.0 * number + size)
        found.append(torch.linalg.lstsq(a, b).solution)
    return found


CASES: tuple[ReviewCase, ...] = (
    *forward(_F, "rfft 2^20", torch.fft.rfft, normal(N), dtypes=_BOTH, strided=True),
    *forward(_F, "rfft of a prime length", torch.fft.rfft, normal(200_003), dtypes=_BOTH),
    *forward(_F, "rfft of 1000 rows", torch.fft.rfft, normal(1000, 1000), dtypes=_BOTH),
    *forward(
        _F,
        "rfft2, irfft2 512x1024",
        lambda x: torch.fft.irfft2(torch.fft.rfft2(x)),
        normal(512, 1024),
        dtypes=_BOTH,
    ),
    *forward(_F, "fft 2^20", lambda x: torch.fft.fft(torch.complex(x, -x)), normal(N), dtypes=_BOTH),
    *forward(
        _F, "ifft, fftn", lambda x: (torch.fft.ifft(x), torch.fft.fftn(x)), normal(64, 100, 100), dtypes=_BOTH
    ),
    *forward(
        _F,
        "irfft, hfft",
        lambda x: (torch.fft.irfft(torch.complex(x, -x)), torch.fft.hfft(torch.complex(x, x))),
        normal(N),
        dtypes=_BOTH,
    ),
    *backward(
        _F,
        "stft",
        lambda x: torch.stft(x, 400, return_complex=True, window=torch.hann_window(400, dtype=x.dtype)),
        normal(4, 100_000),
    ),
    *backward(_F, "rfft, irfft", lambda x: torch.fft.irfft(torch.fft.rfft(x)), normal(200_000)),
    *forward(_L, "cholesky", torch.linalg.cholesky, _definite, dtypes=_BOTH),
    *forward(_L, "cholesky of a batch", torch.linalg.cholesky, _batch, dtypes=_BOTH),
    *backward(
        _L,
        "cholesky, gradient",
        torch.linalg.cholesky,
        mapped(lambda a: a @ a.mT + 256 * torch.eye(256), normal(256, 256)),
    ),
    *forward(
        _L,
        "cholesky_solve, cholesky_inverse",
        lambda a, b: (torch.cholesky_solve(b, a.tril()), torch.cholesky_inverse(a.tril())),
        _definite,
        normal(400, 8),
        dtypes=_BOTH,
    ),
    *forward(_L, "solve", torch.linalg.solve, _definite, normal(400, 8), dtypes=_BOTH),
    *backward(
        _L,
        "solve, gradient",
        torch.linalg.solve,
        mapped(lambda a: a + 40 * torch.eye(300), _square),
        normal(300, 8),
    ),
    *forward(
        _L,
        "solve_triangular",
        lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False),
        _definite,
        normal(400, 64),
        dtypes=_BOTH,
    ),
    *forward(_L, "inv", torch.linalg.inv, _definite, dtypes=_BOTH),
    *forward(
        _L,
        "inv of a batch, det, slogdet",
        lambda a: (torch.linalg.inv(a), torch.linalg.det(a / 40), *torch.linalg.slogdet(a)),
        _batch,
        dtypes=_BOTH,
    ),
    *forward(
        _L,
        "lu_factor, lu, lu_solve",
        lambda a, b: (*torch.linalg.lu(a), torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b)),
        _square,
        normal(300, 8),
        dtypes=_BOTH,
    ),
    *forward(_L, "ldl_factor", lambda a: tuple(torch.linalg.ldl_factor(a)), _definite, dtypes=_BOTH),
    *forward(_L, "qr 300", lambda a: tuple(torch.linalg.qr(a)), _square, dtypes=_BOTH),
    *forward(_L, "qr 2000x40", lambda a: tuple(torch.linalg.qr(a)), normal(2000, 40), dtypes=_BOTH),
    *backward(_L, "qr, gradient", lambda a: tuple(torch.linalg.qr(a)), normal(200, 100)),
    *forward(
        _L,
        "geqrf, ormqr, householder_product",
        lambda a: (torch.linalg.householder_product(*torch.geqrf(a)), torch.ormqr(*torch.geqrf(a), a)),
        _square,
        dtypes=_BOTH,
    ),
    *forward(_L, "svd 200", lambda a: tuple(torch.linalg.svd(a)), normal(200, 200), dtypes=_BOTH),
    *forward(
        _L,
        "svdvals, pinv, matrix_rank",
        lambda a: (torch.linalg.svdvals(a), torch.linalg.pinv(a), torch.linalg.matrix_rank(a)),
        normal(200, 150),
        dtypes=_BOTH,
    ),
    *backward(_L, "svdvals, gradient", torch.linalg.svdvals, normal(150, 100)),
    *forward(
        _L,
        "eigh 200",
        lambda a: tuple(torch.linalg.eigh(a)),
        mapped(lambda a: a[:200, :200], _definite),
        dtypes=_BOTH,
    ),
    *forward(_L, "eigvalsh of a batch", torch.linalg.eigvalsh, _batch, dtypes=_BOTH),
    *forward(
        _L,
        "eig, eigvals",
        lambda a: (*torch.linalg.eig(a), torch.linalg.eigvals(a)),
        normal(120, 120),
        dtypes=_BOTH,
    ),
    *forward(_L, "lstsq, default driver", _least_squares, normal(64, 8), normal(64, 3)),
    *forward(
        _L,
        "lstsq 400x100",
        lambda a, b: torch.linalg.lstsq(a, b).solution,
        normal(400, 100),
        normal(400, 3),
        dtypes=_BOTH,
        repeats=20,
    ),
    *(
        case
        for driver in ("gels", "gelsd", "gelss")
        for case in forward(
            _L,
            f"lstsq {driver}",
            lambda a, b, d=driver: torch.linalg.lstsq(a, b, driver=d).solution,
            normal(400, 100),
            normal(400, 3),
            dtypes=_BOTH,
        )
    ),
    *forward(
        _L,
        "matrix_exp, matrix_power",
        lambda a: (torch.linalg.matrix_exp(a / 20), torch.linalg.matrix_power(a / 20, 5)),
        normal(200, 200),
        dtypes=_BOTH,
    ),
    *forward(
        _L,
        "cross, vander",
        lambda a: (torch.linalg.cross(a, a.flip(0)), torch.linalg.vander(a[:, 0] / 4, N=9)),
        normal(100_000, 3),
    ),
    *forward(
        _L,
        "lobpcg",
        lambda a: tuple(torch.lobpcg(a, k=2, niter=5)),
        mapped(lambda a: a[:200, :200], _definite),
    ),
    *forward(_L, "pca_lowrank", lambda a: tuple(torch.pca_lowrank(a, q=5)), normal(2000, 50)),
)

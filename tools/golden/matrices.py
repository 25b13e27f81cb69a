"""Calls of matrix products, linear algebra and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from elementwise import _tried
from operands import FLOATS, tensor, with_gradients

Cases = Iterator[tuple[str, Callable[[], Any]]]
SIZES = {
    "square": (65, 67, 71), "short": (3, 2049, 129), "narrow": (10, 20_011, 64), "row": (1, 4099, 300), "column": (300, 4099, 1),
    "long": (2, 50_021, 2), "flat": (1201, 7, 5), "wide": (17, 33, 1023), "tall": (2049, 64, 10), "tiny": (2, 3, 4), "empty": (3, 0, 4),
}  # fmt: skip
DTYPES = (*FLOATS, torch.float16, torch.complex64, torch.int32)


def products() -> Cases:
    """Products of matrices and vectors: short, narrow, long, in four layouts, with what is added, batches and gradients."""
    for dtype in DTYPES:
        for name, (m, k, n) in SIZES.items():
            yield f"mm.{name}/{str(dtype)[6:]}", partial(_products, m, k, n, dtype)
        yield f"batched/{str(dtype)[6:]}", partial(_batched, dtype)
        yield f"vectors/{str(dtype)[6:]}", partial(_vectors, dtype)
        if dtype.is_floating_point:
            for rows in (1, 7, 65, 4099):
                call = partial(
                    with_gradients,
                    F.linear,
                    tensor(rows, 129, dtype=dtype),
                    tensor(10, 129, dtype=dtype),
                    tensor(10, dtype=dtype),
                )
                yield f"linear.{rows}/{str(dtype)[6:]}", call


def _number(dtype: torch.dtype, x: float) -> float | int:
    return x if dtype.is_floating_point or dtype.is_complex else 3


def _products(m: int, k: int, n: int, dtype: torch.dtype) -> list[Any]:
    a, b, c = (
        tensor(*size, dtype=dtype, low=-9, high=9, seed=s) for s, size in enumerate(((m, k), (k, n), (m, n)))
    )
    turned, strided = a.t().contiguous().t(), tensor(m, 2 * k, dtype=dtype, low=-9, high=9)[:, ::2]
    beta, alpha = _number(dtype, 0.7), _number(dtype, 1.3)
    out = [
        a @ b,
        turned @ b,
        a @ b.t().contiguous().t(),
        strided @ b,
        torch.mm(a, b, out=torch.empty_like(c)),
    ]
    out += [torch.addmm(c, a, b, beta=beta, alpha=alpha), torch.addmm(c[0], a, b), c.clone().addmm_(a, b)]
    if dtype.is_floating_point:
        out += with_gradients(torch.mm, a, b) + [
            torch._addmm_activation(c[0], a, b),
            torch._addmm_activation(c[0], a, b, use_gelu=True),
        ]
    return out


def _batched(dtype: torch.dtype) -> list[Any]:
    out = []
    for batch, m, k, n in ((4, 33, 65, 17), (31, 3, 1029, 5), (2, 1, 9001, 3)):
        a, b, c = (
            tensor(batch, *s, dtype=dtype, low=-9, high=9, seed=i)
            for i, s in enumerate(((m, k), (k, n), (m, n)))
        )
        out += [
            a @ b,
            a.mT.contiguous().mT @ b,
            torch.bmm(a, b),
            torch.baddbmm(c, a, b, beta=_number(dtype, 0.5)),
            c.clone().baddbmm_(a, b),
        ]
        out += [
            torch.einsum("bij,bjk->ik", a, b),
            torch.matmul(a, b[0]),
            torch.bmm(a, b, out=torch.empty_like(c)),
        ]
        out += with_gradients(torch.bmm, a, b) if dtype.is_floating_point else []
    return out


def _vectors(dtype: torch.dtype) -> list[Any]:
    out = []
    for m, k in ((300, 4099), (3, 30_011), (4099, 7)):
        a, x, y = (
            tensor(*s, dtype=dtype, low=-9, high=9, seed=i) for i, s in enumerate(((m, k), (k,), (m,)))
        )
        out += [
            a.mv(x),
            a.t().contiguous().t().mv(x),
            torch.addmv(y, a, x, beta=2, alpha=3),
            y.clone().addmv_(a, x),
        ]
        out += [x.dot(x), torch.vdot(x, x.flip(0)), torch.inner(x, a), torch.outer(y, x[:9])]
        out += [torch.linalg.vecdot(x, a)] if dtype is not torch.int32 else []
        out += [
            torch.addr(a[:, :9], y, x[:9], beta=2, alpha=3),
            a[:, :9].clone().addr_(y, x[:9]),
            torch.tensordot(a, x, 1),
            x[::2].dot(x[::2]),
        ]
    return out


def linalg() -> Cases:
    """Decompositions and solvers, with gradients where they are well conditioned."""
    for dtype in (torch.float32, torch.float64):
        for name, run in _decompositions(dtype).items():
            yield f"{name}/{str(dtype)[6:]}", partial(_tried, run)


def _decompositions(dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    a, b = (
        tensor(130, 130, dtype=dtype) + 12 * torch.eye(130, dtype=dtype),
        tensor(130, 5, dtype=dtype, seed=2),
    )
    tall, few = tensor(260, 70, dtype=dtype), tensor(9, 40, 40, dtype=dtype) + 7 * torch.eye(40, dtype=dtype)
    good, la = a @ a.mT, torch.linalg
    factor, (lu, pivots) = la.cholesky(good), la.lu_factor(a)
    reflectors, tau = torch.geqrf(tall)
    calls: dict[str, Callable[..., Any]] = {
        "cholesky": lambda: with_gradients(lambda x: [la.cholesky(x @ x.mT), torch.cholesky(x @ x.mT)], a),
        "cholesky_solve": lambda: [torch.cholesky_solve(b, factor), torch.cholesky_inverse(factor)],
        "qr": lambda: with_gradients(lambda x: tuple(la.qr(x)), tall), "qr.batch": lambda: list(la.qr(few)), "torch.qr": lambda: list(torch.qr(tall)),
        "svd": lambda: list(la.svd(tall)), "svdvals": lambda: with_gradients(la.svdvals, tall), "svd.batch": lambda: list(la.svd(few)),
        "eigh": lambda: list(la.eigh(good)), "eigvalsh": lambda: with_gradients(la.eigvalsh, good), "eig": lambda: list(la.eig(few)),
        "eigvals": lambda: la.eigvals(a), "lu": lambda: list(la.lu(a)), "lu_factor": lambda: list(la.lu_factor(few)), "lu_ex": lambda: list(la.lu_factor_ex(a)),
        "lu_solve": lambda: [la.lu_solve(lu, pivots, b), torch.lu_solve(b, lu, pivots)], "solve": lambda: with_gradients(la.solve, a, b), "solve.batch": lambda: la.solve(few, few),
        "solve_triangular": lambda: with_gradients(partial(la.solve_triangular, upper=False), factor, b), "triangular_solve": lambda: list(torch.triangular_solve(b, factor, upper=False)),
        "inv": lambda: with_gradients(la.inv, a), "pinv": lambda: la.pinv(tall), "det": lambda: with_gradients(la.det, few), "slogdet": lambda: list(la.slogdet(a)),
        "lstsq": lambda: [*la.lstsq(tall, tensor(260, 3, dtype=dtype))[:1]], "matrix_exp": lambda: la.matrix_exp(few / 20), "matrix_power": lambda: la.matrix_power(a / 12, 5),
        "multi_dot": lambda: la.multi_dot([b.mT, a, tensor(130, 9, dtype=dtype)]), "cond": lambda: la.cond(a), "matrix_rank": lambda: la.matrix_rank(a),
        "norms": lambda: [la.norm(a), la.norm(a, "nuc"), la.norm(a, 2), la.norm(a, 1), la.matrix_norm(few, -2)], "ldl": lambda: [*la.ldl_factor(good), la.ldl_solve(*la.ldl_factor(good), b)],
        "ldl_ex": lambda: [*la.ldl_factor_ex(good)], "cholesky_ex": lambda: [*la.cholesky_ex(good)], "torch.svd": lambda: [*torch.svd(tall)], "lu_with_info": lambda: [*torch._lu_with_info(a)],
        "householder": lambda: la.householder_product(reflectors, tau), "ormqr": lambda: torch.ormqr(reflectors, tau, tall), "geqrf": lambda: [*torch.geqrf(tall)],
    }  # fmt: skip
    return calls


def fourier() -> Cases:
    """Each transform: odd and even lengths, batches, inner dimensions, gradients; and the short-time ones."""
    for dtype in (torch.float32, torch.float64):
        wide = torch.complex64 if dtype is torch.float32 else torch.complex128
        real, complex_ = tensor(12, 129, 30, dtype=dtype), tensor(12, 65, 30, dtype=wide)
        for name in "fft ifft rfft ihfft irfft hfft".split():
            x = real if name in ("rfft", "ihfft") else complex_
            one, several = (
                getattr(torch.fft, name),
                {form: getattr(torch.fft, f"{name}{form}") for form in ("2", "n")},
            )
            yield (
                f"{name}/{str(dtype)[6:]}",
                lambda o=one, x=x: [
                    o(x),
                    o(x, dim=1),
                    o(x[0, :, 0]),
                    o(x.mT, n=57),
                    o(x, dim=0, norm="ortho"),
                ],
            )
            yield (
                f"{name}n/{str(dtype)[6:]}",
                lambda s=several, x=x: [s["2"](x), s["n"](x), s["n"](x, dim=(0, 1))],
            )
        yield (
            f"rfft.gradients/{str(dtype)[6:]}",
            lambda x=real: with_gradients(lambda a: torch.fft.irfft(torch.fft.rfft(a)[..., 1:], n=40), x),
        )
        signal, window = tensor(3, 9001, dtype=dtype), torch.hann_window(256, dtype=dtype)
        spectrum = torch.stft(signal, 256, window=window, return_complex=True)
        yield (
            f"stft/{str(dtype)[6:]}",
            lambda s=signal, w=window: torch.stft(s, 256, window=w, return_complex=True),
        )
        yield f"istft/{str(dtype)[6:]}", lambda s=spectrum, w=window: torch.istft(s, 256, window=w)

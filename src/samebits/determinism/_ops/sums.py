"""sum, mean, nansum, prod, dot, vdot, of any layout and dimensions: `arithmetic.reductions.definition`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.reductions import PLAIN, QUOTIENT, reduce
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import or_torchs, replacements

REASON = (
    "the lanes of torch's sum are those of the machine's vectors: ours are 16 in blocks of 256, by definition"
)
_HALVES = (torch.bfloat16, torch.float16)


def _summed(
    self: Tensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    out: Any = None,
    op: str,
    what: str,
    last: int = PLAIN,
) -> Tensor | None:
    kind = _kind(self, dtype, out)
    if kind in (torch.complex64, torch.complex128):
        return _of_parts(op, what, self.to(kind), dim or (), keepdim, last)
    return _reduced(op, what, self, dim or (), keepdim, kind, last)


def _of_parts(op: str, what: str, x: Tensor, dims: Any, keepdim: bool, last: int) -> Tensor | None:
    """Returns the sum or mean of complex numbers: those of the real and of the imaginary parts."""
    rank = x.dim()
    if not rank or not all(-rank <= dim < rank for dim in dims):
        return None
    parts = torch.view_as_real(x.resolve_conj())
    places = tuple(dim % rank for dim in dims) or tuple(range(rank))
    result = _reduced(op, what, parts, places, keepdim, parts.dtype, last)
    return None if result is None else torch.view_as_complex(result.contiguous())


def _prod_of_all(self: Tensor, *, dtype: Any = None) -> Tensor | None:
    return _reduced("prod", "prod", self, (), False, _kind(self, dtype, None), PLAIN)


def _prod_of_dim(
    self: Tensor, dim: int, keepdim: bool = False, *, dtype: Any = None, out: Any = None
) -> Tensor | None:
    return _reduced("prod", "prod", self, (dim,), keepdim, _kind(self, dtype, out), PLAIN)


def _dot(self: Tensor, tensor: Tensor, *, conjugate: bool = False) -> Tensor | None:
    """Those of two vectors: dot and vdot, whose form with `out=` calls the plain one.

    Of complex numbers: the sum of their products, each rounded.
    """
    if self.is_complex() and self.dtype == tensor.dtype and self.dim() == tensor.dim() == 1:
        return torch.sum((self.conj() if conjugate else self) * tensor)
    is_ours = takes("dot", self.dtype, tensor.dtype) and self.dtype == tensor.dtype
    is_valid = self.numel() and self.dim() == tensor.dim() == 1 and self.shape == tensor.shape
    return reduce("dot", self.contiguous(), y=tensor.contiguous()) if is_ours and is_valid else None


def _tensordot(kernel: Kernel) -> Kernel:
    """Also of inner: torch composes it of a dot product where the factors have no gaps, else of a sum."""

    def tensordot(self: Tensor, other: Tensor, *dims: Any, **out: Tensor) -> Tensor:
        return kernel(self.contiguous(), other.contiguous(), *dims, **out)

    return tensordot


def _kind(x: Tensor, dtype: Any, out: Any) -> torch.dtype:
    """As in torch: the type asked for, else that of `out`, else the tensor's own."""
    return dtype or (x.dtype if out is None else out.dtype)


def _reduced(
    op: str, what: str, x: Tensor, dims: Any, keepdim: bool, kind: torch.dtype, last: int
) -> Tensor | None:
    """Returns the result; None if torch's kernel is exact, or will raise."""
    if not takes(op, kind):
        return None
    if x.dtype != kind and not (kind == torch.float32 and x.dtype in _HALVES):
        takes(op, x.dtype)
        x = x.to(kind)
    if not x.numel() and last == PLAIN:
        return None
    try:
        return reduce(what, x, dims, keepdim, dtype=kind, last=last)
    except IndexError:
        return None


REPLACEMENTS = tuple(
    replacement
    for names, compute in (
        (("sum.dim_IntList", "sum.IntList_out"), partial(_summed, op="sum", what="sum")),
        (("mean.dim", "mean.out"), partial(_summed, op="mean", what="sum", last=QUOTIENT)),
        (("nansum", "nansum.out"), partial(_summed, op="nansum", what="nansum")),
        (("prod",), _prod_of_all),
        (("dot",), _dot),
        (("vdot",), partial(_dot, conjugate=True)),
        (("prod.dim_int", "prod.int_out"), _prod_of_dim),
    )
    for replacement in replacements(names, or_torchs(compute), REASON)
) + replacements(
    ("tensordot", "tensordot.out"),
    _tensordot,
    "torch takes a sum of products where a factor has gaps: made contiguous",
    "AutogradCPU",
)

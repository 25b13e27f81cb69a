"""Elementwise ops whose vector code and scalar code round differently: the scalar tail stays where one thread has it.

Found by comparing contiguous with strided input element by element, for every elementwise op, in float32, float64,
bfloat16, float16 and complex64: a comparison of thread counts alone sees only the few elements of the tails. Not
replaced are the ops of which only the sign or payload of a NaN, or the sign of a zero, differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits._native.torch_threads import on_single_thread, single_thread
from samebits.determinism._dispatcher import Kernel, kernels, overload
from samebits.determinism._kernels.vector_tails import GRAIN, Pieces, is_dense, layout, torch_kernel
from samebits.determinism._replacement import Replacement

_EVERY_THREAD = 1
"""The grain of gelu: from 16384 elements on every thread gets an equal share."""
_FEW = 16384


class Cut(NamedTuple):
    """The way in which the operands of an op are cut: torch's grain, whether never at rows (`Pieces`), and of copies in
    one layout.
    """

    grain: int = GRAIN
    flat: bool = False
    contiguous: bool = False


def _functional(out_op: str, cut: Cut, kernel: Kernel) -> Kernel:
    name, into = _out_name(out_op), torch_kernel(out_op) if out_op else None

    def pointwise(*args: Any, **kwargs: Any) -> Tensor:
        shape = _shape(args, cut.grain)
        if shape is None:
            return kernel(*args, **kwargs)
        if cut.contiguous:
            args = tuple(a.contiguous() if isinstance(a, Tensor) else a for a in args)
        pieces = Pieces(args, shape, None, flat=cut.flat)
        elements, head = pieces.elements, pieces.head(cut.grain)
        if head == elements and not (cut.flat and _any_strided(args)):
            return kernel(*pieces.args, **kwargs)
        with single_thread():
            rest = pieces.call(kernel, head, elements, kwargs)
        result = pieces.empty(rest.dtype)
        pieces.of(result, head, elements).copy_(rest)
        target = pieces.of(result, 0, head)
        if into is None:
            target.copy_(pieces.call(kernel, 0, head, kwargs))
        else:
            pieces.call(into, 0, head, {**kwargs, name: target})
        return result

    return pointwise


def _in_place(cut: Cut, kernel: Kernel) -> Kernel:
    def pointwise_(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        shape = _shape((self, *args), cut.grain)
        if shape is None or shape != self.shape or _overlaps(self, args):
            return kernel(self, *args, **kwargs)
        pieces = Pieces((self, *args), shape, self, flat=cut.flat)
        for start, stop, threads in _cuts(pieces, cut.grain):
            with threads:
                pieces.call(kernel, start, stop, kwargs)
        return self if pieces.args[0] is self else self.copy_(pieces.args[0])

    return pointwise_


def _out(out_op: str, cut: Cut, kernel: Kernel) -> Kernel:
    name = _out_name(out_op)

    def pointwise_out(*args: Any, **kwargs: Any) -> Tensor:
        out, shape = kwargs[name], _shape(args, cut.grain)
        if shape is None or _overlaps(out, args):
            return kernel(*args, **kwargs)
        if out.shape != shape:
            if out.numel():
                return on_single_thread(kernel)(*args, **kwargs)  # warns that it resizes
            out.resize_(shape).as_strided_(shape, layout(args, shape))
        pieces = Pieces(args, shape, out, flat=cut.flat)
        result = out if pieces.result is None else pieces.result
        for start, stop, threads in _cuts(pieces, cut.grain):
            with threads:
                pieces.call(kernel, start, stop, {**kwargs, name: pieces.of(result, start, stop)})
        return out if result is out else out.copy_(result)

    return pointwise_out


def _uncut(operands: Callable[..., Sequence[Any]], out_op: str, kernel: Kernel) -> Kernel:
    """Torch's kernel where every thread's share of it is whole blocks, else on one thread.

    For an op that gives something else for a piece of its operands than that piece of its result: the mean of a loss
    divides by the number of elements, and addr takes two vectors. `operands` makes them such as broadcast to the result.
    """
    name, serial = _out_name(out_op), on_single_thread(kernel)

    def pointwise(*args: Any, **kwargs: Any) -> Tensor:
        broadcast = operands(*args)
        shape = _shape(broadcast, GRAIN)
        if shape is None:
            return kernel(*args, **kwargs)
        out = kwargs.get(name)
        pieces = Pieces(broadcast, shape, out if out is not None and out.shape == shape else None)
        shared = pieces.args is broadcast and pieces.head(GRAIN) == pieces.elements
        return (kernel if shared else serial)(*args, **kwargs)

    return pointwise


def _loss_backward(out_op: str, kernel: Kernel) -> Kernel:
    mean, others = _uncut(lambda *args: args[:3], out_op, kernel), _out(out_op, Cut(), kernel)

    def backward(
        grad: Tensor, self: Tensor, target: Tensor, reduction: int, *args: Any, **kwargs: Any
    ) -> Tensor:
        return (mean if reduction == _MEAN else others)(grad, self, target, reduction, *args, **kwargs)

    return backward


def _rows_and_columns(self: Tensor, column: Tensor, row: Tensor, *_: Any) -> Sequence[Any]:
    return self, column.view(-1, 1) if column.dim() == 1 else column, row


def _rsub(_: Kernel) -> Kernel:
    """Takes sub with its operands exchanged, as torch's own, so that the result has its layout."""
    sub = _functional("sub.out", Cut(), torch_kernel("sub.Tensor"))
    return lambda self, other, **kwargs: sub(other, self, **kwargs)


def _counting(kernel: Kernel) -> Kernel:
    """arange: each vector adds its lanes to its first element, so that with a fraction as step the bits follow the cuts."""
    serial = on_single_thread(kernel)

    def arange_out(*args: Any, out: Tensor) -> Tensor:
        return (serial if out.is_floating_point() else kernel)(*args, out=out)

    return arange_out


def _cuts(pieces: Pieces, grain: int) -> Iterator[tuple[int, int, AbstractContextManager[None]]]:
    head = pieces.head(grain)
    if head:
        yield 0, head, nullcontext()
    if head < pieces.elements:
        yield head, pieces.elements, single_thread()


def _shape(args: Sequence[Any], grain: int) -> torch.Size | None:
    """The shape of the result; None if it is so small that one thread computes it, or cannot be: torch raises."""
    shapes = [a.shape for a in args if isinstance(a, Tensor)]
    shape, elements = shapes[0], 1
    for other in shapes:
        elements *= other.numel()
    if elements <= max(grain, _FEW):
        return None
    if any(other != shape for other in shapes):
        try:
            shape = torch.broadcast_shapes(*shapes)
        except RuntimeError:
            return None
    return shape if shape.numel() > max(grain, _FEW) else None


def _any_strided(args: Sequence[Any]) -> bool:
    return any(isinstance(a, Tensor) and not a.is_contiguous() for a in args)


def _out_name(out_op: str) -> str:
    return (
        next((a.name for a in overload(f"aten::{out_op}")._schema.arguments if a.is_out), "")
        if out_op
        else ""
    )


def tensors_for_numbers(name: str, kernel: Kernel) -> Kernel:
    """The kernel for callers that give a number where the schema says Tensor, as `x % 2.0` does.

    Torch holds such a number as a tensor that does not take part in type promotion and hands it to Python as the
    number, which its own kernel then refuses.
    """
    schema = overload(f"aten::{name}")._schema
    places = [i for i, a in enumerate(schema.arguments) if str(a.type) == "Tensor" and not a.kwarg_only]
    if len(places) < 2:
        return kernel

    def with_tensors(*args: Any, **kwargs: Any) -> Any:
        if any(not isinstance(args[i], Tensor) for i in places):
            like = next(args[i] for i in places if isinstance(args[i], Tensor))
            args = tuple(
                a if isinstance(a, Tensor) or i not in places else _as_tensor(a, like)
                for i, a in enumerate(args)
            )
        return kernel(*args, **kwargs)

    return with_tensors


def _as_tensor(number: complex, like: Tensor) -> Tensor:
    """A tensor of no dimensions that promotes with `like` as the number does, exact where that can be."""
    exact = torch.tensor(number, dtype=_EXACT[type(number)])
    dtype = torch.result_type(like, number)
    return exact if torch.result_type(like, exact) == dtype else exact.to(dtype)


_EXACT = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def _overlaps(result: Tensor, args: Sequence[Any]) -> bool:
    """Returns True if a dense operand is partly in the memory of the dense result: torch's kernel raises."""
    start, stop = result.data_ptr(), result.data_ptr() + result.nbytes
    for a in args:
        if isinstance(a, Tensor) and a.data_ptr() < stop and start < a.data_ptr() + a.nbytes:
            same = a.data_ptr() == start and a.stride() == result.stride() and a.shape == result.shape
            if not same and is_dense(a) and is_dense(result):
                return True
    return False


# fmt: off
_OPS = (
    "angle", "atan2", "atanh", "cosh", "digamma", "elu", "exp2", "gelu", "hypot", "igamma", "igammac", "logaddexp",
    "logaddexp2", "logit", "mish", "rsqrt", "sgn", "sigmoid", "silu", "sinh", "softplus", "softshrink", "special_i0e",
)
_BACKWARDS = ("elu", "gelu", "logit", "sigmoid", "silu", "softplus", "tanh")
# fmt: on
_FORMS = (
    *((f"{op}.out", op, f"{op}_") for op in _OPS),
    *((f"{op}_backward.grad_input", f"{op}_backward", "") for op in _BACKWARDS),
    ("pow.Tensor_Scalar_out", "pow.Tensor_Scalar", "pow_.Scalar"),
    ("pow.Tensor_Tensor_out", "pow.Tensor_Tensor", "pow_.Tensor"),
    ("pow.Scalar_out", "pow.Scalar", ""),
    ("fmod.Tensor_out", "fmod.Tensor", "fmod_.Tensor"),
    ("remainder.Tensor_out", "remainder.Tensor", "remainder_.Tensor"),
    ("lerp.Tensor_out", "lerp.Tensor", "lerp_.Tensor"),
    ("", "mish_backward", ""),
)
"""Out, functional and in-place form of each op whose vector and scalar code give different bits for finite input."""


_ARITHMETIC = (
    ("add.out", "add.Tensor", "add_.Tensor"),
    ("sub.out", "sub.Tensor", "sub_.Tensor"),
    ("mul.out", "mul.Tensor", "mul_.Tensor"),
    ("div.out", "div.Tensor", "div_.Tensor"),
    ("addcmul.out", "addcmul", "addcmul_"),
)
"""add and sub with an alpha, in float16 and bfloat16 (a step of plain SGD), and in float32 and float64 with `other`
expanded along the last dimension (the scalar code rounds the product of `alpha`, the vector code does not); the others
in complex64 only."""

_MEAN = 1
_LOSSES = ("smooth_l1_loss_backward.grad_input", "huber_loss_backward.out")
_OUTER = ("addr", "addr.out")


def _replacements(forms: Sequence[tuple[str, str, str]]) -> tuple[Replacement, ...]:
    known = set(kernels("CPU"))
    found = []
    for out, functional, in_place in forms:
        cut = _CUTS.get(functional, Cut())
        found.append((functional, partial(_functional, out, cut)))
        found.append((in_place, partial(_in_place, cut)))
        found.append(
            (out, partial(_out, out, cut))
        )  # after the functional form, which keeps torch's kernel of it
    return tuple(
        Replacement(f"aten::{name}", partial(_make, name, make), _REASON, only_threads=True)
        for name, make in found
        if f"aten::{name}" in known
    )


def _make(name: str, make: Any, kernel: Kernel) -> Kernel:
    takes_numbers = name.partition(".")[0].rstrip("_") in _TAKE_NUMBERS
    return tensors_for_numbers(name, make(kernel)) if takes_numbers else make(kernel)


_TAKE_NUMBERS = ("add", "sub", "mul", "div", "fmod", "remainder", "pow")
_CUTS = {
    "gelu": Cut(_EVERY_THREAD, flat=True),
    "gelu_backward": Cut(flat=True),
    "logit": Cut(flat=True),
    "pow.Scalar": Cut(contiguous=True),
}
"""The first three have another kernel (of oneDNN, of MKL) for what is contiguous, as pieces of a row are: so theirs all
are. The result of the last is contiguous, whatever the layout of the exponent."""
_REASON = (
    "vector code and scalar tail round differently, and threads move the tail: kept where one thread has it"
)

_WHOLE_SHARES = _REASON + "; where a share is not whole vectors, on one thread"

REPLACEMENTS = (
    *_replacements(_FORMS),
    *(
        Replacement(f"aten::{op}", partial(_loss_backward, op), _WHOLE_SHARES, only_threads=True)
        for op in _LOSSES
    ),
    *(
        Replacement(f"aten::{op}", partial(_uncut, _rows_and_columns, op), _WHOLE_SHARES, only_threads=True)
        for op in _OUTER
    ),
    Replacement("aten::rsub.Tensor", _rsub, _REASON, only_threads=True),
    Replacement(
        "aten::arange.start_out", _counting, _REASON + "; of floating point, on one thread", only_threads=True
    ),
)
ARITHMETIC = _replacements(_ARITHMETIC)
"""Not in the catalogue: an override costs 1.4 us a call, and these are the ops that training calls most."""

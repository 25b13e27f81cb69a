"""`stochastic_round`: a float32 becomes one of its neighbours, the nearer one more often; the mean is exact.

Where rounding to nearest loses all that is below half a step, each time, stochastic rounding keeps it on
average: x between the neighbours a < x < b becomes b with probability (x - a) / (b - a), so that the mean of
the result is x.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.autograd.graph import increment_version

from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.random._keys import check_key, is_traced, one_by_one
from samebits.random._memory import fresh
from samebits.rounding._cpu import rounding_kernels
from samebits.rounding._cpu.number_formats import FORMATS

_CPU: Any = rounding_kernels


def kernels(caller: str, key: torch.Tensor) -> Any:
    """Returns the module whose `stochastic_round` rounds tensors on the key's device.

    Raises `UnimplementedError`, naming samebits.rounding.`caller`, for a device without kernels of the same
    bits, and for CUDA without Triton, which is imported here for the first time.
    """
    if key.is_cpu:
        return _CPU
    cure = (
        f"round on the CPU and move the result: {caller}(x.cpu(), dtype, key.cpu()).to({str(key.device)!r})"
    )
    if not key.is_cuda:
        raise UnimplementedError(
            f"samebits.rounding.{caller} has no kernel for {key.device} that gives the bits of the CPU; "
            f"{cure}"
        )
    try:
        return import_module("samebits.rounding._triton")
    except ModuleNotFoundError as missing:
        if missing.name != "triton":
            raise
        raise UnimplementedError(
            f"samebits.rounding.{caller} on CUDA needs Triton, which is not installed: pip install triton, "
            f"or {cure}"
        ) from None


_WIDENED = (torch.float16, torch.bfloat16)


def stochastic_round(
    x: torch.Tensor, dtype: torch.dtype, key: torch.Tensor, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Rounds `x` stochastically to `dtype`; element i, in row-major order, by number i of the key's stream.

    Numbers of the stream are the 16-bit ones of `samebits.random.bits` for bfloat16, which drops 16 bits, and
    the 32-bit ones for the other dtypes. CPU and CUDA give the same bits, for any layout or threads.

    - The mean over all random numbers is x exactly wherever no more bits are dropped than the number has: for
      bfloat16 always, else for |x| from 2**-33 (float16), 2**-18 (float8_e4m3fn), 2**-25 (float8_e5m2) on,
      and for some smaller ones. There the probability is rounded down to a multiple of 2**-32, of a step that
      is the least subnormal number.
    - Values that `dtype` represents are kept: zeros with their sign, subnormal numbers, infinities.
    - Beyond the largest finite number, the step to the next number that an unbounded exponent would give
      counts like any other; results there, and numbers beyond it, are infinite. float8_e4m3fn has no
      infinity: all beyond 448 becomes 448, infinities too, as in torch's cast.
    - A NaN stays one, quiet, with its sign and the upper bits of its payload.
    - The gradient is that of `x.to(dtype)`, of which this is the mean: the gradient of the output as x's
      dtype; in forward mode and under torch.func, too.

    Under `torch.vmap` each slice needs its own key; one for all is refused unless `randomness="same"`.

    Args:
        x: float32; float16 and bfloat16 are widened first. Any shape and layout.
        dtype: bfloat16, float16, float8_e4m3fn or float8_e5m2.
        key: uint64 of shape (2,), on the device of `x`.
        out: written and returned, of the shape of `x` and of `dtype`, any layout.

    Raises `InvalidArgumentError` for other dtypes, shapes, devices or keys, for `out` in the memory of `x`,
    and for `out` where a gradient is needed; `UnimplementedError` for devices other than CPU and CUDA.

    Example:
        >>> x = torch.full((6,), 1 + 2**-9)
        >>> x.to(torch.bfloat16)
        tensor([1., 1., 1., 1., 1., 1.], dtype=torch.bfloat16)
        >>> samebits.rounding.stochastic_round(x, torch.bfloat16, samebits.random.key(7)) > 1
        tensor([False,  True,  True,  True, False, False])
    """
    _check(x, dtype, key)
    watched = is_traced(key) or is_traced(x)
    if out is not None:
        _check_out(x, dtype, out)
        if watched:  # a tracer of the caller's ops sees no write to an address
            return out.copy_(torch.ops.samebits.stochastic_round(x, dtype, key))
        if x.numel() and x.untyped_storage().data_ptr() == out.untyped_storage().data_ptr():
            raise InvalidArgumentError("stochastic_round: out is in the memory of x; give it separate memory")
        return round_into(out, x, key)
    if watched or (x.requires_grad and torch.is_grad_enabled()) or forward_ad._current_level >= 0:
        return torch.ops.samebits.stochastic_round(x, dtype, key)
    return round_to_new(x, dtype, key)


def round_to_new(x: torch.Tensor, dtype: torch.dtype, key: torch.Tensor) -> torch.Tensor:
    """Rounds to a new tensor, once the arguments are checked; autograd does not see it."""
    source = _widen(x)
    out = fresh(source.shape, dtype, source.device)
    kernels("stochastic_round", key).stochastic_round(key.contiguous(), source, out)
    return out if x.is_contiguous() else torch.empty_like(x, dtype=dtype).copy_(out)


def round_into(out: torch.Tensor, x: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Rounds to `out`, once the arguments are checked."""
    if not out.is_contiguous():
        return out.copy_(round_to_new(x, out.dtype, key))
    kernels("stochastic_round", key).stochastic_round(key.contiguous(), _widen(x), out)
    if not out.is_inference():
        increment_version(out)
    return out


def _widen(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to(torch.float32).resolve_neg().contiguous()


def _check(x: torch.Tensor, dtype: torch.dtype, key: torch.Tensor) -> None:
    check_key("stochastic_round", key)
    if key.dim() != 1:
        raise InvalidArgumentError(
            f"stochastic_round takes one key, of shape (2,); got a batch of shape {tuple(key.shape)}. For a "
            "key per slice: torch.vmap(lambda x, key: stochastic_round(x, dtype, key))(x, keys)"
        )
    if dtype not in FORMATS:
        names = ", ".join(form.name for form in FORMATS.values())
        raise InvalidArgumentError(f"stochastic_round rounds to one of {names}; got {dtype}")
    if not isinstance(x, torch.Tensor) or (x.dtype is not torch.float32 and x.dtype not in _WIDENED):
        kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        more = "; x.float() rounds it once more, to nearest" if kind is torch.float64 else ""
        raise InvalidArgumentError(f"stochastic_round: x must be a float32 tensor, got {kind}{more}")
    if x.layout is not torch.strided:
        raise InvalidArgumentError(
            f"stochastic_round: x is {x.layout}; round its values, which are dense: "
            "stochastic_round(x.values(), ...)"
        )
    if x.device != key.device:
        raise InvalidArgumentError(
            f"stochastic_round: x and key must be on one device, got x on {x.device} and a key on "
            f"{key.device}; move the key: key.to({str(x.device)!r})"
        )


def _check_out(x: torch.Tensor, dtype: torch.dtype, out: torch.Tensor) -> None:
    if not isinstance(out, torch.Tensor) or (out.dtype, out.shape, out.device) != (dtype, x.shape, x.device):
        raise InvalidArgumentError(
            f"stochastic_round: out must be a {dtype} tensor of shape {tuple(x.shape)} on {x.device}"
        )
    if (x.requires_grad or out.requires_grad) and torch.is_grad_enabled():
        raise InvalidArgumentError(
            "stochastic_round: out= has no gradient, and x or out requires grad; leave it out, or call it "
            "under torch.no_grad()"
        )


_LIBRARY = torch.library.Library("samebits", "FRAGMENT")
_LIBRARY.define(
    "stochastic_round(Tensor x, ScalarType dtype, Tensor key) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
_LIBRARY.impl("stochastic_round", round_to_new, "CompositeExplicitAutograd")


class _StraightThrough(_SingleLevelFunction):
    """The op for autograd, at one level: torch.func adds levels, and refuses functions that add theirs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dtype: torch.dtype, key: torch.Tensor) -> torch.Tensor:
        ctx.source, ctx.dtype = x.dtype, dtype
        with _levels_around():
            return _below_autograd(x, dtype, key)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[torch.Tensor, None, None]:
        return grad_outputs[0].to(ctx.source), None, None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> torch.Tensor:
        with _levels_around():
            return grad_inputs[0].to(ctx.dtype)


@contextmanager
def _levels_around() -> Iterator[None]:
    """Disables differentiation inside a function of autograd, at all levels; outer ones see its result."""
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
        yield


def _below_autograd(x: torch.Tensor, dtype: torch.dtype, key: torch.Tensor) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.samebits.stochastic_round(x, dtype, key)


def _differentiable(x: torch.Tensor, dtype: torch.dtype, key: torch.Tensor) -> torch.Tensor:
    if not (x.requires_grad and torch.is_grad_enabled()) and forward_ad._current_level < 0:
        return _below_autograd(x, dtype, key)
    with enable_single_level_autograd_function():
        return _StraightThrough.apply(x, dtype, key)  # type: ignore[attr-defined]


def _vmap_rule(
    info: Any, in_dims: Any, x: torch.Tensor, dtype: torch.dtype, key: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """Rounds each slice as if alone. One key for all must be requested: they get the same numbers."""
    if in_dims[2] is None and info.randomness != "same":
        raise InvalidArgumentError(
            "stochastic_round under torch.vmap has one key, so all slices would be rounded by the same "
            "numbers. Give each a key: torch.vmap(f)(x, samebits.random.split(key, len(x))), where f(x, key) "
            "rounds; or round the whole batch outside of vmap. If they are to share them: "
            'torch.vmap(..., randomness="same").'
        )
    return one_by_one(torch.ops.samebits.stochastic_round)(info, in_dims, x, dtype, key)


torch.library.register_fake(
    "samebits::stochastic_round", lambda x, dtype, _: torch.empty_like(x, dtype=dtype), lib=_LIBRARY
)
torch.library.register_vmap("samebits::stochastic_round", _vmap_rule, lib=_LIBRARY)
_LIBRARY.impl("stochastic_round", _differentiable, "Autograd")

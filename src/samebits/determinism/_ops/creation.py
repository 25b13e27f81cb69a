"""Draws and sequences (arange, range, linspace), each by covered operations.

Draws that torch makes by MKL or with logarithms of the system's library are covered functions of its uniform
draws here.

With u uniform on [0, 1): exponential is -log(1 - u) / lambda, but at least half a unit of rounding;
log-normal is exp of a normal draw; Cauchy is median + sigma tan(pi (u - 1/2)); geometric is ceil(log(1 - u) /
log(1 - p)), at least 1. They take other numbers from the generator than torch's own, so that other draws
follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits._native.kernel_threads import OnTeam
from samebits.arithmetic.elementwise_functions import FUNCTIONS
from samebits.arithmetic.reductions import lanes_type
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._ops.elementwise import Call, forms
from samebits.determinism._replacement import always, or_torchs, replacements
from samebits.random._cpu.rejection import BINOMIAL, GAMMA, POISSON, drawn


def _drawing(draw: Callable[..., Tensor]) -> Callable[[Kernel], Kernel]:
    """Returns the `make` of an op that fills its tensor by `draw(shape-giving tensor, args, generator)`."""

    def make(kernel: Kernel) -> Kernel:
        def drawing(self: Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Tensor:
            if not self.is_floating_point() or not self.numel():
                return kernel(self, *args, generator=generator, **kwargs)
            kernel(self.new_empty(0), *args, generator=generator, **kwargs)  # raises for wrong parameters
            room = torch.empty(self.shape, dtype=lanes_type(self))
            return self.copy_(draw(room, *args, generator=generator, **kwargs))

        return drawing

    return make


def _exponential(room: Tensor, lambd: float = 1.0, *, generator: Any) -> Tensor:
    least = torch.finfo(room.dtype).eps / 2
    return _log_of_rest(room, generator).neg_().clamp_min_(least).div_(lambd)


def _log_normal(room: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Any) -> Tensor:
    return room.normal_(mean, std, generator=generator).exp_()


def _cauchy(room: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Any) -> Tensor:
    return room.uniform_(generator=generator).sub_(0.5).mul_(math.pi).tan_().mul_(sigma).add_(median)


def _geometric(room: Tensor, p: float, *, generator: Any) -> Tensor:
    rest = torch.log1p(torch.full((), -p, dtype=room.dtype))
    return _log_of_rest(room, generator).div_(rest).ceil_().clamp_min_(1)


def _log_of_rest(room: Tensor, generator: Any) -> Tensor:
    """Returns log(1 - u), whose argument is exact and never 0."""
    return room.uniform_(generator=generator).neg_().add_(1).log_()


def _rrelu(
    self: Tensor,
    noise: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """rrelu_with_noise: each element <= 0 is multiplied by a uniform draw of its own, kept in `noise`."""
    if not training:
        return torch.nn.functional.leaky_relu(self, (lower + upper) / 2)
    drawn = torch.empty_like(self, dtype=torch.float32).uniform_(lower, upper, generator=generator)
    noise.copy_(torch.where(self <= 0, drawn.to(self.dtype), torch.ones((), dtype=self.dtype)))
    return self * noise


def _rrelu_in_place(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return self.copy_(_rrelu(self, *args, **kwargs))


_REASON = "torch draws by MKL or the system's logarithms: ours by covered functions of its uniform draws"

_BY_DRAW = (
    ("exponential_", _exponential),
    ("log_normal_", _log_normal),
    ("cauchy_", _cauchy),
    ("geometric_", _geometric),
)
_DRAWS = (
    *(one for name, draw in _BY_DRAW for one in replacements([name], _drawing(draw), _REASON)),
    *replacements(["rrelu_with_noise", "rrelu_with_noise.out"], or_torchs(_rrelu), _REASON),
    *replacements(["rrelu_with_noise_"], always(_rrelu_in_place), _REASON),
)


# arange, range and linspace of floating-point numbers, whose vector code adds a lane's number to the first
# of its vector.
#
# Element i is start + i step, in float64: the product is rounded, then the sum, then the result to its
# type. linspace has step = (end - start) / (n - 1), and its second half counts from the end: end - (n - 1 -
# i) step.


def _counting(kernel: Kernel) -> Kernel:
    """arange.start_out and range.out: torch's kernel checks the arguments and gives `out` its length."""

    @np.errstate(all="ignore")
    def counting(start: Any, end: Any, step: Any = 1, *, out: Tensor) -> Tensor:
        kernel(start, end, step, out=out)
        if not out.is_floating_point():
            return out
        return _copied(_multiples(out.numel(), float(step)) + float(start), out)

    return counting


def _linspace(kernel: Kernel) -> Kernel:
    @np.errstate(all="ignore")
    def linspace(start: Any, end: Any, steps: int, *, out: Tensor) -> Tensor:
        kernel(start, end, steps, out=out)
        if not out.is_floating_point() or steps < 2:
            return out
        step, half = (float(end) - float(start)) / (steps - 1), steps // 2
        values = _multiples(steps, step)
        late = float(end) - values[: steps - half][::-1]
        values += float(start)
        values[half:] = late
        return _copied(values, out)

    return linspace


def _multiples(count: int, step: float) -> np.ndarray:
    """Returns 0, step, 2 step, ... in float64; NumPy's short calls take a tenth of torch's."""
    return np.arange(count) * step


def _copied(values: np.ndarray, out: Tensor) -> Tensor:
    return out.copy_(torch.from_numpy(values).view(out.shape))


_REASON_SEQUENCES = (
    "torch adds the lanes of a vector to its first element: ours rounds start + i step once per operation, "
    "in float64"
)

_SEQUENCES = (
    *replacements(["arange.start_out", "range.out"], _counting, _REASON_SEQUENCES),
    *replacements(["linspace.out"], _linspace, _REASON_SEQUENCES),
)


# Draws of gamma, Dirichlet, Poisson and binomial distributions, and the gradients of the first two.
#
# A call takes one integer of 63 bits from the generator (none for no elements): the key of
# `random._cpu.rejection`, which computes in float64; the numbers are rounded to their type once. A Dirichlet
# draw is gamma draws divided by their sum. As torch's, a gamma draw is at least the smallest normal number of
# the type, and a Dirichlet one is below 1, too.


_REAL = (torch.float32, torch.float64)


def _draws(sampler: OnTeam, generator: Any, *parameters: Tensor) -> Tensor:
    """Returns float64 draws."""
    if not parameters[0].numel():
        return torch.empty(parameters[0].shape, dtype=torch.float64)
    key = torch.empty((), dtype=torch.int64).random_(generator=generator).item()
    return drawn(sampler, int(key), *(each.double() for each in parameters))


def _gamma(self: Tensor, generator: Any = None) -> Tensor | None:
    if self.dtype not in _REAL:
        return None
    return _draws(GAMMA, generator, self).to(self.dtype).clamp_min_(torch.finfo(self.dtype).tiny)


def _dirichlet(self: Tensor, generator: Any = None) -> Tensor | None:
    if self.dtype not in _REAL or not self.dim():
        return None
    kind = torch.finfo(self.dtype)
    parts = _draws(GAMMA, generator, self).clamp_min_(kind.tiny)
    return parts.div_(parts.sum(-1, keepdim=True)).to(self.dtype).clamp_(kind.tiny, 1 - kind.eps / 2)


def _poisson(self: Tensor, generator: Any = None) -> Tensor | None:
    if not self.is_floating_point() or not bool((self >= 0).all()):
        return None
    return _draws(POISSON, generator, self).to(self.dtype)


def _binomial(count: Tensor, prob: Tensor, generator: Any = None) -> Tensor | None:
    if count.dtype not in _REAL or (prob.dtype, prob.shape) != (count.dtype, count.shape):
        return None
    return _draws(BINOMIAL, generator, count, prob).to(count.dtype)


def _gamma_gradient(self: Tensor, output: Tensor) -> Call | None:
    return (FUNCTIONS["standard_gamma_grad"], (self, output), ()) if self.dtype in _REAL else None


def _dirichlet_gradient(x: Tensor, alpha: Tensor, total: Tensor) -> Call | None:
    return (FUNCTIONS["dirichlet_grad"], (x, alpha, total), ()) if x.dtype in _REAL else None


_REASON_OF_GRADIENT = (
    "torch takes logarithms of the system's library: ours is one sequence of IEEE operations"
)

_DISTRIBUTIONS = (
    *replacements(["_standard_gamma"], or_torchs(_gamma), _REASON),
    *replacements(["_sample_dirichlet"], or_torchs(_dirichlet), _REASON),
    *replacements(["poisson"], or_torchs(_poisson), _REASON),
    *replacements(["binomial"], or_torchs(_binomial), _REASON),
    *forms(_gamma_gradient, _REASON_OF_GRADIENT, "_standard_gamma_grad"),
    *forms(_dirichlet_gradient, _REASON_OF_GRADIENT, "_dirichlet_grad"),
)

REPLACEMENTS = (*_DRAWS, *_SEQUENCES, *_DISTRIBUTIONS)

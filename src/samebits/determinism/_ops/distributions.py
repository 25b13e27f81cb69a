"""Draws of gamma, Dirichlet, Poisson and binomial distributions, and the gradients of the first two.

A call takes one integer of 63 bits from the generator (none for no elements): the key of
`random._cpu.rejection`, which computes in float64; the numbers are rounded to their type once. A Dirichlet
draw is gamma draws divided by their sum. As torch's, a gamma draw is at least the smallest normal number, a
Dirichlet one also below 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits._native.kernel_threads import OnTeam
from samebits.arithmetic.elementwise_functions import FUNCTIONS
from samebits.determinism._ops.elementwise import Call, forms
from samebits.determinism._replacement import or_torchs, replacements
from samebits.random._cpu.rejection import BINOMIAL, GAMMA, POISSON, drawn

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
    parts = _draws(GAMMA, generator, self)
    kind = torch.finfo(self.dtype)
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


_REASON = "torch takes logarithms of the system's library: ours draws from a key, by IEEE operations"
_REASON_GRADIENT = "torch takes logarithms of the system's library: ours is one sequence of IEEE operations"

REPLACEMENTS = (
    *replacements(["_standard_gamma"], or_torchs(_gamma), _REASON),
    *replacements(["_sample_dirichlet"], or_torchs(_dirichlet), _REASON),
    *replacements(["poisson"], or_torchs(_poisson), _REASON),
    *replacements(["binomial"], or_torchs(_binomial), _REASON),
    *forms(_gamma_gradient, _REASON_GRADIENT, "_standard_gamma_grad"),
    *forms(_dirichlet_gradient, _REASON_GRADIENT, "_dirichlet_grad"),
)

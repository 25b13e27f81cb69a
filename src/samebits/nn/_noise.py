"""Layers with noise of a key: Gaussian noise, stochastic depth, randomised leaky ReLU, fractional pooling."""

from __future__ import annotations

import torch

from samebits import random
from samebits.errors import InvalidArgumentError
from samebits.nn._layer_keys import OwnsRandomness
from samebits.nn._masks import keep_mask, non_negative, probability, scale_by_mask, uniform


class GaussianNoise(OwnsRandomness):
    """Adds normal noise of mean 0 in training; identity in eval mode. `OwnsRandomness` says how it is keyed.

    Args:
        std: standard deviation, finite and at least 0; it may be changed later.
        inplace: add to the input itself.
        name: keys the layer instead of its path.

    Raises:
        InvalidArgumentError: `std` is negative or not finite.

    Example:
        >>> layer, x = samebits.nn.GaussianNoise(std=0.1), torch.zeros(4)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> noise = layer(x)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(x), noise), torch.equal(layer(x), noise)
        (True, False)
        >>> layer.eval()(x)
        tensor([0., 0., 0., 0.])
    """

    _shown = ("std", "inplace")

    def __init__(self, std: float = 0.1, inplace: bool = False, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.std = std
        self.inplace = inplace
        non_negative(self, "std", std)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Returns the input + std * normal, of the input's shape and (floating) dtype."""
        std = non_negative(self, "std", self.std)
        if not self.training or std == 0.0:
            return input
        key = self.next_key(input.device)
        noise = random.normal(key, *input.shape, std=std, dtype=input.dtype, device=input.device)
        return input.add_(noise) if self.inplace else input + noise


class StochasticDepth(OwnsRandomness):
    """Drops a residual branch in training: a torchvision.ops.StochasticDepth (Huang et al. 2016) with keys.

    Args:
        p: probability that a sample (or the batch) is zeroed; the others are scaled by 1 / (1 - p).
        mode: "row" decides for every sample (first dimension), "batch" once for all.
        name: keys the layer instead of its path.

    Raises:
        InvalidArgumentError: `p` is no probability, or `mode` is neither.

    Example:
        >>> layer = samebits.nn.StochasticDepth(0.5)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> layer(torch.ones(4, 3))  # four samples
        tensor([[0., 0., 0.],
                [2., 2., 2.],
                [2., 2., 2.],
                [0., 0., 0.]])
    """

    _shown = ("p", "mode")

    def __init__(self, p: float, mode: str = "row", *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.p = p
        self.mode = mode
        probability(self, p)
        self._shape(torch.empty(1))

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Returns the input, of shape (N, ...), with rows (or all of it) zeroed."""
        p = probability(self, self.p)
        shape = self._shape(input)
        if not self.training or p == 0.0:
            return input
        return scale_by_mask(input, keep_mask(self.next_key(input.device), shape, p, input), p, inplace=False)

    def _shape(self, input: torch.Tensor) -> tuple[int, ...]:  # noqa: A002
        if self.mode not in {"row", "batch"}:
            raise InvalidArgumentError(
                f"samebits.nn.StochasticDepth: mode is 'row' or 'batch', not {self.mode!r}."
            )
        return (input.shape[0] if self.mode == "row" else 1, *(1,) * (input.dim() - 1))


class RReLU(OwnsRandomness, torch.nn.RReLU):
    """`torch.nn.RReLU` with its own randomness: training draws the slope of each x <= 0 from [lower, upper).

    Example:
        >>> layer, x = samebits.nn.RReLU(), torch.tensor([-1.0, 0.0, 1.0])
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> first = layer(x)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(x), first), torch.equal(layer(x), first)
        (True, False)
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Returns x where x > 0, else slope * x; in eval mode the slope is (lower + upper) / 2."""
        if not self.training:
            return super().forward(input)
        if not self.lower <= self.upper:
            raise InvalidArgumentError(
                f"samebits.nn.RReLU has lower = {self.lower} above upper = {self.upper}."
            )
        key = self.next_key(input.device)
        slope = uniform(key, tuple(input.shape), input, low=self.lower, high=self.upper)
        noise = slope.masked_fill(input.detach() > 0, 1.0)
        return input.mul_(noise) if self.inplace else input * noise


class _FractionalMaxPool(OwnsRandomness):
    """A pooling whose windows are drawn per sample and channel; in eval mode too, as in torch."""

    _dimensions: int

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Pools as torch does; the layer's key gives the windows, unless `_random_samples` is given."""
        if self._random_samples is not None:
            return super().forward(input)
        sizes = input.shape[: -self._dimensions]  # (N, C), or (C,) without a batch
        shape = (*(1,) * (2 - len(sizes)), *sizes, self._dimensions)
        samples = uniform(self.next_key(input.device), shape, input)
        return self._pool(
            input,
            self.kernel_size,
            self.output_size,
            self.output_ratio,
            self.return_indices,
            _random_samples=samples,
        )


class FractionalMaxPool2d(_FractionalMaxPool, torch.nn.FractionalMaxPool2d):
    """`torch.nn.FractionalMaxPool2d` that owns its randomness: input (N, C, H, W) or (C, H, W).

    Example:
        >>> layer = samebits.nn.FractionalMaxPool2d(2, output_size=3)
        >>> image = torch.arange(81.0).view(1, 1, 9, 9)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> first, second = layer(image), layer(image)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(image), first), torch.equal(layer(image), second), torch.equal(first, second)
        (True, True, False)
    """

    _dimensions = 2
    _pool = staticmethod(torch.nn.functional.fractional_max_pool2d)


class FractionalMaxPool3d(_FractionalMaxPool, torch.nn.FractionalMaxPool3d):
    """`torch.nn.FractionalMaxPool3d` that owns its randomness: input (N, C, D, H, W) or (C, D, H, W).

    Example:
        >>> layer = samebits.nn.FractionalMaxPool3d(2, output_size=3)
        >>> volume = torch.arange(729.0).view(1, 1, 9, 9, 9)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> first = layer(volume)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(volume), first), torch.equal(layer(volume), first)
        (True, False)
    """

    _dimensions = 3
    _pool = staticmethod(torch.nn.functional.fractional_max_pool3d)

"""Dropout layers whose mask is a function of (seed, step, layer), independent of other draws."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F

from samebits.errors import InvalidArgumentError
from samebits.nn._layer_keys import OwnsRandomness
from samebits.nn._masks import dropout, keep_mask, probability, scale_by_mask

_SATURATION = 1.7580993408473766
"""The negative saturation value of SELU, as in ATen's Dropout.cpp."""


class Dropout(OwnsRandomness, torch.nn.Dropout):
    """`torch.nn.Dropout` that owns its randomness; `OwnsRandomness` says how the mask is keyed.

    Inside the loop of a `samebits.Run` that has the model, or after `set_step`, the mask does not depend on
    what else draws. Its state_dict is empty, as torch's.

    Args:
        p: probability that an element is zeroed, 0 <= p <= 1; it may be changed later.
        inplace: as in torch.
        name: keys the layer instead of its path.

    Example:
        >>> layer = samebits.nn.Dropout(0.5)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> layer(torch.ones(8))
        tensor([0., 2., 2., 0., 0., 2., 2., 2.])
        >>> noise = torch.rand(5)  # who else draws does not matter
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> layer(torch.ones(8))
        tensor([0., 2., 2., 0., 0., 2., 2., 2.])
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (torch's name)
        """Zeroes elements with probability p and scales the others by 1 / (1 - p); identity in eval mode."""
        p = probability(self, self.p)
        if not self.training or p == 0.0:
            return input
        return dropout(self.next_key(input.device), input, p, inplace=self.inplace)


class _ChannelDropout(OwnsRandomness, torch.nn.modules.dropout._DropoutNd):
    """Drops whole channels; the channel dimensions follow torch's rule, with its warnings and errors."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Zeroes channels with probability p and scales the others by 1 / (1 - p); identity in eval mode."""
        p = probability(self, self.p)
        batched = self._is_batched(input)
        if not self.training or p == 0.0:
            return input
        shape = _per_channel(self, input, 2 if batched else 1)
        mask = keep_mask(self.next_key(input.device), shape, p, input)
        return scale_by_mask(input, mask, p, inplace=self.inplace)

    def _is_batched(self, input: torch.Tensor) -> bool:  # noqa: A002
        raise NotImplementedError


class Dropout1d(_ChannelDropout, torch.nn.Dropout1d):
    """`torch.nn.Dropout1d` that owns its randomness: input (N, C, L) or (C, L). Arguments as of `Dropout`.

    Example:
        >>> layer = samebits.nn.Dropout1d(0.5)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> layer(torch.ones(4, 3))  # four channels
        tensor([[0., 0., 0.],
                [2., 2., 2.],
                [2., 2., 2.],
                [0., 0., 0.]])
    """

    def _is_batched(self, input: torch.Tensor) -> bool:  # noqa: A002
        F.dropout1d(input, 0.0, training=False)  # torch's check of the shape
        return input.dim() == 3


class Dropout2d(_ChannelDropout, torch.nn.Dropout2d):
    """`torch.nn.Dropout2d` that owns its randomness: (N, C, H, W) or (N, C, L). Arguments: see `Dropout`.

    Example:
        >>> layer = samebits.nn.Dropout2d(0.5)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> images = layer(torch.ones(1, 5, 4, 4))
        >>> [channel.unique().tolist() for channel in images[0]]
        [[0.0], [2.0], [2.0], [0.0], [0.0]]
    """

    def _is_batched(self, input: torch.Tensor) -> bool:  # noqa: A002
        F.dropout2d(input, 0.0, training=False)
        return True


class Dropout3d(_ChannelDropout, torch.nn.Dropout3d):
    """`torch.nn.Dropout3d` that owns its randomness: (N, C, D, H, W), (C, D, H, W). Arguments: see `Dropout`.

    Example:
        >>> layer = samebits.nn.Dropout3d(0.5)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> volumes = layer(torch.ones(1, 5, 2, 4, 4))
        >>> [channel.unique().tolist() for channel in volumes[0]]
        [[0.0], [2.0], [2.0], [0.0], [0.0]]
    """

    def _is_batched(self, input: torch.Tensor) -> bool:  # noqa: A002
        F.dropout3d(input, 0.0, training=False)
        return input.dim() == 5


class AlphaDropout(OwnsRandomness, torch.nn.AlphaDropout):
    """`torch.nn.AlphaDropout` that owns its randomness: keeps mean 0 and variance 1 of SELU networks.

    Arguments as of `Dropout`; `inplace` has no effect, as in torch.

    Example:
        >>> layer, x = samebits.nn.AlphaDropout(0.5), torch.ones(100)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> first, second = layer(x), layer(x)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(x), first), torch.equal(layer(x), second), torch.equal(first, second)
        (True, True, False)
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Sets elements to SELU's saturation value with probability p, then scales and shifts all of them."""
        return _alpha_dropout(self, input, tuple(input.shape))


class FeatureAlphaDropout(OwnsRandomness, torch.nn.FeatureAlphaDropout):
    """`torch.nn.FeatureAlphaDropout` that owns its randomness: alpha dropout of whole channels, (N, C, ...).

    Arguments as of `Dropout`; `inplace` has no effect, as in torch.

    Example:
        >>> layer, x = samebits.nn.FeatureAlphaDropout(0.5), torch.ones(1, 5, 4, 4)
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> images = layer(x)
        >>> [len(channel.unique()) for channel in images[0]]  # a channel is dropped as a whole
        [1, 1, 1, 1, 1]
        >>> samebits.nn.set_step(layer, 3, seed=1)
        >>> torch.equal(layer(x), images)
        True
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """Sets channels to SELU's saturation value with probability p, then scales and shifts all of them."""
        return _alpha_dropout(self, input, _per_channel(self, input, 2))


def _alpha_dropout(
    layer: AlphaDropout | FeatureAlphaDropout,
    input: torch.Tensor,  # noqa: A002
    shape: tuple[int, ...],
) -> torch.Tensor:
    """Returns alpha dropout as ATen's Dropout.cpp; Klambauer et al. 2017, section 'New dropout technique'."""
    p = probability(layer, layer.p)
    if not layer.training or p == 0.0:
        return input
    if p == 1.0:
        return input * torch.zeros((), dtype=input.dtype, device=input.device)
    scale = 1.0 / math.sqrt((_SATURATION**2 * p + 1.0) * (1.0 - p))
    mask = keep_mask(layer.next_key(input.device), shape, p, input)
    shift = (mask - 1).mul_(_SATURATION * scale).add_(_SATURATION * scale * p)
    return (input * mask.mul_(scale)).add_(shift)


def _per_channel(layer: torch.nn.Module, input: torch.Tensor, leading: int) -> tuple[int, ...]:  # noqa: A002
    """Returns the input's shape with all but the leading dimensions 1."""
    if input.dim() < 2:
        raise InvalidArgumentError(
            f"samebits.nn.{type(layer).__name__}: channels need at least 2 dimensions, got "
            f"{tuple(input.shape)}."
        )
    return (*input.shape[:leading], *(1,) * (input.dim() - leading))

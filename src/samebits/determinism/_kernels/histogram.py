"""Histograms: weighted ones by fixed chunks of the points, and counts that are exact.

Each chunk has sums of its own in float64, which are added in order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits._native.kernel_threads import float64_at, int64_at, on_team
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import out_form
from samebits.determinism._replacement import replacements

_CHUNK = 1 << 15
_CELLS = 1 << 22
"""Sums of all chunks together, at most."""
_IN_ORDER = (
    "threads add their weighted sums in the order in which they finish: summed in float64, in index order"
)
_EXACT_COUNT = 2**24
"""float32 counts are exact up to here; above, it matters in which order they were added."""


def weighted_histogram(
    points: Tensor, edges: Sequence[Tensor], weight: Tensor | None, density: bool
) -> Tensor:
    """The histogram of (N, D) `points` over D rows of bin edges, as `torch.histogramdd`.

    `weight` has N elements; NaN and what is outside the edges is not counted; the last bin has both edges.
    """
    bins = [len(edge) - 1 for edge in edges]
    total, count = math.prod(bins), len(points)
    chunks = max(1, min(math.ceil(count / _CHUNK), _CELLS // max(total, 1)))
    sums = torch.zeros(chunks, total, dtype=torch.float64)
    weights = torch.ones(count, dtype=torch.float64) if weight is None else weight.double().contiguous()
    values, limits = points.double().contiguous(), torch.cat([edge.double() for edge in edges])
    starts = torch.tensor([0, *itertools.accumulate(len(edge) for edge in edges)])
    scales = torch.stack([(len(e) - 1) / (e[-1].double() - e[0].double()) for e in edges])
    addresses = (t.data_ptr() for t in (values, weights, limits, starts, scales, sums))
    _add_chunk(chunks, count, len(bins), total, *addresses)
    histogram = sums[0].clone()
    for row in sums[1:]:
        histogram += row
    histogram = histogram.to(points.dtype).view(bins)
    return _density(histogram, edges) if density else histogram


def _chunk(chunk: int, args: Any) -> None:
    chunks, count, dims, total = args[0], args[1], args[2], args[3]
    values, weights = float64_at(args[4]), float64_at(args[5])
    limits, starts = float64_at(args[6]), int64_at(args[7])
    scales, sums = float64_at(args[8]), float64_at(args[9])
    for row in range(chunk * count // chunks, (chunk + 1) * count // chunks):
        place = 0
        for dim in range(dims):
            value, first, last = values[row * dims + dim], starts[dim], starts[dim + 1] - 1
            if not (value >= limits[first] and value <= limits[last]):
                place = -1
                break
            low, high = first, last  # limits[low] <= value; value < limits[high], or it is the last edge
            guess = first + int((value - limits[first]) * scales[dim])
            guess = min(max(guess, first), last - 1)
            if limits[guess] <= value:
                low = guess
                if value < limits[guess + 1]:
                    high = guess + 1
            else:
                high = guess
            while high - low > 1:
                middle = (low + high) // 2
                if limits[middle] <= value:
                    low = middle
                else:
                    high = middle
            place = place * (last - first) + low - first
        if place >= 0:
            sums[chunk * total + place] += weights[row]


_add_chunk = on_team(_chunk)


def _density(histogram: Tensor, edges: Sequence[Tensor]) -> Tensor:
    histogram = histogram / histogram.double().sum().to(histogram.dtype)
    for dim, edge in enumerate(edges):
        shape = [1] * len(edges)
        shape[dim] = -1
        histogram = histogram / edge.diff().view(shape)
    return histogram


def _histogram(kernel: Kernel) -> Kernel:
    def histogram(self: Tensor, bins: Any = 100, **kwargs: Any) -> tuple[Tensor, Tensor]:
        weight = kwargs.get("weight")
        if _is_exact(self, weight, self.shape):
            return kernel(self, bins, **kwargs)
        points, weight = self.reshape(-1, 1), None if weight is None else weight.reshape(-1)
        if isinstance(bins, int) and kwargs.get("range") is None:
            kwargs["range"] = _span(points)
        kwargs["weight"] = None if weight is None else weight[:0]
        _, edges = kernel(self.new_empty(0), bins, **kwargs)  # torch's checks, and its edges
        return weighted_histogram(points, [edges], weight, kwargs.get("density", False)), edges

    return histogram


def _histogram_out(kernel: Kernel) -> Kernel:
    def functional(self: Tensor, bins: Any = 100, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return kernel(self, bins, **kwargs, hist=self.new_empty(0), bin_edges=self.new_empty(0))

    return out_form(_histogram(functional), "hist", "bin_edges")


def _histogramdd(kernel: Kernel) -> Kernel:
    def histogramdd(self: Tensor, bins: Sequence[Any], **kwargs: Any) -> Tensor:
        weight = kwargs.get("weight")
        if _is_exact(self, weight, self.shape[:-1]):
            return kernel(self, bins, **kwargs)
        points, weight = self.reshape(-1, self.shape[-1]), None if weight is None else weight.reshape(-1)
        kwargs["weight"] = None if weight is None else weight[:0]
        kernel(points[:0], bins, **kwargs)  # torch's checks
        edges = bins
        if isinstance(bins[0], int):
            span = kwargs.get("range") or _span(points)
            edges = torch.ops.aten._histogramdd_bin_edges(points[:0], bins, range=span)
        return weighted_histogram(points, edges, weight, kwargs.get("density", False))

    return histogramdd


def _is_exact(points: Tensor, weight: Tensor | None, shape: torch.Size) -> bool:
    """Returns True if torch's kernel adds nothing but small counts, or will raise."""
    return points.numel() < _EXACT_COUNT if weight is None else weight.shape != shape


def _span(points: Tensor) -> list[float] | None:
    """The smallest and the largest value of each column."""
    if not points.numel():
        return None
    return torch.stack(points.aminmax(dim=0), 1).flatten().tolist()


def _histc(kernel: Kernel) -> Kernel:
    def histc(self: Tensor, *args: Any) -> Tensor:
        if not self.is_floating_point() or (self.element_size() > 2 and self.numel() < _EXACT_COUNT):
            return kernel(self, *args)
        exact = torch.float32 if self.numel() < _EXACT_COUNT else torch.float64
        return kernel(self.to(exact), *args).to(self.dtype)

    return histc


def _histc_out(kernel: Kernel) -> Kernel:
    return out_form(_histc(lambda self, *args: kernel(self, *args, out=self.new_empty(0))), "out")


_COUNTS = (
    "threads count in the type of the tensor, where a half type ends at 256 or 2,048: counted in float32, "
    "rounded once"
)
REPLACEMENTS = (
    *replacements(("histc",), _histc, _COUNTS),
    *replacements(("histc.out",), _histc_out, _COUNTS),
    *replacements(("histogram.bin_ct", "histogram.bins_tensor"), _histogram, _IN_ORDER),
    *replacements(("histogram.bin_ct_out", "histogram.bins_tensor_out"), _histogram_out, _IN_ORDER),
    *replacements(("_histogramdd_from_bin_cts", "_histogramdd_from_bin_tensors"), _histogramdd, _IN_ORDER),
)

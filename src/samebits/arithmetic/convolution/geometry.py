"""Places of taps: the elements of an image that an output multiplies, as offsets into a copy with a border.

A line is one dimension of a convolution: for each tap, output q takes element `step * q + offset` of the
source. The copy has the elements of each residue of `step` side by side, and zeros where there is no source:
there output q takes, for each tap, element `q + shift` of the row of its residue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product

import numpy as np


@dataclass(frozen=True)
class TapLine:
    """One dimension of a convolution."""

    offsets: tuple[int, ...]
    """Of its taps."""
    step: int
    outputs: int
    source: int
    """Elements that there are."""
    begin: int | None = None
    """The element with which a row of the copy begins, where several lines have one copy."""
    reach: int = 0
    """Elements of a row of that copy."""

    @cached_property
    def residues(self) -> list[int]:
        """The residues of `step` that have taps."""
        return sorted({offset % self.step for offset in self.offsets})

    @cached_property
    def first(self) -> int:
        """The smallest `offset // step`."""
        if self.begin is not None:
            return self.begin
        return min(offset // self.step for offset in self.offsets)

    @cached_property
    def length(self) -> int:
        """Elements of a row of the copy."""
        if self.begin is not None:
            return self.reach
        return self.outputs + max(offset // self.step for offset in self.offsets) - self.first

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """The number of its residue, and the shift, of each tap."""
        return [
            (self.residues.index(offset % self.step), offset // self.step - self.first)
            for offset in self.offsets
        ]

    @cached_property
    def is_plain(self) -> bool:
        """True if the source can be read instead of a copy."""
        return self.step == 1 and self.first == 0 and self.length == self.source


@dataclass(frozen=True)
class Window:
    """The lines of a convolution, outermost first: three; some may have one element."""

    lines: tuple[TapLine, TapLine, TapLine]
    is_dense: bool
    """The source's elements stand in order, without gaps."""

    @cached_property
    def is_copied(self) -> bool:
        """True if the source is copied."""
        return not (self.is_dense and all(line.is_plain for line in self.lines))

    @cached_property
    def lengths(self) -> tuple[int, int, int]:
        """Sizes of a plane of the copy."""
        z, y, x = self.lines
        return z.length, y.length, x.length

    @cached_property
    def plane(self) -> int:
        """Elements of a plane of the copy: one pair of residues."""
        z, y, x = self.lengths
        return z * y * x

    @cached_property
    def channel(self) -> int:
        """Elements from channel to channel: an odd number of 64 bytes, so that they use all of a cache."""
        elements = self.plane * len(self.residues)
        return (-(-elements // 16) | 1) * 16 if self.is_copied else elements

    @cached_property
    def residues(self) -> list[tuple[int, ...]]:
        """The residues of the planes of a channel, in order."""
        return list(product(*(line.residues for line in self.lines)))

    @cached_property
    def taps(self) -> list[int]:
        """Offsets in elements of the taps, in the order of the kernel's rows and columns."""
        _, y, x = self.lengths
        counts = [len(line.residues) for line in self.lines]
        offsets = []
        for (rz, z0), (ry, y0), (rx, x0) in product(*(line.places for line in self.lines)):
            plane = (rz * counts[1] + ry) * counts[2] + rx
            offsets.append(plane * self.plane + (z0 * y + y0) * x + x0)
        return offsets

    @cached_property
    def outputs(self) -> tuple[int, int, int]:
        """Sizes of the result."""
        z, y, x = self.lines
        return z.outputs, y.outputs, x.outputs

    def table(self, channels: int, size: int) -> np.ndarray:
        """Offsets in bytes for each k = (channel, tap)."""
        begins = np.arange(channels, dtype=np.int64)[:, None] * self.channel
        return ((begins + np.array(self.taps, np.int64)) * size).reshape(-1)

    @cached_property
    def runs(self) -> tuple[np.ndarray, int]:
        """Offsets in elements of the output rows that are contiguous in the copy, and the elements of one."""
        _, y, x = self.lengths
        oz, oy, ox = self.outputs
        if ox == x and oy == y:
            return np.zeros(1, np.int64), oz * oy * ox
        if ox == x:
            return np.arange(oz, dtype=np.int64) * (y * x), oy * ox
        starts = np.arange(oz, dtype=np.int64)[:, None] * (y * x) + np.arange(oy, dtype=np.int64) * x
        return starts.reshape(-1), ox


@lru_cache(maxsize=1024)
def forward_window(
    sizes: tuple[int, ...], kernel: tuple[int, ...], outputs: tuple[int, ...], stride: tuple[int, ...],
    padding: tuple[int, ...], dilation: tuple[int, ...], *, is_dense: bool,
) -> Window:  # fmt: skip
    """Returns the window of a convolution: output q takes element `stride * q + dilation * tap - padding`."""
    z, y, x = (
        TapLine(tuple(d * tap - p for tap in range(k)), s, out, size)
        for size, k, out, s, p, d in zip(sizes, kernel, outputs, stride, padding, dilation, strict=True)
    )
    return Window((z, y, x), is_dense)


@lru_cache(maxsize=1024)
def spread_line(
    source: int, kernel: int, size: int, stride: int, padding: int, dilation: int, residue: int
) -> tuple[TapLine | None, slice]:
    """Returns the line of a transposed convolution's outputs residue, residue + stride, ..., and its taps.

    Output q takes element `(q + padding - dilation * tap) / stride` of the source, where that is an integer.
    Without taps there is no line.
    """
    taps = [tap for tap in range(kernel) if (residue + padding - dilation * tap) % stride == 0]
    outputs = -(-(size - residue) // stride)
    if not taps or outputs <= 0:
        return None, slice(0)
    step = taps[1] - taps[0] if len(taps) > 1 else 1
    offsets = tuple((residue + padding - dilation * tap) // stride for tap in taps)
    return TapLine(offsets, 1, outputs, source), slice(taps[0], taps[-1] + 1, step)


def with_one_copy(lines: list[TapLine | None]) -> tuple[list[TapLine | None], TapLine | None]:
    """Returns lines of step 1 over one source as lines over one copy of it, and that copy's line."""
    there = [line for line in lines if line is not None]
    if not there:
        return lines, None
    begin = min(line.first for line in there)
    reach = max(line.first + line.length for line in there) - begin
    shared = [None if line is None else replace(line, begin=begin, reach=reach) for line in lines]
    return shared, next(line for line in shared if line is not None)

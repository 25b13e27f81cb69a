"""The copy of an image in which a tap finds its element: zeros around it, and residues of a stride apart."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

from torch import Tensor

from samebits import _native as native
from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team, variants
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.product.instructions import cases, fields_at, procedure
from samebits.arithmetic.product.vectors import FLOAT32, FLOAT64, Emitter, Number, copied

WORK = 1 << 15
"""Elements that one thread copies at a time."""
SLACK = 64
"""Zeros at the end: kernels read whole vectors."""


def clear_run(number: Number) -> Any:
    """Returns the instruction that writes zeros: to an address, a number of elements."""

    def clear(emit: Emitter, target: Any, count: Any) -> None:
        builder = emit.builder
        rounded = builder.add(count, emit.i64(emit.lanes - 1))
        with native.llvm.for_range(builder, builder.sdiv(rounded, emit.i64(emit.lanes))) as index:
            first = builder.mul(index, emit.i64(emit.lanes))
            place = builder.add(target, builder.mul(first, emit.i64(number.size)))
            emit.store(emit.zero(), emit.pointer(place), 0, emit.mask(builder.sub(count, first)))

    return procedure(number, clear)


def copy_shifted(number: Number) -> Any:
    """Returns the instruction that writes a row: it copies a part of it, and the rest is zero.

    Its arguments: the source, where the row's first element would stand; the target; the first element that
    is copied; the first after those; the length of the row.
    """

    def copy(emit: Emitter, source: Any, target: Any, low: Any, high: Any, length: Any) -> None:
        builder = emit.builder
        rounded = builder.add(length, emit.i64(emit.lanes - 1))
        with native.llvm.for_range(builder, builder.sdiv(rounded, emit.i64(emit.lanes))) as index:
            first = builder.mul(index, emit.i64(emit.lanes))
            there = builder.mul(first, emit.i64(number.size))
            below, above = emit.mask(builder.sub(high, first)), emit.mask(builder.sub(low, first))
            mask = builder.and_(below, builder.not_(above))
            value = emit.load(emit.pointer(builder.add(source, there)), 0, mask)
            inside = emit.mask(builder.sub(length, first))
            emit.store(value, emit.pointer(builder.add(target, there)), 0, inside)

    return procedure(number, copy)


def copy_shifted_rows(number: Number, most: int) -> Any:
    """Returns the instruction that does what `copy_shifted` does for some rows of up to `most` vectors.

    Its arguments: the source, where the first row's first element would stand, bytes from row to row; the
    target, bytes from row to row; rows; the first element that is copied; the first after those; the length
    of a row.
    """

    def copy(
        emit: Emitter,
        source: Any,
        step: Any,
        target: Any,
        pitch: Any,
        rows: Any,
        low: Any,
        high: Any,
        length: Any,
    ) -> None:
        builder = emit.builder
        width = emit.lanes * number.size
        there = [emit.mask(length, j * emit.lanes) for j in range(most)]
        inside = [
            builder.and_(emit.mask(high, j * emit.lanes), builder.not_(emit.mask(low, j * emit.lanes)))
            for j in range(most)
        ]

        def write(count: int) -> None:
            with native.llvm.for_range(builder, rows) as index:
                here = emit.pointer(builder.add(source, builder.mul(index, step)))
                place = emit.pointer(builder.add(target, builder.mul(index, pitch)))
                for j in range(count):
                    is_last = j == count - 1
                    value = emit.load(here, j * width, inside[j])
                    emit.store(value, place, j * width, there[j] if is_last else None)

        vectors = builder.sdiv(builder.add(length, emit.i64(emit.lanes - 1)), emit.i64(emit.lanes))
        cases(emit, vectors, range(1, most + 1), write)

    return procedure(number, copy)


class BorderFields(NamedTuple):
    """The numbers of a copy; behind them stand the first z, y and x of each residue.

    A plane is one channel of an image (`width` 1), or a whole image with its channels last.
    """

    planes: int
    each: int
    """Planes that a thread copies at a time."""
    channels: int
    """Planes of an image."""
    width: int
    """Elements of a pixel."""
    item: int
    """Bytes from image to image of the source, and so on."""
    channel: int
    dz: int
    dy: int
    dx: int
    sz: int
    """Sizes of the source."""
    sy: int
    sx: int
    lz: int
    """Sizes of the copy of one residue."""
    ly: int
    lx: int
    kz: int
    """Steps of the convolution."""
    ky: int
    kx: int
    residues: int
    pitch: int
    """Bytes from plane to plane of the copy."""
    rest: int
    """Elements behind the last residue of the last plane, which become zeros."""


_read = fields_at(BorderFields)
_STARTS = 8 * len(BorderFields._fields)


def plane_copier(number: Number) -> Any:
    """Returns the part of kernels that copies a plane; `border`: the address of `border_numbers`."""
    copy, clear, size = copy_shifted(number), clear_run(number), number.size
    pointer = float64_at if number is FLOAT64 else float32_at
    copy_rows, short = copy_shifted_rows(number, 4), 4 * number.lanes

    @inlined
    def copy_plane(images: Any, image: Any, channel: Any, target: Any, border: Any) -> None:
        f = _read(border)
        source = images + image * f.item + channel * f.channel
        width, length = f.width, f.lx * f.width
        is_row = f.kx == 1 and f.dx == width * size
        to = target
        for r in range(f.residues):
            starts = native.carray(int64_at(border + _STARTS + 24 * r), (3,))
            z0, y0, x0 = starts[0], starts[1], starts[2]
            # the first and the last pixel of a row that the source has
            low = min(f.lx, max(0, (f.kx - 1 - x0) // f.kx))
            high = max(low, min(f.lx, (f.sx - x0 + f.kx - 1) // f.kx))
            begin, end = low * width, high * width
            top = min(f.ly, max(0, (f.ky - 1 - y0) // f.ky))
            bottom = max(top, min(f.ly, (f.sy - y0 + f.ky - 1) // f.ky))
            for i in range(f.lz):
                z = z0 + f.kz * i
                if is_row and length <= short and z >= 0 and z < f.sz:
                    here = source + z * f.dz + (y0 + f.ky * top) * f.dy + x0 * f.dx
                    clear(to, top * length)
                    copy_rows(
                        here,
                        f.ky * f.dy,
                        to + top * length * size,
                        length * size,
                        bottom - top,
                        begin,
                        end,
                        length,
                    )
                    clear(to + bottom * length * size, (f.ly - bottom) * length)
                    to += f.ly * length * size
                    continue
                for j in range(f.ly):
                    y = y0 + f.ky * j
                    if z < 0 or z >= f.sz or y < 0 or y >= f.sy or high <= low:
                        clear(to, length)
                    else:
                        here = source + z * f.dz + y * f.dy + x0 * f.dx
                        if is_row:
                            copy(here, to, begin, end, length)
                        else:
                            if low > 0:
                                clear(to, begin)
                            if high < f.lx:
                                clear(to + end * size, length - end)
                            here += f.kx * low * f.dx
                            step = f.kx * f.dx
                            if width == 1:
                                row = native.carray(pointer(to + low * size), (high - low,))
                                for x in range(high - low):
                                    row[x] = native.carray(pointer(here + x * step), (1,))[0]
                            else:
                                for x in range(high - low):
                                    copy(here + x * step, to + (low + x) * width * size, 0, width, width)
                    to += length * size

    return copy_plane


@variants(number=(FLOAT32, FLOAT64))
def _copier(number: Number) -> OnTeam:
    copy_plane, clear, size = plane_copier(number), clear_run(number), number.size

    def work(index: int, args: Any) -> None:
        # args: 1 source, 2 target, 3 the fields
        f = _read(args[3])
        for plane in range(index * f.each, min(f.planes, (index + 1) * f.each)):
            target = args[2] + plane * f.pitch
            copy_plane(args[1], plane // f.channels, plane % f.channels, target, args[3])
            if plane == f.planes - 1:
                clear(target + f.residues * f.lz * f.ly * f.lx * f.width * size, f.rest)

    return on_team(work, name=f"border_{number.name}", is_vectorized=True)


def border_numbers(x: Tensor, window: Window, number: Number, *, last: bool = False) -> array[int]:
    """Returns the `BorderFields` of (batch, channels, z, y, x), with `last` (batch, z, y, x, channels)."""
    size, residues = number.size, window.residues
    if last:
        x, width = x.unsqueeze(1), x.shape[4]
        elements = window.plane * len(residues) * width
    else:
        width, elements = 1, window.channel
    item, channel, dz, dy, dx = (stride * size for stride in x.stride()[:5])
    batch, channels, sz, sy, sx = x.shape[:5]
    (lz, ly, lx), (kz, ky, kx) = window.lengths, (line.step for line in window.lines)
    fields = BorderFields(
        planes=batch * channels, each=max(1, WORK // elements), channels=channels, width=width,
        item=item, channel=channel, dz=dz, dy=dy, dx=dx, sz=sz, sy=sy, sx=sx, lz=lz, ly=ly, lx=lx,
        kz=kz, ky=ky, kx=kx, residues=len(residues), pitch=elements * size,
        rest=SLACK + elements - window.plane * len(residues) * width,
    )  # fmt: skip
    starts = [
        line.step * line.first + r
        for residue in residues
        for line, r in zip(window.lines, residue, strict=True)
    ]
    return array("q", (*fields, *starts))


def bordered(x: Tensor, window: Window, number: Number, *, last: bool = False) -> Tensor:
    """Returns the copy for a window of what `border_numbers` takes, and `SLACK` zeros.

    It is (batch, channels, `window.channel`), with `last` (batch, residues, pixels of a residue, channels).
    """
    numbers = border_numbers(x, window, number, last=last)
    f = BorderFields._make(numbers[: len(BorderFields._fields)])
    out = x.new_empty(f.planes * (f.pitch // number.size) + SLACK)
    _copier(copied(number))(-(-f.planes // f.each), x.data_ptr(), out.data_ptr(), numbers.buffer_info()[0])
    return out

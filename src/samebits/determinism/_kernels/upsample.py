"""Bilinear upsampling of exactly 3 channels (every RGB image): on one thread torch takes a kernel of its own, which rounds otherwise."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._replacement import replacements


def _bilinear(kernel: Kernel) -> Kernel:
    def upsample(x: Tensor, *args: Any) -> Tensor:
        if x.dim() != 4 or x.shape[1] != 3 or torch.get_num_threads() > 1:
            return kernel(x, *args)
        images, channels, *sizes = x.shape
        planes = kernel(x.reshape(images * channels, 1, *sizes), *args)
        made = planes.view(images, channels, *planes.shape[2:])
        return made.contiguous(memory_format=suggest_memory_format(x))

    return upsample


def _bilinear_out(kernel: Kernel) -> Kernel:
    ours = _bilinear(lambda x, *args: kernel(x, *args, out=x.new_empty(0)))

    def upsample_out(x: Tensor, *args: Any, out: Tensor) -> Tensor:
        return into(out, ours(x, *args))

    return upsample_out


_REASON = "3 channels have another kernel on one thread: taken there one by one, as on more threads"
REPLACEMENTS = (
    *replacements(("upsample_bilinear2d",), _bilinear, _REASON, only_threads=True),
    *replacements(("upsample_bilinear2d.out",), _bilinear_out, _REASON, only_threads=True),
)

"""Bilinear upsampling of 3 channels (RGB images): on one thread torch has another kernel, with other bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import out_form
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
    return out_form(_bilinear(lambda x, *args: kernel(x, *args, out=x.new_empty(0))), "out")


_REASON = "3 channels have another kernel on one thread: taken there one by one, as on more threads"
REPLACEMENTS = (
    *replacements(("upsample_bilinear2d",), _bilinear, _REASON, only_threads=True),
    *replacements(("upsample_bilinear2d.out",), _bilinear_out, _REASON, only_threads=True),
)

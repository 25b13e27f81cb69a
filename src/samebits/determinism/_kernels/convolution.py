"""Weight gradients of dilated bfloat16 and float16 convolutions in channels last: computed contiguously.

oneDNN's kernel of them (`jit_bf16:avx512_core_bf16`) may read memory that nobody wrote: seen for rows of 40
elements and more, with errors of 100% to 1e35, new ones in each run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits._native.torch_threads import single_thread
from samebits.determinism._replacement import always, replacements

# Torch registers its kernel of this op for all devices at once; a kernel for the CPU goes before it.
_torchs = partial(
    torch.ops.aten.convolution_backward.default._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd
)


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Sequence[int] | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    rest, mask = rest[:-1], rest[-1]
    is_dilated = any(step > 1 for step in rest[2])
    layout = _layout(x, weight, rest) if is_dilated and mask[1] and x.element_size() == 2 else _CONTIGUOUS
    if layout == _CONTIGUOUS:
        return tuple(_torchs(grad, x, weight, bias, *rest, mask))
    plain = [tensor.clone(memory_format=_CONTIGUOUS) for tensor in (grad, x, weight)]
    with single_thread():
        values = _torchs(*plain, bias, *rest, mask)
    return tuple(v if v is None or v.dim() < 3 else v.contiguous(memory_format=layout) for v in values)


_CONTIGUOUS = torch.contiguous_format


def _layout(x: Tensor, weight: Tensor, rest: Sequence[Any]) -> torch.memory_format:
    """Returns the memory format that torch gives results."""
    with single_thread():  # torch's choice of a backend looks at the number of threads
        backend = torch._C._select_conv_backend(x, weight, None, *rest[:6], None)
    return torch._C._conv_determine_backend_memory_format(x, weight, backend)


REPLACEMENTS = replacements(
    ("convolution_backward",),
    always(_convolution_backward),
    "oneDNN reads memory that nobody wrote (bfloat16, channels last, dilated): computed in contiguous form",
)

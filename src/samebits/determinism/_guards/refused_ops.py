"""Ops for which torch has no deterministic implementation: they raise `UnimplementedError` with the cure.

torch refuses nearly all of them itself, with a RuntimeError from inside the kernel that names neither device
nor line nor cure. An override in front of each such kernel turns that error into ours; all other ops stay as
they are. The list is that of `torch.use_deterministic_algorithms`'s documentation (2.13) and of
`alertNotDeterministic` in its sources; where torch does have a deterministic path (`index_put_`,
`scatter_add_`), nothing is raised and the override changes nothing. Products of sparse and dense matrices on
CUDA, which torch runs, are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch

from samebits._inspect.user_call import calling_op
from samebits.determinism import _cuda_loading as cuda_loading
from samebits.determinism._dispatcher import Kernel, KernelOverrides, kernels
from samebits.determinism._replacement import Replacement
from samebits.determinism._warn_once import warn_once
from samebits.errors import UnimplementedError, UnimplementedWarning

_ALERT = "does not have a deterministic"
"""Part of every message of torch's `alertNotDeterministic`."""

_ON_CPU = "compute it on the CPU (`.cpu()`, and `.to(device)` behind it), where it is deterministic"
_RESIZE = "mode='nearest' or 'nearest-exact', or resize on the CPU while loading"
_SCATTER = (
    "reduce='sum' or 'mean', which are deterministic; a product of positive values is exp of the sum of logs"
)
_REFLECT = (
    "padding mode 'constant', or index with a reflected torch.arange: indexing has a deterministic backward"
)
_REPLICATE = "torch.nn.functional.pad(mode='replicate'), which has a deterministic path"
_ONE_ROW = "two rows, `torch.stack([x, x])` along dimension 1, and then the first of them; or " + _ON_CPU
_STRIDED = "kernels as large as their stride: reshape, then mean or amax over the window; or " + _ON_CPU
_UNPOOL = "zeros and `scatter_` along the flattened {}: the same values while indices are unique"
_UNPOOLS = {"max_unpool2d": _UNPOOL.format("plane"), "max_unpool3d": _UNPOOL.format("volume")}
_MEDIAN = "torch.sort(stable=True) and the middle element; {} without `dim` gives no indices"
_TRIANGLE = "a product with torch.tril(torch.ones(n, n)) for short dimensions, or " + _ON_CPU
_SORTED = "sort the indices and torch.segment_reduce, or " + _ON_CPU

_SPARSE = (
    "`sparse.to_dense() @ dense`, or for a COO matrix zeros and `index_add_(0, i[0], v[:, None] * "
    "dense[i[1]])`, where i and v are its indices and values"
)

CURES: Mapping[str, Mapping[str, str]] = {
    "CPU": {
        "put_": "`x.view(-1).index_put_((index,), source)`, or index_copy_ with indices that are unique",
        **_UNPOOLS,
    },
    "QuantizedCPU": {"resize_": "torch.empty_quantized with the new size, or dequantize before resizing"},
    "CUDA": {
        "_adaptive_avg_pool2d_backward": "avg_pool2d if the output size divides the input, or a mean",
        "_adaptive_avg_pool3d_backward": "mean over the volume for output size 1, or " + _ON_CPU,
        "adaptive_avg_pool3d_backward": "mean over the volume for output size 1, or " + _ON_CPU,
        "adaptive_max_pool2d_backward": "max_pool2d if the output size divides the input, or amax for size 1",
        "adaptive_max_pool3d_backward": "amax over the volume for output size 1, or " + _ON_CPU,
        "avg_pool3d_backward": _STRIDED,
        "max_pool3d_with_indices_backward": _STRIDED,
        "fractional_max_pool2d_backward": "max_pool2d, or " + _ON_CPU,
        "fractional_max_pool3d_backward": "max_pool3d with windows that do not overlap, or " + _ON_CPU,
        **_UNPOOLS,
        **{
            f"upsample_{kind}_backward": _RESIZE
            for kind in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
        },
        **{f"_upsample_{kind}2d_aa_backward": _RESIZE for kind in ("bilinear", "bicubic", "lanczos")},
        **{f"reflection_pad{dims}d_backward": _REFLECT for dims in (1, 2, 3)},
        **{f"replication_pad{dims}d_backward": _REPLICATE for dims in (1, 2, 3)},
        "nll_loss2d_forward": "reduction='none' and then .mean(), or logits (N, C) by flattening the plane",
        "_ctc_loss_backward": "the loss on the CPU, or cuDNN's CTC with targets on the CPU (int32)",
        "_embedding_bag_dense_backward": "mode='sum' or 'mean', or F.embedding and then amax",
        "put_": "`x.view(-1).index_put_((index,), source, accumulate=...)`, which sorts the indices first",
        "histc": "torch.bucketize and then an integer torch.bincount, or " + _ON_CPU,
        "bincount": "zeros and index_add_ for the weights, which sorts the indices first",
        "median": _MEDIAN.format("median"),
        "nanmedian": _MEDIAN.format("nanmedian"),
        "kthvalue": "torch.sort(stable=True) and the k-th element",
        "grid_sampler_2d_backward": "mode='nearest' with padding, or index_select of the four corners",
        "grid_sampler_3d_backward": "gather the eight corners with index_select, or " + _ON_CPU,
        "cudnn_grid_sampler_backward": "gather the four corners with index_select, or " + _ON_CPU,
        **dict.fromkeys(("cumsum", "cumsum_"), _TRIANGLE),
        **dict.fromkeys(("cumprod", "cumprod_", "_logcumsumexp"), _ONE_ROW),
        "multilabel_margin_loss_backward": "the loss on the CPU, or pairs of scores, relu and sum",
        **dict.fromkeys(("scatter", "scatter_", "scatter_reduce", "scatter_reduce_"), _SCATTER),
        **dict.fromkeys(("index_reduce", "index_reduce_"), _SORTED),
        "_efficient_attention_backward": "torch.nn.attention.sdpa_kernel with FLASH_ATTENTION or MATH",
    },
    "SparseCUDA": dict.fromkeys(("mm", "addmm", "addmm_", "hspmm"), _SPARSE),
    "SparseCsrCUDA": dict.fromkeys(("mm", "addmm"), _SPARSE),
}
"""The replacement for each op (all its overloads), per dispatch key."""
_WITHOUT_ALERT = ("SparseCUDA", "SparseCsrCUDA")
"""Keys whose ops torch runs under its own flag, although two runs on an H200 gave other bits."""


def cure_of(name: str, key: str) -> str | None:
    """Returns what to use instead of an overload (full name) on a dispatch key; None if it is not refused."""
    return CURES.get(key, {}).get(name.removeprefix("aten::").partition(".")[0])


def refuse(overrides: KernelOverrides, ours: Iterable[Replacement], *, warn: bool) -> None:
    """Puts the error in front of every op of `CURES` that this torch has, but for those we replaced.

    With `warn` the op warns (`UnimplementedWarning`, once per op) and runs as it is.
    """
    replaced = {(it.op, it.device) for it in ours}
    for key in CURES:
        for name in kernels(key):
            if cure_of(name, key) is not None and (name, key) not in replaced:
                objection = partial(raise_or_warn, name, key, warn=warn)
                guard = _refuse_dense_operands if key in _WITHOUT_ALERT else _convert_errors
                overrides.put(name, key, partial(guard, objection=objection))


def raise_or_warn(name: str, key: str, *, warn: bool) -> None:
    """Raises the error with the replacement for the overload; with `warn`, warns of it once."""
    if not warn:
        raise UnimplementedError(
            f"{_explain(name, key)} enable_op_determinism(on_unimplemented='warn') runs it all the same and "
            "notes it in the record."
        )
    text = lambda: f"{_explain(name, key)} It runs all the same (on_unimplemented='warn')."  # noqa: E731
    warn_once(name, text, UnimplementedWarning)


def _explain(name: str, key: str) -> str:
    text = f"{calling_op(f'{name} on {key}')} has no deterministic implementation. Use {cure_of(name, key)}."
    if key == "CUDA" and cuda_loading.computes(name, cuda_loading.all_formulations()):
        text += (
            " samebits has a formulation of it in deterministic ops, which no GPU has verified, so it is not "
            "used: in a clone of samebits, `make gpu ARGS=tests/gpu/test_switch.py` runs it on this GPU, and "
            "tools/op_table/gpu_evidence.py installs it where its bits repeat."
        )
    return text


def _convert_errors(kernel: Kernel, objection: Callable[[], None]) -> Kernel:
    def converted(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except RuntimeError as error:
            if _ALERT not in str(error):
                raise
        objection()
        return _with_alerts_as_warnings(kernel, args, kwargs)

    return converted


def _refuse_dense_operands(kernel: Kernel, objection: Callable[[], None]) -> Kernel:
    """Returns the kernel for two sparse matrices alone: their product has the same bits in all runs."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        matrices = [x for x in args if isinstance(x, torch.Tensor)][-2:]
        if any(x.layout is torch.strided for x in matrices):
            objection()
        return kernel(*args, **kwargs)

    return refused


def _with_alerts_as_warnings(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a kernel with torch's warn_only for this call: for a program it gives up deterministic paths."""
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    try:
        return kernel(*args, **kwargs)
    finally:
        torch._C._set_deterministic_algorithms(True, warn_only=False)

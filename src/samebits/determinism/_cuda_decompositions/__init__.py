"""Ops that torch refuses on CUDA under deterministic algorithms, written in ops that it does not refuse.

Torch 2.13 documents 25 cases; all but one are here. Also here are the antialiased resizes, `kthvalue` and
cuDNN's grid sampler, which it refuses without saying so in that list, and ops that it runs and a GPU was seen
to vary: the backwards of `AdaptiveMaxPool3d` and `MultiLabelMarginLoss`, `cumprod` and `logcumsumexp` of one
row. The one left out is `resize_` of a quantized tensor: its new elements are unwritten memory, so there is
no value to reproduce; write `torch.zeros` in the new size.

Sums that meet in one place are gathered in a fixed order where the places are known beforehand, else added by
`index_add_`, `scatter_add_` or `index_put_`, which sort on CUDA under the switch. float16 and bfloat16 are
summed in float32. A formulation is installed once a GPU has run it (`verified.toml`). Nothing imports this
package before a CUDA tensor meets the switch (`determinism/_cuda_loading.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from samebits.determinism._cuda_decompositions import counts, grids, losses, pools, resize, scans
from samebits.determinism._cuda_decompositions.forms import in_place_form, where
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.indexed_writes import max_unpool2d, max_unpool3d, put_
from samebits.determinism._kernels.out_argument import out_form
from samebits.determinism._replacement import Replacement, always
from samebits.determinism._verified_on_gpu import read, verification_text

_ATOMICS = "torch adds with atomics, in the order in which threads arrive; "
_GATHERED = _ATOMICS + "ours gathers each element's parts in a fixed order"
_SORTED = _ATOMICS + "ours adds them after a stable sort"
_LAST = "torch writes equal places in any order; ours: the last write in row-major order of the indices wins"
_RANK = "torch returns the index of any of several equal values; ours: the one a stable sort puts at the rank"
_RACE = (
    "torch's threads add and scale one element without waiting for each other; ours counts, which is exact"
)
_SCAN = "torch combines blocks in the order in which they finish; ours in a tree of a fixed shape"

_ENTRIES = read()


def _one(name: str, make: Callable[[Kernel], Kernel], reason: str) -> Replacement:
    op = f"aten::{name}"
    return Replacement(op, make, reason, device="CUDA", verified=verification_text(op, _ENTRIES))


def _backward(name: str, function: Kernel, reason: str) -> tuple[Replacement, ...]:
    """Returns the replacements of a structured backward: the functional one, and that with `grad_input`."""
    return (
        _one(name, always(function), reason),
        _one(f"{name}.grad_input", always(out_form(function, "grad_input")), reason),
    )


def _forms(
    function: Kernel, refused: Callable[..., bool], reason: str, name: str, out: str, names: Sequence[str]
) -> tuple[Replacement, ...]:
    """Returns the functional and the `out` overload of an op; torch refuses some of its arguments only."""
    return (
        _one(name, where(refused, function), reason),
        _one(out, where(refused, out_form(function, *names)), reason),
    )


REPLACEMENTS: tuple[Replacement, ...] = (
    *(
        one
        for name, pairs in resize.PAIRS.items()
        for one in _backward(name, partial(resize.upsample_backward, pairs), _GATHERED)
    ),
    *_backward("avg_pool3d_backward", pools.avg_pool3d_backward, _GATHERED),
    _one("_adaptive_avg_pool2d_backward", always(partial(pools.adaptive_avg_pool_backward, 2)), _GATHERED),
    _one("_adaptive_avg_pool3d_backward", always(partial(pools.adaptive_avg_pool_backward, 3)), _GATHERED),
    _one(
        "adaptive_avg_pool3d_backward.grad_input",
        always(out_form(partial(pools.adaptive_avg_pool_backward, 3), "grad_input")),
        _GATHERED,
    ),
    *(
        one
        for kind, function in (
            ("adaptive", pools.adaptive_max_pool_backward),
            ("fractional", pools.fractional_max_pool_backward),
        )
        for dims in (2, 3)
        for one in _backward(f"{kind}_max_pool{dims}d_backward", partial(function, dims), _SORTED)
    ),
    *(
        one
        for name in ("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
        for one in _backward(name, pools.reflection_pad_backward, _GATHERED)
    ),
    _one("max_unpool2d", always(max_unpool2d), _LAST),
    _one("max_unpool2d.out", always(out_form(max_unpool2d, "out")), _LAST),
    _one("max_unpool3d", always(max_unpool3d), _LAST),
    _one("max_unpool3d.out", always(out_form(max_unpool3d, "out")), _LAST),
    _one("put_", always(put_), _LAST),
    *_forms(
        losses.nll_loss2d_forward,
        losses.nll_loss2d_is_refused,
        _ATOMICS + "ours reduces them in a tree",
        "nll_loss2d_forward",
        "nll_loss2d_forward.output",
        ("output", "total_weight"),
    ),
    _one("_ctc_loss_backward", always(losses.ctc_loss_backward), _SORTED),
    *_backward("multilabel_margin_loss_backward", losses.multilabel_margin_loss_backward, _RACE),
    _one(
        "_embedding_bag_dense_backward",
        where(counts.embedding_bag_is_refused, counts.embedding_bag_dense_backward),
        _SORTED,
    ),
    *_forms(counts.histc, counts.histc_is_refused, _ATOMICS + "ours counts", "histc", "histc.out", ("out",)),
    _one("bincount", where(counts.bincount_is_refused, counts.bincount), _SORTED),
    _one("median.dim_values", always(counts.median), _RANK),
    _one("nanmedian.dim_values", always(counts.nanmedian), _RANK),
    _one("kthvalue.values", always(counts.kthvalue), _RANK),
    _one("grid_sampler_2d_backward", always(grids.grid_sampler_backward), _SORTED),
    _one("grid_sampler_3d_backward", always(grids.grid_sampler_backward), _SORTED),
    _one("cudnn_grid_sampler_backward", always(grids.cudnn_grid_sampler_backward), _SORTED),
    _one("cumsum", where(scans.cumsum_is_refused, scans.cumsum), _SCAN),
    _one("cumsum.out", where(scans.cumsum_is_refused, scans.cumsum_out), _SCAN),
    _one("cumsum_", where(scans.cumsum_is_refused, in_place_form(scans.cumsum)), _SCAN),
    _one("cumprod", where(scans.one_row_varies, scans.cumprod), _SCAN),
    _one("cumprod.out", where(scans.one_row_varies, scans.cumprod_out), _SCAN),
    _one("cumprod_", where(scans.one_row_varies, in_place_form(scans.cumprod)), _SCAN),
    *_forms(scans.logcumsumexp, scans.one_row_varies, _SCAN, "_logcumsumexp", "_logcumsumexp.out", ("out",)),
    *_forms(
        scans.scatter_reduce,
        scans.scatter_reduce_is_refused,
        _ATOMICS + "ours multiplies them after a stable sort, in a tree",
        "scatter_reduce.two",
        "scatter_reduce.two_out",
        ("out",),
    ),
    _one(
        "scatter_reduce_.two",
        where(scans.scatter_reduce_is_refused, in_place_form(scans.scatter_reduce)),
        _ATOMICS + "ours multiplies them after a stable sort, in a tree",
    ),
)

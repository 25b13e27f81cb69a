"""Ops that torch refuses on CUDA, with arguments for each overload: real tensors there get our error with the cure."""

import torch
from torch import Tensor

from device_faults import is_fault
from formulation_samples import SAMPLES, Maker
from samebits.determinism._dispatcher import kernels, overload
from samebits.determinism._guards import refused_ops
from samebits.errors import UnimplementedError

OURS, RUNS = "refused in our words", "runs"
_WORDS = "does not have a deterministic"
_ROWS, _SIDE = (4, 6), 6


def refused(key):
    """The overloads with a kernel for the dispatch key that are on the list of refusals (some of their arguments are)."""
    return sorted(name for name in kernels(key) if refused_ops.cure_of(name, "CUDA") is not None)


def outcome(op, device):
    """The outcome of one call under the switch, in a word: refused by us, or by torch, or it runs."""
    try:
        with_outs(op, ARGUMENTS[op](device))
    except UnimplementedError as error:
        cured = f"{op} on {device.upper()}" in str(error) and "Use " in str(error)
        return OURS if cured else f"refused without the way out: {error}"
    except RuntimeError as error:
        if is_fault(error):  # everything after it would fail, too
            raise RuntimeError(f"{op}: {error}") from error
        return f"{'refused by torch' if _WORDS in str(error) else 'failed'}: {str(error)[:200]}"
    return RUNS


def with_outs(op, args):
    """Calls the overload; `out` arguments are given empty, and keyword-only arguments are the last of the arguments."""
    op_overload, rest = overload(op), list(args)
    like = next(x for x in args if isinstance(x, Tensor))
    named = {}
    for argument in op_overload._schema.arguments:
        if argument.is_out:
            named[argument.name] = like.new_empty(
                0, dtype=torch.int64 if argument.name == "indices" else None
            )
        elif argument.kwarg_only and not argument.has_default_value():
            named[argument.name] = rest.pop()
    return op_overload(*rest, **named)


def _sample(name):
    sample = next(one for one in SAMPLES if one.name == name)
    return lambda device: sample.make(Maker(device, torch.float32))


def _rows(*rest, index=lambda i: i):
    """A table, dimension 0, indices of rows, and the rest; where that is None, a source."""

    def make(device):
        m = Maker(device, torch.float32)
        others = [m.normal(*_ROWS) if one is None else one for one in rest]
        return (m.normal(*_ROWS), 0, index(m.integers(4, *_ROWS)), *others)

    return make


def _table(*rest):
    return lambda device: (Maker(device, torch.float32).normal(*_ROWS), *rest)


def _replicated(dims):
    def make(device):
        x = Maker(device, torch.float32).normal(2, 3, *[_SIDE] * dims)
        return torch.nn.functional.pad(x, [1, 2] * dims, mode="replicate"), x, [1, 2] * dims

    return make


def _pooled(device):
    x = Maker(device, torch.float32).normal(2, 3, *[_SIDE] * 3)
    y, indices = torch.nn.functional.max_pool3d(x, 2, return_indices=True)
    return y, x, [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, indices


ARGUMENTS = {
    **{op: _sample(sample.name) for sample in SAMPLES for op in sample.covers},
    **{
        f"aten::replication_pad{n}d_backward{form}": _replicated(n)
        for n in (1, 2, 3)
        for form in ("", ".grad_input")
    },
    **{f"aten::max_pool3d_with_indices_backward{form}": _pooled for form in ("", ".grad_input")},
    **{f"aten::{op}": _rows(None) for op in ("scatter.src", "scatter.src_out", "scatter_.src")},
    **{f"aten::{op}": _rows(1.5) for op in ("scatter.value", "scatter.value_out", "scatter_.value")},
    **{
        f"aten::{op}": _rows(None, "multiply")
        for op in ("scatter.reduce", "scatter.reduce_out", "scatter_.reduce")
    },
    **{
        f"aten::{op}": _rows(2.0, "multiply")
        for op in ("scatter.value_reduce", "scatter.value_reduce_out", "scatter_.value_reduce")
    },
    **{
        f"aten::{op}": _rows(None, "prod", index=lambda i: i[:, 0])
        for op in ("index_reduce", "index_reduce.out", "index_reduce_")
    },
    **{f"aten::{op}": _table() for op in ("median", "nanmedian", "median.out", "nanmedian.out")},
    **{f"aten::{op}": _table(1) for op in ("median.dim", "nanmedian.dim")},
    "aten::kthvalue": _table(2, 1),
    "aten::_adaptive_avg_pool2d_backward.out": _sample("adaptive_avg_pool2d"),
    "aten::_adaptive_avg_pool3d_backward.out": _sample("adaptive_avg_pool3d"),
    "aten::_ctc_loss_backward.out": _sample("ctc_loss"),
    "aten::_embedding_bag_dense_backward.out": _sample("embedding_bag max"),
    "aten::bincount.out": _sample("bincount with weights"),
    "aten::cudnn_grid_sampler_backward.out": _sample("cudnn_grid_sampler"),
    "aten::grid_sampler_2d_backward.out": _sample("grid_sampler_2d_backward mode 0 padding 0"),
    "aten::grid_sampler_3d_backward.out": _sample("grid_sampler_3d_backward mode 0 padding 0"),
}
"""Arguments of every refused overload except those that take values which only their forward makes:
`_efficient_attention_backward` (the battery reaches it) and `_ctc_loss_backward.Tensor`."""

"""Writes to places that an index or a value names: duplicates and weighted histograms, in index order.

Under torch's own switch the rest of them (index_put, index_copy, index_add, scatter, embedding backward, segment
reductions, bincount) have the same bits for any number of threads; `make review` measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels import histogram
from samebits.determinism._kernels.max_unpool import max_unpool2d, max_unpool3d
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._kernels.put import put_
from samebits.determinism._replacement import always, replacements


def _with_out(function: Callable[..., Tensor]) -> Callable[[Kernel], Kernel]:
    def write(*args: Any, out: Tensor, **kwargs: Any) -> Tensor:
        return into(out, function(*args, **kwargs))

    return always(write)


_LAST_WINS = "two threads write to one place, or torch refuses: the last write in index order wins"
REPLACEMENTS = (
    *replacements(("put_",), always(put_), _LAST_WINS),
    *replacements(("max_unpool2d",), always(max_unpool2d), _LAST_WINS),
    *replacements(("max_unpool3d",), always(max_unpool3d), _LAST_WINS),
    *replacements(("max_unpool2d.out",), _with_out(max_unpool2d), _LAST_WINS),
    *replacements(("max_unpool3d.out",), _with_out(max_unpool3d), _LAST_WINS),
    *histogram.REPLACEMENTS,
)

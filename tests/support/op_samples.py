"""Torch's own samples of every op (its OpInfo database), called in a process: python op_samples.py FILE MODE THREADS DTYPE.

FILE becomes JSON: for each call a digest of what went in, and one of the outputs and gradients, or the error. MODE is `on` or `off`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

import samebits
from samebits._digest import of_value
from samebits.errors import UnimplementedError

UNWRITTEN = ("empty", "new_empty", "jiterator")
"""Ops whose results are memory that nobody wrote, or that need a GPU."""
MOST = 40


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def digest(found: list[torch.Tensor]) -> str:
    """The bits, but for those of NaN, which are not promised."""
    dense = [x.detach().to_dense() if x.layout != torch.strided else x.detach() for x in found]
    return str(of_value([x.nan_to_num(0.5, *[float("inf"), float("-inf")]) for x in dense]))


def result(op: Any, sample: Any) -> str:
    outputs = tensors(op(sample.input, *sample.args, **sample.kwargs))
    leaves = [x for x in tensors((sample.input, sample.args, sample.kwargs)) if x.requires_grad]
    ends = [x for x in outputs if x.requires_grad and x.is_floating_point()]
    if ends and leaves:
        slopes = [torch.full_like(x, 0.7) for x in ends]
        found = torch.autograd.grad(ends, leaves, slopes, allow_unused=True)
        outputs += [x for x in found if x is not None]
    return digest(outputs)


def calls(dtype: torch.dtype, mode: str) -> dict[str, tuple[str, str]]:
    from torch.testing._internal.common_methods_invocations import op_db  # slow, and for this process only

    made: dict[str, tuple[str, str]] = {}
    for op in op_db:
        if op.name.startswith(UNWRITTEN) or not op.supports_dtype(dtype, "cpu"):
            continue
        torch.manual_seed(0)
        differentiated = op.supports_autograd and dtype.is_floating_point
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=differentiated))[:MOST]
        samebits.set_random_seed(1)
        on = samebits.enable_op_determinism(across="machines") if mode == "on" else contextlib.nullcontext()
        with on:
            for number, sample in enumerate(samples):
                given = digest(tensors((sample.input, sample.args, sample.kwargs)))
                try:
                    found = result(op, sample)
                except UnimplementedError:
                    found = "refused"
                except Exception as error:  # noqa: BLE001 (an error is a result here, and its kind is compared)
                    found = type(error).__name__
                made[f"{op.name} {op.variant_test_name} {number}"] = given, found
    return made


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(sys.argv[3]))
    Path(sys.argv[1]).write_text(
        json.dumps(calls(getattr(torch, sys.argv[4]), sys.argv[2])), encoding="utf-8"
    )

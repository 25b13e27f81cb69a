"""Which ops raise under `across="machines"`, by calling torch's own samples of every op: python op_refusals.py FILE DTYPE [PART].

FILE becomes JSON. `raised` and `ran`: the overloads that were dispatched with tensors of the dtype's kind, forward or backward.
`forward`: for each function how many samples ran, and how many raised before any gradient. PART: of the functions' names.
"""

import json
import sys
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import samebits
from op_samples import UNWRITTEN, tensors
from samebits.errors import UnimplementedError

MOST = 30


def is_of(kind, x):
    return x.is_complex() if kind == "complex" else x.is_floating_point()


class Calls(TorchDispatchMode):
    """Counts the overloads that run, and those that raise."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.ran, self.raised = kind, Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = tensors((args, kwargs))
        try:
            result = func(*args, **(kwargs or {}))
        except UnimplementedError:
            self.raised[func.name()] += 1
            raise
        if any(is_of(self.kind, x) for x in found):
            self.ran[func.name()] += 1
        return result


def call(op, sample, count):
    """Runs a sample and its gradients; `count`: of those that ran, and of those that raised."""
    try:
        outputs = tensors(op(sample.input, *sample.args, **sample.kwargs))
    except UnimplementedError:
        count[1] += 1
        return
    except Exception:  # noqa: BLE001 (some samples need a GPU, or another library)
        return
    count[0] += 1
    ends = [x for x in outputs if x.requires_grad]
    if ends:
        try:
            torch.autograd.backward(ends, [torch.ones_like(x) for x in ends])
        except (UnimplementedError, RuntimeError):
            pass


def found(dtype, part):
    from torch.testing._internal.common_methods_invocations import op_db  # slow, and for this process only

    calls = Calls("complex" if dtype.is_complex else "float")
    forward = {}
    for op in op_db:
        if part not in op.name or op.name.startswith(UNWRITTEN) or not op.supports_dtype(dtype, "cpu"):
            continue
        torch.manual_seed(0)
        samples = list(op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd))[:MOST]
        samebits.set_random_seed(1)
        count = forward.setdefault(op.name, [0, 0])
        with samebits.enable_op_determinism(across="machines"), calls:
            for sample in samples:
                call(op, sample, count)
    return {"ran": calls.ran, "raised": calls.raised, "forward": forward}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    part = sys.argv[3] if len(sys.argv) > 3 else ""
    Path(sys.argv[1]).write_text(json.dumps(found(getattr(torch, sys.argv[2]), part)), encoding="utf-8")

"""`PYTHONPATH=. python tools/op_table/repeat_samples.py [PART]` hunts for what a sample's values and memory can break.

The samples of every OpInfo whose name contains PART run under the switch, forward and backward, `RUNS` times in one
process with other memory freed in between: all bits must be equal. Then NaN, infinities and the largest number stand in
each floating-point operand in turn, in its first element and in all of them: no call may end the process, and two calls
must be equal. An op is tried in a process of its own. Prints one line for each op that fails, and the numbers of cases.
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from in_a_process import in_a_process
from lab.review.outcome import disturb
from samebits import _digest as digest
from samebits.determinism import enable_op_determinism
from sweep import opinfos

RUNS, SAMPLES = 20, 6
SECONDS = 60.0
"""The limit of one op."""


def main(part: str = "") -> int:
    """Returns the exit status: 1 if an op varied or ended its process."""
    warnings.simplefilter("ignore")
    enable_op_determinism()
    cases, failures = 0, 0
    for op in opinfos():
        if part not in op.name or op.name.startswith(("empty", "new_empty", "jiterator")):
            continue
        found = in_a_process(lambda op=op: _repeat(op), SECONDS)
        if found is None:
            print(f"{op.name}: its process ended, or took more than {SECONDS:g} s", flush=True)
        elif found["varied"]:
            print(f"{op.name}: {'; '.join(found['varied'][:3])}", flush=True)
        cases += 0 if found is None else found["cases"]
        failures += found is None or bool(found["varied"])
    print(f"{cases} cases, {failures} ops failed")
    return int(failures > 0)


def _repeat(op: Any) -> dict[str, Any]:
    varied: list[str] = []
    cases = 0
    dtypes = op.supported_dtypes("cpu")
    for dtype in (torch.float32, torch.bfloat16):
        if dtype not in dtypes:
            continue
        for number, sample in enumerate(itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES)):
            for name, arguments, runs in _variants(sample):
                digests = {_digest_of(op, arguments, run) for run in range(runs)}
                cases += 1
                if len(digests) > 1:
                    varied.append(
                        f"sample {number} of {dtype}, {name}: {len(digests)} results in {runs} runs"
                    )
    return {"cases": cases, "varied": varied}


def _variants(sample: Any) -> Iterator[tuple[str, Any, int]]:
    """Yields a name, the arguments, and how often they are run."""
    arguments = (sample.input, tuple(sample.args), dict(sample.kwargs))
    yield "as it is", arguments, RUNS
    leaves, structure = pytree.tree_flatten(arguments)
    for place, leaf in enumerate(leaves):
        if not _is_plain(leaf):
            continue
        for value in (math.nan, math.inf, -math.inf, torch.finfo(leaf.dtype).max):
            for first_only in (True, False):
                changed = leaf.detach().clone(memory_format=torch.contiguous_format)
                (changed.view(-1)[:1] if first_only else changed).fill_(value)
                where = "first element" if first_only else "all elements"
                others = [*leaves[:place], changed, *leaves[place + 1 :]]
                yield (
                    f"{value} in the {where} of operand {place}",
                    pytree.tree_unflatten(others, structure),
                    2,
                )


def _is_plain(leaf: Any) -> bool:
    plain = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.is_floating_point()
    return plain and leaf.numel() > 0


def _digest_of(op: Any, arguments: Any, run: int) -> str:
    held = disturb(run)
    torch.default_generator.manual_seed(0)
    leaves, structure = pytree.tree_flatten(arguments)
    own = [
        leaf.detach().clone().requires_grad_(_is_plain(leaf)) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in leaves
    ]
    input_, args, kwargs = pytree.tree_unflatten(own, structure)
    del held
    try:
        outputs = [x for x in pytree.tree_leaves(op(input_, *args, **kwargs)) if isinstance(x, torch.Tensor)]
        differentiable = [x for x in outputs if x.requires_grad]
        if differentiable:
            torch.autograd.backward(differentiable, [torch.ones_like(x) for x in differentiable])
    except Exception as error:  # a refusal, or an argument that the op does not take
        return type(error).__name__
    results = [*outputs, *(x.grad for x in own if isinstance(x, torch.Tensor) and x.grad is not None)]
    return digest.of_value([_without_nan_bits(x.detach()) for x in results])


def _without_nan_bits(x: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with one NaN for all: no op promises its bits."""
    strided = x.layout is torch.strided and (x.is_floating_point() or x.is_complex())
    return torch.where(x.isnan(), torch.full_like(x, math.nan), x) if strided else x


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

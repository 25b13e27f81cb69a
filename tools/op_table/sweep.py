"""`python tools/op_table/sweep.py OUT.json [PART]` measures overloads on the CPU.

Every OpInfo of torch's own tests (`op_db`, needs the package expecttest) whose name contains PART is run forward and
backward under the switch. Each overload that is dispatched runs again there and then, on the same inputs: twice with
two threads, with one and with three. An op that works element by element, or reduces, also runs on 200,003 elements,
in three float formats: OpInfo's samples are too small to be split over threads. A profiler names what composites call.
Without PART, overloads of which the table then knows nothing are called with arguments drawn for their schemas.

The result is evidence for `update.py`; `make review` measures whole cases of realistic sizes.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

import schema_samples
from composite_calls import calls_of
from overload_replay import Outcome, Replay
from samebits.determinism import table
from samebits.determinism._switch import enable_op_determinism
from swept_kernels import kernel_digests

_OPINFO = "torch.testing._internal.common_methods_invocations"
_FOREACH = ("unary", "binary", "pointwise", "reduce", "other")
SAMPLES = 12
"""Samples of each OpInfo, at most."""


def opinfos() -> list[Any]:
    """Returns those of single tensors and those of lists. Imported late: it forbids to set cuDNN's flags, as the switch
    does.
    """
    module = importlib.import_module(_OPINFO)
    return [*module.op_db, *(op for kind in _FOREACH for op in getattr(module, f"foreach_{kind}_op_db"))]


def _samples(op: Any, function: Callable[..., Any] | None = None) -> Iterator[Callable[[], Any]]:
    """Yields calls of the OpInfo, or of `function` (an alias of it, which has no samples of its own), on its samples."""
    dtypes = op.supported_dtypes("cpu")
    dtype = torch.float32 if torch.float32 in dtypes else next(iter(sorted(dtypes, key=str)), None)
    if dtype is None:
        return
    differentiable = op.supports_autograd and dtype.is_floating_point
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=differentiable), SAMPLES):
        yield lambda sample=sample: _forward_backward(function or op, sample)


def _forward_backward(op: Callable[..., Any], sample: Any) -> None:
    result = op(sample.input, *sample.args, **sample.kwargs)
    outputs = [
        leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if outputs:
        torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])


def sweep(part: str = "") -> dict[str, Any]:
    """Returns the evidence: the measurements of each overload, and the calls of composites."""
    replay = Replay()
    calls: dict[str, set[str]] = defaultdict(set)
    raised = 0
    for op in opinfos():
        if part not in op.name:
            continue
        replay.counts.clear()
        for run in _each(_samples(op)):
            try:
                with replay:
                    run()
                for name, called in calls_of(run).items():
                    calls[name] |= called
            except Exception:
                raised += 1  # some samples are made to raise, or need a GPU
        for name, called in _alias_calls(op).items():
            calls[name] |= called
    for name, called in _module_calls().items() if not part else ():
        calls[name] |= called
    for run in _whole_calls() if not part else ():
        with replay:
            run()
        for name, called in calls_of(run).items():
            calls[name] |= called
    print(f"{raised} samples raised", file=sys.stderr)
    if not part:
        drawn = schema_samples.evidence(_unknown({*replay.found, *(f"aten::{name}" for name in calls)}))
        print(f"no call was found of: {' '.join(drawn.without)}", file=sys.stderr)
        replay.found |= drawn.overloads
        calls |= drawn.calls
    return {
        "torch": torch.__version__.split("+")[0],
        "overloads": {name: _words(found) for name, found in sorted(replay.found.items())},
        "calls": {
            f"aten::{name}": sorted(f"aten::{one}" for one in called)
            for name, called in sorted(calls.items())
        },
    }


def _unknown(found: set[str]) -> list[str]:
    """Returns the overloads with evidence "none" that are not in `found`."""
    entries = (one for one in table.entries() if one.device == "cpu" and one.evidence == "none")
    return [one.op.removeprefix("aten::") for one in entries if one.op not in found]


def _alias_calls(op: Any) -> dict[str, set[str]]:
    """Returns the calls of the composites that are another name of the op: `torch.det` of `torch.linalg.det`."""
    calls: dict[str, set[str]] = defaultdict(set)
    for alias in getattr(op, "aliases", ()):
        for run in _each(_samples(op, alias.op)):
            with contextlib.suppress(Exception):
                for name, called in calls_of(run).items():
                    calls[name] |= called
    return calls


def _module_calls() -> dict[str, set[str]]:
    """Returns the calls of the composites that no OpInfo calls: those of recurrent modules and cells."""
    calls: dict[str, set[str]] = defaultdict(set)
    x = torch.randn(5, 2, 4)
    relu: dict[str, Any] = {"nonlinearity": "relu"}
    for kind, options in ((nn.LSTM, {}), (nn.GRU, {}), (nn.RNN, {}), (nn.RNN, relu)):
        module = kind(4, 3, **options)
        for run in (partial(_whole, module, x), partial(_packed, module, x)):
            for name, called in calls_of(run).items():
                calls[name] |= called
    for kind, options in ((nn.LSTMCell, {}), (nn.GRUCell, {}), (nn.RNNCell, {}), (nn.RNNCell, relu)):
        for name, called in calls_of(partial(kind(4, 3, **options), x[0])).items():
            calls[name] |= called
    return calls


def _whole_calls() -> Iterator[Callable[[], Any]]:
    """Yields calls that no OpInfo makes, and whose arguments are too many or too alike to be drawn."""
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        yield partial(_fused_step, kind)
    weight, kernel = torch.randn(6, 3), torch.randn(2, 2, 2, 2, 2)
    yield lambda: torch.embedding_bag(weight, torch.tensor([1, 2, 4, 4]), torch.tensor([0, 2]))
    yield lambda: torch.quantize_per_channel(weight, torch.ones(6), torch.zeros(6), 0, torch.qint8)
    yield lambda: torch.ops.aten.slow_conv3d(torch.randn(1, 2, 4, 4, 4), kernel, [2] * 3)
    yield lambda: torch.ops.aten.slow_conv_transpose3d(torch.randn(1, 2, 4, 4, 4), kernel, [2] * 3)
    yield lambda: torch.ops.aten.slow_conv_dilated3d(
        torch.randn(1, 2, 4, 4, 4), kernel, [2] * 3, dilation=[2] * 3
    )
    yield lambda: torch.sspaddmm(weight.to_sparse(), weight.to_sparse(), torch.randn(3, 3))
    yield lambda: torch.smm(weight.to_sparse(), torch.randn(3, 3))


def _fused_step(kind: Callable[..., torch.optim.Optimizer]) -> None:
    one = nn.Parameter(torch.randn(300))
    one.grad = torch.randn(300)
    kind([one], fused=True).step()


def _whole(module: nn.Module, x: torch.Tensor) -> None:
    module(x)[0].sum().backward()


def _packed(module: nn.Module, x: torch.Tensor) -> None:
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]))
    module(packed)[0].data.sum().backward()


def _each(samples: Iterator[Callable[[], Any]]) -> Iterator[Callable[[], Any]]:
    try:
        yield from samples
    except Exception as error:  # some OpInfos cannot make samples without packages that are not here
        print(f"no samples: {error}", file=sys.stderr)


def _words(outcomes: list[Outcome]) -> dict[str, str]:
    words = {"source": "opinfo", "runs": "equal" if all(runs for runs, _ in outcomes) else "varies"}
    threads = [over for _, over in outcomes if over is not None]
    if threads:
        words["threads"] = "equal" if all(threads) else "varies"
    return words


def main(file: str, part: str = "") -> None:
    """Writes the evidence to `file`."""
    began = time.monotonic()
    torch.manual_seed(0)
    torch.set_num_threads(2)
    warnings.simplefilter("ignore")
    enable_op_determinism(across="threads")
    kernels = {} if part else {"kernels": kernel_digests()}
    found = {**sweep(part), **kernels}
    Path(file).write_text(json.dumps(found, indent=1) + "\n", encoding="ascii")
    print(
        f"{len(found['overloads'])} overloads, {len(found['calls'])} composites, {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])

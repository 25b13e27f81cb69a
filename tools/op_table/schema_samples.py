"""Calls of overloads that no OpInfo reaches, with arguments drawn for their schemas.

An overload is tried in a process of its own, which a wrong argument may crash: tensors of many shapes, types and layouts,
and numbers and words that fit the names of the parameters, until some calls succeed or the time is over.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from composite_calls import calls_of
from in_a_process import in_a_process
from overload_replay import Outcome, Replay
from samebits.determinism import enable_op_determinism
from samebits.determinism._dispatcher import overload
from samebits.determinism.table._overload_facts import reviewed

SECONDS, CALLS = 8.0, 4
"""Time for one overload, and successful calls after which the search ends."""
_UNCHECKED = ("_compute_linear_combination", "_log_softmax_backward_data.out")
"""Helpers of torch that read beyond operands which do not fit together, instead of raising."""
_OMITTED = 0.6
"""The share of attempts in which a parameter with a default keeps it."""
_TYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.float64, torch.bfloat16, torch.int32)
_QUANTIZED = (torch.qint8, torch.quint8, torch.qint32)
_WORDS = {
    "reduce": ("sum", "mean", "prod", "amax", "add", "multiply"),
    "rounding_mode": ("floor", "trunc"),
    "ord": ("fro", "nuc"),
    "p": ("fro",),
    "mode": ("reduced", "complete", "constant"),
    "indexing": ("ij", "xy"),
    "interpolation": ("linear", "nearest"),
    "padding": ("same", "valid"),
}
_NUMBERS = (0, 1, 2, 3, 4, 8)
_LISTS = (
    (),
    (0,),
    (1,),
    (2,),
    (4,),
    (0, 1),
    (1, 1),
    (2, 2),
    (3, 3),
    (4, 4),
    (0, 0),
    (1, 1, 1),
    (2, 2, 2),
    (0, 0, 0),
)


def _tensors() -> Iterator[torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = (
        (4, 4),
        (4,),
        (),
        (2, 4, 4),
        (2, 4, 4, 4),
        (2, 4, 4, 4, 4),
        (1, 4),
        (4, 1),
        (4, 8),
        (16, 16),
        (0,),
    )
    for shape in shapes:
        x = torch.randn(shape, generator=draw)
        yield x
        yield torch.randint(4, shape, generator=draw)
        yield x > 0
        yield from (
            x.to(dtype) for dtype in (torch.complex64, torch.bfloat16, torch.float64, torch.int32, torch.half)
        )
        yield from (x.abs().to(torch.uint8), x.to(torch.int8))
    yield torch.arange(4)
    yield torch.tensor([[0, 1, 2, 3], [0, 1, 2, 3]])
    yield torch.tensor([0, 2, 4])
    for plain in (torch.randn(4, 4, generator=draw), torch.eye(4)):
        yield from (plain.to_sparse(), plain.to_sparse_csr(), plain.to_sparse_csc())
        yield from (plain.to_sparse_bsr((2, 2)), plain.to_sparse_bsc((2, 2)))
    for shape in ((4, 4), (2, 4, 4, 4), (2, 4, 4, 4, 4)):
        x = torch.randn(shape, generator=draw)
        yield x.to_mkldnn()
        yield from (
            torch.quantize_per_tensor(x, 0.1, zero, dtype)
            for zero, dtype in ((0, torch.qint8), (10, torch.quint8))
        )
        scales = torch.full((shape[1],), 0.1)
        yield torch.quantize_per_channel(
            x, scales.double(), torch.zeros(shape[1], dtype=torch.int64), 1, torch.qint8
        )
    yield torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
    yield torch.nn.utils.rnn.pack_padded_sequence(
        torch.randn(4, 2, 4, generator=draw), torch.tensor([4, 2])
    ).data


class _Arguments:
    """Draws arguments for a schema."""

    def __init__(self, schema: Any, seed: int) -> None:
        self._schema, self._draw, self._pool = schema, random.Random(seed), list(_tensors())

    def draw(self) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        named: dict[str, Any] = {}
        alike = self._draw.choice(self._pool)
        for argument in self._schema.arguments:
            if argument.has_default_value() and self._draw.random() < _OMITTED and not argument.is_out:
                if not argument.kwarg_only:
                    args.append(argument.default_value)
                continue
            value = self._value(argument, alike)
            if argument.kwarg_only:
                named[argument.name] = value
            else:
                args.append(value)
        return args, named

    def _value(self, argument: Any, alike: torch.Tensor) -> Any:
        kind, draw = str(argument.type), self._draw
        if argument.is_out:
            empty = torch.empty(0, dtype=draw.choice(_TYPES))
            return [empty, empty.clone()] if "List" in kind else empty
        if kind.startswith("Optional[") and draw.random() < 0.4:
            return None
        kind = kind.removeprefix("Optional[").rstrip("]") if kind.startswith("Optional[") else kind
        if "Tensor" in kind:
            count = 2 if kind.startswith("List") else 1
            made = [(alike if draw.random() < 0.6 else draw.choice(self._pool)).clone() for _ in range(count)]
            return made if count > 1 else made[0]
        if kind.startswith("List"):
            made = draw.choice(_LISTS)
            if "bool" in kind:
                return [bool(draw.getrandbits(1)) for _ in range(draw.choice((1, 2, 3)))]
            return [float(n) for n in made] if "float" in kind else list(made)
        if argument.name in ("dim", "axis", "dim0", "dim1", "axis0", "axis1"):
            return draw.choice((0, 0, 1, -1))
        if argument.name in ("dtype", "scalar_type", "to_type") or "ScalarType" in kind:
            return draw.choice(_QUANTIZED if "quantize" in self._schema.name else _TYPES)
        choices: dict[str, Callable[[], Any]] = {
            "bool": lambda: bool(draw.getrandbits(1)),
            "int": lambda: draw.choice(_NUMBERS),
            "SymInt": lambda: draw.choice(_NUMBERS),
            "float": lambda: draw.choice((0.0, 0.1, 0.5, 1.0, 2.0)),
            "number": lambda: draw.choice((0, 1, 2, 0.5)),
            "str": lambda: draw.choice(_WORDS.get(argument.name, ("none",))),
            "Device": lambda: torch.device("cpu"),
            "Generator": lambda: torch.Generator().manual_seed(1),
        }
        return choices[kind]() if kind in choices else None


def successful_calls(name: str) -> Iterator[Callable[[], Any]]:
    """Yields calls of the overload that raise nothing; each can be repeated."""
    op = overload(f"aten::{name}")
    arguments, until, found = _Arguments(op._schema, 0), time.monotonic() + SECONDS, 0
    while time.monotonic() < until and found < CALLS:
        args, named = arguments.draw()
        run = partial(_call, op, args, named)
        try:
            run()
        except Exception:  # noqa: S112 (most draws fit nothing)
            continue
        found += 1
        yield run


def _call(op: Any, args: list[Any], named: dict[str, Any]) -> Any:
    copied = torch.utils._pytree.tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, named)
    )
    return op(*copied[0], **copied[1])


@dataclass
class Evidence:
    """What was seen of overloads that were called."""

    overloads: dict[str, list[Outcome]] = field(default_factory=dict)
    """Full name to outcomes."""
    calls: dict[str, set[str]] = field(default_factory=dict)
    """Composite to what it calls, without `aten::`."""
    without: list[str] = field(default_factory=list)
    """Overloads that no call was found for."""


def evidence(names: Iterable[str]) -> Evidence:
    """Returns the evidence of the overloads, without `aten::`, from a new process: one whose threads run cannot be forked."""
    command = [sys.executable, __file__, *(name for name in names if name not in _UNCHECKED)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    found = Evidence()
    for name, one in json.loads(ended.stdout.splitlines()[-1]).items():
        if one is None or not (one["overloads"] or one["calls"]):
            found.without.append(name)
            continue
        found.overloads |= {
            full: [(runs, over) for runs, over in pairs] for full, pairs in one["overloads"].items()
        }
        found.calls |= {caller: set(called) for caller, called in one["calls"].items()}
    return found


def main(names: Sequence[str]) -> None:
    """Prints what was seen of each overload, as JSON."""
    warnings.simplefilter("ignore")
    enable_op_determinism(across="threads")
    print(json.dumps({name: in_a_process(partial(_measure, name), 3 * SECONDS) for name in names}))


def _measure(name: str) -> dict[str, Any]:
    replay = Replay()
    calls: dict[str, set[str]] = defaultdict(set)
    composite = "composite" in reviewed().rows[name].kernels
    for run in successful_calls(name):
        if composite:  # (nothing is seen of what only reads a tensor's metadata)
            calls[name] |= calls_of(run).get(name, set())
            continue
        with suppress(Exception), replay, torch.no_grad():  # of an op that it calls, perhaps
            run()
    outcomes: list[Outcome] = replay.found.get(f"aten::{name}", [])
    return {
        "overloads": {f"aten::{name}": outcomes} if outcomes else {},
        "calls": {name: sorted(calls[name])} if name in calls else {},
    }


if __name__ == "__main__":
    main(sys.argv[1:])

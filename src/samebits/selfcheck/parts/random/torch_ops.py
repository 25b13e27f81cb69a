"""torch's own ops on the same streams, where that torch has them (2.13): uniform numbers and keys equal, normal ones near."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from samebits import random
from samebits.selfcheck.agreement import agree
from samebits.selfcheck.case import Case, Judge, Measured, Results, Target
from samebits.selfcheck.draws import FLOATING, KEYS, key_of

_BOUNDS = ((0.0, 1.0), (1.5, 5.2), (-3.0, 7.0))
_FAR = 2.0**-20 * 7
"""The largest difference of normal numbers up to 7 from torch's, which takes approximations of log, sin and cos."""


def cases() -> Iterator[Case]:
    """Yields the cases; skipped by the name of the op that is missing."""
    here, small = {"ours": torch.ones(2), "torch's": torch.ones(2)}, {"float32": 0.0, "float64": 0.0}
    for name, op, measure, judge, example in (
        ("torch's _philox_uniform_", "_philox_uniform_", _uniform, agree, {"uniform": here}),
        ("torch's _philox_normal_", "_philox_normal_", _normal, _near, small),
        ("torch's _philox_key_split", "_philox_key_split", _split, agree, {"split": here}),
        ("torch's _philox_key_fold_in", "_philox_key_fold_in", _fold_in, agree, {"fold_in": here}),
    ):
        yield _case(name, op, measure, judge, example)


def _case(name: str, op: str, measure: Callable[[Target], Measured], judge: Judge, example: Results) -> Case:
    missing = () if hasattr(torch.ops.aten, op) else (f"aten::{op}",)
    return Case(name, measure, judge, needs=missing, example=example)


def _uniform(target: Target) -> Measured:
    results = {}
    for dtype in FLOATING:
        for kind, (batch, shape) in KEYS.items():
            for low, high in _BOUNDS:
                key = key_of(batch).to(target.device)
                theirs = torch.empty(*shape, dtype=dtype, device=target.device)
                torch.ops.aten._philox_uniform_(theirs, key, low, high)
                ours = random.uniform(key, shape, low=low, high=high, dtype=dtype)
                results[f"{dtype}, {kind}, {low} to {high}"] = {"ours": ours.cpu(), "torch's": theirs.cpu()}
    return Measured(results)


def _normal(target: Target) -> Measured:
    key, number, results = random.key(5, device=target.device), 100_000, {}
    for dtype in (torch.float32, torch.float64):
        theirs = torch.empty(number, dtype=dtype, device=target.device)
        torch.ops.aten._philox_normal_(theirs, key)
        ours = random.normal(key, number, dtype=dtype)
        results[str(dtype).removeprefix("torch.")] = (ours - theirs).abs().max().item()
    return Measured(results)


def _near(results: Results) -> Iterator[str]:
    for name, distance in results.items():
        if not distance <= _FAR:
            yield f"{name}: a normal number differs by {distance} from torch's, more than {_FAR}"


def _split(target: Target) -> Measured:
    keys = key_of((33,))
    theirs = torch.ops.aten._philox_key_split(keys.to(target.device), 5)
    return Measured({"split": {"ours": random.split(keys, 5), "torch's": theirs.cpu()}})


def _fold_in(target: Target) -> Measured:
    keys, results = key_of((33,)), {}
    for data in (0, 1, 2**40, 2**63 - 1):
        theirs = torch.ops.aten._philox_key_fold_in(keys.to(target.device), data)
        results[f"of {data}"] = {"ours": random.fold_in(keys, data), "torch's": theirs.cpu()}
    return Measured(results)

"""The battery: programs, and the cases of battery.txt, which says at its head what a line is.

The text is our own, never a user's file, so that its expressions are evaluated.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lab.catalogue import case, programs
from lab.catalogue.case import ReviewCase
from samebits.errors import InvalidArgumentError

_LSTSQ_CALLS = 60
"""gelsy reads a pivot array that nobody wrote: it takes some calls to meet other bytes there."""


def assign_at_indices(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Adds at pairs of indices, then writes rows."""
    y = x.clone()
    y[i, i % 64] += 1.0
    y[i] = s
    return y


def repeated_lstsq(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    """Solutions by the default driver, each after other bytes were left in freed memory."""
    found = []
    for number in range(_LSTSQ_CALLS):
        for size in (2, 4, 8, 16, 32, 64, 128):
            torch.full((size,), 7.0 * number + size)
        found.append(torch.linalg.lstsq(a, b).solution)
    return found


def foreach(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    """Functions of lists of tensors; one tensor lies at an odd offset."""
    ins = [a, b, a[1:]]
    return [
        *torch._foreach_add(ins, 1.5),
        *torch._foreach_mul(ins, ins),
        *torch._foreach_sqrt(torch._foreach_abs(ins)),
        *torch._foreach_addcmul(ins, ins, torch._foreach_neg(ins), 0.7),
        *torch._foreach_addcdiv(ins, ins, torch._foreach_exp(ins), 0.1),
        *torch._foreach_lerp(ins, torch._foreach_neg(ins), 0.3),
        *torch._foreach_norm(ins),
        *torch._foreach_norm(ins, 1),
        *torch._foreach_pow(torch._foreach_abs(ins), 1.7),
    ]


_DTYPES = {"f32": case.F32, "bf16": case.BF16, "f64": case.F64, "f16": case.F16}
_KINDS = {"grad": case.backward, "layer": case.layer}
_MAKERS = (case.normal, case.positive, case.cancelling, case.integers, case.mapped)
_NAMES: dict[str, Any] = {make.__name__: make for make in _MAKERS}
_NAMES |= {"torch": torch, "nn": nn, "F": F, "inf": math.inf}
_NAMES |= {one.__name__: one for one in (assign_at_indices, repeated_lstsq, foreach)}


def read(text: str) -> Iterator[ReviewCase]:
    """Yields the cases of a text, in its order.

    Raises:
        InvalidArgumentError: a line that is no case; the message has its number.
    """
    group, shared, own, values = "", {}, {}, [{}]
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        try:
            if line.startswith("["):
                group, own = line.strip("[]"), shared.copy()
            elif line.startswith("for "):
                values = _values(line)
            elif " | " in line:
                if line[0] != " ":
                    values = [{}]
                for value in values:
                    yield from _cases(group, line.format(**value) if value else line, own)
            else:
                exec(line, _NAMES, own if group else shared)  # noqa: S102 (our own text)
        except Exception as error:
            raise InvalidArgumentError(f"battery.txt, line {number}: {error!r} in {line!r}") from error


def _values(line: str) -> list[dict[str, str]]:
    """[{"a": "1", "b": "2"}, {"a": "3", "b": "4"}] of `for a,b in 1,2 3,4`."""
    names, _, values = line.removeprefix("for ").partition(" in ")
    return [dict(zip(names.split(","), value.split(","), strict=True)) for value in values.split()]


def _cases(group: str, line: str, shared: dict[str, Any]) -> Iterator[ReviewCase]:
    name, options, call, *assignments = line.strip().split(" | ")
    own: dict[str, Any] = {}
    exec("".join(assignments), {**_NAMES, **shared}, own)  # noqa: S102 (our own text)
    known = {**shared, **own}
    used = [one for one in _names(call) if callable(known.get(one))]
    make, chosen = _options(options)
    if make is case.layer:
        used = list(own)
        function = eval(f"lambda: {call}", _NAMES)  # noqa: S307 (our own text)
    else:
        function = eval(f"lambda {', '.join(used)}: {call}", {**_NAMES, **known})  # noqa: S307 (our own text)
    if unused := own.keys() - used:
        raise ValueError(f"the call does not use {', '.join(unused)}")
    yield from make(group, name, function, *(known[one] for one in used), **chosen)


def _options(text: str) -> tuple[Callable[..., Iterator[ReviewCase]], dict[str, Any]]:
    """The function that makes the cases, and its options."""
    make: Callable[..., Iterator[ReviewCase]] = case.forward
    chosen: dict[str, Any] = {"dtypes": ()}
    for word in text.split():
        if word in _KINDS:
            make = _KINDS[word]
        elif word == "strided":
            chosen["strided"] = True
        elif word[0] == "x":
            chosen["repeats"] = int(word[1:])
        else:
            chosen["dtypes"] += case.ALL_DTYPES if word == "all" else (_DTYPES[word],)
    if not chosen["dtypes"]:
        raise ValueError("it names no dtype")
    return make, chosen


def _names(call: str) -> list[str]:
    """The names in an expression, in the order of the text."""
    found = [node for node in ast.walk(ast.parse(call)) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(node.id for node in sorted(found, key=lambda node: node.col_offset)))


BATTERY: tuple[ReviewCase, ...] = (
    *programs.COMPILED,
    *programs.TRAINING,
    *read(Path(__file__).with_name("battery.txt").read_text(encoding="utf-8")),
)
"""The catalogue's own cases: programs, and the lines of battery.txt."""

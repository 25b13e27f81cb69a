"""Cases of single elementwise ops that could differ over threads: large tensors made of telling elements."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from lab.catalogue.case import ReviewCase, Run
from lab.catalogue.elementwise import ElementwiseSample, names, samples
from samebits.determinism._dispatcher import overload
from samebits.determinism.table._overload_facts import reviewed

_TRIED = 40
"""Samples of one op that are tried, at most."""
_TELLING, _OTHERS = 9, 4
"""Samples that are kept: of those that could differ, and of the others."""


@cache
def tail_cases() -> tuple[ReviewCase, ...]:
    """One case for each elementwise overload, with its in-place and out forms."""
    return tuple(
        ReviewCase("tails", name, partial(_runs, name), repeats=2, source="tails") for name in names()
    )


def _runs(name: str) -> Iterator[Run]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    found: dict[bool, list[ElementwiseSample]] = {True: [], False: []}
    every = samples(name)
    for sample in every[:: -(-len(every) // _TRIED) or 1]:
        found[bool(sample.telling()[1].any())].append(sample)
    chosen = [*_evenly(found[True], _TELLING), *_evenly(found[False], _OTHERS)]
    torch.set_num_threads(before)
    for number, sample in enumerate(chosen):
        operands = sample.large()
        yield partial(sample.call, operands)
        if number == 0:
            yield from _forms(sample, operands)


def _evenly(found: list[ElementwiseSample], most: int) -> list[ElementwiseSample]:
    return found[:: -(-len(found) // most)] if found else []


def _forms(sample: ElementwiseSample, operands: list[Tensor]) -> Iterator[Run]:
    """The sample in place and into a tensor, where the op has these forms and they take it."""
    for row in reviewed().rows.values():
        if row.form_of == sample.name and row.name != sample.name and {"inplace", "out"} & {*row.traits}:
            run = partial(_written, overload(f"aten::{row.name}"), sample, operands)
            try:
                run()
            except (RuntimeError, TypeError):
                continue
            yield run


def _written(op: Any, sample: ElementwiseSample, operands: list[Tensor]) -> Any:
    given = sample.given(operands)
    written = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    for name, one in zip(written, sample.call(operands), strict=True):
        given[name] = given[name].clone() if name in given else torch.empty_like(one)
    return op(**given)

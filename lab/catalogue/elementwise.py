"""Calls of every elementwise overload whose code for whole vectors and code for the rest could differ.

An element has the same bits on any number of threads if both round it alike: f(x)[a:b] == f(x[a:b]). So each overload
is called on a matrix, all of it whole vectors, and on columns of it, each row of which ends in a tail; where bits
differ, the element is telling, and a large tensor made of telling elements shows on real threads whether ours holds.
Scalar arguments are no powers of two (1 hides a fused multiply-add), and operands lie in many layouts.

`tail_cases` are single ops that could differ over threads, on such tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from lab.catalogue.case import ReviewCase, Run
from samebits.determinism._dispatcher import overload
from samebits.determinism.table._class_rules import rule_of
from samebits.determinism.table._overload_facts import OverloadRow, reviewed

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)
_INTEGERS = (torch.int64,)
"""For ops that take no other numbers."""
ROWS, COLUMNS = 192, 128
"""Fewer elements than torch splits, and rows of whole vectors for every type and CPU."""
PLACES = ((0, 7), (16, 15), (33, 31), (65, 63))
"""Columns that are called alone: first column, number of columns."""
_LARGE = (401, 257)
_NUMBERS = (0.7, -1.5, 3, 1, 0.1)
_DOMAINS = ("normal", "unit", "wide")
_LOSSES = ("smooth_l1_loss", "huber_loss", "mse_loss", "binary_cross_entropy", "soft_margin_loss")
_MORE = (
    "addr", "_dirichlet_grad", "_standard_gamma_grad", *_LOSSES, *(f"{loss}_backward" for loss in _LOSSES)
)  # fmt: skip
"""Elementwise ops that torch does not tag as `pointwise`, and that no class rule names."""
_OF_SHAPE = {
    **dict.fromkeys(
        (*_LOSSES, "_dirichlet_grad", "_standard_gamma_grad", "_prelu_kernel", "log_sigmoid_backward"), 0
    ),
    **dict.fromkeys((f"{loss}_backward" for loss in _LOSSES), 1),
}
"""The operand of whose shape torch makes the result; where another one is larger it warns that it resizes."""
_NOT_BY_ELEMENT = ("glu", "isin", "bucketize", "searchsorted", "linspace", "logspace", "equal")
"""Operands of other shapes; glu has tests of its own (test_replacements.py)."""
_OPTIONS = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"}


def differing_elements(one: Tensor, other: Tensor) -> Tensor:
    """Returns where two dense tensors of one dtype and shape have other bits, on their device; NaN is NaN."""
    rows = [torch.empty(x.numel(), dtype=x.dtype, device=x.device).copy_(x.reshape(-1)) for x in (one, other)]
    mine, theirs = (row.view(torch.uint8).reshape(*one.shape, one.element_size()) for row in rows)
    return (mine != theirs).any(-1) & ~(one.isnan() & other.isnan())


@cache
def names() -> tuple[str, ...]:
    """The functional overloads that work element by element, without `aten::`."""
    return tuple(row.name for row in reviewed().rows.values() if _is_one(row))


def functional_form(name: str) -> str:
    """`sub.Tensor` of `sub_.Tensor`; empty for what is not in the op table."""
    row = reviewed().rows.get(name)
    return row.form_of if row is not None else ""


def _is_one(row: OverloadRow) -> bool:
    if row.name != row.form_of or "composite" in row.kernels or not row.has_kernel("cpu"):
        return False
    if row.name.startswith(_NOT_BY_ELEMENT) or {"inplace", "out"} & {*row.traits}:
        return False
    return "pointwise" in row.traits or row.name in _MORE or rule_of(row, row).name == "pointwise"


@dataclass(frozen=True)
class ElementwiseSample:
    """One overload, with a type, a layout of its operands and its scalar arguments."""

    name: str
    dtype: torch.dtype
    layout: str
    """One letter for each operand: d dense, w columns of a wider one, t transposed, s every second, c one column for
    all, r one row for all, 0 one number for all (no dimension)."""
    scalars: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        given = "".join(f", {name}={value}" for name, value in self.scalars)
        return f"{self.name} [{str(self.dtype)[6:]}] {self.layout}{given}"

    def call(self, operands: list[Tensor]) -> list[Tensor]:
        """The results of the overload."""
        result = overload(f"aten::{self.name}")(**self.given(operands))
        return [result] if isinstance(result, Tensor) else [one for one in result if isinstance(one, Tensor)]

    def given(self, operands: list[Tensor]) -> dict[str, Any]:
        """All arguments by their names."""
        if self.name == "addr":
            operands = [operands[0], operands[1][:, 0], operands[2][0]]
        taken = (a.name for a in _tensors(overload(f"aten::{self.name}")))
        return {**dict(zip(taken, operands, strict=True)), **dict(self.scalars)}

    def telling(self, places: tuple[tuple[int, int], ...] = PLACES) -> tuple[list[Tensor], Tensor]:
        """Operands, and which elements have other bits among few; of values of several sizes, the first that tell."""
        found: tuple[list[Tensor], Tensor] | None = None
        for domain in _DOMAINS:
            operands = _values(self.name, self.dtype, domain)
            try:
                mask = self._differing(operands, places)
            except RuntimeError:  # not of this op's domain
                continue
            if found is None or (mask.any() and not found[1].any()):
                found = operands, mask
            if mask.any():
                break
        assert found is not None
        return found

    def _differing(self, operands: list[Tensor], places: tuple[tuple[int, int], ...]) -> Tensor:
        layout = self.layout.translate({ord(letter): "d" for letter in "wt"})
        laid = [_laid(one, letter) for one, letter in zip(operands, layout, strict=True)]
        whole, mask = self.call(laid), torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
        for first, count in places:
            part = [x.narrow(1, first, count) if x.dim() == 2 and x.shape[1] > 1 else x for x in laid]
            for one, other in zip(whole, self.call(part), strict=True):
                if one.shape == mask.shape:
                    columns = slice(first, first + count)
                    mask[:, columns] |= differing_elements(one[:, columns], other)
        return mask

    def large(self) -> list[Tensor]:
        """Operands that are split over threads, made of telling elements where there are any."""
        operands, mask = self.telling()
        if not mask.any():  # and no NaN: threads may change its bits
            laid = [_laid(one, letter) for one, letter in zip(operands, self.layout, strict=True)]
            same = (one for one in self.call(laid) if one.shape == mask.shape)
            mask = ~torch.stack([one.isnan() for one in same]).any(0)
        rows, columns = _indices(mask, self.layout, _LARGE)
        return [_taken(one, letter, rows, columns) for one, letter in zip(operands, self.layout, strict=True)]


def samples(name: str, dtypes: tuple[torch.dtype, ...] = DTYPES) -> tuple[ElementwiseSample, ...]:
    """Every sample of an overload that torch takes; dense operands with all scalar arguments, others with two of them."""
    found = tuple(_samples(name, dtypes))
    return found if found or any(_samples(name, DTYPES)) else tuple(_samples(name, _INTEGERS))


def _samples(name: str, dtypes: tuple[torch.dtype, ...]) -> Iterator[ElementwiseSample]:
    op = overload(f"aten::{name}")
    operands, scalars = len(_tensors(op)), list(_scalars(op))
    if not operands or not scalars:
        return
    for dtype in dtypes:
        for number, layout in enumerate(_layouts(name, operands)):
            for chosen in scalars if number == 0 else scalars[:2]:
                if _runs(sample := ElementwiseSample(name, dtype, layout, chosen)):
                    yield sample


def _runs(sample: ElementwiseSample) -> bool:
    """Returns True if torch takes the type, the layouts and the scalars; some backward ops broadcast nothing."""
    try:
        sample.call(
            [
                _laid(x, k)
                for x, k in zip(_values(sample.name, sample.dtype, "unit"), sample.layout, strict=True)
            ]
        )
    except (RuntimeError, IndexError, NotImplementedError):
        return False
    return True


def _tensors(op: Any) -> list[Any]:
    return [a for a in op._schema.arguments if str(a.type) in {"Tensor", "Optional[Tensor]"}]


def _scalars(op: Any) -> Iterator[tuple[tuple[str, Any], ...]]:
    """Up to six sets of the scalar arguments; none for an op with arguments of another kind."""
    values: Mapping[str, tuple[Any, ...]] = {
        "number": _NUMBERS, "float": (0.7, 1.5, 1.0), "Optional[number]": (-0.7, 0.9), "Optional[float]": (0.1, None),
        "bool": (False, True), "str": ("none", "tanh"), "Optional[str]": ("floor", "trunc", None), "int": (2, 3),
    }  # fmt: skip
    chosen = []
    for a in op._schema.arguments:
        kind = str(a.type)
        if a.name in _OPTIONS or kind in {"Tensor", "Optional[Tensor]"}:
            continue
        if kind not in values:
            return
        chosen.append([(a.name, value) for value in ((0,) if a.name == "reduction" else values[kind])])
    every = list(itertools.product(*chosen))
    step = max(1, len(every) // 6) | 1  # odd: no argument keeps its value
    yield from every[::step][:6]


def _layouts(name: str, operands: int) -> list[str]:
    if name == "addr":
        return ["dcr", "tcr", "wcr", "rcr", "ccr"]
    alike = [letter * operands for letter in "dwts"]
    mixed = ["d" * i + letter + "d" * (operands - i - 1) for i in range(operands) for letter in "c0rst"]
    others = [letter * i + "d" + letter * (operands - i - 1) for i in range(operands) for letter in "c0r"]
    every = [*alike, *(mixed if operands > 1 else ()), *(others if operands > 2 else ())]
    whole = _OF_SHAPE.get(name)
    return [one for one in dict.fromkeys(every) if whole is None or one[whole] not in "c0r"]


@lru_cache(64)
def _values(name: str, dtype: torch.dtype, domain: str) -> list[Tensor]:
    """A matrix for each operand of an overload."""
    made = []
    for number, a in enumerate(_tensors(overload(f"aten::{name}"))):
        g = torch.Generator().manual_seed(7 + number)
        x, u = (draw((ROWS, COLUMNS), generator=g, dtype=torch.float64) for draw in (torch.randn, torch.rand))
        if a.name in {"mask", "condition"}:
            made.append(x > 0)
            continue
        value = {"normal": 2 * x, "unit": u, "wide": x.sign() * 10 ** (8 * u - 4)}[domain]
        value = value.clamp(-20, 20) if "polynomial" in name else value  # their loops run to n
        value = value if dtype.is_floating_point or dtype.is_complex else 3 * value
        made.append((torch.complex(value, 2 * u - x) if dtype.is_complex else value).to(dtype))
    return made


def _laid(matrix: Tensor, letter: str) -> Tensor:
    match letter:
        case "w":
            return torch.cat([matrix, matrix[:, :3]], 1)[:, : matrix.shape[1]]
        case "t":
            return matrix.t().contiguous().t()
        case "s":
            return torch.stack([matrix, matrix], -1)[..., 0]
        case "c":
            return matrix[:, :1].clone()
        case "r":
            return matrix[:1].clone()
        case "0":
            return matrix[0, 0].clone()
    return matrix.contiguous()


def _taken(matrix: Tensor, letter: str, rows: Tensor, columns: Tensor) -> Tensor:
    """An operand of the large call: the elements at these places, where one is shared the one that was shared before."""
    match letter:
        case "c":
            return matrix[rows[:, :1], 0]
        case "r":
            return matrix[0, columns[:1]]
        case "0":
            return matrix[0, 0].clone()
    return _laid(matrix[rows, columns], letter)


def _indices(mask: Tensor, layout: str, shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Which element of the small matrix stands where in the large one: telling ones, any where there are none."""
    if not mask.any() or {"c", "r"} <= {*layout}:
        grid = (torch.arange(n) % have for n, have in zip(shape, mask.shape, strict=True))
        rows, columns = torch.meshgrid(*grid, indexing="ij")
    elif "r" in layout:
        columns, rows = (index.t() for index in _indices(mask.t(), "", (shape[1], shape[0])))
    else:
        of_row = [row.nonzero()[:, 0] for row in mask]
        telling = mask.any(1).nonzero()[:, 0]
        rows = telling[torch.arange(shape[0]) % len(telling)]
        columns = torch.stack([of_row[r][torch.arange(shape[1]) % len(of_row[r])] for r in rows.tolist()])
        rows = rows[:, None].expand(shape)
    return rows, columns


_TRIED = 40
"""Samples of one op that are tried, at most."""
_TELLING, _OTHERS = 9, 4
"""Samples that are kept: of those that could differ, and of the others."""


@cache
def tail_cases() -> tuple[ReviewCase, ...]:
    """One case for each elementwise overload, with its in-place and out forms."""
    return tuple(
        ReviewCase("tails", name, partial(_tail_runs, name), repeats=2, source="tails") for name in names()
    )


def _tail_runs(name: str) -> Iterator[Run]:
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

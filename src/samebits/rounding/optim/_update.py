"""One step of the parameters: called directly, or in a graph as ops that show inputs, writes and stream.

The op reads the step from its tensor and the seed from the process when it runs, as the optimizer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import increment_version

from samebits._context import Words
from samebits._native.kernel_threads import OnTeam
from samebits.random._memory import address
from samebits.rounding._cpu.tile_passes import run_rows
from samebits.rounding.optim import _adamw_step as adamw_step
from samebits.rounding.optim import _sgd_step as sgd_step
from samebits.rounding.optim import _streams
from samebits.rounding.optim._stored import STORED

HALVES = (torch.bfloat16, torch.float16)
STATE_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_FORMS: dict[str, ModuleType] = {"AdamW": adamw_step, "SGD": sgd_step}
_IN_BLOCK = 8
"""Elements of a stream's block, at most: two bytes for each."""
Place = tuple[int | str, Sequence[int]]
"""Name, or else number, of a parameter, and the shard of it that is on this rank."""


class ParameterUpdate(NamedTuple):
    """The step of one parameter on this rank."""

    tensors: list[torch.Tensor]
    """Weight, gradient and state."""
    step: torch.Tensor
    place: Place
    numbers: Sequence[float]


def update(rule: str, jobs: Sequence[ParameterUpdate], base: Words) -> None:
    """Runs steps of `rule` by kernels, one call for all small tensors; unreadable ones by tensor ops."""
    form = _FORMS[rule]
    rows: dict[OnTeam, list[Any]] = {}
    changed: list[torch.Tensor] = []
    moved: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
    for given_tensors, at, (name, shard), numbers in jobs:
        tensors, step = given_tensors, int(at)
        keyed, readable = _kind(tuple([one.dtype for one in tensors]))
        if shard[:1] == [_streams.BY_PLACE]:
            lead = shard[1] % _IN_BLOCK
            if lead:
                # Flat copies, behind the elements before them in the block of the stream
                tensors = [torch.cat([one.new_zeros(lead), one.reshape(-1)]) for one in tensors]
                moved.append((given_tensors, tensors))
            keys = _further(_streams.keys(base, step, name, (), keyed), tensors, shard[1] - lead)
        else:
            keys = _streams.keys(base, step, name, shard, keyed)
        weight, _, *others = tensors
        by = form.arguments(step, *numbers)
        if readable and _has_kernel_layout(tensors):
            given = (*by[0].pack, *[one.data_ptr() or address(one) for one in tensors])
            rows.setdefault(form.kernel_of(tensors, *by), []).append((keys, weight.numel(), given))
            changed += [weight, *others]
        else:
            form.plain(tensors, list(zip(keys[::2], keys[1::2], strict=True)), *by)
    for kernel, each in rows.items():
        run_rows(kernel, each)
    increment_version(changed)
    for originals, copies in moved:
        for original, one in zip(originals, copies, strict=True):
            original.view(-1).copy_(one[len(one) - original.numel() :])


def _further(keys: tuple[int, ...], tensors: list[torch.Tensor], elements: int) -> tuple[int, ...]:
    """Returns the keys of weight and state moved on in their streams by `elements`, whole blocks."""
    stored = [tensors[0], *tensors[2:]]
    blocks = [elements * STORED[one.dtype].width // 16 for one in stored[: len(keys) // 2]]
    pairs = zip(keys[::2], keys[1::2], blocks, strict=True)
    return tuple(word for seed, at, count in pairs for word in (seed, (at + count) % (1 << 64)))


@cache
def _kind(dtypes: tuple[torch.dtype, ...]) -> tuple[int, bool]:
    """Returns the number of keys for weight, gradient and state, and True if kernels read such tensors."""
    weight, gradient, *state = dtypes
    keyed = 1 + min(2, len(state)) * any(one in HALVES for one in state)
    known_state = {*state} in ({torch.float32}, {torch.bfloat16}, set())
    return keyed, weight in HALVES and gradient is weight and known_state


def _has_kernel_layout(tensors: list[torch.Tensor]) -> bool:
    return tensors[0].is_cpu and all(one.is_contiguous() and not one.is_neg() for one in tensors)


def update_in_graph(rule: str, jobs: Sequence[ParameterUpdate]) -> None:
    """Runs `update` as ops: `rounding_step_` for a rounded weight, `exact_step_` for a float32 one."""
    for (weight, gradient, *others), step, (name, shard), numbers in jobs:
        op = torch.ops.samebits.rounding_step_ if weight.dtype in HALVES else torch.ops.samebits.exact_step_
        named, number = (name, -1) if isinstance(name, str) else ("", name)
        step.add_(1)
        op(weight, gradient, others, step, rule, list(map(float, numbers)), named, number, list(shard))


def _run(
    weight: torch.Tensor,
    gradient: torch.Tensor,
    state: list[torch.Tensor],
    step: torch.Tensor,
    rule: str,
    numbers: list[float],
    name: str,
    number: int,
    shard: list[int],
) -> None:
    base = _streams.process_key(f"{rule} in a graph.step() draws") if weight.dtype in HALVES else (0, 0)
    place = name if number < 0 else number, shard
    update(rule, [ParameterUpdate([weight, gradient, *state], step, place, numbers)], base)


_LIBRARY = torch.library.Library("samebits", "FRAGMENT")
for _name, _tags in (("rounding_step_", (torch.Tag.nondeterministic_seeded,)), ("exact_step_", ())):
    _LIBRARY.define(
        f"{_name}(Tensor(a!) weight, Tensor gradient, Tensor(b!)[] state, Tensor step, str rule, float[] "
        "numbers, str name, int number, int[] shard) -> ()",
        tags=_tags,
    )
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"samebits::{_name}", lambda *_: None, lib=_LIBRARY)

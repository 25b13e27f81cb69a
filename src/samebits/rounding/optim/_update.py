"""One step of one parameter: called directly, or, in a graph, as one op that shows what it reads, writes and rounds by.

The op reads the step from its tensor and the seed from the process when it runs, so a graph of it trains as the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch.autograd.graph import increment_version

from samebits.context import Words
from samebits.rounding.optim import _adamw, _sgd, _streams

HALVES = (torch.bfloat16, torch.float16)
STATE_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_FORMS: dict[str, ModuleType] = {"AdamW": _adamw, "SGD": _sgd}
Place = tuple[int | str, Sequence[int]]
"""Name, or else number, of a parameter, and the shard of it that this rank holds."""


def update(
    rule: str, tensors: list[torch.Tensor], base: Words, step: int, place: Place, numbers: Sequence[float]
) -> None:
    """A step of `rule` on weight, gradient and state, by the kernel where it reads them, else by tensor ops."""
    form = _FORMS[rule]
    weight, _, *others = tensors
    narrow = any(t.dtype in HALVES for t in others)
    keys = _streams.keys(base, step, *place, 1 + min(2, len(others)) * narrow)
    by = form.arguments(step, *numbers)
    if _readable(tensors):
        form.fused(tensors, keys, *by)
        increment_version([weight, *others])
    else:
        form.plain(tensors, keys, *by)


def _readable(tensors: list[torch.Tensor]) -> bool:
    """Whether the kernels read them: dtypes, device, layout."""
    weight, gradient, *others = tensors
    readable = weight.is_cpu and weight.dtype in HALVES and gradient.dtype is weight.dtype
    for tensor in tensors:
        readable = readable and tensor.is_contiguous() and not tensor.is_neg()
    for tensor in others:
        readable = readable and tensor.dtype in STATE_DTYPES and tensor.dtype is others[0].dtype
    return readable


def update_in_graph(
    rule: str, tensors: list[torch.Tensor], step: torch.Tensor, place: Place, numbers: Sequence[float]
) -> None:
    """`update` as an op: `rounding_step_` where the weight is rounded, `exact_step_` where it is float32."""
    weight, gradient, *others = tensors
    op = torch.ops.samebits.rounding_step_ if weight.dtype in HALVES else torch.ops.samebits.exact_step_
    name, shard = place
    named, number = (name, -1) if isinstance(name, str) else ("", name)
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
    base = _streams.of_process(f"{rule} in a graph") if weight.dtype in HALVES else (0, 0)
    place = name if number < 0 else number, shard
    update(rule, [weight, gradient, *state], base, int(step), place, numbers)


_LIBRARY = torch.library.Library("samebits", "FRAGMENT")
for _name, _tags in (("rounding_step_", (torch.Tag.nondeterministic_seeded,)), ("exact_step_", ())):
    _LIBRARY.define(
        f"{_name}(Tensor(a!) weight, Tensor gradient, Tensor(b!)[] state, Tensor step, str rule, float[] numbers, "
        "str name, int number, int[] shard) -> ()",
        tags=_tags,
    )
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"samebits::{_name}", lambda *_: None, lib=_LIBRARY)

"""Activation checkpointing repeats a forward inside backward: a repeated call must get the key it had.

Where a forward may be repeated (saved-tensor hooks stand, or gradients are off: non-reentrant and reentrant
checkpointing run it so), a call draws 63 bits from torch's default generator that identify it, and its key is kept
under them. Checkpointing puts that generator back for the repetition, so that the same bits come again, inside
backward, and find the key: for any number of calls of one layer, nested, and across steps. Everywhere else nothing
is drawn, so that torch's generator does not depend on these layers.
"""

from __future__ import annotations

from collections import OrderedDict

import torch

from samebits._context import Words
from samebits.errors import UnimplementedError

_KEPT = 1 << 16
_keys: OrderedDict[tuple[int, int], Words] = OrderedDict()


def in_backward() -> bool:
    """Whether the caller runs inside backward: whatever calls a layer there repeats an earlier forward."""
    return torch._C._current_graph_task_id() != -1


def possible() -> bool:
    """Whether this forward may be repeated inside backward."""
    return (
        not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    )


def remember(layer: torch.nn.Module, key: Words) -> None:
    """Keeps the key of this call for its repetition; the oldest of 65,536 is forgotten."""
    call = _identifier(layer)
    _keys.pop(call, None)
    _keys[call] = key
    while len(_keys) > _KEPT:
        _keys.popitem(last=False)


def recall(layer: torch.nn.Module) -> Words:
    """The key of the call that is being repeated.

    Raises `UnimplementedError` when no call of a forward is known by what the generator gives.
    """
    key = _keys.get(_identifier(layer))
    if key is None:
        raise UnimplementedError(
            f"samebits.nn.{type(layer).__name__} {getattr(layer, 'layer_name', None) or ''} is called inside backward, and "
            "torch's generator does not say which forward this repeats. Let activation checkpointing restore it: "
            "torch.utils.checkpoint.checkpoint(..., preserve_rng_state=True), the default; inside the checkpointed "
            "function do not seed torch, and do not turn on gradients or saved-tensor hooks in only one of the two calls."
        )
    return key


def _identifier(layer: torch.nn.Module) -> tuple[int, int]:
    return int(torch.randint(2**63 - 1, (1,))), id(layer)

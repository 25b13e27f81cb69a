"""Activation checkpointing repeats a forward inside backward: a repeated call must get the key it had.

A forward may be repeated under saved-tensor hooks or with gradients off (non-reentrant and reentrant checkpointing run
it so). There a call draws 63 bits from torch's default generator that identify it, and its key is stored under them.
Checkpointing restores that generator for the repetition, so that the same bits are drawn inside backward and find the
key: for any number of calls of one layer, nested, and across steps. In all other forwards nothing is drawn, so that
torch's generator does not depend on these layers.
"""

from __future__ import annotations

from collections import OrderedDict

import torch

from samebits._context import Words
from samebits.errors import UnimplementedError

_KEPT = 1 << 16
_keys: OrderedDict[tuple[int, int], Words] = OrderedDict()


def in_backward() -> bool:
    """Returns True inside backward: a layer called there repeats an earlier forward."""
    return torch._C._current_graph_task_id() != -1


def may_be_repeated() -> bool:
    """Returns True if this forward may be repeated inside backward."""
    return (
        not torch.is_grad_enabled() or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    )


def remember(layer: torch.nn.Module, key: Words) -> None:
    """Stores the key of this call for its repetition; only the newest 65,536 are stored."""
    call = _identifier(layer)
    _keys.pop(call, None)
    _keys[call] = key
    while len(_keys) > _KEPT:
        _keys.popitem(last=False)


def recall(layer: torch.nn.Module) -> Words:
    """Returns the key of the call that is being repeated.

    Raises `UnimplementedError` if the generator's bits identify no forward.
    """
    key = _keys.get(_identifier(layer))
    if key is None:
        raise UnimplementedError(
            f"samebits.nn.{type(layer).__name__} {getattr(layer, 'layer_name', None) or ''} is called inside backward, and "
            "torch's generator does not identify the forward that this repeats. Let activation checkpointing restore it: "
            "torch.utils.checkpoint.checkpoint(..., preserve_rng_state=True), the default; inside the checkpointed "
            "function do not seed torch, and do not turn on gradients or saved-tensor hooks in only one of the two calls."
        )
    return key


def _identifier(layer: torch.nn.Module) -> tuple[int, int]:
    return int(torch.randint(2**63 - 1, (1,))), id(layer)

"""Gives an object the content of another one of its kind, so that references to it stay valid."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch

MUTABLE = dict | list | deque | set | bytearray | np.ndarray | torch.Tensor


def fill_in_place(target: Any, saved: Any) -> bool:
    """Gives `target` the content of `saved`; returns False, without a change, if it is of another kind."""
    if type(target) is not type(saved) or not isinstance(saved, MUTABLE):
        return False
    if isinstance(saved, torch.Tensor):
        if (target.shape, target.dtype, target.layout) != (saved.shape, saved.dtype, saved.layout):
            return False
        with torch.no_grad():
            target.copy_(saved)
    elif isinstance(saved, np.ndarray):
        if (target.shape, target.dtype) != (saved.shape, saved.dtype) or not target.flags.writeable:
            return False
        target[...] = saved
    elif isinstance(saved, deque):
        if target.maxlen != saved.maxlen:
            return False
        target.clear()
        target.extend(saved)
    elif isinstance(saved, set | dict):
        target.clear()  # the order of a dict is state
        target.update(saved)
    else:
        target[:] = saved
    return True

"""The user's hooks of a module and of its parameters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from samebits._inspect.user_code import is_user_type, owner_of_file


def hooks_of(module: torch.nn.Module) -> Iterator[Any]:
    """Yields the user's functions and objects that a module calls, or the backward through its parameters."""
    holders = [
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    ]
    holders += [p._backward_hooks for p in module._parameters.values() if p is not None and p._backward_hooks]
    for hook in itertools.chain.from_iterable(holder.values() for holder in holders):
        code = getattr(hook, "__code__", None)
        if is_user_type(type(hook)) if code is None else owner_of_file(code.co_filename) == "user":
            yield hook

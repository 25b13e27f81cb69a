"""The structure of modules and the settings of the process, which a resumed program begins with.

No state_dict holds them. A module's structure: its class, its hooks, methods that were replaced on the
instance, and of torch's own layers the hyperparameters (`p`, `eps`). Modes, `requires_grad` and tensors are
part of a commit; a resume refuses other numbers of modules.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from samebits._inspect.user_code import is_user_type, owner_of_file
from samebits._objects.hashes import PLAIN
from samebits._objects.parts import own_names

Structure = Mapping[str, Any]
"""The values of one module or of the process that are compared, by name: plain ones only."""
_HOOKS = "hooks"
_CLASS = "class"
ENVIRON = "os.environ["
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


def of_modules(modules: Iterable[tuple[str, torch.nn.Module]]) -> dict[str, Structure]:
    """The structure of each module by its path, and of those inside it.

    >>> of_modules([("net", torch.nn.Dropout(0.1))])["net"]["p"]
    0.1
    """
    found: dict[str, Structure] = {}
    waiting, seen = list(modules), set[int]()
    while waiting:
        path, module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            found[path] = _of_module(module)
            inner = module._modules.items()
            waiting += [(f"{path}.{name}", part) for name, part in inner if part is not None]
    return found


def _of_module(module: torch.nn.Module) -> Structure:
    kind = type(module)
    found: dict[str, Any] = {_CLASS: _name_of(kind)}
    torchs = kind.__module__.startswith("torch.nn.modules.")
    own = vars(module)
    for name in own.keys() - own_names(torch.nn.Module):
        value = own[name]
        if isinstance(value, _FUNCTIONS):
            found[name] = described(value)
        elif torchs and not name.startswith("_") and _is_plain(value):
            found[name] = value
    hooks = tuple([described(hook) for hook in hooks_of(module)])
    if hooks:
        found[_HOOKS] = hooks
    return found


@functools.lru_cache(maxsize=4096)
def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def of_process() -> Structure:
    """Settings of the process that change what a program computes, and the variables of its environment."""
    decimal = sys.modules.get("decimal")
    settings: dict[str, Any] = {
        "torch.get_default_dtype()": str(torch.get_default_dtype()),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
        "torch.backends.mkldnn.enabled": torch._C._get_mkldnn_enabled(),
    }
    if decimal is not None:
        now = decimal.getcontext()
        settings |= {"decimal.getcontext().prec": now.prec, "decimal.getcontext().rounding": now.rounding}
    return settings | {f"{ENVIRON}{name!r}]": value for name, value in os.environ.items()}


def described(value: Any) -> str:
    """A function, class or object, by its name and its code's place; equal for one that was made anew."""
    function = value.__func__ if isinstance(value, types.MethodType) else value
    named = function if isinstance(function, _FUNCTIONS) else type(function)
    code = getattr(function, "__code__", None)
    line = f":{code.co_firstlineno}" if isinstance(code, types.CodeType) else ""
    return f"{named.__module__}.{named.__qualname__}{line}"


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN or (type(value) is tuple and {*map(type, value)} <= PLAIN)


def differences(before: Structure, now: Structure) -> dict[str, str]:
    """Returns the names whose value changed, each with a text that says what it was and is."""
    changed = [name for name in now if name in before and before[name] != now[name] and name != _HOOKS]
    found = {name: _text(name, before[name], now[name]) for name in changed}
    old, new = before.get(_HOOKS, ()), now.get(_HOOKS, ())
    if old != new:
        found[_HOOKS] = f"were {_listed(old)}, are {_listed(new)}"
    hung = [name for name in now if name not in before and name in {"forward", "__call__"}]
    replaced = {name: f"is {_shown(now[name])} now, no longer the method of its class" for name in hung}
    return found | replaced


def _text(name: str, before: Any, now: Any) -> str:
    if name.startswith(ENVIRON):  # often a secret, and the text goes into logs
        return "has another value now"
    return f"was {_shown(before)}, is {_shown(now)}"


def _listed(names: Iterable[str]) -> str:
    few = list(itertools.islice(names, 9))
    return ", ".join(name.rpartition(".<locals>.")[2] for name in few) if few else "none"


def _shown(value: Any) -> str:
    return f"{value!r:.60}"


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

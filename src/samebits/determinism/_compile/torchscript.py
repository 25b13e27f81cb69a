"""TorchScript's profiling executor watches the first call and rewrites the graph for the next ones.

On the CPU a sum of matrix products becomes one batched product at the second call, with other bits. So the
bits of a step depend on how many steps this process has run before, which a resumed run cannot repeat. Under the
switch the graph runs as written, op by op, so that the eager replacements serve.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NoReturn

import torch

from samebits._inspect.patching import Patches
from samebits._inspect.user_code import calling_line
from samebits.errors import UnimplementedError


def pin() -> bool:
    """Turns profiling off in all threads and drops rewritten graphs; returns whether it was on."""
    _forget_rewritten()
    return torch._C._jit_set_profiling_mode(False)


def unpin(was: bool) -> None:
    """Turns profiling on again if it was."""
    torch._C._jit_set_profiling_mode(was)


def refuse(patches: Patches) -> None:
    """Makes every call of a compiled function or method raise: its executor fuses ops past the dispatcher."""
    for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod):
        patches.put(kind, "__call__", _refused)


def _refused(code: Any, *_args: Any, **_kwargs: Any) -> NoReturn:
    raise UnimplementedError(
        f"TorchScript code ({code.name}), called at {calling_line()}, has other bits on another CPU "
        '(enable_op_determinism(across="machines")): call the Python function or module that it was made of.'
    )


def _forget_rewritten() -> None:
    """Makes every compiled function and method of this process start anew at its next call."""
    compilation_unit: Any = torch.jit._state._python_cu
    functions = list(compilation_unit.get_functions())
    kinds = set(_kinds(torch.jit.RecursiveScriptModule))
    # The result of torch.jit.load is in no list; an instance refers to its class.
    for module in gc.get_referrers(*kinds):
        if type(module) in kinds and "_c" in vars(module):
            functions += [module._c._get_method(name) for name in module._c._method_names()]
    for function in functions:
        with suppress(RuntimeError):  # raised by code made while profiling was off, which is never rewritten
            function._debug_flush_compilation_cache()


def _kinds(kind: type) -> Iterator[type]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _kinds(narrower)

"""The effects of `enable_op_determinism` on compiled code, and their removal."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.compiler.config

from samebits._byte_digest import of_bytes
from samebits._context import Across
from samebits._inspect.patching import Patches
from samebits._inspect.user_code import calling_line
from samebits.determinism._compile import inductor, unseeded_draws
from samebits.errors import UnimplementedError

# TorchScript's profiling executor watches the first call and rewrites the graph for the next ones.
#
# On the CPU a sum of matrix products becomes one batched product at the second call, with other bits. So
# the bits of a step depend on how many steps this process has run before, which a resumed run cannot
# repeat. Under the switch the graph runs as written, op by op, so that the eager replacements serve.


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


_patches = Patches()
_profiled: list[bool] = []


def enter(across: Across) -> None:
    """Makes compiled code follow the switch: older code is compiled again, or refused when called.

    Imports neither Dynamo nor Inductor: they are patched when they are imported. With `across="threads"`,
    code that Inductor generates for the CPU has the same bits at any thread count. With `across="machines"`
    code that Inductor or TorchScript generates is refused.
    """
    mode = f"samebits-{_sources()}-{across}"
    config = torch.compiler.config
    # The official part of the key of every compile cache on disk: code of another mode is never loaded.
    _patches.force(config, "cache_key_tag", f"{config.cache_key_tag}{mode}")
    _patches.when_imported("torch._dynamo.config", lambda module: inductor.pin_shapes(module, _patches))
    _patches.when_imported(
        "torch._inductor.compile_fx", lambda module: inductor.patch(module, _patches, mode, across)
    )
    _patches.when_imported(
        "triton.runtime.autotuner", lambda module: inductor.pin_first_configuration(module, _patches)
    )
    unseeded_draws.watch(_patches)
    if across == "machines":
        refuse(_patches)
    _forget_rewritten()
    _profiled.append(torch._C._jit_set_profiling_mode(False))
    _forget_compiled()


def leave() -> None:
    """Undoes `enter` exactly; code that was compiled under the switch is compiled again when it is called."""
    _patches.undo()
    if _profiled:
        torch._C._jit_set_profiling_mode(_profiled.pop())
        _forget_compiled()


def _forget_compiled() -> None:
    """Drops compiled code: Dynamo guards on torch's own determinism flag only, not on our mode."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and hasattr(dynamo, "reset"):
        dynamo.reset()


@cache
def _sources() -> str:
    """Returns a digest of the files that compiled code may depend on."""
    package = Path(__file__).parents[2]
    found = [
        *package.glob("determinism/**/*"),
        *package.glob("arithmetic/**/*"),
        *package.glob("_native/**/*"),
    ]
    files = sorted(file for file in found if file.suffix in {".py", ".json"})
    return of_bytes(*(file.read_bytes() for file in files)).split(":")[1][:16]

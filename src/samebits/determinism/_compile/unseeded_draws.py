"""A draw without a seed raises when it is captured into a graph, before the graph runs.

Tracing with fake tensors calls no kernel, so the guard in front of the kernels does not see it. All of
make_fx, torch.export and AOTAutograd (torch.compile) pass every op they capture to one function of torch's,
which is replaced here; TorchScript's compiler calls nothing, so its graph is read.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
import torch.fx.traceback

from samebits._inspect.patching import Patches
from samebits._inspect.user_code import calling_line, line_in, outwards, owner_of_frame
from samebits.determinism._compile.inductor import dynamo_error
from samebits.determinism._guards.torch_draws import DrawRule, unseeded_draw
from samebits.errors import UnseededError
from samebits.random._process.seeds import torch_was_seeded

_PATTERNS = "torch._inductor.pattern_matcher"
"""A module that captures its own dropouts, to recognise them in a user's graph."""


def watch(patches: Patches) -> None:
    """Replaces the capturing functions, until `patches` are undone."""
    patches.when_imported(
        "torch.fx.experimental.proxy_tensor",
        lambda module: patches.put(module, "proxy_call", _check_captures(module)),
    )
    script = _check_scripts(torch.jit.script)  # one for both: a pickle of the one asks for the other
    for module in (torch.jit, torch.jit._script):
        patches.put(module, "script", script)


def _check_captures(module: ModuleType) -> Callable[..., Any]:
    capture = module.proxy_call

    @functools.wraps(capture)
    def captured(
        mode: Any, func: Any, pre_dispatch: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if _draws(func, args, kwargs) and not torch_was_seeded() and not _is_pattern():
            _refuse(func._schema.name, _line())
        return capture(mode, func, pre_dispatch, args, kwargs)

    return captured


def _draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    tagged = torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
    return tagged and DrawRule(func._schema).draws_from_default(args, kwargs)


def _line() -> str:
    """Returns the line that Dynamo or a graph keeps for the traced code, else the line that is running."""
    line = line_in(torch.fx.traceback.get_current_meta().get("stack_trace") or "")
    return calling_line() if line is None else f"{line.file}:{line.number}"


def _is_pattern() -> bool:
    return any(one.f_globals.get("__name__") == _PATTERNS for one in outwards(sys._getframe(1)))


def _check_scripts(script: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(script)
    def checked(obj: Any, optimize: Any = None, _frames_up: int = 0, *args: Any, **kwargs: Any) -> Any:
        scripted = script(obj, optimize, _frames_up + 1, *args, **kwargs)
        # torch scripts called functions, too
        if not torch_was_seeded() and owner_of_frame(sys._getframe(1)) != "framework":
            for graph in _graphs(scripted):
                _refuse_draws(graph, scripted)
        return scripted

    return checked


def _graphs(scripted: Any) -> Iterator[Any]:
    if isinstance(scripted, torch.jit.ScriptFunction):
        yield scripted.inlined_graph
    elif isinstance(scripted, torch.jit.ScriptModule):
        for name in scripted._c._method_names():
            yield scripted._c._get_method(name).inlined_graph


def _refuse_draws(block: Any, scripted: Any) -> None:
    for node in block.nodes():
        for inner in node.blocks():
            _refuse_draws(inner, scripted)
        if node.kind().startswith("aten::") and node.schema() != "(no schema)":
            schema = torch._C.parse_schema(node.schema())
            found = torch._C._get_operation_overload(schema.name, schema.overload_name)
            if found is not None and torch.Tag.nondeterministic_seeded in found[2]:
                values = [_constant(value, scripted) for value in node.inputs()]
                if DrawRule(schema).draws_from_default(values, {}):
                    _refuse(schema.name, calling_line())


def _constant(value: Any, scripted: Any) -> Any:
    """Returns the value of a graph's input: a constant, or a module's attribute; False if a call decides."""
    node = value.node()
    if node.kind() == "prim::Constant":
        return value.toIValue()
    if node.kind() == "prim::GetAttr":
        return getattr(_constant(next(node.inputs()), scripted), node.s("name"), False)
    return scripted if node.kind() == "prim::Param" and value.type().kind() == "ClassType" else False


def _refuse(name: str, line: str) -> None:
    error = unseeded_draw(f"{name} at {line}, captured into a graph,")
    if "torch._dynamo.exc" in sys.modules:
        raise dynamo_error(UnseededError)(str(error), first_useful_frame=None)
    raise error

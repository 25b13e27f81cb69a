"""Layers that draw, under tracing: a mask must not become a constant of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch._compile import _disable_dynamo  # torch.compiler.disable imports dynamo, 2 s, where it decorates
from torch._functorch.pyfunctorch import VmapInterpreter, retrieve_all_functorch_interpreters
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from samebits.errors import UnimplementedError

P = ParamSpec("P")
R = TypeVar("R")


def call_untraced(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls `function`, which makes plain tensors; code under torch.compile breaks its graph for it, at each call."""
    if torch.compiler.is_compiling():
        return _call_outside_graph(function, *args, **kwargs)
    if not torch._C._are_functorch_transforms_active():
        return function(*args, **kwargs)
    with torch._C._DisableFuncTorch():  # torch.func's transforms leave the tensors plain
        return function(*args, **kwargs)


@_disable_dynamo
def _call_outside_graph(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return function(*args, **kwargs)


def is_vmapped() -> bool:
    """Returns True if torch.vmap runs the caller and wants different numbers per sample (`randomness` is not "same")."""
    return torch._C._functorch.peek_interpreter_stack() is not None and any(
        isinstance(level, VmapInterpreter) and level.randomness() != "same"
        for level in retrieve_all_functorch_interpreters()
    )


is_vmapped._dynamo_marked_constant = True  # type: ignore[attr-defined]  # evaluated while Dynamo traces


def check_traceable(layer: torch.nn.Module) -> None:
    """Raises `UnimplementedError` while make_fx, torch.export or torch.jit.trace runs the caller, and under torch.vmap.

    With `randomness="same"` one mask for all samples is what torch.vmap expects.
    """
    if torch.jit.is_tracing() or get_proxy_mode() is not None:
        raise UnimplementedError(
            f"samebits.nn.{type(layer).__name__} is called while torch.export, make_fx or torch.jit.trace records its "
            "caller: the graph would repeat one mask forever. Trace in eval mode (model.eval()), or use torch.compile, "
            "which takes a new key at each call (samebits.nn.compiled: without a break of the graph)."
        )
    if is_vmapped():
        raise UnimplementedError(
            f"samebits.nn.{type(layer).__name__} under torch.vmap has one key for all samples. If they may share a mask, "
            'call torch.vmap(..., randomness="same"); else call the model on the whole batch, or in eval mode.'
        )

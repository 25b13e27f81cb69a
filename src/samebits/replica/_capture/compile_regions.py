"""Keeps calls of `torch.compiler.nested_compile_region`, which an eager trace runs as plain functions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from samebits._inspect.patching import replaced

# the package has the op under this name
_MODULE: Any = sys.modules["torch._higher_order_ops.invoke_subgraph"]


@contextlib.contextmanager
def preserve_compile_regions() -> Iterator[None]:
    """Makes a region one `invoke_subgraph` of the graph; its tensors, and its modules', are operands.

    The backward of `invoke_subgraph` computes the forward again. So a region that draws random numbers or
    writes to its operands, reads tensors that it closes over, or returns anything but new tensors, is run as
    a plain function, as eager code runs it.
    """
    names: dict[Any, str] = {}

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        region = _region(function, args, kwargs)
        if not _is_pure(region):
            return function(*args, **kwargs)
        name = names.setdefault(function, f"{function.__qualname__}_{len(names)}")
        outputs = invoke_subgraph(region.run, name, *region.operands)  # type: ignore[arg-type] (any callable)
        return pytree.tree_unflatten(list(outputs), region.outputs)

    with replaced(_MODULE, "invoke_subgraph_placeholder", call):
        yield


@dataclass
class _Region:
    """One call, as a function of its tensors and those of modules that it gets, belongs to or closes over."""

    function: Callable[..., Any]
    leaves: list[Any]
    spec: pytree.TreeSpec
    modules: list[tuple[nn.Module, list[str]]]
    operands: list[torch.Tensor]
    outputs: pytree.TreeSpec

    def run(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Calls the function with other operands and returns its outputs, flat."""
        given = iter(tensors)
        filled = [next(given) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.leaves]
        with contextlib.ExitStack() as stack:
            for module, names in self.modules:
                stack.enter_context(_reparametrize_module(module, {name: next(given) for name in names}))
            args, kwargs = pytree.tree_unflatten(filled, self.spec)
            outputs, self.outputs = pytree.tree_flatten(self.function(*args, **kwargs))
        return tuple(outputs)


def _region(function: Callable[..., Any], args: Any, kwargs: Any) -> _Region:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    found = {id(one): one for one in (*leaves, *_closed_over(function)) if isinstance(one, nn.Module)}
    held = [dict((*one.named_parameters(), *one.named_buffers())) for one in found.values()]
    operands = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    operands += [tensor for tensors in held for tensor in tensors.values()]
    modules = [(one, list(tensors)) for one, tensors in zip(found.values(), held, strict=True)]
    return _Region(function, leaves, spec, modules, operands, spec)


def _closed_over(function: Callable[..., Any]) -> Iterator[Any]:
    yield getattr(function, "__self__", None)
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # a cell that nothing is in yet
            yield cell.cell_contents


class _Probe(TorchDispatchMode):
    """Notes draws, writes to given memory, and reads of tensors that are no operands (no gradient)."""

    def __init__(self, operands: list[torch.Tensor]) -> None:
        super().__init__()
        self._given = {_storage(one) for one in operands}
        # kept alive: a storage's number is used again
        self._known = dict(zip(map(_storage, operands), operands, strict=True))
        self.pure = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = list(_tensors((args, kwargs)))
        draws = torch.Tag.nondeterministic_seeded in func.tags
        writes = func._schema.is_mutable and any(map(self.shares, read))
        foreign = any(_storage(one) not in self._known for one in read)
        self.pure = self.pure and not (draws or writes or foreign)
        outputs = func(*args, **(kwargs or {}))
        self._known.update((_storage(one), one) for one in _tensors(outputs))
        return outputs

    def shares(self, tensor: torch.Tensor) -> bool:
        return _storage(tensor) in self._given


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    yield from (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _is_pure(region: _Region) -> bool:
    """Runs a region once on its own fake tensors, outside of the trace; returns True if it is pure."""
    if len(set(map(_storage, region.operands))) < len(region.operands):
        return False
    try:
        with disable_proxy_modes_tracing(), torch.no_grad():
            given = [torch.empty_like(one) for one in region.operands]
            with _Probe(given) as probe:
                outputs = region.run(*given)
            return probe.pure and all(
                isinstance(one, torch.Tensor) and not probe.shares(one) for one in outputs
            )
    # an op that this mode cannot run, or the user's own mistake, which the plain call shows
    except Exception:
        return False

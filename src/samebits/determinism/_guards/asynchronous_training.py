"""Training without an order of its updates cannot be deterministic: refused when it is constructed.

As the RFC refuses `ParameterServerStrategy`. Here: RPC, `DistributedOptimizer`, and parameters that several
processes write (Hogwild). Batches that loader workers pass through shared memory are no parameters, and are
allowed.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from samebits._inspect.patching import Patches
from samebits._inspect.user_code import calling_line
from samebits.determinism._warn_once import warn_once
from samebits.errors import ConflictWarning, UnimplementedError

_SYNCHRONOUS = "torch.nn.parallel.DistributedDataParallel, whose processes wait for each other at every step"
_threads: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The first parameter of an optimizer, to the threads that have stepped it, the last one last."""
_watched: list[RemovableHandle] = []


def refuse(patches: Patches) -> None:
    """Replaces the constructors, and notes the thread of every optimizer's step; imports nothing."""
    _watched.append(register_optimizer_step_pre_hook(_note_thread))
    rpc = torch.distributed.rpc if torch.distributed.is_available() else None
    if rpc is not None and rpc.is_available():
        patches.put(rpc, "init_rpc", _refuse_constructor("torch.distributed.rpc.init_rpc", rpc.init_rpc))
        patches.when_imported(
            "torch.distributed.optim.optimizer", lambda module: _refuse_distributed_optimizer(patches, module)
        )
    patches.put(torch.Tensor, "share_memory_", _unless_parameter(torch.Tensor.share_memory_))
    optimizer = torch.optim.Optimizer
    patches.put(optimizer, "add_param_group", _unless_shared(optimizer.add_param_group))


def unwatch() -> None:
    """Ends the notes of threads."""
    while _watched:
        _watched.pop().remove()
    _threads.clear()


def _note_thread(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Warns when two threads step the same parameters in turn: the order of their steps is a matter of time.

    A thread that continues after the end of the other, or that takes over for good, is no such case.
    """
    params = optimizer.param_groups[0]["params"] if optimizer.param_groups else ()
    if not params:
        return
    here, threads = threading.current_thread(), _threads.setdefault(params[0], [])
    last = threads[-1]() if threads else None
    if last is here:
        return
    if last is not None and last.is_alive() and any(thread() is here for thread in threads):
        warn_once(
            "threads",
            f"{type(optimizer).__name__}.step(): the threads {last.name} and {here.name} train the same "
            "parameters, and the order of their steps differs from run to run. Let one thread train; the "
            "others can prepare its batches.",
            ConflictWarning,
        )
    threads[:] = [*(thread for thread in threads if thread() is not here), weakref.ref(here)]


def _refuse_distributed_optimizer(patches: Patches, module: ModuleType) -> None:
    owner = module.DistributedOptimizer
    patches.put(
        owner, "__init__", _refuse_constructor("torch.distributed.optim.DistributedOptimizer", owner.__init__)
    )


def _refuse_constructor(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def refused(*args: Any, **kwargs: Any) -> None:
        raise UnimplementedError(
            f"{name} at {calling_line()}: updates that arrive in no fixed order differ from run to run, and "
            f"op determinism is on. Use {_SYNCHRONOUS}; or call samebits.enable_op_determinism(False) before."
        )

    return refused


def _unless_parameter(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def share_memory_(self: torch.Tensor) -> torch.Tensor:
        if isinstance(self, torch.nn.Parameter) and not self.is_cuda:
            raise UnimplementedError(
                _hogwild(f"share_memory_() of a parameter {tuple(self.shape)} at {calling_line()}")
            )
        return original(self)

    return share_memory_


def _unless_shared(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_param_group(self: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
        original(self, param_group)
        shared = _first_shared(self.param_groups[-1]["params"])
        if shared is not None:
            raise UnimplementedError(
                _hogwild(
                    f"{type(self).__name__} at {calling_line()} over a parameter {tuple(shared.shape)} in "
                    "shared memory"
                )
            )

    return add_param_group


def _first_shared(parameters: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Returns the first shared parameter on the CPU: torch calls every CUDA tensor shared."""
    strided = (p for p in parameters if p.device.type == "cpu" and p.layout is torch.strided)
    return next((p for p in strided if p.is_shared()), None)


def _hogwild(call: str) -> str:
    return (
        f"{call}: processes that write the same parameters (Hogwild) do so in another order in every run, "
        f"and op determinism is on. Use {_SYNCHRONOUS}; weights that others only read can be copied "
        "(`p.detach().clone().share_memory_()`)."
    )

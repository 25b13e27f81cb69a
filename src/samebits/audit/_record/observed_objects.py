"""The objects that a record is about: models, optimizers and other objects of a run or of a plain script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from samebits._byte_digest import of_bytes
from samebits._inspect.tree import Leaves, of_nested
from samebits.audit._record.parameter_hashes import ModelLeaves, OptimizerLeaves

_MOST_ROOTS = 64


class ObservedObjects:
    """Collects objects as they show up; objects given to `Run` come first, under the names given there."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._run: Any = None
        self._given: dict[str, Any] = {}
        self._run_state: Any = None
        self._roots: list[torch.nn.Module] = []
        self._trained: list[torch.nn.Module] = []
        self._stepped: list[torch.optim.Optimizer] = []
        self._models: ModelLeaves | None = None
        self._optimizers: OptimizerLeaves | None = None
        self._size = -1

    def open_run(self, run: Any) -> None:
        """Takes the objects of a `Run`."""
        self._run = run
        self._given = run.objects
        self._run_state = run.state
        self._models = self._optimizers = None

    def add_module(self, module: torch.nn.Module, *, trains: bool) -> None:
        """Adds a top-level module that was called."""
        if not _contains(self._roots, module) and len(self._roots) < _MOST_ROOTS:
            self._roots.append(module)
        if trains and not _contains(self._trained, module) and len(self._trained) < _MOST_ROOTS:
            self._trained.append(module)
            self._models = None

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Adds an optimizer that took a step."""
        if not _contains(self._stepped, optimizer):
            self._stepped.append(optimizer)
            self._optimizers = None

    def take(self) -> dict[str, Leaves]:
        """Returns the components `buffers`, `optimizer`, `model` and `state` as they are now."""
        models, optimizers = self._refresh()
        parameters, buffers = models.take()
        taken = {"buffers": buffers, "optimizer": optimizers.take(), "model": parameters}
        if self._run_state is not None:
            taken["state"] = of_nested(self._state())
        return taken

    def parameters(self) -> Leaves:
        """Returns the component `model` alone."""
        return self._refresh()[0].take()[0]

    def learning_rates(self) -> list[float]:
        """Returns the learning rate of every parameter group."""
        return [
            float(group["lr"])
            for o in self.optimizers().values()
            for group in o.param_groups
            if "lr" in group
        ]

    def final(self) -> str:
        """Returns the digest of the parameters and buffers of the models as they are now."""
        parameters, buffers = ModelLeaves(self.models() or _prefix(self._roots)).take()
        return of_bytes(
            "\n".join(parameters.names + buffers.names).encode(), parameters.hashes, buffers.hashes
        )

    def objects(self) -> dict[str, Any]:
        """Returns the objects given to `Run`, by name."""
        return dict(self._given)

    def loader(self) -> Any:
        """Returns the iterable of the run's current loop."""
        loops = getattr(self._run, "_loops", None)
        return getattr(getattr(getattr(loops, "current", None), "source", None), "_loader", None)

    def models(self) -> dict[str, torch.nn.Module]:
        """Returns modules by the prefix of their names: those given to `Run`, then others that were trained."""
        given = {name: thing for name, thing in self._given.items() if isinstance(thing, torch.nn.Module)}
        owned = {id(parameter) for module in given.values() for parameter in module.parameters()}
        others = [m for m in self._trained if not all(id(parameter) in owned for parameter in m.parameters())]
        if given:
            self._note_others("model", others)
        return _merge(given, others)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Returns optimizers by the prefix of their names: those given to `Run`, then others that took a step."""
        given = {
            name: thing for name, thing in self._given.items() if isinstance(thing, torch.optim.Optimizer)
        }
        others = [o for o in self._stepped if not _contains(list(given.values()), o)]
        if self._given:
            self._note_others("optimizer", others)
        return _merge(given, others)

    def replicas(self) -> dict[str, Any]:
        """Returns the facts that a comparison of the ranks needs: the names of what may differ between two steps.

        "overwritten": buffers that DistributedDataParallel overwrites in a forward with those of rank 0. "statistics":
        of a normalisation, gathered from the rank's batches. "untrained": of modules without a parameter that trains,
        such as an average that rank 0 alone updates. "sharded": each rank has other parameters' optimizer state.
        """
        models, optimizers = self.models(), self.optimizers().values()
        parts = [part for root in [*self._roots, *models.values()] for part in root.modules()]
        wrappers = [part for part in parts if isinstance(part, DistributedDataParallel)]
        groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
        trained = {id(p) for params in [*groups, *(ddp.parameters() for ddp in wrappers)] for p in params}
        overwritten = {id(b) for ddp in wrappers if ddp.broadcast_buffers for b in ddp.module.buffers()}
        norms = [part for part in parts if isinstance(part, _NormBase)]
        statistics = {id(b) for norm in norms for b in norm.buffers(recurse=False)}
        named = [(f"{prefix}{path}", id(b)) for prefix, m in models.items() for path, b in m.named_buffers()]
        idle = [
            (prefix, m) for prefix, m in models.items() if not any(id(p) in trained for p in m.parameters())
        ]
        return {
            "ddp": bool(wrappers),
            "overwritten": [path for path, buffer in named if buffer in overwritten],
            "statistics": [path for path, buffer in named if buffer in statistics],
            "untrained": [f"{prefix}{path}" for prefix, module in idle for path in module.state_dict()],
            "sharded": any(type(one).__name__ == "ZeroRedundancyOptimizer" for one in optimizers),
        }

    def summary(self) -> list[str]:
        """Returns one line for each object."""
        things = [*self.models().items(), *self.optimizers().items()] or list(_prefix(self._roots).items())
        return [f"{prefix.rstrip('.')} {type(thing).__name__}".strip() for prefix, thing in things]

    def _refresh(self) -> tuple[ModelLeaves, OptimizerLeaves]:
        if len(self._given) != self._size:  # Run.add
            self._models = self._optimizers = None
            self._size = len(self._given)
        self._models = self._models or ModelLeaves(self.models())
        self._optimizers = self._optimizers or OptimizerLeaves(self.optimizers())
        return self._models, self._optimizers

    def _state(self) -> dict[str, Any]:
        own = (torch.nn.Module, torch.optim.Optimizer)
        others = {name: t.state_dict() for name, t in self._given.items() if not isinstance(t, own)}
        return {"run.state": dict(self._run_state), **others}

    def _note_others(self, kind: str, others: list[Any]) -> None:
        for thing in others:
            self._note(f"{kind} {type(thing).__name__} is used in training but was not given to Run")


def _merge(first: Mapping[str, Any], others: list[Any]) -> dict[str, Any]:
    if not first:
        return _prefix(others)
    named = {"" if len(first) == 1 else f"{name}.": thing for name, thing in first.items()}
    return named | {f"{type(thing).__name__}{number or ''}.": thing for number, thing in enumerate(others)}


def _prefix(things: list[Any]) -> dict[str, Any]:
    if len(things) == 1:
        return {"": things[0]}
    return {f"{type(thing).__name__}{number}.": thing for number, thing in enumerate(things)}


def _contains(things: list[Any], thing: Any) -> bool:
    return any(other is thing for other in things)

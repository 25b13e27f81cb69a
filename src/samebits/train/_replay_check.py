"""A step's forward and backward computed a second time, now and then, and compared bit by bit.

A processor that computes wrongly once in a while (silent data corruption) leaves no error, and weights that
nobody can repeat. In a step that is checked a run keeps what its modules were called with: inputs, buffers,
generators. Before an optimizer takes the gradients, each module is called again, goes backward from the
gradients that its outputs got, and must make the same outputs, buffers, generators and gradients. What is
outside of the modules (the loss function) is not computed again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from samebits import _digest as digest
from samebits._arguments import require
from samebits._context import Observer, Position
from samebits._inspect import user_code
from samebits.errors import ReplayMismatchError, UnimplementedError
from samebits.random._global_generator import preserve_rng_state
from samebits.train._cadence import share_of

_HELD_BY_MODULES = ("_parameters", "_buffers", "_modules")
_HOOKS = re.compile(r"_.*_hooks(_.*)?")


def steps_between(share: Any) -> int:
    """Returns every how many steps one is computed again, for "1%" or a number of steps."""
    if given := share_of(share):
        return max(1, round(1 / given))
    forms = "give a share of the steps ('1%', above 0%, at most 100%) or from one to the next (100)"
    require(type(share) is int and share >= 1, "Run", forms, replay_check=share)
    return share


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _generators() -> dict[str, Any]:
    made = {"torch's generator": torch.default_generator.get_state()}
    if torch.cuda.is_initialized():
        made["CUDA's generator"] = torch.cuda.get_rng_state()
    return made


@dataclass(eq=False)
class _ModuleCall:
    """A call of a module in the step that is checked."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    buffers: dict[str, Tensor]
    """Copies of those before the call."""
    generators: Callable[[], None]
    """Puts back those before the call."""
    autocast: list[torch.autocast]
    versions: list[int] = field(default_factory=list)
    """Of the inputs and parameters: changed in place since, they are no longer what the call had."""
    made: dict[str, int] = field(default_factory=dict)
    """Digests of the outputs, and of buffers and generators after the call."""
    gradients: dict[int, Tensor] = field(default_factory=dict)
    """Those that the outputs got, by the output's number."""

    def parameters(self) -> dict[str, Tensor]:
        """Returns those that get gradients."""
        return {name: one for name, one in self.module.named_parameters() if one.requires_grad}

    def inputs(self) -> list[Tensor]:
        """Returns all tensors that the call reads, but for buffers."""
        return [*_tensors((self.args, self.kwargs)), *self.module.parameters()]

    def results(self, outputs: Any) -> dict[str, int]:
        named = {f"output {number}": one for number, one in enumerate(_tensors(outputs))}
        named |= {f"buffer {name}": one for name, one in self.module.named_buffers()}
        return {name: digest.leaf(one) for name, one in (named | _generators()).items()}


class ReplayCheck(Observer):
    """Computes every so many steps of a run a second time."""

    def __init__(self, run: Any, share: Any) -> None:
        self._run, self._every = run, steps_between(share)
        self._position: Position | None = None
        self._hooks = ExitStack()
        self._calls: list[_ModuleCall] = []
        self._gradients: dict[int, list[int]] = {}
        """Digests of those of each parameter, one for each time that backward has reached it."""
        self._replaying = self._compared = False
        """`_compared`: a module was computed a second time in this step."""

    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        """Watches the modules of the run, if this step is to be checked."""
        if run is not self._run or step.step % self._every or self._position is not None:
            return
        self._position, self._compared = step, False
        for name, module in _modules(run.objects):
            self._watch(name, module)
        self._keep(register_optimizer_step_pre_hook(lambda *_: self._check()))

    def boundary(self, run: Any, step: Position, frame: Any) -> None:
        """Checks what no optimizer has taken in this step, as in an accumulation."""
        if run is self._run and self._position is not None:
            try:
                self._check()
                if not self._compared:
                    user_code.warn(
                        f"Run(replay_check): in step {self._position.step} nothing was compared: the run has "
                        "no module whose outputs are tensors that got gradients, or a module's inputs were "
                        "changed in place since. Give the run the model, without ops in place on its inputs."
                    )
            finally:
                self.close()

    def close(self) -> None:
        """Ends the watching of a step."""
        self._hooks.close()
        self._position = None
        self._calls.clear()
        self._gradients.clear()

    def _keep(self, hook: Any) -> None:
        self._hooks.callback(hook.remove)

    def _watch(self, name: str, module: nn.Module) -> None:
        self._keep(module.register_forward_pre_hook(partial(self._before, name), with_kwargs=True))
        self._keep(module.register_forward_hook(self._after))
        for one in module.parameters():
            if one.requires_grad:
                seen = self._gradients.setdefault(id(one), [])
                self._keep(one.register_hook(lambda grad, seen=seen: self._note(seen, grad)))

    def _note(self, seen: list[int], grad: Tensor) -> None:
        if not self._replaying:
            seen.append(digest.leaf(grad))

    def _before(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self._replaying or not torch.is_grad_enabled():
            return
        buffers = {path: one.clone() for path, one in module.named_buffers()}
        autocast = [
            torch.autocast(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
            for kind in ("cpu", "cuda")
            if kind == "cpu" or torch.cuda.is_initialized()
        ]
        call = _ModuleCall(name, module, args, kwargs, buffers, preserve_rng_state(), autocast)
        call.versions = [one._version for one in call.inputs()]
        self._calls.append(call)

    def _after(self, module: nn.Module, args: Any, outputs: Any) -> None:
        if self._replaying or not torch.is_grad_enabled():
            return
        call = next((one for one in reversed(self._calls) if one.module is module and not one.made), None)
        if call is None:
            return
        call.made = call.results(outputs)
        for number, one in enumerate(_tensors(outputs)):
            if one.requires_grad:
                one.register_hook(partial(call.gradients.__setitem__, number))

    def _check(self) -> None:
        """Compares the calls since the last check, of modules that got gradients."""
        calls = [one for one in self._calls if one.gradients and one.made]
        if self._replaying or not calls:
            return
        self._replaying = True
        try:
            for module in {id(one.module): one.module for one in calls}.values():
                self._check_module([one for one in calls if one.module is module])
        finally:
            self._replaying = False
        self._calls = [one for one in self._calls if one not in calls]

    def _check_module(self, calls: list[_ModuleCall]) -> None:
        module = calls[0].module
        restore = _state_of(module)
        parameters = calls[0].parameters()
        seen = {name: self._gradients.get(id(one), []) for name, one in parameters.items()}
        try:
            outputs, gradients = [], []
            for call in calls:
                if call.versions != [one._version for one in call.inputs()]:
                    return  # an input was changed in place since: there is nothing to compare with
                made = self._call_again(call)
                outputs += [made[number] for number in call.gradients]
                gradients += call.gradients.values()
            self._compared = True
            # Where backward went through more than once, its sums are in another order than here.
            if max(map(len, seen.values()), default=0) == 1:
                found = torch.autograd.grad(outputs, [*parameters.values()], gradients, allow_unused=True)
                for name, grad in zip(parameters, found, strict=True):
                    now = [] if grad is None else [digest.leaf(grad)]
                    self._require(now == seen[name], calls[0], f"the gradient of {name}")
        finally:
            restore()
            for one in seen.values():
                one.clear()

    def _call_again(self, call: _ModuleCall) -> list[Tensor]:
        with torch.no_grad():
            for name, one in call.module.named_buffers():
                one.copy_(call.buffers[name])
        call.generators()
        with ExitStack() as stack:
            for one in (torch.enable_grad(), *call.autocast):
                stack.enter_context(one)
            outputs = call.module(*call.args, **call.kwargs)
        results = call.results(outputs)
        for name, hashed in call.made.items():
            self._require(results.get(name) == hashed, call, name)
        return _tensors(outputs)

    def _require(self, same: bool, call: _ModuleCall, what: str) -> None:
        if not same:
            at = self._position
            assert at is not None
            raise ReplayMismatchError(
                f"Run(replay_check): step {at.step} (epoch {at.epoch}, batch {at.batch_index}): {call.name} "
                f"was computed twice from the same state, and {what} has other bits the second time. The "
                "optimizer has not seen these gradients; nothing of them is committed. Either the machine "
                "computes wrongly (move the run to another one: it continues from its last commit), or an "
                "op does not repeat its bits: samebits.enable_op_determinism() names it."
            )


def _modules(objects: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Yields the modules of a run, without what wraps them for several processes."""
    for name, thing in objects.items():
        if isinstance(thing, DistributedDataParallel):
            thing = thing.module  # noqa: PLW2901
        if isinstance(thing, nn.Module):
            if any(hasattr(one, "device_mesh") for one in thing.parameters()):
                raise UnimplementedError(
                    f"Run(replay_check): {name} has parameters that are sharded over processes, whose "
                    "gradients are not those of one process. Leave replay_check out."
                )
            yield name, thing


def _state_of(module: nn.Module) -> Callable[[], None]:
    """Notes all that a second call could change; returns a function that puts it back."""
    generators = preserve_rng_state()
    buffers = {one: one.clone() for one in module.buffers()}
    attributes = [(one, _own(vars(one).items())) for one in module.modules()]

    def restore() -> None:
        generators()
        with torch.no_grad():
            for one, before in buffers.items():
                one.copy_(before)
        for one, before in attributes:
            vars(one).update(before)

    return restore


def _own(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: one for name, one in items if name not in _HELD_BY_MODULES and not _HOOKS.fullmatch(name)}

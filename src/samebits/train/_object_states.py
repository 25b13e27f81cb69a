"""The user's objects: how the state of one is loaded, and what training changes besides its state_dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch.__future__ import get_swap_module_params_on_conversion

from samebits import _digest as digest
from samebits._objects.memory import fill_tensor
from samebits.errors import RunMismatchError
from samebits.state import _in_place
from samebits.state._attributes import Attributes
from samebits.state._known_classes import HeldGenerators
from samebits.train import _parameter_groups as parameter_groups


@runtime_checkable
class Stateful(Protocol):
    """An object that has both `state_dict` and `load_state_dict`: the only state protocol."""

    def state_dict(self) -> Any:
        """Returns the state as nested plain values and tensors."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restores a state."""
        ...


def class_name(thing: Any) -> str:
    """Returns the name of an object's class; `fully_shard` puts one before it, which is no other program."""
    kind = type(thing)
    return (kind.__bases__[-1] if kind.__bases__[0].__name__ == "FSDPModule" else kind).__qualname__


def note_objects(objects: Mapping[str, Stateful]) -> None:
    """Gives the adapters of a run its other objects: what an adapter's target holds of these is saved."""
    adapters = [one for one in objects.values() if isinstance(one, Attributes)]
    if adapters:
        identities = saved_identities(objects)
        modules = {name: one for name, one in objects.items() if isinstance(one, torch.nn.Module)}
        parts = ((name, *part) for name, one in modules.items() for part in one.named_modules())
        named = {f"{name}.{path}".rstrip("."): part for name, path, part in parts}
        for one in adapters:
            one.saved_besides, one.modules_of_run = identities, named


def saved_identities(objects: Mapping[str, Any]) -> frozenset[int]:
    """Returns the identities of the objects of a run, of modules in them, and of what its adapters save."""
    identities: set[int] = set()
    for thing in objects.values():
        inner = thing.modules() if isinstance(thing, torch.nn.Module) else [thing]
        identities.update(map(id, inner))
        if isinstance(thing, Attributes | HeldGenerators):
            identities.add(id(thing.target))
    return frozenset(identities)


def check_adapters(objects: Mapping[str, Stateful]) -> None:
    """Raises `InvalidArgumentError` for an object with a state in an adapter's target, but not in the run."""
    for name, one in objects.items():
        if isinstance(one, Attributes):
            one.check_besides(name)


def gradients(parameters: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {path: _to_dense(parameter.grad) for path, parameter in parameters.items()}


def is_programs_own(thing: Any) -> bool:
    """Returns True for a class neither torch's nor samebits': loading it may do more than set its state.

    Those of `samebits.integrations` do more, too: a library takes the state over when it is ready.
    """
    torchs = torch.nn.Module | torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler
    module = type(thing).__module__.removeprefix("samebits.integrations.")
    return not isinstance(thing, torchs) and not module.startswith(("torch.", "samebits."))


def load(
    objects: Mapping[str, Stateful], name: str, saved: Any, restored: _in_place.Restored, where: str
) -> None:
    """Loads the state of one of the objects; raises `RunMismatchError` when it refuses it."""
    with _held_groups(objects, objects[name]):
        _load(name, objects[name], saved, restored, where)


def _load(name: str, thing: Stateful, saved: Any, restored: _in_place.Restored, where: str) -> None:
    """Loads the state of one object; what it may keep is a copy."""
    own = saved if isinstance(thing, Attributes) or copies_what_it_loads(thing) else restored.of(saved)
    try:
        if isinstance(thing, Attributes):
            restored.again()  # another object may have emptied what they share
            thing.load(own, restored)
        else:
            with _writable_buffers(thing):
                thing.load_state_dict(own)
    except Exception as error:
        raise RunMismatchError(
            f"{where}: {name}.load_state_dict refused the saved state: {error}. Objects must be as they were "
            "when the run was entered (parameter groups added, lazy layers built); else use another run "
            "directory."
        ) from error
    if isinstance(thing, torch.optim.Optimizer):
        _restore_dtypes(thing, own)


@contextmanager
def _writable_buffers(thing: Any) -> Iterator[None]:
    """Loads a module's expanded buffers, which torch does not write, by memory of their own."""
    modules = list(thing.modules()) if isinstance(thing, torch.nn.Module) else []
    found = [(one, name, held) for one in modules for name, held in one._buffers.items() if held is not None]
    held = [one for one in found if one[2].layout is torch.strided and 0 in one[2].stride()]
    for module, name, buffer in held:
        module._buffers[name] = buffer.clone(memory_format=torch.contiguous_format)
    try:
        yield
    finally:
        for module, name, buffer in held:
            fill_tensor(buffer, module._buffers[name])
            module._buffers[name] = buffer


def copies_what_it_loads(thing: Stateful) -> bool:
    """Returns True if `load_state_dict` only copies into existing tensors: torch's modules without hooks."""
    if not isinstance(thing, torch.nn.Module) or get_swap_module_params_on_conversion():
        return False
    return _is_torchs(thing.load_state_dict) and all(
        _is_torchs(module._load_from_state_dict)
        and _is_torchs(module.set_extra_state)
        and not module._load_state_dict_pre_hooks
        and not module._load_state_dict_post_hooks  # one could change what was copied
        for module in thing.modules()
    )


def _is_torchs(method: Any) -> bool:
    return getattr(method, "__module__", "").startswith(("torch.nn.modules.", "torch.nn.parallel."))


def _to_dense(grad: torch.Tensor | None) -> Any:
    """Returns a gradient for a commit: a sparse one (of an embedding, say) as its tensors."""
    if grad is None or grad.layout is not torch.sparse_coo:
        return grad
    return {
        "indices": grad._indices(), "values": grad._values(), "size": list(grad.shape),
        "coalesced": grad.is_coalesced(),
    }  # fmt: skip


def is_gradient(saved: Any) -> bool:
    if not isinstance(saved, dict):
        return saved is None or isinstance(saved, torch.Tensor)
    return saved.keys() == {"indices", "values", "size", "coalesced"}


def gradient(saved: Any, device: torch.device) -> torch.Tensor | None:
    """Returns the gradient that `_to_dense` split."""
    if saved is None or isinstance(saved, torch.Tensor):
        return None if saved is None else saved.to(device)
    return torch.sparse_coo_tensor(
        saved["indices"], saved["values"], saved["size"], device=device, is_coalesced=saved["coalesced"],
        check_invariants=True,
    )  # fmt: skip


def restore_module(module: Any, modes: list[bool], buffers: Mapping[str, torch.Tensor]) -> None:
    """Restores the modes of a module's modules, and the buffers that its state_dict leaves out."""
    for child, training in zip(module.modules(), modes, strict=True):
        child.training = training
    for path, value in unsaved_buffers(module).items():
        fill_tensor(value, buffers[path])


def _restore_dtypes(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Restores dtypes: `Optimizer.load_state_dict` casts to the parameter's, in which NAdam loses bits."""
    if not has_form_of_torch(saved):
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, values in saved["state"].items():
        mine = optimizer.state.get(parameters[index], {})  # none in a class around another one
        for name, value in values.items():
            if name in mine and isinstance(value, torch.Tensor) and mine[name].dtype != value.dtype:
                mine[name] = value.to(mine[name].device)


def has_form_of_torch(saved: Any) -> bool:
    """Returns True for a state of `torch.optim.Optimizer`: a class around one may have a form of its own."""
    return (
        isinstance(saved, Mapping)
        and {"state", "param_groups"} <= saved.keys()
        and all(isinstance(key, int) and isinstance(one, Mapping) for key, one in saved["state"].items())
    )


@contextmanager
def _held_groups(objects: Mapping[str, Stateful], thing: Stateful) -> Iterator[None]:
    """Keeps the groups of all optimizers in a load: one around another (SAM) may replace both's."""
    around = [*objects.values(), *getattr(thing, "__dict__", {}).values()]
    held = [_HeldGroups(one) for one in around if isinstance(one, torch.optim.Optimizer)]
    yield
    for one in held:
        one.put_back()


class _HeldGroups:
    """The groups and the state of an optimizer, as objects: the program may know them by other names."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._list, self._state = optimizer.param_groups, optimizer.state
        self._groups = list(self._list)
        self._made = [dict(group) for group in self._list]

    def put_back(self) -> None:
        """Puts what `load_state_dict` has made into them; tensors on the program's devices."""
        loaded, state = self._optimizer.param_groups, self._optimizer.state
        for group, made, new in zip(self._groups, self._made, loaded, strict=True):
            for name, value in new.items():  # a commit's tensors are on the CPU
                if isinstance(value, torch.Tensor) and isinstance(made.get(name), torch.Tensor):
                    new[name] = value.to(made[name].device)
            _refill(group, new)
        self._list[:] = self._groups
        self._optimizer.param_groups = self._list
        _refill(self._state, state)
        self._optimizer.state = self._state


def _refill(held: Any, new: Any) -> None:
    if held is not new:
        items = dict(new)
        held.clear()
        held.update(items)


def check_restored(name: str, thing: Stateful, saved: Any, where: str) -> None:
    """Raises `RunMismatchError` for a module or an optimizer that has not the state that it was given."""
    if not isinstance(thing, torch.nn.Module | torch.optim.Optimizer):
        return
    lost = digest.differing(thing.state_dict(), saved, bits=not copies_what_it_loads(thing))
    if isinstance(thing, torch.optim.Optimizer):
        lost += [
            f"state[{key}]" for key in thing.state if isinstance(key, int)
        ]  # an `id()` of another process
    if lost:
        raise RunMismatchError(
            f"{where}: {name} does not have the saved state after load_state_dict ({', '.join(lost[:3])}): "
            "the program is another one (another dtype?), or the class loses it. Use the commit's program."
        )


def parameters(objects: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns every parameter of the modules, then of the optimizers among `objects`, once, by its path."""
    optimizers = {name: thing for name, thing in objects.items() if isinstance(thing, torch.optim.Optimizer)}
    named = [*parameter_groups.named_parameters(objects)]
    named += [
        (f"{name}.param_groups.{number}.{index}", parameter)
        for name in sorted(optimizers)
        for number, group in enumerate(optimizers[name].param_groups)
        for index, parameter in enumerate(group["params"])
    ]
    once: dict[int, tuple[str, torch.Tensor]] = {}
    for path, parameter in named:
        once.setdefault(id(parameter), (path, parameter))
    return dict(once.values())


def unsaved_buffers(
    module: torch.nn.Module, saved: Mapping[str, Any] | None = None
) -> dict[str, torch.Tensor]:
    """Returns non-persistent buffers, which state_dict (`saved`) leaves out and training may change."""
    names = (module.state_dict() if saved is None else saved).keys()
    return {name: buffer for name, buffer in module.named_buffers() if name not in names}

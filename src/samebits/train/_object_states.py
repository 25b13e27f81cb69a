"""The user's objects in a commit: their state_dict, and the state that training changes besides it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch.__future__ import get_swap_module_params_on_conversion
from torch.nn.parallel import DistributedDataParallel

from samebits import _digest as digest
from samebits.errors import InvalidArgumentError, RunMismatchError
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


class RunState(dict[str, Any]):
    """`run.state`: plain values and tensors saved with the run: `run.state.best = 1.0`, `.get("best", 9)`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"run.state.{name} was never set, or is not in the commit from which the run resumed. Set it "
                f"before the loop, in a run directory of its own, or read run.state.get({name!r}, default)."
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(dict, name):
            raise InvalidArgumentError(
                f"run.state.{name} = ...: a dict has a method of that name. Choose another."
            )
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def refill(
        self,
        saved: Mapping[str, Any],
        aliases: Mapping[str, Any] | None = None,
        restored: _in_place.Restored | None = None,
    ) -> None:
        """Takes the saved values: in place, but where the loop had replaced objects, as `aliases` say."""
        restored = restored or _in_place.Restored()
        aliases = aliases or NO_ALIASES
        restored.bind_items(saved, self, set(aliases["run_state"]))
        values = {name: restored.of(value) for name, value in saved.items()}
        self.clear()
        self.update(values)
        _in_place.move_to_devices(self, aliases["devices"])


_OF_OBJECTS = (
    "types", "objects", "grads", "requires_grad", "param_groups", "optimizer_only", "training", "buffers",
    "forward_syncs",
)  # fmt: skip
"""The parts of a gathered state, by the names of objects, or by paths that begin with these."""
NO_ALIASES: dict[str, Any] = {"run_state": [], "grads": [], "devices": []}


class Aliases:
    """The objects that the program held when its outermost loop began, and may know by other names."""

    def __init__(self) -> None:
        self._in_state, self._grads = _in_place.PlacedObjects(), _in_place.PlacedObjects()
        self._memory: dict[str, str] = {}
        """The names of parameters and buffers of modules, each with the first name of its memory."""

    def note(self, objects: Mapping[str, Stateful], run_state: RunState, made: Collection[int]) -> None:
        """Notes the objects at the beginning of a loop, but those that a resume has `made`."""
        self._in_state.note(run_state, made)
        self._grads.note(gradients(dict(_parameters(objects))), made)
        self._memory = same_memory(objects)
        for one in objects.values():
            if isinstance(one, Attributes):
                one.note_placed(made)

    def changed_memory(self, objects: Mapping[str, Stateful]) -> tuple[str, str, str] | None:
        """Returns two names that were one memory when the loop began and are "two" now, or that are "one".

        Buffers that have become one are left alone: an average may take those of its model in each step.
        """
        now, before = same_memory(objects), self._memory
        parameters = {path for path, _ in parameter_groups.named_parameters(objects, every=True)}
        for path in [path for path in before if path in now]:
            first, since = before[path], now[path]
            if first in now and since != now[first]:
                return first, path, "two"
            if since in before and first != before[since] and {path, since} <= parameters:
                return since, path, "one"
        return None

    def keeps_gradient(self, path: str) -> bool:
        """Returns True for a gradient that a resume fills in place."""
        return self._grads.has((path,))

    def state(self, saved: Mapping[str, Any], objects: Mapping[str, Stateful]) -> dict[str, Any]:
        """Returns for a commit of `saved` the places where other objects are by now, and the devices."""
        shared = shared_with_parameters(objects)
        return {
            "run_state": self._in_state.replaced(),
            "grads": self._grads.replaced(saved["grads"]),
            "devices": _in_place.devices_in(saved["run_state"]),
            **({"optimizers": shared} if shared else {}),
        }


def same_memory(objects: Mapping[str, Stateful]) -> dict[str, str]:
    """Returns the parameters and buffers of modules by name, each with the first name of its memory."""
    first: dict[Any, str] = {}
    found: dict[str, str] = {}
    for name, thing in objects.items():
        named = (
            [*thing.named_parameters(remove_duplicate=False), *thing.named_buffers(remove_duplicate=False)]
            if isinstance(thing, torch.nn.Module)
            else []
        )
        for path, one in named:
            if (
                type(one) in (torch.Tensor, torch.nn.Parameter)
                and one.layout is torch.strided
                and one.numel()
            ):
                key = one.data_ptr(), one.dtype, one.shape, one.stride()
                found[f"{name}.{path}"] = first.setdefault(key, f"{name}.{path}")
    return found


def shared_with_parameters(objects: Mapping[str, Stateful]) -> list[tuple[str, int, str]]:
    """Returns where a state of an optimizer is the memory of its parameter, as after SAM's `p.data = old`."""
    return [
        (name, number, key)
        for name, number, parameter, state in _optimizer_states(objects)
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and value is not parameter and _is_same_memory(value, parameter)
    ]


def share_again(objects: Mapping[str, Stateful], shared: Iterable[tuple[str, int, str]]) -> None:
    """Puts the memory of the parameters there again."""
    for name, number, parameter, state in _optimizer_states(objects):
        for key in [key for one, at, key in shared if (one, at) == (name, number) and key in state]:
            state[key] = parameter.detach()


def _optimizer_states(
    objects: Mapping[str, Stateful],
) -> Iterator[tuple[str, int, torch.Tensor, dict[str, Any]]]:
    for name, thing in objects.items():
        if isinstance(thing, torch.optim.Optimizer):
            parameters = (one for group in thing.param_groups for one in group["params"])
            yield from ((name, at, one, thing.state.get(one, {})) for at, one in enumerate(parameters))


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.layout is not torch.strided or not one.numel() or one.data_ptr() != other.data_ptr():
        return False
    return (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())


def note_objects(objects: Mapping[str, Stateful]) -> None:
    """Gives the adapters of a run its other objects: what an adapter's target holds of these is saved."""
    adapters = [one for one in objects.values() if isinstance(one, Attributes)]
    if adapters:
        identities = saved_identities(objects)
        named = {
            f"{name}.{path}".rstrip("."): module
            for name, thing in objects.items()
            if isinstance(thing, torch.nn.Module)
            for path, module in thing.named_modules()
        }
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


def gather(objects: Mapping[str, Stateful]) -> dict[str, Any]:
    """Returns the state of all objects, with the state of modules and parameters that state_dict leaves out.

    Besides state_dict: gradients that are alive between two steps, `requires_grad`, parameters that only an
    optimizer knows, train/eval modes, and buffers that are registered as not persistent.
    """
    modules = {name: thing for name, thing in objects.items() if isinstance(thing, torch.nn.Module)}
    parameters, numbers = dict(_parameters(objects)), dict[int, int]()
    saved = {
        name: thing.live_state(numbers) if isinstance(thing, Attributes) else thing.state_dict()
        for name, thing in objects.items()
    }
    return {
        "types": {name: type(thing).__qualname__ for name, thing in objects.items()},
        "objects": saved,
        "grads": gradients(parameters),
        "requires_grad": {path: parameter.requires_grad for path, parameter in parameters.items()},
        "param_groups": parameter_groups.names(objects),
        "optimizer_only": {path: p.detach() for path, p in parameters.items() if ".param_groups." in path},
        "training": {name: [m.training for m in module.modules()] for name, module in modules.items()},
        "buffers": {name: unsaved_buffers(module, saved[name]) for name, module in modules.items()},
        **_forward_syncs(modules),
    }


def gradients(parameters: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Returns the gradients of parameters, by their paths."""
    return {path: _to_dense(parameter.grad) for path, parameter in parameters.items()}


def _forward_syncs(modules: Mapping[str, torch.nn.Module]) -> dict[str, dict[str, bool]]:
    """Returns for each DistributedDataParallel True if it is about to broadcast rank 0's buffers: not after a
    forward without gradients, nor under `no_sync`. Empty where there is none.
    """
    found = {
        name: module.require_forward_param_sync
        for name, module in modules.items()
        if isinstance(module, DistributedDataParallel)
    }
    return {"forward_syncs": found} if found else {}


def restore(
    objects: Mapping[str, Stateful],
    saved: Mapping[str, Any],
    where: str,
    restored: _in_place.Restored | None = None,
    *,
    kept: Collection[str] = (),
) -> None:
    """Loads a gathered state into the objects, and checks that it was restored bit for bit.

    No tensor of `saved` is kept. `kept`: names of objects that are not loaded. Raises `RunMismatchError` when
    an object refuses its state, or does not have it afterwards.
    """
    restored = restored or _in_place.Restored()
    bind(objects, saved, restored)
    loaded = {name: thing for name, thing in objects.items() if name not in kept}
    for name, thing in _adapters_last(loaded):
        with _held_groups(objects, thing):
            _load(name, thing, saved["objects"][name], restored, where)
    for path, parameter in _parameters(objects):
        if path in saved["optimizer_only"]:
            parameter.data.copy_(saved["optimizer_only"][path])
        parameter.requires_grad_(saved["requires_grad"][path])
        parameter.grad = _gradient(restored.of(saved["grads"][path]), parameter.device)
    for name, modes in saved["training"].items():
        _restore_module(objects[name], modes, saved["buffers"][name])
    for name, syncs in saved.get("forward_syncs", {}).items():
        objects[name].require_forward_param_sync = syncs  # type: ignore[attr-defined]
    for name, thing in loaded.items():
        _check_restored(name, thing, saved["objects"][name], where)


def bind(objects: Mapping[str, Stateful], saved: Mapping[str, Any], restored: _in_place.Restored) -> None:
    """Notes the objects that are restored in place: those in adapters' targets, and gradients."""
    for name, thing in objects.items():
        if isinstance(thing, Attributes):
            thing.bind(saved["objects"][name], restored)
    replaced = saved.get("aliases", NO_ALIASES)["grads"]
    restored.bind_items(saved["grads"], gradients(dict(_parameters(objects))), set(replaced))


def _adapters_last(objects: Mapping[str, Stateful]) -> list[tuple[str, Stateful]]:
    """Returns the objects in the order of loading: a class of the user's may empty what it shares."""
    return sorted(objects.items(), key=lambda item: isinstance(item[1], Attributes))


def part_of(saved: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns a state with what is gathered of these objects alone."""
    found = dict(saved)
    for part in found.keys() & _OF_OBJECTS:
        found[part] = {key: one for key, one in saved[part].items() if key.split(".")[0] in names}
    return found


def restore_changed(
    objects: Mapping[str, Stateful],
    saved: Mapping[str, Any],
    where: str,
    loaded: Mapping[str, str] | None = None,
    restored: _in_place.Restored | None = None,
    *,
    again: bool = True,
) -> list[str]:
    """Restores like `restore`, except objects that have the state: a graph built with them stays valid.

    `loaded`: digests of the states that objects of the program's own classes had once they were loaded. Those
    that still have them are not loaded. Returns the names of those that have changed; they are loaded only if
    `again`.
    """
    now = gather(objects)
    before = loaded or {}
    changed = [name for name, own in before.items() if digest.of_value(now["objects"][name]) != own]
    kept = before.keys() - (changed if again else ())
    if any(digest.of_value(now[part]) != digest.of_value(saved[part]) for part in now if part != "objects"):
        restore(objects, saved, where, restored, kept=kept)
        return changed
    restored = restored or _in_place.Restored()
    bind(objects, saved, restored)
    for name, thing in _adapters_last(objects):
        if name not in kept and digest.differing(now["objects"][name], saved["objects"][name]):
            with _held_groups(objects, thing):
                _load(name, thing, saved["objects"][name], restored, where)
            _check_restored(name, thing, saved["objects"][name], where)
    return changed


def is_programs_own(thing: Any) -> bool:
    """Returns True for a class neither torch's nor samebits': loading it may do more than set its state.

    Those of `samebits.integrations` do more, too: a library takes the state over when it is ready.
    """
    torchs = torch.nn.Module | torch.optim.Optimizer | torch.optim.lr_scheduler.LRScheduler
    module = type(thing).__module__.removeprefix("samebits.integrations.")
    return not isinstance(thing, torchs) and not module.startswith(("torch.", "samebits."))


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
            _in_place.fill_tensor(buffer, module._buffers[name])
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


def _gradient(saved: Any, device: torch.device) -> torch.Tensor | None:
    """Returns the gradient that `_to_dense` split."""
    if saved is None or isinstance(saved, torch.Tensor):
        return None if saved is None else saved.to(device)
    return torch.sparse_coo_tensor(
        saved["indices"], saved["values"], saved["size"], device=device, is_coalesced=saved["coalesced"],
        check_invariants=True,
    )  # fmt: skip


def _restore_module(module: Any, modes: list[bool], buffers: Mapping[str, torch.Tensor]) -> None:
    for child, training in zip(module.modules(), modes, strict=True):
        child.training = training
    for path, value in unsaved_buffers(module).items():
        _in_place.fill_tensor(value, buffers[path])


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


def _check_restored(name: str, thing: Stateful, saved: Any, where: str) -> None:
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


def _parameters(objects: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields every parameter of the modules, then of the optimizers among `objects`, once, by its path."""
    seen: set[int] = set()
    optimizers = {name: thing for name, thing in objects.items() if isinstance(thing, torch.optim.Optimizer)}
    named = [*parameter_groups.named_parameters(objects)]
    named += [
        (f"{name}.param_groups.{number}.{index}", parameter)
        for name in sorted(optimizers)
        for number, group in enumerate(optimizers[name].param_groups)
        for index, parameter in enumerate(group["params"])
    ]
    for path, parameter in named:
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield path, parameter


def parameter_paths(objects: Mapping[str, Any]) -> set[str]:
    """Returns the paths under which a commit keeps the gradients."""
    return {path for path, _ in _parameters(objects)}


def unsaved_buffers(
    module: torch.nn.Module, saved: Mapping[str, Any] | None = None
) -> dict[str, torch.Tensor]:
    """Returns non-persistent buffers, which state_dict (`saved`) leaves out and training may change."""
    names = (module.state_dict() if saved is None else saved).keys()
    return {name: buffer for name, buffer in module.named_buffers() if name not in names}

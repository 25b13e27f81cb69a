"""What a commit holds of the user's objects: their state_dict, and what training changes besides it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from samebits.checkpoint import encode
from samebits.errors import RunMismatchError, UnsavableStateError


@runtime_checkable
class Stateful(Protocol):
    """An object that has both `state_dict` and `load_state_dict`: the only state protocol."""

    def state_dict(self) -> Any:
        """The state as nested plain values and tensors."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Puts a state back."""
        ...


class RunState(dict[str, Any]):
    """`run.state`: plain values and tensors that are saved with the run; `run.state.best = 0.3`, `.get("best", 1e9)`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"run.state.{name} was never set. Set it before the loop, or read run.state.get({name!r}, default)."
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]


def gather(objects: Mapping[str, Stateful]) -> dict[str, Any]:
    """The state of all objects, and of modules and parameters what state_dict leaves out but training changes.

    That is: gradients that are alive between two steps, train/eval modes, `requires_grad`, and buffers that are
    registered as not persistent.
    """
    modules = {name: thing for name, thing in objects.items() if isinstance(thing, torch.nn.Module)}
    return {
        "objects": {name: thing.state_dict() for name, thing in objects.items()},
        "grads": [parameter.grad for parameter in _parameters(objects.values())],
        "requires_grad": [parameter.requires_grad for parameter in _parameters(objects.values())],
        "training": {name: [m.training for m in module.modules()] for name, module in modules.items()},
        "buffers": {name: _unsaved_buffers(module) for name, module in modules.items()},
    }


def check_copies(run_state: RunState, objects: Mapping[str, Any]) -> None:
    """Raises when a tensor in `run.state` is one that an object trains on: it would be cut off by a resume."""
    kept = encode(dict(run_state))[1]
    if not kept:
        return
    trained = {_memory(tensor): path for path, tensor in encode(dict(objects))[1].items()}
    for path, tensor in kept.items():
        if tensor.numel() and _memory(tensor) in trained:
            raise UnsavableStateError(
                f"run.state.{path} is the memory of {trained[_memory(tensor)]}: it changes with it now, and would be a "
                "copy after a resume. Keep a copy: copy.deepcopy(model.state_dict()), or tensor.clone()."
            )


def check_fits(
    objects: Mapping[str, Stateful], saved: Mapping[str, Any], where: str, *, complete: bool = True
) -> None:
    """Raises `RunMismatchError`, before anything is changed, when the state is of another program.

    Unless `complete`, objects of the state may be missing yet.
    """
    problems = []
    for name in sorted({*objects, *saved["objects"]}):
        if name not in saved["objects"]:
            problems.append(f"{name!r} is not in the commit")
        elif name not in objects:
            problems += [f"the commit holds {name!r}, which was not given to Run"] if complete else []
        elif isinstance(module := objects[name], torch.nn.Module):
            problems += _shape_differences(name, module.state_dict(), saved["objects"][name])
    if complete and not problems and len(saved["grads"]) != sum(1 for _ in _parameters(objects.values())):
        problems.append("another number of parameters")
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise RunMismatchError(
            f"{where} belongs to another program: {'; '.join(problems[:5])}{more}. "
            "Use another run directory, or the program that made it."
        )


def restore(objects: Mapping[str, Stateful], saved: Mapping[str, Any], where: str) -> None:
    """Loads a gathered state into the objects."""
    for name, thing in objects.items():
        try:
            thing.load_state_dict(saved["objects"][name])
        except Exception as error:
            raise RunMismatchError(
                f"{where}: {name}.load_state_dict refused the saved state: {error}. "
                "Use another run directory, or the program that made it."
            ) from error
    flags = zip(_parameters(objects.values()), saved["grads"], saved["requires_grad"], strict=True)
    for parameter, grad, requires_grad in flags:
        parameter.requires_grad_(requires_grad)
        parameter.grad = None if grad is None else grad.to(parameter.device)
    for name, modes in saved["training"].items():
        module = objects[name]
        assert isinstance(module, torch.nn.Module)
        for child, training in zip(module.modules(), modes, strict=True):
            child.training = training
        for path, value in _unsaved_buffers(module).items():
            value.copy_(saved["buffers"][name][path])


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _parameters(objects: Iterable[Any]) -> Iterable[torch.Tensor]:
    """Every parameter of the modules and optimizers among `objects`, once, in a fixed order."""
    seen: set[int] = set()
    for thing in objects:
        if isinstance(thing, torch.nn.Module):
            candidates: Iterable[torch.Tensor] = thing.parameters()
        elif isinstance(thing, torch.optim.Optimizer):
            candidates = (p for group in thing.param_groups for p in group["params"])
        else:
            continue
        for parameter in candidates:
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter


def _unsaved_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    saved = module.state_dict().keys()
    return {name: buffer for name, buffer in module.named_buffers() if name not in saved}


def _shape_differences(name: str, mine: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    problems = []
    for path in sorted({*mine, *saved}):
        before, after = saved.get(path), mine.get(path)
        if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
            if before.shape != after.shape:
                problems.append(f"{name}.{path} had shape {tuple(before.shape)}, has {tuple(after.shape)}")
        elif (path in mine) != (path in saved):
            problems.append(f"{name}.{path} is only in {'the model' if path in mine else 'the commit'}")
    return problems

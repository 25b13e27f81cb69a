"""Checks before a state is saved or restored: that it is complete, and belongs to this program."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from samebits.checkpoint._manifest import Manifest
from samebits.errors import CorruptCommitError, RunMismatchError, UnimplementedError
from samebits.state import _in_place
from samebits.train._object_states import Stateful, parameter_paths, unsaved_buffers
from samebits.train._parameter_groups import missing

IN_EACH_STATE = (
    "types",
    "objects",
    "grads",
    "requires_grad",
    "optimizer_only",
    "training",
    "buffers",
    "run_state",
    "aliases",
    "loops",
)
IN_EACH_POSITION = ("step", "epoch", "batch_index")


def check_kind(manifest: Manifest, saved: Mapping[str, Any], where: str) -> None:
    """Raises `RunMismatchError` for a valid commit that is not one of a `Run`."""
    missing = [f"state[{name!r}]" for name in IN_EACH_STATE if not isinstance(saved.get(name), dict)]
    missing += [
        f"position[{name!r}]" for name in IN_EACH_POSITION if type(manifest.position.get(name)) is not int
    ]
    missing += [] if isinstance(manifest.position.get("loop"), str) else ["position['loop']"]
    missing += [f"program[{name!r}]" for name in ("seed", "seeded") if name not in manifest.program]
    if missing:
        raise RunMismatchError(
            f"{where}: the commit of step {manifest.step} holds no run of samebits.Run (it lacks "
            f"{', '.join(missing)}). Use another run directory."
        )


def check_content(saved: Mapping[str, Any]) -> None:
    """Raises `CorruptCommitError` for the state of a run with a part that no `Run` writes."""
    if not all(isinstance(saved.get(part), dict) for part in IN_EACH_STATE):
        return  # of another program: `check_kind`
    names, paths, modules = saved["objects"].keys(), saved["grads"].keys(), saved["training"].keys()
    current = saved["loops"].get("current", 0)
    right = {
        "objects": _holds(saved["objects"], object) and all(_holds(saved["objects"][one]) for one in modules),
        "types": _holds(saved["types"], str) and saved["types"].keys() == names,
        "grads": _holds(saved["grads"]) and all(map(_is_gradient, saved["grads"].values())),
        "requires_grad": _holds(saved["requires_grad"], bool) and saved["requires_grad"].keys() == paths,
        "optimizer_only": _holds(saved["optimizer_only"], torch.Tensor)
        and saved["optimizer_only"].keys() <= paths,
        "training": _holds(saved["training"], list)
        and all({*map(type, modes)} <= {bool} for modes in saved["training"].values()),
        "buffers": saved["buffers"].keys() == modules
        and all(_holds(one, torch.Tensor) for one in saved["buffers"].values()),
        "run_state": _holds(saved["run_state"]),
        "aliases": _in_place.is_valid(saved["aliases"], saved["run_state"]),
        "loops": _is_count(saved["loops"].get("step"))
        and _holds(saved["loops"].get("done"), dict)
        and (current is None or (_holds(current) and isinstance(current.get("name"), str)))
        and all(_is_count(current.get(key)) for key in ("epoch", "batch_index") if current),
    }  # fmt: skip
    wrong = [f"state[{part!r}]" for part, is_right in right.items() if not is_right]
    if wrong:
        raise CorruptCommitError(f"{', '.join(wrong)} is none that a Run writes")


def _holds(values: Any, kind: type = object) -> bool:
    """Returns True for a dict of such values by names."""
    return isinstance(values, dict) and all(
        isinstance(key, str) and isinstance(value, kind) for key, value in values.items()
    )


def _is_gradient(saved: Any) -> bool:
    if not isinstance(saved, dict):
        return saved is None or isinstance(saved, torch.Tensor)
    return saved.keys() == {"indices", "values", "size", "coalesced"}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def check_fits(
    objects: Mapping[str, Stateful], saved: Mapping[str, Any], where: str, *, complete: bool = True
) -> None:
    """Raises `RunMismatchError`, before anything is changed, when the state is of another program.

    Unless `complete`, objects may still be missing.
    """
    problems: list[str] = []
    missing = sorted(saved["objects"].keys() - objects.keys())
    for name in sorted({*objects, *saved["objects"]}):
        if name not in saved["objects"]:
            held = f" (it holds {', '.join(map(repr, missing))}, not given to Run)" if missing else ""
            problems.append(f"{name!r} is not in the commit{held}")
        elif name not in objects:
            problems += [f"the commit holds {name!r}, which was not given to Run"] if complete else []
        else:
            problems += _differences(name, objects, saved)
    if complete and not problems:
        problems += [
            f"{path} is no parameter of both" for path in sorted(parameter_paths(objects) ^ {*saved["grads"]})
        ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise RunMismatchError(
            f"{where} belongs to another program: {'; '.join(problems[:5])}{more}. "
            "Use another run directory, or the program that made it."
        )


def check_compiled(name: str, obj: Any) -> None:
    """Raises for a compiled module whose code depends on the shapes that this process has met so far."""
    context = getattr(obj, "dynamo_ctx", None)
    if type(obj).__name__ == "OptimizedModule" and getattr(context, "_dynamic", None) is not False:
        raise UnimplementedError(
            f"Run({name}=torch.compile(...)): with automatic dynamic shapes the compiled code depends on "
            "which batch sizes came before, and a resumed process has met others. Use torch.compile(model, "
            "dynamic=False), or samebits.nn.compiled(model, dynamic=False)."
        )


def check_not_lazy(name: str, obj: Any) -> None:
    """Raises for a module with lazy layers: a resumed program has no tensors yet for the saved ones."""
    if isinstance(obj, torch.nn.Module):
        for path, value in itertools.chain(obj.named_parameters(), obj.named_buffers()):
            if torch.nn.parameter.is_lazy(value):
                raise UnimplementedError(
                    f"Run({name}=...): {name}.{path} is lazy, and a resumed run could not restore it. Run "
                    "one batch through the model before the run is entered."
                )


def _differences(name: str, objects: Mapping[str, Stateful], saved: Mapping[str, Any]) -> list[str]:
    obj = objects[name]
    then, now = saved["types"][name], type(obj).__qualname__
    if then != now:
        return [f"{name} was a {then}, is a {now}"]
    if isinstance(obj, torch.nn.Module):
        buffers = _shape_differences(name, unsaved_buffers(obj), saved["buffers"][name])
        shapes = _shape_differences(name, obj.state_dict(), saved["objects"][name])
        return shapes + buffers or _module_differences(name, obj, saved["training"][name])
    if isinstance(obj, torch.optim.Optimizer):
        before = [len(group["params"]) for group in saved["objects"][name]["param_groups"]]
        after = [len(group["params"]) for group in obj.param_groups]
        if before != after + [len(group) for group in missing(objects, saved, name)]:
            cure = "its first groups must be those of the commit"
            return [f"{name} had parameter groups of {before} parameters, has {after} ({cure})"]
    return []


def _module_differences(name: str, module: torch.nn.Module, modes: list[bool]) -> list[str]:
    """Returns the differences of modules without tensors, such as a Dropout added in mid-training."""
    now = sum(1 for _ in module.modules())
    if now == len(modes):
        return []
    return [
        f"{name} had {len(modes)} modules, has {now} (what is added must be there before the run is entered)"
    ]


def _shape_differences(name: str, mine: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    problems = []
    for path in sorted({*mine, *saved}):
        before, after = saved.get(path), mine.get(path)
        if isinstance(
            after, torch.nn.parameter.UninitializedParameter | torch.nn.parameter.UninitializedBuffer
        ):
            problems.append(f"{name}.{path} is lazy: run one batch through the model before entering the run")
        elif isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
            if (before.shape, before.dtype) != (after.shape, after.dtype):
                then, now = (f"{tuple(t.shape)} {t.dtype}".replace("torch.", "") for t in (before, after))
                problems.append(f"{name}.{path} had shape {then}, has {now}")
        elif (path in mine) != (path in saved):
            problems.append(f"{name}.{path} is only in {'the model' if path in mine else 'the commit'}")
    return problems

"""Checks before a state is saved or restored: that it is complete, and belongs to this program."""

from __future__ import annotations

import copy
import itertools
import weakref
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits._dtensors import is_dtensor
from samebits.checkpoint._manifest import Manifest
from samebits.errors import (
    CorruptCommitError,
    InvalidArgumentError,
    RunMismatchError,
    UnimplementedError,
    UnsavableStateError,
)
from samebits.train import _committed_state as committed
from samebits.train._committed_state import CommittedState
from samebits.train._object_states import Stateful, class_name, has_form_of_torch, parameters, unsaved_buffers
from samebits.train._parameter_groups import Groups, arranged, named_parameters, names

IN_EACH_POSITION = ("step", "epoch", "batch_index")


def check_kind(manifest: Manifest, saved: Mapping[str, Any], where: str) -> None:
    """Raises `RunMismatchError` for a valid commit that is not one of a `Run`."""
    missing = [f"state[{name!r}]" for name in committed.lacking(saved)]
    wrong = [name for name in IN_EACH_POSITION if type(manifest.position.get(name)) is not int]
    missing += [f"position[{name!r}]" for name in wrong]
    missing += [] if isinstance(manifest.position.get("loop"), str) else ["position['loop']"]
    missing += [f"program[{name!r}]" for name in ("seed", "seeded") if name not in manifest.program]
    if missing:
        raise RunMismatchError(
            f"{where}: the commit of step {manifest.step} holds no run of samebits.Run (it lacks "
            f"{', '.join(missing)}). Use another run directory."
        )


def check_content(saved: Mapping[str, Any], objects: Mapping[str, Stateful]) -> None:
    """Raises `CorruptCommitError` for the state of a run with a part that no `Run` of `objects` writes."""
    if committed.lacking(saved):
        return  # of another program: `check_kind`
    try:
        wrong = committed.wrong_parts(saved) or _not_taken(CommittedState.of(saved), objects)
    except CorruptCommitError:
        raise
    except Exception as error:
        raise CorruptCommitError(f"a state that no Run writes: {error!r:.200}") from error
    if wrong:
        raise CorruptCommitError(f"{', '.join(wrong)} of the state: none that a Run writes")


def _not_taken(saved: CommittedState, objects: Mapping[str, Stateful]) -> list[str]:
    """Returns the parts with which a resume, or the next step, would fail."""
    wrong = []
    if _fits(objects, saved):
        wrong += [f"objects.{name}" for name in objects if not _is_taken(name, objects, saved)]
    for entry in saved.entries():
        wrong += committed.lacking(entry)
        check_content(entry, objects)
    return wrong


def _fits(objects: Mapping[str, Stateful], saved: CommittedState) -> bool:
    """Returns False for the state of another model, which `load` refuses with its differences."""
    try:
        check_fits(objects, saved, "", complete=False)
    except RunMismatchError:
        return False
    return True


def _is_taken(name: str, objects: Mapping[str, Stateful], saved: CommittedState) -> bool:
    """Returns False for a state with which the next step of torch's optimizer or scheduler would fail."""
    thing, state = objects[name], saved.objects.get(name)
    kind = type(thing)
    if not kind.__module__.startswith("torch.optim.") or saved.types.get(name) != kind.__qualname__:
        return True
    if isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
        return _has_types(state, thing.state_dict())
    return not isinstance(thing, torch.optim.Optimizer) or _steps(
        thing, state, arranged(objects, name, saved.param_groups)
    )


def _has_types(state: Any, mine: Any) -> bool:
    """Returns True if values have the types of `mine`: an int for a float, too, and anything for None."""
    if isinstance(mine, dict):
        both = mine.keys() & state.keys()
        return isinstance(state, dict) and all(_has_types(state[key], mine[key]) for key in both)
    if isinstance(mine, list):
        return isinstance(state, list) and all(_has_types(one, mine[0]) for one in state if mine)
    if isinstance(mine, int | float | torch.Tensor | np.number) and not isinstance(mine, bool):
        return isinstance(state, int | float | torch.Tensor | np.number)
    return mine is None or state is None or isinstance(state, type(mine))


def _steps(
    optimizer: torch.optim.Optimizer, state: Any, groups: list[list[torch.Tensor]] | None = None
) -> bool:
    """Returns True if a step goes on from a state: tried with small tensors in the place of large ones.

    `groups`: the parameters of each group as a resume arranges them; else those of the optimizer, and none of
    a group that it has not.
    """
    own = [group["params"] for group in optimizer.param_groups]
    groups = groups or own + [[]] * len(state["param_groups"])
    count = 0
    for number, group in enumerate(state["param_groups"]):
        first, count = count, count + len(group["params"])
        if group["params"] != list(range(first, count)):
            return False
        tried: dict[Any, dict[str, Any] | None] = {}
        mine = optimizer.param_groups[min(number, len(optimizer.param_groups) - 1)]
        for index, like in zip(group["params"], groups[number], strict=False):
            kind = like.dim(), like.dtype
            if kind not in tried:
                tried[kind] = _next_state(optimizer, group, like)
                if tried[kind] is None and _next_state(optimizer, mine, like) is not None:
                    return False
            if not _continues(optimizer, group, like, tried[kind] or {}, state["state"].get(index) or {}):
                return False
    return all(type(key) is not int or 0 <= key < count for key in state["state"])


def _continues(
    optimizer: torch.optim.Optimizer, group: Any, like: torch.Tensor, made: Any, then: dict[str, Any]
) -> bool:
    """Returns True if a step goes on from `then`, where the first one has `made` its own state."""
    other = [key for key in made if not _is_alike(then.get(key), made[key], like)] if then else []
    if any(isinstance(then.get(key), torch.Tensor) for key in other):
        return False  # native code would not look at its size
    small = {key: then[key] if key in other else made[key] for key in made if key in then}
    return not other or _next_state(optimizer, group, like, small) is not None


def _is_alike(then: Any, made: Any, like: torch.Tensor) -> bool:
    """Returns True for a value of the kind that a step `made` for a small parameter instead of `like`."""
    if not (isinstance(then, torch.Tensor) and isinstance(made, torch.Tensor)):
        return type(then) is type(made)
    shape = like.shape if made.shape == _small(like) else None
    same = then.dim() == made.dim() if shape is None else then.shape == shape
    return same and then.is_floating_point() == made.is_floating_point()


def _small(like: torch.Tensor) -> tuple[int, ...]:
    return tuple(range(3, 3 + like.dim()))


def _next_state(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], like: torch.Tensor, state: Any = None
) -> dict[str, Any] | None:
    """Returns the state that a step makes for a small parameter, without hooks; None where it fails."""
    parameter = torch.nn.Parameter(torch.ones(_small(like), dtype=like.dtype))
    parameter.grad = torch.ones_like(parameter)
    kind: Any = type(optimizer)
    try:
        values = copy.deepcopy({key: value for key, value in group.items() if key != "params"})
        trial = kind([parameter])
        if state is not None:
            trial.state[parameter] = copy.deepcopy(state)
        trial.__setstate__({"state": trial.state, "param_groups": [{"params": [parameter], **values}]})
        kind.step.__wrapped__(trial)
    except Exception:
        return None
    return dict(trial.state[parameter])


def check_fits(
    objects: Mapping[str, Stateful], saved: CommittedState, where: str, *, complete: bool = True
) -> None:
    """Raises `RunMismatchError`, before anything is changed, when the state is of another program.

    Unless `complete`, objects may still be missing.
    """
    problems: list[str] = []
    missing = sorted(saved.objects.keys() - objects.keys())
    for name in sorted({*objects, *saved.objects}):
        if name not in saved.objects:
            held = f" (it holds {', '.join(map(repr, missing))}, not given to Run)" if missing else ""
            problems.append(f"{name!r} is not in the commit{held}")
        elif name not in objects:
            problems += [f"the commit holds {name!r}, which was not given to Run"] if complete else []
        else:
            problems += _differences(name, objects, saved)
    if complete and not problems:
        apart = sorted(parameters(objects).keys() ^ {*saved.grads})
        problems += [f"{path} is no parameter of both" for path in apart]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise RunMismatchError(
            f"{where} belongs to another program: {'; '.join(problems[:5])}{more}. "
            "Use another run directory, or the program that made it."
        )


def is_like(one: Any, other: Any) -> bool:
    """Returns True for two modules, or two optimizers, that take each other's state."""
    if type(one) is not type(other) or not isinstance(one, torch.nn.Module | torch.optim.Optimizer):
        return False
    return isinstance(one, torch.optim.Optimizer) or _shapes(one) == _shapes(other)


def _shapes(module: Any) -> dict[str, Any]:
    return {name: getattr(value, "shape", None) for name, value in module.state_dict().items()}


class _Form(NamedTuple):
    """The shapes of the tensors of a module, by path, and the number of modules in it, at some moment."""

    module: weakref.ref[torch.nn.Module]
    shapes: dict[str, Any]
    modules: int

    @classmethod
    def of(cls, module: torch.nn.Module) -> _Form:
        saved = module.state_dict()
        shapes = _shapes_of(saved | unsaved_buffers(module, saved))
        return cls(weakref.ref(module), shapes, sum(1 for _ in module.modules()))


def _shapes_of(values: Mapping[str, Any]) -> dict[str, Any]:
    return {path: getattr(value, "shape", None) for path, value in values.items()}


class GivenForms:
    """The modules and parameters of a run as a resumed program has them, when a commit is loaded."""

    def __init__(self) -> None:
        self._given: dict[str, _Form] = {}
        self._begun: dict[str, _Form] = {}
        self._paths: dict[frozenset[str], set[str]] = {}
        """The paths of all parameters, by the names of the objects."""
        self._parameters: dict[str, int] = {}
        self._grouped: dict[str, set[str | None]] = {}

    def note_given(self, objects: Mapping[str, Stateful]) -> None:
        """Notes what was given to Run: it has its state when the run is entered."""
        self.note_begun(objects)
        self._given = self._begun

    def note_begun(self, objects: Mapping[str, Stateful]) -> None:
        """Notes the objects at an outermost loop's begin, where those that were added get their state."""
        modules = {name: thing for name, thing in objects.items() if isinstance(thing, torch.nn.Module)}
        self._begun = {name: _Form.of(module) for name, module in modules.items()}
        self._paths.setdefault(frozenset(objects), {*parameters(objects)})
        self._parameters = {path: id(one) for path, one in named_parameters(objects)}
        self._grouped = _paths_in(names(objects))

    def check_groups(self, objects: Mapping[str, Stateful]) -> None:
        """Raises `UnsavableStateError` for a parameter that left its optimizer, on which torch would fail."""
        now = _paths_in(names(objects))
        for name, before in self._grouped.items():
            gone = [path for path in before - now.get(name, before) if path]
            if gone and None not in now[name]:
                raise _taken_out(name, min(gone))

    def check(self, saved: CommittedState, objects: Mapping[str, Stateful]) -> None:
        """Raises `UnsavableStateError` for a state that a resumed program could not take."""
        for name, thing in objects.items():
            form = self._given.get(name) or self._begun.get(name)
            if form is None or form.module() is not thing:
                continue  # an epoch has made it anew, as the epoch of a resume does
            now = _shapes_of({**saved.objects[name], **saved.buffers[name]})
            for path in sorted(form.shapes.keys() | now.keys()):
                if path not in form.shapes or path not in now:
                    raise _another_form(name, f"{name}.{path}", "added" if path in now else "taken away")
                if (shapes := (form.shapes[path], now[path]))[0] != shapes[1]:
                    before, since = (tuple(one or ()) for one in shapes)
                    raise _another_form(name, f"{name}.{path}", f"changed from shape {before} to {since}")
            if form.modules != len(saved.training[name]):
                raise _another_form(name, "a layer without weights", "added or taken away")
        paths = self._paths.get(frozenset(objects))
        if paths is not None and (others := sorted(paths ^ saved.grads.keys())):
            raise self._replaced(others[0], objects)

    def _replaced(self, path: str, objects: Mapping[str, Stateful]) -> UnsavableStateError:
        now = dict(named_parameters(objects))
        replaced = [one for one, known in self._parameters.items() if one in now and id(now[one]) != known]
        what = replaced[0] if replaced else path
        return UnsavableStateError(
            f"{what} is another parameter than when the loop began, and an optimizer still has the one of "
            f"before: a resumed run could not make both. Keep the parameter, and set its values: with "
            f"torch.no_grad(): {what}.copy_(...); or {what}.requires_grad_(False) to train it no more."
        )


def _paths_in(groups: Mapping[str, Groups]) -> dict[str, set[str | None]]:
    return {name: {path for group in own for path in group} for name, own in groups.items()}


def _taken_out(name: str, path: str) -> UnsavableStateError:
    return UnsavableStateError(
        f"{path} was taken out of the groups of {name} after the loop had begun; a resumed program has it "
        "there, and could not take this commit. Leave it there, and train it no more: "
        f"{path}.requires_grad_(False), and {path}.grad = None."
    )


def _another_form(name: str, what: str, how: str) -> UnsavableStateError:
    return UnsavableStateError(
        f"{what} was {how} after {name} had been given to the run; a resumed program has {name} as it was, "
        f"and could not take this commit. Give {name} all its layers before `with samebits.Run(...)`: those "
        "of later may wait there unused. What changes only between two loops may be added behind the change "
        f"instead of being given to Run: run.add({name!r}, {name})."
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


def check_not_sharded(name: str, obj: Any) -> None:
    """Raises for a sharded module that comes when the commit has been read: each rank reads its own rows."""
    if isinstance(obj, torch.nn.Module) and any(map(is_dtensor, obj.parameters())):
        raise InvalidArgumentError(
            f"Run.add({name!r}): its parameters are sharded (fully_shard), and each rank reads its rows when "
            f"the run is entered. Give it to the run: with samebits.Run(run_dir, {name}=...)."
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


def _differences(name: str, objects: Mapping[str, Stateful], saved: CommittedState) -> list[str]:
    obj = objects[name]
    then, now = saved.types[name], class_name(obj)
    if then != now:
        return [f"{name} was a {then}, is a {now}"]
    if isinstance(obj, torch.nn.Module):
        buffers = _shape_differences(name, unsaved_buffers(obj), saved.buffers[name])
        shapes = _shape_differences(name, obj.state_dict(), saved.objects[name])
        return shapes + buffers or _module_differences(name, obj, saved.training[name])
    if isinstance(obj, torch.optim.Optimizer) and has_form_of_torch(saved.objects[name]):
        before = [len(group["params"]) for group in saved.objects[name]["param_groups"]]
        after = [len(group["params"]) for group in obj.param_groups]
        if before != after and arranged(objects, name, saved.param_groups) is None:
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
        lazy = torch.nn.parameter.UninitializedParameter | torch.nn.parameter.UninitializedBuffer
        if isinstance(after, lazy):
            problems.append(f"{name}.{path} is lazy: run one batch through the model before entering the run")
        elif isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
            if (before.shape, before.dtype) != (after.shape, after.dtype):
                then, now = (f"{tuple(t.shape)} {t.dtype}".replace("torch.", "") for t in (before, after))
                problems.append(f"{name}.{path} had shape {then}, has {now}")
        elif (path in mine) != (path in saved):
            problems.append(f"{name}.{path} is only in {'the model' if path in mine else 'the commit'}")
    return problems

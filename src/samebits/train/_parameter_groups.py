"""Parameter groups that a program adds in mid-training: `optimizer.add_param_group(...)`, gradual unfreezing.

A commit has the names of the parameters of each group, as the run's modules name them. A resumed program's
optimizer begins with the groups of its constructor; those that it lacks are made again before its state is
loaded. So a group of parameters that no module of the run names is refused where it is added.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from samebits._inspect.patching import Patches
from samebits._inspect.user_code import calling_line
from samebits.errors import InvalidArgumentError

Groups = list[list[str | None]]
"""The paths of the parameters of each group; None for one that no module of the run names."""


def named_parameters(
    objects: Mapping[str, Any], *, every: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters of the modules among `objects`, by path; by `every` path that one has."""
    for name in sorted(objects):
        if isinstance(objects[name], torch.nn.Module):
            named = objects[name].named_parameters(remove_duplicate=not every)
            yield from ((f"{name}.{path}", one) for path, one in named)


def ties(objects: Mapping[str, Any]) -> set[frozenset[str]]:
    """Returns the paths of each parameter that several modules have, or one module twice."""
    paths: dict[int, set[str]] = {}
    for name, thing in objects.items():
        if isinstance(thing, torch.nn.Module):
            for path, one in thing.named_parameters(remove_duplicate=False):
                paths.setdefault(id(one), set()).add(f"{name}.{path}")
    return {frozenset(several) for several in paths.values() if len(several) > 1}


def names(objects: Mapping[str, Any]) -> dict[str, Groups]:
    """Returns for each optimizer among `objects` the names of the parameters of its groups."""
    paths = {id(parameter): path for path, parameter in named_parameters(objects)}
    return {
        name: [[paths.get(id(one)) for one in group["params"]] for group in thing.param_groups]
        for name, thing in objects.items()
        if isinstance(thing, torch.optim.Optimizer)
    }


def arranged(
    objects: Mapping[str, Any], name: str, saved: Mapping[str, Groups]
) -> list[list[torch.Tensor]] | None:
    """Returns the parameters of the groups of an optimizer as a commit has them; None if they cannot be made.

    They can if modules of the run name all of them, and the optimizer's own are among them: a program may
    move parameters from group to group, and add groups.
    """
    wanted = saved.get(name, [])
    mine, here = names(objects)[name], dict(named_parameters(objects))
    has, gets = ([path for group in groups for path in group] for groups in (mine, wanted))
    added = {path for group in wanted[len(mine) :] for path in group}
    known = all(path in here for path in gets) and len({*gets}) == len(gets)
    if not known or not {*gets} - added <= {*has} <= {*gets} or len(wanted) < len(mine):
        return None
    return [[here[str(path)] for path in group] for group in wanted]


class AddedGroups:
    """The groups of a run's optimizers: watched while the run is open, and made again by a resume."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        self._patches = Patches()
        self._tied: set[frozenset[str]] = set()
        self._made: list[list[int]] = []
        """Those of a resume, by their parameters; a program may repeat them until the loop goes on."""

    def open(self) -> None:
        self._tied = ties(self._objects)
        optimizer = torch.optim.Optimizer
        self._patches.put(optimizer, "add_param_group", self._checked(optimizer.add_param_group))

    def close(self) -> None:
        """Ends the checks."""
        self._patches.undo()

    def make(self, saved: Mapping[str, Groups]) -> None:
        """Gives the optimizers the groups of a commit, in its order; its state has their values.

        States of an optimizer go by the number of a parameter. Modules that have changed places in training
        (`m.a, m.b = m.b, m.a`) have theirs in another order than in the constructor.
        """
        for name, thing in self._objects.items():
            if isinstance(thing, torch.optim.Optimizer):
                groups = arranged(self._objects, name, saved) or []
                for group, parameters in zip(thing.param_groups, groups, strict=False):
                    if [*map(id, group["params"])] != [*map(id, parameters)]:
                        group["params"][:] = parameters
                for parameters in groups[len(thing.param_groups) :]:
                    thing.add_param_group({"params": parameters})
                    self._made.append([id(one) for one in parameters])

    def settle(self) -> None:
        """Notes that the loop goes on: what the program adds now is new."""
        self._made.clear()

    def _checked(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def add_param_group(optimizer: torch.optim.Optimizer, param_group: dict[str, Any]) -> None:
            name = self._name_of(optimizer)
            if name is not None and isinstance(param_group, dict) and "params" in param_group:
                added = _parameters(param_group)
                if [id(one) for one in added] in self._made:
                    return
                self._check(name, added)
            original(optimizer, param_group)

        return add_param_group

    def _name_of(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Returns the name in the run of an optimizer, or of one that is around it (Accelerate's)."""
        groups = vars(optimizer).get("param_groups")
        return next(
            (
                name
                for name, thing in self._objects.items()
                if isinstance(thing, torch.optim.Optimizer) and thing.param_groups is groups
            ),
            None,
        )

    def _check(self, name: str, added: list[Any]) -> None:
        if parted := sorted(map(sorted, self._tied - ties(self._objects))):
            raise InvalidArgumentError(
                f"{name}.add_param_group at {calling_line()}: {' and '.join(parted[0])} were one parameter "
                "when the run began, and are not now; a resumed run could not part them again. Make two "
                "parameters before `with`, and copy one to the other after each step as long as they are to "
                "be equal: with torch.no_grad(): head.copy_(embedding)"
            )
        known = {id(parameter) for _, parameter in named_parameters(self._objects)}
        unknown = [one for one in added if isinstance(one, torch.Tensor) and id(one) not in known]
        if unknown:
            raise InvalidArgumentError(
                f"{name}.add_param_group at {calling_line()}: {len(unknown)} of its {len(added)} parameters "
                f"(the first of shape {tuple(unknown[0].shape)}) belong to no module of the run, so that a "
                "resumed run could not make this group again. Give the module that has them to the run, "
                'before the loop: run.add("body", body); or add the group before `with`.'
            )


def _parameters(group: dict[str, Any]) -> list[Any]:
    """Returns the parameters of a group that is to be added; an iterator in it becomes a list."""
    given = group["params"]
    if not isinstance(given, torch.Tensor | list | tuple | set):
        given = group["params"] = list(given)
    several = [given] if isinstance(given, torch.Tensor) else given
    return [one[1] if isinstance(one, tuple) and len(one) == 2 else one for one in several]

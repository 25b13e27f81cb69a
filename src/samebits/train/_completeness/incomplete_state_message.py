"""The message of `IncompleteStateError`: each value that a resume would lose, and the lines that save it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from samebits._context import Position
from samebits._inspect.user_code import keeps_attributes
from samebits._program import release_locals
from samebits.state._attributes import Attributes
from samebits.state._parts import is_plain
from samebits.train._completeness.code_lines import LoopSource, sources_around
from samebits.train._completeness.cures import SavingLines, is_below
from samebits.train._completeness.lost_changes import Change, Late, is_fetched, means_saved
from samebits.train._completeness.reachable_state import PACKAGE
from samebits.train._completeness.saved_objects import joined, memory_of
from samebits.train._object_states import saved_identities

_SHORT = 4
_MADE_ANEW = (
    ": the loop makes it anew, and a resumed run has the one of before the loop. Make each before the loop, "
    "give each to the run, and keep in run.state which is used; or keep in run.state what it is made from, "
    "and make it anew in each epoch of run.epochs, or in each step"
)
_EMPTY_STATES = {"samebits.callbacks._base", "lightning.pytorch.callbacks.callback"}
"""The modules whose `Callback.state_dict` returns nothing: one that keeps a value defines its own."""
_KEEP = ": keep it in run.state, or in an object with a state_dict that the run has"


class MessageLine(NamedTuple):
    """One value in the message."""

    text: str
    code: Sequence[tuple[str, str]] = ()
    """The lines that save it, each with its place; none where the text says what to do."""


class Variable(NamedTuple):
    """A variable, and the function where lines about it are pasted."""

    source: LoopSource
    text: str
    """The variable as the code there names it."""
    value: Any
    module: str = ""
    """The module whose functions use it as a global variable."""


class SeenProgram:
    """The program as one sees it who pastes: functions around the loop, objects of the run, modules.

    `at_start`: the paths that there were before the loop.
    """

    def __init__(
        self,
        frame: FrameType | None,
        objects: Mapping[str, Any],
        modules: Iterable[ModuleType] = (),
        at_start: Collection[str] = (),
    ) -> None:
        self.sources = sources_around(frame)
        self.modules, self.at_start, self.objects = list(modules), at_start, objects
        self.saved, self._names = {*saved_identities(objects)}, {*objects}

    def variable(self, name: str) -> Variable | None:
        """Returns a variable, in the innermost function that has it and the run; None if there is none."""
        for source in self.sources:
            frame = source.frame
            if name in frame.f_locals and frame.f_locals is not frame.f_globals:
                return Variable(source, name, frame.f_locals[name]) if source.run else None
        for source in filter(lambda one: one.run, self.sources):
            if name in source.frame.f_globals:
                uses, is_function = source.uses(name), source.frame.f_locals is not source.frame.f_globals
                is_shared = is_function or any(use.in_function for use in uses) or not uses
                module = str(source.frame.f_globals.get("__name__")) if is_shared else ""
                return Variable(source, name, source.frame.f_globals[name], module)
            for module in self.modules:
                if name in vars(module):
                    text = f"{source.name_of_module(module.__name__)}.{name}"
                    return Variable(source, text, vars(module)[name], module.__name__)
        return None

    def given(self, name: str) -> Variable | None:
        """Returns an object of the run, by a variable that holds it."""
        thing = self.objects.get(name)
        thing = getattr(thing, "target", thing)
        for source in filter(lambda one: one.run, self.sources):
            scopes = (source.frame.f_locals, source.frame.f_globals)
            names = [one for scope in scopes for one, value in scope.items() if value is thing]
            return Variable(source, names[0] if names else f'{source.run}.objects["{name}"]', thing)
        return None

    def text_of(self, path: str) -> str:
        """Returns a path of a saved object as the code has it; empty if it cannot be written."""
        name = "run.state" if path.startswith("run.state.") else re.split(r"[.\[]", path, maxsplit=1)[0]
        found = next((one.run for one in self.sources if one.run), "")
        given = self.given(name)
        text = f"{found}.state" if name == "run.state" else given.text if given is not None else ""
        return f"{text}{path.removeprefix(name)}" if text and "[a view" not in path else ""

    def may_have_two_names(self, path: str) -> bool:
        """Returns True for a saved object that is one object again under a second saved name."""
        thing = self.objects.get(re.split(r"[.\[]", path, maxsplit=1)[0])
        is_one = path.startswith("run.state.") or path.endswith(".grad") or isinstance(thing, Attributes)
        return is_one and "[a view" not in path

    def optimizer_with(self, value: Any) -> str:
        """Returns the name of an optimizer of the run whose state has a tensor of a value; empty if none."""
        held = {memory_of(one) for one in tree_leaves(value) if isinstance(one, torch.Tensor)}
        for name, thing in self.objects.items() if held else ():
            if isinstance(thing, torch.optim.Optimizer):
                kept = (one for own in thing.state.values() for one in tree_leaves(own))
                if any(memory_of(one) in held for one in kept if isinstance(one, torch.Tensor)):
                    return name
        return ""

    def lines(self, source: LoopSource) -> SavingLines:
        """Returns lines for a function: none yet."""
        return SavingLines(source.run or "run", source.name_of_module("samebits"), self.saved, self._names)

    def lacked(self, root: str, path: str) -> bool:
        """Returns True for an attribute that the object of a root did not have before the loop."""
        known = any(is_below(_readable_path(one), root) for one in self.at_start)
        attribute = path.split("[", maxsplit=1)[0]
        return known and not any(is_below(_readable_path(one), attribute) for one in self.at_start)


def message(
    changes: list[Change], late: list[Late], position: Position, assigned: list[str], program: SeenProgram
) -> str:
    """Returns the message. `assigned`: variables that the loop carries and assigns, not changed yet."""
    grouped = _grouped(changes)
    entries = [*entries_of(changes, program), *map(_late, late)]
    description = "a local variable that the loop assigns"
    entries += [entry_of_variable(name, description, program) for name in assigned]
    release_locals([one.frame for one in program.sources])
    inside = [subject_of(one) for one in changes if one.now.root == "given"]  # not the whole object
    kept = [name for name, group in grouped.items() if group[0].now.root != "given"]
    paths = list(dict.fromkeys([*inside, *kept, *(one.path for one in late), *assigned]))
    lines = [*(f"  - {one.text}" for one in entries), *blocks(entries)]
    named = ", ".join(f'"{path}"' for path in paths)
    return (
        f"Run, loop {position.loop!r}, before step {position.step}: what follows changes from step to step "
        "and is in no commit, so that a resumed run would continue with other values:\n"
        + "\n".join(lines)
        + "\n"
        f"What does no harm (a log, a cache of what is computed again): Run(ignore=[{named}]), "
        "Trainer.fit(ignore=[...]); a path includes all below it. check_complete=False turns the check off."
    )


def entries_of(changes: list[Change], program: SeenProgram) -> list[MessageLine]:
    return [_entry(subject, group, program) for subject, group in _grouped(changes).items()]


def blocks(entries: Iterable[MessageLine]) -> list[str]:
    """Returns the lines to paste, by place; an import comes first, and once."""
    code = [pair for one in entries for pair in one.code]
    text: list[str] = []
    for place in dict.fromkeys(place for place, _ in code):
        own = dict.fromkeys(line for at, line in code if at == place)
        first = "In" if text else "To save them, in"
        text.append(f"{first} {place}:" if place else "To save them, before the loop:")
        text += [f"    {line}" for line in sorted(own, key=lambda line: not line.startswith("import "))]
    return text


def _grouped(changes: list[Change]) -> dict[str, list[Change]]:
    """Returns the changes by subject; all of one object go together, if there are several."""
    subjects: dict[str, set[str]] = {}
    for change in changes:
        if change.now.root in {"local", "global", "given"} and not _is_in_hook(change):
            subjects.setdefault(change.now.places[0].name, set()).add(subject_of(change))
    grouped: dict[str, list[Change]] = {}
    for change in changes:
        several = len(subjects.get(change.now.places[0].name, ())) > 1 and not _is_in_hook(change)
        grouped.setdefault(change.now.places[0].name if several else subject_of(change), []).append(change)
    return grouped


def printed_message(names: list[str]) -> str:
    """Returns the text of the warning of values that flow only into output."""
    listed = ", ".join(names)
    return (
        f"Run: {listed}: only printed, logged or written to a file, and in no commit. A resumed run prints "
        "other values there, and ends with the same weights. To print the same, keep it in run.state. "
        f"Without this warning: Run(ignore=[{', '.join(map(repr, names))}])."
    )


def unlikely_message(names: list[str]) -> str:
    """Returns the warning of variables that are carried only past an inner loop that runs no time."""
    listed = ", ".join(names)
    return (
        f"Run: {listed}: an inner loop sets it, and the code after that loop reads it. If the loop runs no "
        "time in a step, the value of an earlier step is read, which is in no commit. Set it before the "
        "inner loop."
    )


def _late(one: Late) -> MessageLine:
    return MessageLine(
        f"{one.path} {one.text}: a resumed program begins with what it was built with. Make this change "
        "before the loop, by a value in run.state, or set it in every step, from step.number."
    )


def _is_in_hook(change: Change) -> bool:
    return any(place.kind == "hook" for place in change.now.places)


def entry_of_variable(name: str, description: str, program: SeenProgram) -> MessageLine:
    """Returns the entry of a variable that holds a value: kept in run.state, or saved in its module."""
    text = f"{name} ({description})"
    found = program.variable(name)
    if found is None:
        return MessageLine(text + _KEEP)
    source = found.source
    if not is_plain(found.value) or getattr(found.value, "requires_grad", False):
        return _saved_object(text, name, found, [""], program)
    if found.module:
        lines = program.lines(source)
        lines.attributes(name, source.name_of_module(found.module), [name])
        return MessageLine(text, _with_imports(source, [source.before], lines.code))
    if optimizer := program.optimizer_with(found.value):
        return MessageLine(
            f"{text}: it holds tensors of {optimizer}.state, which a resume makes anew. Take them from there "
            "in each step, and ask for step.number, not for None, from when on they are used"
        )
    if behind := source.lines_behind_run(name):
        return MessageLine(
            f"{text}: set in line {_ranges(behind)}, behind a run's `with`; a resumed process comes there "
            "without the steps of a run that is over. Keep in run.state what that line reads of the loop"
        )
    key = f"{name}_" if hasattr(dict, name) else name
    begun = source.file_and_lines_of(name)
    numbers = source.lines_to_change(name) if begun is None else begun[1]
    where = f"line{'s' * (len(numbers) > 1)} {_ranges(numbers)}" if numbers else "the loop"
    instead = f"{source.run}.state.{key} instead of {name} in {where}"
    if views := _names_of_same_memory(found):
        text += f"; make {', '.join(views)}, of the same memory, from {source.run}.state.{key} after the line"
    if begun is not None:
        return MessageLine(text, [(begun[0], instead)])
    if source.before_of(name) not in source.places(name):
        return MessageLine(text, [(source.before.partition(",")[0], instead)])
    line = f'{source.run}.state.setdefault("{key}", {name})  # and {instead}'
    return MessageLine(text, [(source.before_of(name), line)])


def _names_of_same_memory(found: Variable) -> list[str]:
    """Returns the other variables that hold a tensor or an array, or views of it."""
    kinds = torch.Tensor, np.ndarray
    held = {name: one for name, one in found.source.frame.f_locals.items() if isinstance(one, kinds)}
    memory = memory_of(found.value) if isinstance(found.value, kinds) else None
    return [name for name, one in held.items() if name != found.text and memory_of(one) == memory]


def _ranges(numbers: list[int]) -> str:
    """Returns "3, 5-7" for 3, 5, 6, 7."""
    starts = [one for one in numbers if one - 1 not in numbers]
    ends = [one for one in numbers if one + 1 not in numbers]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def _entry(subject: str, group: list[Change], program: SeenProgram) -> MessageLine:
    change = group[0]
    root, is_local = change.now.places[0].name, change.now.root == "local"
    role = change.taken.roots[root]
    reader = "the code after the loop" if root in change.taken.after_loop else "the next iteration"
    where = f"a local variable that {reader} reads" if is_local else "a global variable"
    if _is_in_hook(change):
        return MessageLine(
            f"{subject}: a hook holds it, which no state_dict saves. Keep it in run.state, or in an object "
            "with a state_dict that is given to the run."
        )
    if any(one.path in one.taken.functions_held for one in group):
        return MessageLine(
            f"{subject}: it holds another function than before, and which one is in no commit. Choose the "
            "function in each step, by a value in run.state or by step.number"
        )
    if change.now.root == "given":
        return _of_given(root, group, program)
    if change.now.root == PACKAGE:
        return _of_package(subject, known=role.known, program=program)
    if change.now.root == "loader":
        return _of_loader(root, subject, group, program)
    if role.group == "iterator":
        cure = "let the run read its loader, in run.steps(loader) or epoch.steps(loader)"
        if role.saves:
            cure = f"give its loader to the run, Run({root}=loader), which resumes it where it was"
        return MessageLine(f"{subject} (an iterator, {where}): {cure}; or index by step.number.")
    meant = str(change.now.value or change.before.value)
    if means_saved(change) and "[a view" in meant:
        owner = meant.partition("[a view")[0]
        return MessageLine(
            f"{subject} ({where}): it was a view of {owner}, and has other memory after a resume. Make it "
            f"from {owner}, after the line that gives that to the run."
        )
    if means_saved(change) and not program.may_have_two_names(meant):
        return MessageLine(
            f"{subject} ({where}): it means {change.now.value or 'another object'}, and which it means is in "
            "no commit. Keep the index or the key in run.state and take the object by that; or take it "
            "anew in each step."
        )
    is_value = role.group == "plain" or (role.group == "container" and len(change.now.places) == 1)
    if is_value and not role.saves:
        value = "" if change.now.value is None else f", now {change.now.value!r:.40}"
        return entry_of_variable(root, where + value, program)
    inside = _inside([one for one in group if one.path not in (root, subject)])
    kind = "the class" if role.group == "class" else "an" if role.name[0] in "AEIOU" else "a"
    text = f"{subject} ({kind} {role.name}, {where})" + (f": {inside}" if inside not in ("", subject) else "")
    found = program.variable(root)
    paths = _paths(root, group)
    if found is not None and len(found.source.places(root)) > 1 and is_plain(found.value):
        return entry_of_variable(root, f"{kind} {role.name}, {where}", program)
    return MessageLine(text + _KEEP) if found is None else _saved_object(text, root, found, paths, program)


def _of_given(root: str, group: list[Change], program: SeenProgram) -> MessageLine:
    owner, *_ = [kind for kind, _ in group[0].now.owners] or [None]
    name = group[0].taken.roots[root].name if owner is None else owner.__name__
    cure = "Save and load it there"
    if owner is not None and issubclass(owner, torch.nn.Module) and not group[0].now.installed:
        cure = "Make it a buffer before the loop (register_buffer)"
    text = f"{_inside(group)}: {name} was given to Run, and its state_dict leaves this out. {cure}"
    kind, paths = type(program.objects.get(root)), _paths(root, group)
    state_dict = getattr(kind, "state_dict", None)
    is_own = not any("." in path for path in paths)
    if is_own and getattr(state_dict, "__module__", "") in _EMPTY_STATES:
        names = dict.fromkeys(path.partition("[")[0] for path in paths)
        saved = ", ".join(f'"{name}": self.{name}' for name in names)
        code = ["def state_dict(self):", f"    return {{{saved}}}", "def load_state_dict(self, state_dict):"]
        code += [f'    self.{name} = state_dict["{name}"]' for name in names]
        return MessageLine(text, [(f"class {kind.__name__}", line) for line in code])
    if (found := program.given(root)) is None:
        return MessageLine(text)
    return _saved_object(f"{text}, or save it besides", root, found, paths, program)


def _of_package(subject: str, *, known: bool, program: SeenProgram) -> MessageLine:
    text = f"{subject} (a global variable of an installed package)"
    source = next((one for one in program.sources if one.run), None)
    if source is None:
        return MessageLine(text + _KEEP)
    module, _, name = subject.rpartition(".")
    attributes = f'{source.name_of_module("samebits")}.state.attributes({module}, "{name}")'
    line = f'{source.run}.add("{subject.replace(".", "_")}", {subject if known else attributes})'
    return MessageLine(text, [(source.before, f"import {module}"), (source.before, line)])


def _of_loader(root: str, subject: str, group: list[Change], program: SeenProgram) -> MessageLine:
    """Returns the entry for a value in a loader: lines for what the loop sets and each batch reads."""
    part, found = subject.partition(".")[2].partition(".")[0], program.variable(root)
    text = f"{subject}: of a loader a commit holds the position, and not this"
    of_pipeline = found is not None and not hasattr(found.value, "dataset")  # it calls such a function here
    if found and (of_pipeline or part in {"sampler", "batch_sampler"} or not is_fetched(group[0])):
        program.saved.add(id(found.value))
        return _saved_object(text, root, found, _paths(root, group), program)
    return MessageLine(
        f"{text}. Compute it from the index, or in set_epoch(epoch) from the epoch and values in run.state; "
        "the global generators are set for each element. What each batch fills anew does no harm."
    )


def _inside(group: list[Change]) -> str:
    paths = list(dict.fromkeys(map(_shown_path, group)))
    return ", ".join(paths[:_SHORT]) + (f" and {len(paths) - _SHORT} more" if len(paths) > _SHORT else "")


def _shown_path(change: Change) -> str:
    """Returns the path; in an object of an installed package nothing behind a private name."""
    path = _readable_path(change.path)
    for kind, name in change.now.owners:
        if name.startswith("_") and keeps_attributes(kind) and f".{name}" in path:
            return f"private attributes of {path.partition(f'.{name}')[0]}"
    return path


def _saved_object(
    text: str, root: str, found: Variable, paths: Sequence[str], program: SeenProgram
) -> MessageLine:
    """Returns the entry of an object with the lines that give it to the run.

    One that the loop makes anew is given again, behind the line that makes it.
    """
    source, lines = found.source, program.lines(found.source)
    if source.begins_as_none(found.text):
        return MessageLine(
            f"{text}: it is None before the loop, where a resumed run would need the object. Make it there, "
            "give it to the run, and keep in run.state from when on it is used"
        )
    name = type(found.value).__name__.lower() if root == "self" else root
    new = any(program.lacked(root, f"{root}.{path}") for path in paths)
    lines.save(name, found.text, found.value, paths, new=new)
    if lines.cannot:
        reasons = [f"{joined(found.text, path)} is {why}" for path, why in lines.cannot.items()]
        text += f". No line can save it: {'; '.join(reasons[:_SHORT])}. Compute it from step.number, or keep "
        text += "its plain values, or its index or key, in run.state"
    is_of_epochs = source.is_over_epochs and isinstance(found.value, torch.nn.Module | torch.optim.Optimizer)
    by_itself = any("attributes(" not in line for line in lines.code) or hasattr(found.value, "dataset")
    is_set_in_loop = any(place != source.before_of(found.text) for place in source.places(found.text))
    if is_set_in_loop and by_itself and not is_of_epochs:
        return MessageLine(text + _MADE_ANEW)  # a run takes a name once, and a resumed run skips the line
    return MessageLine(text, _with_imports(source, source.places(found.text), lines.code))


def _with_imports(source: LoopSource, places: list[str], code: list[str]) -> list[tuple[str, str]]:
    whole = [*(one for line in code for one in source.imports(line)), *code]
    return [(place, line) for place in places for line in whole]


def _paths(root: str, group: list[Change]) -> list[str]:
    """Returns the changed paths inside the object of a root, as they are written after its name."""
    return list(dict.fromkeys(_readable_path(one.path).removeprefix(root).removeprefix(".") for one in group))


def subject_of(change: Change) -> str:
    """Returns the name to save, or the attribute of an object that leaves it out."""
    if change.now.root in {"local", "global"} and (not change.now.owners or change.now.installed):
        return change.now.places[0].name
    return _readable_path(change.path).split("[")[0]


def _readable_path(path: str) -> str:
    if path.startswith("len("):
        return path.removeprefix("len(").removesuffix(".keys()").removesuffix(")")
    return path.removesuffix(".keys()")

"""The message of `IncompleteStateError`: each value that a resume would lose, and the lines that save it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import torch

from samebits._context import Position
from samebits.state._known_classes import name_of_known
from samebits.train._completeness.lost_changes import Change, Late

_SHOWN = 6
_ATTRIBUTES = 4


class MessageLine(NamedTuple):
    """One value in the message."""

    text: str
    code: str = ""
    """The lines that save it, before the loop; empty where the text says what to do."""


def message(
    changes: list[Change],
    late: list[Late],
    position: Position,
    assigned: list[str],
    defined: Collection[str] | None = None,
) -> str:
    """Returns the message.

    `assigned`: variables that the loop carries and assigns, and that have not changed yet; `defined`: those
    that a loop over epochs began with (None: not known, or there is none).
    """
    grouped = _grouped(changes)
    entries = {subject: _entry(subject, group) for subject, group in grouped.items()}
    for name, group in grouped.items():
        is_new = defined is not None and group[0].now.root == "local" and name not in defined
        if is_new and entries[name].code:
            text = entries[name].text
            text += f". Write run.state.{name} instead of {name}, in all of the loop over epochs"
            entries[name] = MessageLine(text)
    entries |= {one.path: _late(one) for one in late}
    entries |= {name: _variable(name, "a local variable that the loop assigns") for name in assigned}
    paths, shown = list(entries), list(entries.values())[:_SHOWN]
    lines = [f"  - {one.text}" for one in shown]
    if len(paths) > _SHOWN:
        lines.append(f"  - and {len(paths) - _SHOWN} more: {', '.join(paths[_SHOWN : _SHOWN + 10])}")
    code = [f"    {line}" for one in shown for line in one.code.splitlines()]
    if code:
        lines += ["To save them, before the loop:", *code]
    named = ", ".join(f'"{path}"' for path in paths[:_SHOWN])
    return (
        f"Run, loop {position.loop!r}, before step {position.step}: what follows changes from step to step "
        "and is in no commit, so that a resumed run would continue with other values:\n"
        + "\n".join(lines)
        + "\n"
        f"What does no harm (a log, a cache of what is computed again): Run(ignore=[{named}]), "
        "Trainer.fit(ignore=[...]); a path includes all below it. check_complete=False turns the check off."
    )


def _grouped(changes: list[Change]) -> dict[str, list[Change]]:
    """Returns the changes by subject; several attributes of one variable's object go under the variable."""
    subjects: dict[str, set[str]] = {}
    for change in changes:
        if change.now.root in {"local", "global"}:
            subjects.setdefault(change.now.places[0].name, set()).add(subject_of(change))
    grouped: dict[str, list[Change]] = {}
    for change in changes:
        several = len(subjects.get(change.now.places[0].name, ())) > 1
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


def _variable(name: str, description: str, where: str = "in the loop") -> MessageLine:
    line = f'run.state.setdefault("{name}", {name})  # and run.state.{name} instead of {name} {where}'
    return MessageLine(f"{name} ({description})", line)


def _entry(subject: str, group: list[Change]) -> MessageLine:
    change = group[0]
    role = change.taken.roots[change.now.places[0].name]
    root, is_local = change.now.places[0].name, change.now.root == "local"
    is_for_after = is_local and root in change.taken.after_loop
    reader = "the code after the loop" if is_for_after else "the next iteration"
    where = f"a local variable that {reader} reads" if is_local else "a global variable"
    if any(place.kind == "hook" for place in change.now.places):
        return MessageLine(
            f"{subject}: a hook holds it, which no state_dict saves. Keep it in run.state, or in an object "
            "with a state_dict that is given to the run."
        )
    if change.now.root == "given":
        owner = change.now.owners[0][0].__name__ if change.now.owners else role.name
        cure = "Save and load it there."
        if change.now.owners and issubclass(change.now.owners[0][0], torch.nn.Module):
            cure = (
                "Make it a buffer before the loop (register_buffer), or save it by get_extra_state and "
                "set_extra_state."
            )
        if change.now.installed:  # its class is not the user's to change
            inner = subject.removeprefix(f"{root}.")
            rest = f'samebits.state.attributes(<the {role.name}>, "{inner}")'
            cure = f'Save it besides: run.add("{root}_rest", {rest}).'
        return MessageLine(f"{subject}: {owner} was given to Run, and its state_dict leaves this out. {cure}")
    if change.now.root == "loader":
        return MessageLine(_of_loader(subject, change))
    if role.group == "iterator":
        cure = "let the run read its loader, in run.steps(loader) or epoch.steps(loader)"
        if role.saves:
            cure = f"give its loader to the run, Run({root}=loader), which resumes it where it was"
        return MessageLine(f"{subject} (an iterator, {where}): {cure}; or index by step.number.")
    is_value = role.group == "plain" or (role.group == "container" and len(change.now.places) == 1)
    if is_value and not role.saves:
        value = "" if change.now.value is None else f", now {change.now.value!r:.40}"
        used = (
            "in the loop and after it"
            if is_for_after
            else "in the loop"
            if is_local
            else "wherever it is used"
        )
        return _variable(root, where + value, used)
    one = _of_object(subject, root, group, where)
    return one._replace(code=f"{one.code} and after it") if is_for_after and "#" in one.code else one


def _of_loader(subject: str, change: Change) -> str:
    if ".collate_fn" in change.path:
        return (
            f"{subject}: a commit holds the loader's position, nothing of what its collate function keeps "
            "from batch to batch. Make it anew in each call; a buffer that each batch fills before it is "
            "read does no harm."
        )
    return (
        f"{subject}: a commit holds the loader's position, nothing of what its dataset or sampler counts or "
        "draws. Compute it from the index, or from the epoch in set_epoch(epoch); the global generators are "
        "set for each element."
    )


def _of_object(subject: str, root: str, group: list[Change], where: str) -> MessageLine:
    """Returns the entry for an object: an adapter that fits its class, or one of the named attributes."""
    role = group[0].taken.roots[root]
    attributes = _attributes(root, group)
    inside = ", ".join(f"{root}.{one}" for one in attributes[:_ATTRIBUTES])
    if len(attributes) > _ATTRIBUTES:
        inside += f" and {len(attributes) - _ATTRIBUTES} more"
    if not attributes:
        paths = dict.fromkeys(_readable_path(one.path) for one in group if one.path != subject)
        inside = ", ".join(list(paths)[:_ATTRIBUTES])
    kind = "the class" if role.group == "class" else "an" if role.name[0] in "AEIOU" else "a"
    text = f"{subject} ({kind} {role.name}, {where})" + (f": {inside}" if inside not in ("", subject) else "")
    if any(one.before.way[:1] != one.now.way[:1] for one in group) and role.group in {
        "container",
        "object",
        "library",
    }:
        if role.group == "container":
            return _variable(root, f"{kind} {role.name}, {where}")
        return MessageLine(
            f"{text}: the loop makes {root} anew. Make it once, before the loop, and change it there; then "
            "it can be given to the run"
        )
    if role.saves or role.known:
        return MessageLine(text, f'run.add("{root}", {root})')
    if role.group == "container" and not any(one.now.owners for one in group):
        return MessageLine(
            text,
            f'run.state.setdefault("{root}", {root})  # and run.state.{root} instead of {root} in the loop',
        )
    if role.group == "container":
        return MessageLine(text, f'run.add("{root}", samebits.state.attributes({root}))')
    known = _objects_of_known_classes(root, group)
    if known:
        rest = [name for name in attributes if not any(f"{name}.".startswith(f"{one}.") for one in known)]
        code = [f'run.add("{root}_{one.replace(".", "_")}", {root}.{one})' for one in known]
        if rest:
            named = ", ".join(f'"{one}"' for one in rest)
            code.append(f'run.add("{root}", samebits.state.attributes({root}, {named}))')
        return MessageLine(text, "\n".join(code))
    if attributes and role.name not in {"function", "method"}:
        # else all that the object holds, what changes later, too
        deep = role.group == "class" or any("." in one for one in attributes)
        named = "".join(f', "{one}"' for one in attributes) if deep else ""
        return MessageLine(text, f'run.add("{root}", samebits.state.attributes({root}{named}))')
    return MessageLine(
        f"{text}: keep it in run.state, or give the run the object that holds it: run.add, with "
        "samebits.state.attributes(object)"
    )


def _objects_of_known_classes(root: str, group: list[Change]) -> list[str]:
    """Returns the outermost attributes of the root's object on the ways to changes that have an adapter."""
    found: dict[str, None] = {}
    for change in group:
        names: list[str] = []
        for kind, name in change.now.owners:
            if names and name_of_known(kind):
                inner = ".".join(names)
                if _readable_path(change.path).startswith(f"{root}.{inner}."):
                    found[inner] = None
                break
            names.append(name)
    return list(found)


def _attributes(root: str, group: list[Change]) -> list[str]:
    """Returns the changed attributes of the root's object, as written after its name; none without a path."""
    found: dict[str, None] = {}
    for change in group:
        path = _readable_path(change.path)
        inner = path.removeprefix(f"{root}.").split("[")[0]
        if path.startswith(f"{root}.") and all(part.isidentifier() for part in inner.split(".")):
            found[inner] = None
    return list(found)


def subject_of(change: Change) -> str:
    """Returns the name to save, or the attribute of an object that leaves it out."""
    if change.now.root in {"local", "global"} and (not change.now.owners or change.now.installed):
        return change.now.places[0].name
    return _readable_path(change.path).split("[")[0]


def _readable_path(path: str) -> str:
    """Returns the path without `len()` and `.keys()`."""
    if path.startswith("len("):
        return path.removeprefix("len(").removesuffix(".keys()").removesuffix(")")
    return path.removesuffix(".keys()")

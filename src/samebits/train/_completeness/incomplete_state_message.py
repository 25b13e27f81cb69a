"""The message of `IncompleteStateError`: each value that a resume would lose, by its path, with its cure."""

from __future__ import annotations

from samebits._context import Position
from samebits.train._completeness.lost_changes import Change, Late

_SHOWN = 6


def message(changes: list[Change], late: list[Late], position: Position) -> str:
    """Returns the message that lists the lost values, each with its cure."""
    grouped: dict[str, list[Change]] = {}
    for change in changes:
        grouped.setdefault(_subject(change), []).append(change)
    lines = {subject: _line(subject, group) for subject, group in grouped.items()}
    lines |= {
        one.path: f"{one.path} {one.text}: a resumed program begins with what it was built with. Make this change before the "
        "loop, by a value in run.state, or set it in every step, from step.number."
        for one in late
    }
    paths, shown = list(lines), list(lines.values())[:_SHOWN]
    if len(paths) > _SHOWN:
        shown.append(f"and {len(paths) - _SHOWN} more: {', '.join(paths[_SHOWN : _SHOWN + 10])}")
    named = ", ".join(f'"{path}"' for path in paths[:_SHOWN])
    return (
        f"Run, loop {position.loop!r}, before step {position.step}: what follows changes from step to step and is in no commit, so "
        "that a resumed run would continue with other values:\n  - "
        + "\n  - ".join(shown)
        + f'\nIf that does no harm (a log, a cache of what is computed again): run.ignore("{paths[0]}") before the loop, or '
        f"Run(ignore=[{named}]), Trainer.fit(ignore=[{named}]); a path includes all below it. check_complete=False turns the check off."
    )


def _line(subject: str, group: list[Change]) -> str:
    change = group[0]
    kind, name, saves, generator = change.taken.roots[change.now.places[0].name]
    root = change.now.places[0].name
    where = (
        "a local variable that the next iteration reads"
        if change.now.root == "local"
        else "a global variable"
    )
    if any(place.kind == "hook" for place in change.now.places):
        return (
            f"{subject}: a hook holds it, which no state_dict saves. Keep it in run.state, or in an object with a state_dict "
            "that is given to the run."
        )
    if change.now.root == "given":
        owner = change.now.owners[0][0].__name__ if change.now.owners else name
        return f"{subject}: {owner} was given to Run, and its state_dict leaves this out. Save and load it there."
    if change.now.root == "loader" and ".collate_fn" in change.path:
        return (
            f"{subject}: a commit holds the loader's position, nothing of what its collate function keeps from batch to batch. Make "
            "it anew in each call; a buffer that each batch fills before it is read does no harm."
        )
    if change.now.root == "loader":
        return (
            f"{subject}: a commit holds the loader's position, nothing of what its dataset or sampler counts or draws. Compute it "
            "from the index, or from the epoch in set_epoch(epoch); the global generators are set for each element."
        )
    if generator:
        return (
            f"{subject} ({name}, {where}): keep its state in run.state, or make it anew from step.number, or draw from the "
            "global generators, which Run sets at each step."
        )
    if len(change.now.places) == 1 and not saves and kind in {"plain", "container"}:
        value = "" if change.now.value is None else f", now {change.now.value!r:.40}"
        return f"{subject} ({where}{value}): use run.state.{root} for it, with run.state.setdefault({root!r}, ...) before the loop."
    if kind == "iterator":
        return (
            f"{subject} (an iterator, {where}): give its loader to the run, Run({root}=loader), which resumes it where it was; "
            "or index by step.number."
        )
    inside = "" if group[0].path == subject else f" ({_readable_path(group[0].path)})"
    if saves:
        return f'{subject}{inside}, a {name}: run.add("{root}", {root}) before the loop, or Run({root}={root}, ...).'
    if kind in {"plain", "container"}:
        return f"{subject}{inside} ({where}): use run.state.{root} for it, with run.state.setdefault({root!r}, ...) before the loop."
    if kind == "library":
        return f"{subject}{inside} (a {name}, {where}): keep what it holds in run.state.{root}, and put it back before the loop."
    return (
        f'{subject}{inside}: give {name} a state_dict and a load_state_dict, and it to the run: run.add("{root}", {root}); or keep '
        "the value in run.state."
    )


def _subject(change: Change) -> str:
    """Returns the name to save, or the attribute of an object that leaves it out."""
    if change.now.root in {"local", "global"} and not change.now.owners:
        return change.now.places[0].name
    return _readable_path(change.path).split("[")[0]


def _readable_path(path: str) -> str:
    """Returns the path without `len()` and `.keys()`."""
    return (
        path.removeprefix("len(").removesuffix(".keys()").removesuffix(")")
        if path.startswith("len(")
        else path.removesuffix(".keys()")
    )

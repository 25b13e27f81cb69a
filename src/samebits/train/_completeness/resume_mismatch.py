"""The note of a commit, and the values in it that a resumed run has otherwise and reads."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping
from types import NoneType
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits._context import Position
from samebits._objects.budget import one_check
from samebits._objects.hashes import PLAIN, plain
from samebits._program import LoopFrames
from samebits.train._committed_state import CommittedState
from samebits.train._completeness.completeness import Look, own_states
from samebits.train._completeness.incomplete_state_message import (
    SeenProgram,
    blocks,
    entries_of,
    entry_of_variable,
)
from samebits.train._completeness.lost_changes import Change, LostChanges, means_saved, paths_of
from samebits.train._completeness.reachable_state import NONE
from samebits.train._completeness.saved_objects import SavedPath, saved_path
from samebits.train._completeness.whole_snapshot import WholeSnapshot

KINDS = {False: "steps", True: "epochs"}
LEFT = "left"
"""The names of the notes of a loop over steps, and of the loop over epochs around it."""
_TEXT = 80
"""Characters of a plain value in a note; a longer one has only its digest."""
OUTSIDE = frozenset({"local", "global", "package"})
"""The kinds of roots of values that no object of the run and no loader holds."""
_SHOWN = 6
_OF_ROUNDS = (
    "Each round computes it inside `with samebits.Run(...)`, where a resumed run has the state of its "
    "commit. Let the rounds be epochs of the run: `for epoch in run.epochs(n):` with `for step, batch in "
    "epoch.steps(loader):`. The code before the steps of an epoch begins with the state it had."
)
_KEPT = (list, tuple, dict, int, torch.Tensor, np.ndarray)
"""Types of values that `run.state` takes."""
_SETTABLE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class NotedValue(NamedTuple):
    """A value that had changed when the note was taken."""

    hashed: bytes
    first: bytes
    """Its digest at the first boundary of the process."""
    text: str
    """The `repr` of a short plain value; else empty."""
    changes: int
    """The number of notes at which it had changed; 0: it is as it was when the loop began."""


class Note(NamedTuple):
    """The values that one loop can reach, that have changed, and that the commit lacks."""

    loop: str
    at: int
    """The step, or the epoch of a loop over epochs, at which it was taken."""
    values: dict[str, NotedValue]
    names: dict[str, list[str]]
    """For each name of an object that the commit has, the object's paths; empty for a name that meant such an
    object when the loop began, and does not now."""

    def text(self, path: str) -> str:
        return next(iter(self.names[path]), "") if path in self.names else self.values[path].text


def noted_text(value: Any, hashed: bytes) -> str:
    """Returns the `repr` of a short plain value; empty for any other."""
    plain = value is not None or hashed == NONE
    return repr(value) if plain and type(value) in PLAIN and len(repr(value)) <= _TEXT else ""


def _value(text: str) -> Any:
    """Returns the value of a noted text; None where it has none."""
    try:
        return ast.literal_eval(text) if text else None
    except (ValueError, SyntaxError):  # nan
        return None


def _was_set(change: Change) -> bool:
    """Returns True for a number other than 0 that became another: no cache that was filled."""
    value = change.before.value
    return isinstance(value, int | float) and type(value) is not bool and value != 0


def encoded(note: Note) -> dict[str, Any]:
    values = {
        path: [one.hashed.hex(), one.first.hex(), one.text, one.changes] for path, one in note.values.items()
    }
    return {"loop": note.loop, "at": note.at, "values": values, "names": note.names}


def parsed(text: Any) -> dict[bool, Note]:
    """Returns the notes in a commit; none for a commit of an older version, or a text of another form."""
    try:
        found = json.loads(text) if isinstance(text, str) else {}
        return {
            kind: Note(
                str(found[name]["loop"]), int(found[name]["at"]),
                {
                    str(path): NotedValue(bytes.fromhex(now), bytes.fromhex(first), str(shown), int(changes))
                    for path, (now, first, shown, changes) in found[name]["values"].items()
                },
                {str(path): [*map(str, saved)] for path, saved in found[name].get("names", {}).items()},
            )
            for kind, name in KINDS.items() if name in found
        }  # fmt: skip
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def left_values(frames: LoopFrames) -> dict[str, str]:
    """Returns the numbers and texts that a loop leaves to the code behind it: the `repr` by variable."""
    found: dict[str, str] = {}
    for name, value in frames.left.items():
        is_number = isinstance(value, torch.Tensor) and value.numel() == 1 and value.layout is torch.strided
        number = value.item() if is_number or isinstance(value, np.generic) else value
        if type(number) in (bool, int, float, str, NoneType) and len(repr(number)) <= _TEXT:
            found[name] = repr(number)
    return found


def parsed_left(text: Any) -> dict[str, dict[str, str]]:
    """Returns what loops that are over have left, by loop and variable."""
    try:
        found = json.loads(text).get(LEFT, {}) if isinstance(text, str) else {}
        return {str(loop): {str(k): str(v) for k, v in own.items()} for loop, own in found.items()}
    except (ValueError, AttributeError, RecursionError):
        return {}


def left_message(
    compared: Mapping[str, tuple[str, str]], position: Position, where: str, program: SeenProgram
) -> str:
    """Returns the message. `compared`: the texts of both values of each variable."""
    entries = [entry_of_variable(name, "set by the loop", program) for name in compared]
    lines = [f"  - {name}: it was {was}, and is {now}" for name, (was, now) in compared.items()]
    lines += [one.text for one in entries if not one.code]
    return (
        f"Run, loop {position.loop!r}: it was over when the run resumed, and the code behind it reads what "
        "its steps have set and this process has not:\n" + "\n".join([*lines, *blocks(entries)]) + "\n"
        f"The commits in {where} lack it: give the changed program another run directory. What does no harm: "
        f"Run(ignore={[*compared]})."
    )


@one_check()
def lost_values(
    note: Note,
    now: WholeSnapshot,
    look: Look,
    saved: CommittedState,
    *,
    fresh: bool,
    outside: bool,
    over: bool,
) -> list[Change]:
    """Returns the values that the program reads and that are not as the note says.

    `fresh`: the note is of this commit; else only what is as at the beginning again counts. `outside`: only
    values that no object of the run and no loader holds. `over`: the loop will run no step.
    """
    changed: dict[str, Change] = {}
    read: list[str] = []
    for path, noted in note.values.items():
        named = now.at(path)  # of an object that has no leaf of its own
        leaf = now.leaves_by_path.get(path) or named or now.absent(path)
        if leaf is None or noted.hashed in {leaf.hashed, named and named.hashed}:
            continue
        if outside and leaf.root not in OUTSIDE:
            continue
        if leaf.value is not None and leaf.value == _value(noted.text):  # 1.0 for 1
            continue
        if leaf.hashed == noted.first or fresh or not noted.changes:
            was = leaf._replace(hashed=noted.hashed, value=_value(noted.text))
            changed[path] = Change(path, leaf, was, now)
            if not noted.changes and path in now.leaves_by_path and now.is_of_loader(path):
                read.append(path)
    for path, paths in note.names.items():
        leaf, meant = now.at(path) or now.absent(path), saved_path(paths)
        if leaf is None or (outside and leaf.root not in OUTSIDE) or not (meant or paths_of(leaf)):
            continue
        if paths_of(leaf).isdisjoint(paths):
            was = leaf._replace(hashed=plain(meant and str(meant)), value=meant)
            changed[path] = Change(path, leaf, was, now)
    changed = {path: one for path, one in changed.items() if not look.checks.is_ignored(one)}
    if not changed:
        return []
    judge = LostChanges(trusts_owners=False)
    counts = {path: one.changes - 1 for path, one in note.values.items()}
    judge.expect({path: counts[path] + _was_set(one) for path, one in changed.items() if path in counts})
    states = {"run.state": dict(saved.run_state), **own_states(look.objects, saved)}
    of_loader = [changed.pop(path) for path in read if path in changed]
    # a copy in the commit gives nothing back to a variable that code before the loop has computed
    made = {path: changed.pop(path) for path in [*changed] if path in note.values and not counts[path] + 1}
    loop = look.frames, look.program
    lost = judge.judge(made, *loop, {}, {}, look.committed).lost if made else []
    return of_loader + lost + judge.judge(changed, *loop, {}, states, look.committed, over=over).lost


def mismatch_message(
    lost: list[Change], note: Note, look: Look, position: Position, where: str, derived: Collection[str]
) -> str:
    """Returns the message.

    `where`: the run's folder; `derived`: the variables that the code before the loop made from the state.
    """
    program, texts = look.seen_by_reader(), {one.path: note.text(one.path) for one in lost}
    made = {path for path, one in note.values.items() if not one.changes}
    of_loader = [one for one in lost if one.now.root == "loader" and one.path in made]
    rounds = {name for name in derived for source in program.sources if source.is_set_in_round(name)}
    of_rounds = [one for one in lost if one.path in made and one.now.places[0].name in rounds]
    others = [one for one in lost if one not in of_loader and one not in of_rounds]
    shown, entries = lost[:_SHOWN], entries_of(others, program)
    lines = [f"  - {one.path}: {_compared(one, texts[one.path])}" for one in shown]
    if len(lost) > _SHOWN:
        lines.append(f"  - and {len(lost) - _SHOWN} more: {', '.join(one.path for one in lost[_SHOWN:16])}")
    lines += [f"The commits in {where} lack it: give the changed program another run directory."]
    lines += [one.text for one in entries if not one.code]
    if of_rounds or (of_loader and program.sources and program.sources[0].rounds()):
        lines.append(_OF_ROUNDS)
    elif of_loader:
        lines.append(_of_loader(program, sorted(derived)))
    lines += blocks(entries)
    if not rounds and (setting := _setting(lost, texts, look.frames, program)):
        lines += ["Or, to go on from this commit, before the loop:", "    if run.resumed:"]
        lines += [f"        {line}" for line in setting]
    named = ", ".join(f'"{path}"' for path in dict.fromkeys(one.path for one in shown))
    return (
        f"Run, loop {position.loop!r}, resumed at step {position.step}: what follows is another value than "
        "when the commit was made, is in no commit, and is read by the program:\n"
        + "\n".join(lines)
        + f"\nNothing in {where} was changed. What does no harm: Run(ignore=[{named}]). check_complete=False "
        "turns the check off."
    )


def _of_loader(program: SeenProgram, derived: list[str]) -> str:
    """Returns the cure for what a loader reads, and the code inside `with` made."""
    text = (
        "The loader reads it, and code inside `with samebits.Run(...)` made it, where a resumed run has the "
        "state of its commit. Make it before `with`"
    )
    for source in program.sources:
        for name in derived if source.run else ():
            value = source.frame.f_locals.get(name)
            if type(value) in _KEPT and (place := source.behind_first(name)):
                line = f'{name} = {source.run}.state.setdefault("{name}", {name})'
                return f"{text}. Or, to keep it, in {place}:\n    {line}"
    return f"{text}."


def _compared(change: Change, noted: str) -> str:
    was = noted or f"a value with the digest {change.now.hashed.hex()[:8]}"
    value = change.before.value
    if means_saved(change) and not isinstance(value, SavedPath) and change.before.hashed != NONE:
        return f"it was {was}, and is another object: take it after the run has loaded, in the loop, say"
    is_plain = value is not None or noted == "None" or change.before.hashed == NONE
    now = f"{value!r:.60}" if is_plain else f"one with {change.before.hashed.hex()[:8]}"
    return f"it was {was}, and is {now}"


def _setting(
    lost: list[Change], texts: Mapping[str, str], frames: LoopFrames, program: SeenProgram
) -> list[str]:
    """Returns the assignments that give back all that was lost; none unless all of it is plain and named."""
    known = {name for one in frames.user for name in (*one.f_locals, *one.f_globals)}
    for one in lost:
        attributes = all(place.kind == "attr" for place in one.now.places[1:])
        is_name = _SETTABLE.fullmatch(one.path) and one.path.partition(".")[0] in known
        if not (texts[one.path] and attributes and is_name):
            return []
    written = [program.text_of(texts[one.path]) if means_saved(one) else texts[one.path] for one in lost]
    lines = [f"{one.path} = {text}" for one, text in zip(lost, written, strict=True)]
    return lines if all(written) else []

"""The note of a commit: what the run can reach, has changed, and is not in the commit; a resume compares it.

The check of the first steps cannot look at every step: what changes late, or once, is seen by no look. So a
commit also notes the digests of such values (`WholeSnapshot`) beside their digests at the first boundary of
the process. A resumed run walks again before its first step. A value is lost if it is as at the beginning
again, and differs from the note; what never changed in training may differ from process to process (a clock,
a pid). Tensors and floats are compared even so: a teacher that is copied from restored weights before the
loop differs from the first one. Then the same judge as in training decides if the loop reads it before it
writes it (`LostChanges`).

The notes of a process cost at most 0.5% of its time, and 5% until they have cost 0.2 s; the first of each
loop is taken in a young process, too, while they have cost less than that. A commit that cannot afford a note
repeats the last: what it says has changed was lost at any later commit, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from samebits._context import Position, process
from samebits._inspect import user_code
from samebits._objects.budget import one_check
from samebits._program import Program, derived_names
from samebits.errors import ResumeMismatchError
from samebits.train._committed_state import CommittedState, gather
from samebits.train._completeness import reachable_state
from samebits.train._completeness.completeness import Completeness, Look, clocks_now, digests_of, own_states
from samebits.train._completeness.lost_changes import (
    Change,
    LostChanges,
    appeared,
    is_saved_by_owner,
    means_saved,
    paths_of,
    renamed,
)
from samebits.train._completeness.resume_mismatch import (
    KINDS,
    LEFT,
    Note,
    NotedValue,
    encoded,
    left_message,
    left_values,
    lost_values,
    mismatch_message,
    noted_text,
    parsed,
    parsed_left,
)
from samebits.train._completeness.whole_snapshot import WholeSnapshot, further_roots
from samebits.train._object_states import is_programs_own, saved_identities

_SHARE = 0.005
_FIRST_SHARE, _FIRST_SECONDS = 0.05, 0.2
_MOST = 400
"""Values in a note."""
_MOST_UNCHANGED = 64
_BEGAN, _BEFORE, _AHEAD = clocks_now(), 60.0, 30 * 86400.0
"""Readings when samebits was imported, and seconds: a begin or a deadline of the program lies around them."""


def affordable(spent: float, cost: float, passed: float, *, first: bool = False) -> bool:
    """Returns True if another note keeps within the share of the time. All in seconds.

    `first`: the first one of a loop.

    >>> affordable(0.0, 0.01, 1.0), affordable(0.2, 0.01, 10.0), affordable(0.2, 0.01, 60.0)
    (True, True, True)
    """
    free = _FIRST_SECONDS if first else min(_FIRST_SECONDS, _FIRST_SHARE * passed)
    return spent + cost <= _SHARE * passed + free


class LoopChanges:
    """The changes of what one loop can reach, since its first boundary in this process."""

    def __init__(self, checks: Completeness, loop: str) -> None:
        self.loop, self._checks = loop, checks
        self._first: WholeSnapshot | None = None
        self.derived: set[str] = set()
        """The variables that the code before the loop computes from the state."""
        self._clocks = clocks_now()
        self._judge = LostChanges()
        self._last: dict[str, bytes] = {}
        self._changes: dict[str, int] = {}

    @one_check()
    def walk(
        self, look: Look, saved: CommittedState, noted_names: Mapping[str, list[str]] | None = None
    ) -> WholeSnapshot:
        """Returns the state at this boundary; the first one is kept. `noted_names`: those of a commit."""
        checks = self._checks
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            now = WholeSnapshot()
            now.noted_names = noted_names or {}
            reachable_state.take(
                look.frames, look.objects, _restored_exactly(look.objects, saved), look.loader, look.program,
                ignored=checks.ignored, trusted=checks.trusted, known=checks.generators, walk=now,
                steering=look.steering, further=further_roots,
            )  # fmt: skip
            now.states = digests_of(own_states(look.objects, saved))
        if self._first is None:
            self._first = now
            runs = (one for scope in (look.frame.f_locals, look.frame.f_globals) for one in scope.values())
            held = {id(one) for one in runs if type(one).__module__ == "samebits.train._run"}
            self.derived = derived_names(look.frame, saved_identities(look.objects) | held)
        return now

    @one_check()
    def note(self, at: int, look: Look, saved: CommittedState) -> Note:
        now, first = self.walk(look, saved), self._first
        assert first is not None
        now.states_before = first.states
        changed = [
            Change(path, first.leaves_by_path[path], leaf, now)
            for path, leaf in now.leaves_by_path.items()
            if path in first.leaves_by_path and first.leaves_by_path[path].hashed != leaf.hashed
        ]
        changed += [*appeared(first, now), *(one for one in renamed(first, now) if not means_saved(one))]
        changed = [one for one in changed if not self._checks.is_ignored(one)]
        between = {name: (self._clocks[name], until) for name, until in clocks_now().items()}
        states = {"run.state": dict(saved.run_state), **own_states(look.objects, saved)}
        left = self._judge.unsaved(changed, look.program, between, states)
        left += filter(is_saved_by_owner, changed)  # its load_state_dict may restore another value
        for one in left:
            if self._last.get(one.path) != one.now.hashed:
                self._changes[one.path] = self._changes.get(one.path, 0) + 1
                self._last[one.path] = one.now.hashed
        names = {path: sorted(paths_of(one), key=len) for path, one in now.named.items() if one.value != path}
        meant = [path for path, one in first.named.items() if paths_of(one)]
        meant = [path for path in meant if now.at(path) or now.has_parts(path)]
        names = {path: found for path, found in names.items() if found} | {
            path: names.get(path, []) for path in meant if path != first.named[path].value
        }
        values = self._unchanged(now, first, look.program)
        values |= {one.path: self._noted(one) for one in left[:_MOST]}
        return Note(self.loop, at, values, dict([*names.items()][:_MOST]))

    def _unchanged(self, now: WholeSnapshot, first: WholeSnapshot, program: Program) -> dict[str, NotedValue]:
        paths = now.measured(self.derived) & first.measured(self.derived)
        pairs = {path: now.leaves_by_path[path] for path in paths}
        old = first.leaves_by_path
        same = [Change(path, one, one, now) for path, one in pairs.items() if one.hashed == old[path].hashed]
        clocks = {name: (at - _BEFORE, at + _AHEAD) for name, at in _BEGAN.items()}
        judged = [one for one in same if not now.is_of_loader(one.path)]
        kept = {one.path for one in LostChanges().unsaved(judged, program, clocks, {})}
        same = [one for one in same if one.path in kept or now.is_of_loader(one.path)]
        return {
            one.path: NotedValue(one.now.hashed, one.now.hashed, noted_text(one.now.value, one.now.hashed), 0)
            for one in same[:_MOST_UNCHANGED]
        }

    def _noted(self, one: Change) -> NotedValue:
        text = noted_text(one.now.value, one.now.hashed)
        return NotedValue(one.now.hashed, one.before.hashed, text, self._changes[one.path])


def _restored_exactly(objects: Mapping[str, Any], saved: CommittedState) -> CommittedState:
    """Returns what a commit has, without the states that a `load_state_dict` of the program's restores."""
    own = {name for name, thing in objects.items() if is_programs_own(thing)}
    return replace(saved, objects={name: one for name, one in saved.objects.items() if name not in own})


def _encoded(notes: Mapping[bool, Note]) -> dict[str, Any]:
    return {KINDS[kind]: encoded(one) for kind, one in notes.items()}


def _raise(error: ResumeMismatchError, paths: list[str], checks: Completeness) -> None:
    """Raises an error, or keeps it for `samebits verify`, which sees effects itself."""
    if process.overrides.raise_incomplete:
        raise error
    checks.unraised.update(dict.fromkeys(paths, error))


class CommitNotes:
    """The notes of a run: takes them for its commits, and compares that of the commit it resumes from."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._began = time.perf_counter()
        self._spent = self._cost = 0.0
        self._off = False
        self._changes: dict[bool, LoopChanges] = {}
        self._notes: dict[bool, Note] = {}
        """The newest notes of the loop over steps and (True) of the loop over epochs around it."""
        self._encoded: dict[str, Any] = {}
        self.text: str | None = None
        """The text of the newest note, for a commit; None without one."""
        self._left: dict[str, dict[str, str]] = {}
        """For each loop that is over, what it left to the code behind it, by variable."""
        self._found: dict[bool, Note] = {}
        self._manifest: Any = None

    def load(self, text: Any, manifest: Any) -> None:
        """Takes the note of the commit that the run resumes from; None: a commit without one."""
        self._manifest, self._found, self._left = manifest, parsed(text), parsed_left(text)
        self._write()

    def end(self, look: Look, loop: str) -> None:
        """Notes what a loop that is over leaves to the code behind it: a resumed process runs none of it."""
        if self._is_off(look):
            return
        try:
            with look, one_check():
                self._left[loop] = left_values(look.frames)
            self._write()
        except Exception as error:
            self._end(error)

    def _write(self) -> None:
        content = self._encoded | ({LEFT: self._left} if self._left else {})
        self.text = json.dumps(content) if content else None

    def begin(self, look: Look, position: Position, *, by_epoch: bool = False, over: bool = False) -> None:
        """Takes the first look of a loop in this process, and compares it with the commit.

        `by_epoch`: of a loop over epochs; `over`: of a loop that had ended in the commit.

        Raises:
            ResumeMismatchError: a value that the program reads is another one than at the commit.
        """
        note = self._found.get(by_epoch)
        note = self._found.pop(by_epoch) if note is not None and note.loop == position.loop else None
        changes = self._changes.pop(by_epoch, None)
        old = self._notes.pop(by_epoch, None)
        if old is not None:  # what was the same in that loop may be another value in this one
            values = {path: one for path, one in old.values.items() if one.changes}
            self._encoded = _encoded({**self._notes, by_epoch: old._replace(values=values)})
            self._write()
        if over and not self._is_off(look):
            self._check_left(look, position)
        new = changes is None or changes.loop != position.loop
        if self._is_off(look) or (over and note is None) or not (note or new or self._affordable()):
            return
        with look:
            started = time.thread_time()
            try:
                changes = self._changes[by_epoch] = LoopChanges(look.checks, position.loop)
                saved = gather(look.objects, look.run_state)
                now = changes.walk(look, saved, note.names if note else None)
                if note is None:
                    return
                fresh = note.at == (self._manifest.position["epoch"] if by_epoch else self._manifest.step)
                lost = lost_values(note, now, look, saved, fresh=fresh, outside=by_epoch or over, over=over)
            except Exception as error:
                self._end(error)
                return
            finally:
                self._record(started)
            if lost:
                text = mismatch_message(lost, note, look, position, self._where, changes.derived)
                _raise(ResumeMismatchError(text), [one.path for one in lost], look.checks)

    def _check_left(self, look: Look, position: Position) -> None:
        noted, is_allowed = self._left.get(position.loop, {}), look.checks.is_allowed
        with look:
            try:
                with one_check():
                    now = left_values(look.frames)
                    names = [one for one in now if noted.get(one, now[one]) != now[one]]
                    names = [one for one in names if not is_allowed(one)]
                    names = [one for one in names if not look.flow.variable(look.frame.f_code, one)]
            except Exception as error:
                self._end(error)
                return
            if names:
                compared = {one: (noted[one], now[one]) for one in names}
                text = left_message(compared, position, self._where, look.seen_by_reader())
                _raise(ResumeMismatchError(text), names, look.checks)

    def take(
        self, look: Look, position: Position, saved: CommittedState | None = None, *, by_epoch: bool = False
    ) -> None:
        """Takes a note of this boundary if it is affordable; the text is the last one otherwise.

        `saved`: the state that the commit has, if there is one.
        """
        changes = self._changes.get(by_epoch)
        if changes is None or changes.loop != position.loop or self._is_off(look):
            return
        if not self._affordable(first=by_epoch not in self._notes):
            return
        started = time.thread_time()
        try:
            at = position.epoch if by_epoch else position.step
            with look:
                note = changes.note(at, look, saved or gather(look.objects, look.run_state))
            kept = {kind: one for kind, one in self._notes.items() if one.loop == position.loop}
            self._notes = kept | {by_epoch: note}
            self._encoded = _encoded(self._notes)
            self._write()
        except Exception as error:
            self._end(error)
        self._record(started)

    def _affordable(self, *, first: bool = False) -> bool:
        return affordable(self._spent, self._cost, time.perf_counter() - self._began, first=first)

    def _is_off(self, look: Look) -> bool:
        return self._off or not look.checks.enabled or not process.overrides.check_complete

    def _record(self, started: float) -> None:
        self._cost = time.thread_time() - started  # what other processes take meanwhile is no cost
        self._spent += self._cost

    def _end(self, error: Exception) -> None:
        """Ends the notes of this process: an object that cannot be read must not end a run."""
        self._off, self._encoded, self.text = True, {}, None
        user_code.warn(
            f"Run: commits from here on have no note for a resume to compare: {type(error).__name__}: {error}"
        )

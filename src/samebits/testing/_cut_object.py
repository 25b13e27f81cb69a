"""An object that was cut and resumed against one that nobody interrupted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samebits._inspect.reachable import leaves_in
from samebits._inspect.tree import Leaves, of_nested
from samebits.checkpoint import decode, encode
from samebits.errors import UnsavableStateError
from samebits.testing._stepper import CALL, Advance, Cut, Stepper, cuts


@dataclass(frozen=True)
class _Behind:
    """What was seen behind one step of the object that nobody interrupted."""

    value: Leaves
    pass_ended: bool
    state: Leaves
    attributes: Leaves
    saved: Callable[[], Any]


def assert_object_resumes(
    factory: Callable[[], Any], cut: Cut, steps: int | None, advance: Advance | None, *, json_state: bool
) -> None:
    """`assert_resumes_exactly` for an object."""
    first = Stepper(factory(), advance)
    undisturbed = [of_nested(value) for value in first.values(steps)]
    subject = _Subject(factory, advance, type(first.thing).__name__, json_state=json_state)
    wanted = cuts(cut, len(undisturbed))
    seen = subject.watch(undisturbed)
    for at in wanted:
        subject.check(seen, at)


@dataclass(frozen=True)
class _Subject:
    """The class under test."""

    factory: Callable[[], Any]
    advance: Advance | None
    name: str
    json_state: bool

    def watch(self, undisturbed: list[Leaves]) -> list[_Behind]:
        """Takes one object through all steps, its state taken behind each: that alone must change nothing."""
        stepper = Stepper(self.factory(), self.advance)
        seen = [self._behind(stepper, of_nested(None))]
        for number, expected in enumerate(undisturbed):
            value = of_nested(stepper.step())
            _compare(
                f"{self.name}, whose state_dict() was called behind each step: step {number} gives other values",
                expected,
                value,
            )
            seen.append(self._behind(stepper, value))
        return seen

    def check(self, seen: list[_Behind], cut: int) -> None:
        """Resumes behind `cut` steps, and goes on to the end."""
        resumed = self.factory()
        resumed.load_state_dict(seen[cut].saved())
        who = f"{self.name}, resumed behind {cut} steps"
        lost = _differing(seen[cut].attributes, leaves_in(self.name, resumed))
        hint = f". Not restored: {', '.join(lost[:3])}" if lost else ""
        after = f"{who}: state_dict() right after load_state_dict differs"
        _compare(after, seen[cut].state, self._state(resumed), hint)
        stepper = Stepper(resumed, self.advance, cut)
        for number, expected in enumerate(seen[cut + 1 :], cut):
            value = of_nested(stepper.step())
            if (
                number > cut and stepper.pass_ended != expected.pass_ended
            ):  # right after a resume it cannot be told
                raise AssertionError(f"{CALL}: {who}: the pass ends elsewhere, seen at step {number}{hint}")
            _compare(f"{who}: step {number} gives other values", expected.value, value, hint)
            after = f"{who}: state_dict() behind step {number} differs"
            _compare(after, expected.state, self._state(resumed), hint)

    def _behind(self, stepper: Stepper, value: Leaves) -> _Behind:
        state = stepper.thing.state_dict()
        saved = _through_json(self.name, state) if self.json_state else _through_a_commit(self.name, state)
        attributes = leaves_in(self.name, stepper.thing)
        return _Behind(value, stepper.pass_ended, of_nested(state), attributes, saved)

    def _state(self, thing: Any) -> Leaves:
        return of_nested(thing.state_dict())


def _through_a_commit(name: str, state: Any) -> Callable[[], Any]:
    """Makes the state as a commit gives it back, as often as wanted; later writes to the object do not show."""
    try:
        tree, tensors = encode({"state": state})
    except UnsavableStateError as error:
        raise AssertionError(f"{CALL}: {name}.state_dict() cannot be saved: {error}") from error
    text, copies = json.dumps(tree), {path: tensor.detach().clone() for path, tensor in tensors.items()}
    return lambda: decode(json.loads(text), {path: copy.clone() for path, copy in copies.items()})["state"]


def _through_json(name: str, state: Any) -> Callable[[], Any]:
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{CALL}: {name}.state_dict() is no JSON: {error}") from error
    _compare(
        f"{name}.state_dict() is another one once it was JSON", of_nested(state), of_nested(json.loads(text))
    )
    return lambda: json.loads(text)


def _compare(what: str, expected: Leaves, got: Leaves, hint: str = "") -> None:
    """Raises `AssertionError` with the first leaf that differs."""
    if expected == got:
        return
    before, after = _by_path(expected), _by_path(got)
    path = next(iter(_differing(expected, got)), "")
    at = f" at {path}" if path else ""
    raise AssertionError(
        f"{CALL}: {what}{at}: {before.get(path, 'nothing')} uninterrupted, {after.get(path, 'nothing')} now{hint}"
    )


def _differing(expected: Leaves, got: Leaves) -> list[str]:
    before, after = _by_path(expected), _by_path(got)
    return [path for path in {**before, **after} if before.get(path) != after.get(path)]


def _by_path(leaves: Leaves) -> dict[str, str]:
    """Path to its hash, in hex."""
    return {name: f"xxh3-64:{hashed.hex()}" for name, hashed in leaves.by_name().items()}

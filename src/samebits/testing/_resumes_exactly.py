"""`assert_resumes_exactly`: cut anywhere and resumed, an object or a run continues exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from samebits._objects.hashes import Leaves, of_nested
from samebits._objects.walk import leaves_in
from samebits.callbacks import Callback
from samebits.checkpoint._codec import decode, encode
from samebits.errors import InvalidArgumentError, UnsavableStateError
from samebits.testing._cut_run import assert_run_resumes, fit_with
from samebits.testing._stepper import CALL, Advance, Cut, Stepper, check_stateful, cuts, is_run_function


def assert_resumes_exactly(
    factory: Callable[..., Any],
    cut: Cut = "every",
    *,
    steps: int | None = None,
    advance: Advance | None = None,
    json_state: bool = False,
) -> None:
    """Proves that the object of `factory` is the same, bit for bit, whether resumed or never interrupted.

    `factory()` makes a fresh object with `state_dict` and `load_state_dict`. It takes `steps` steps without a
    break. Then it is cut after `cut` steps: its state is encoded as in a commit on disk, a second object is
    made and loads that state, and everything that follows is compared: the result of each step, and the state
    after it.

    ```python
    assert_resumes_exactly(lambda: CurriculumSampler(lengths, seed=1))
    assert_resumes_exactly(make_warmup, cut=[0, 5])
    assert_resumes_exactly(RunningMean, advance=lambda mean, number: mean.update(data[number]))
    assert_resumes_exactly(train, cut=7)  # def train(run_dir): a whole run
    ```

    What one step is: the next element of an iterable (a loader, a sampler; pass after pass), `step()` of a
    scheduler, `thing[number]` of a dataset, else `advance(thing, number)` with its value. The global
    generators are set from the step's number, as a `Run` sets them. A `Callback` is tried in a small
    `Trainer.fit`. A function with a required argument is a whole run: it is called with a run directory, left
    at the cut by an exception, and called again; all its steps and its result are compared. A nested loop has
    no commits of its own: cut inside, the run resumes from the step in whose body it began. (Module globals
    survive that; in `run_and_kill` they do not.)

    Args:
        factory: makes the object anew; or the run function.
        cut: number of steps before the cut (0: before the first), several such numbers, or "every".
        steps: number of steps to take; None: two passes over an iterable, 20 of anything else, the whole run.
        advance: does step `number` (from 0) of an object and returns the value to compare.
        json_state: the state must be JSON, and the same after it was written and read as JSON.

    Raises:
        AssertionError: the first difference, with its step, place and digests; or an unsavable state.
        InvalidArgumentError: the object has no state, or `cut` is outside its steps.

    Example:
        >>> class Steps(torch.nn.Module):
        ...     count = 0  # in no state_dict
        ...     def forward(self):
        ...         self.count += 1
        ...         return self.count
        >>> samebits.testing.assert_resumes_exactly(Steps, cut=3, advance=lambda steps, number: steps())
        Traceback (most recent call last):
        AssertionError: ...step 3 ...: ...
    """
    if is_run_function(factory):
        if advance is not None or steps is not None or json_state:
            raise InvalidArgumentError(f"{CALL}: a run function takes none of steps, advance, json_state.")
        assert_run_resumes(factory, cut)
        return
    thing = factory()
    check_stateful(thing)
    if isinstance(thing, Callback) and advance is None:
        assert_run_resumes(lambda run_dir: fit_with(factory(), run_dir), cut)
    else:
        _assert_object_resumes(factory, cut, steps, advance, json_state=json_state)


@dataclass(frozen=True)
class _Observation:
    """The observations after one step of the uninterrupted object."""

    value: Leaves
    pass_ended: bool
    state: Leaves
    attributes: Leaves
    saved: Callable[[], Any]


def _assert_object_resumes(
    factory: Callable[[], Any], cut: Cut, steps: int | None, advance: Advance | None, *, json_state: bool
) -> None:
    first = Stepper(factory(), advance)
    undisturbed = [of_nested(value) for value in first.values(steps)]
    subject = _Subject(factory, advance, type(first.thing).__name__, json_state=json_state)
    wanted = cuts(cut, len(undisturbed))
    observations = subject.run_through(undisturbed)
    for at in wanted:
        subject.check(observations, at)


@dataclass(frozen=True)
class _Subject:
    """The class under test."""

    factory: Callable[[], Any]
    advance: Advance | None
    name: str
    json_state: bool

    def run_through(self, undisturbed: list[Leaves]) -> list[_Observation]:
        """Steps one object to the end, reading its state after each step: that alone must change nothing."""
        stepper = Stepper(self.factory(), self.advance)
        observations = [self._observe(stepper, of_nested(None))]
        for number, expected in enumerate(undisturbed):
            value = of_nested(stepper.step())
            _compare(
                f"{self.name}, whose state_dict() was called after each step: step {number} gives other "
                "values",
                expected,
                value,
            )
            observations.append(self._observe(stepper, value))
        return observations

    def check(self, observations: list[_Observation], cut: int) -> None:
        resumed = self.factory()
        resumed.load_state_dict(observations[cut].saved())
        who = f"{self.name}, resumed after {cut} steps"
        lost = _differing(observations[cut].attributes, leaves_in(self.name, resumed))
        hint = f". Not restored: {', '.join(lost[:3])}" if lost else ""
        after = f"{who}: state_dict() right after load_state_dict differs"
        _compare(after, observations[cut].state, self._state(resumed), hint)
        stepper = Stepper(resumed, self.advance, cut)
        for number, expected in enumerate(observations[cut + 1 :], cut):
            value = of_nested(stepper.step())
            # Right after a resume it is unknown whether the pass has ended
            if number > cut and stepper.pass_ended != expected.pass_ended:
                raise AssertionError(f"{CALL}: {who}: the pass ends elsewhere, seen at step {number}{hint}")
            _compare(f"{who}: step {number} gives other values", expected.value, value, hint)
            after = f"{who}: state_dict() after step {number} differs"
            _compare(after, expected.state, self._state(resumed), hint)

    def _observe(self, stepper: Stepper, value: Leaves) -> _Observation:
        state = stepper.thing.state_dict()
        round_trip = _json_round_trip if self.json_state else _commit_round_trip
        saved = round_trip(self.name, state)
        attributes = leaves_in(self.name, stepper.thing)
        return _Observation(value, stepper.pass_ended, of_nested(state), attributes, saved)

    def _state(self, thing: Any) -> Leaves:
        return of_nested(thing.state_dict())


def _commit_round_trip(name: str, state: Any) -> Callable[[], Any]:
    """Returns a function that decodes the state as from a commit; later writes to the object do not show."""
    try:
        tree, tensors = encode({"state": state})
    except UnsavableStateError as error:
        raise AssertionError(f"{CALL}: {name}.state_dict() cannot be saved: {error}") from error
    text, copies = json.dumps(tree), {path: tensor.detach().clone() for path, tensor in tensors.items()}
    return lambda: decode(json.loads(text), {path: copy.clone() for path, copy in copies.items()})["state"]


def _json_round_trip(name: str, state: Any) -> Callable[[], Any]:
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{CALL}: {name}.state_dict() is no JSON: {error}") from error
    what = f"{name}.state_dict() is another one once it was JSON"
    _compare(what, of_nested(state), of_nested(json.loads(text)))
    return lambda: json.loads(text)


def _compare(what: str, expected: Leaves, got: Leaves, hint: str = "") -> None:
    if expected == got:
        return
    before, after = _by_path(expected), _by_path(got)
    path = next(iter(_differing(expected, got)), "")
    at = f" at {path}" if path else ""
    raise AssertionError(
        f"{CALL}: {what}{at}: {before.get(path, 'nothing')} uninterrupted, {after.get(path, 'nothing')} "
        f"now{hint}"
    )


def _differing(expected: Leaves, got: Leaves) -> list[str]:
    before, after = _by_path(expected), _by_path(got)
    return [path for path in {**before, **after} if before.get(path) != after.get(path)]


def _by_path(leaves: Leaves) -> dict[str, str]:
    return {name: f"xxh3-64:{hashed.hex()}" for name, hashed in leaves.by_name().items()}

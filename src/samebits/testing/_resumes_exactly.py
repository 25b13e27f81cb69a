"""`assert_resumes_exactly`: cut anywhere and resumed, an object or a run continues exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from samebits.callbacks import Callback
from samebits.errors import InvalidArgumentError
from samebits.testing._cut_object import assert_object_resumes
from samebits.testing._cut_run import assert_run_resumes, fit_with
from samebits.testing._stepper import CALL, Advance, Cut, check_stateful, is_run_function


def assert_resumes_exactly(
    factory: Callable[..., Any],
    cut: Cut = "every",
    *,
    steps: int | None = None,
    advance: Advance | None = None,
    json_state: bool = False,
) -> None:
    """Proves that the object of `factory` is the same, bit for bit, whether it was interrupted and resumed or not.

    `factory()` makes a fresh object with `state_dict` and `load_state_dict`. It takes `steps` steps without a break.
    Then it is cut after `cut` steps: its state is encoded as in a commit on disk, a second object is made and loads that
    state, and everything that follows is compared: the result of each step, and the state after it.

    ```python
    assert_resumes_exactly(lambda: CurriculumSampler(lengths, seed=1))
    assert_resumes_exactly(make_warmup, cut=[0, 5])
    assert_resumes_exactly(RunningMean, advance=lambda mean, number: mean.update(data[number]))
    assert_resumes_exactly(train, cut=7)  # def train(run_dir): a whole run
    ```

    What one step is: the next element of an iterable (a loader, a sampler; pass after pass), `step()` of a scheduler,
    `thing[number]` of a dataset, else `advance(thing, number)` with its value. The global generators are
    set from the step's number, as a `Run` sets them. A `Callback` is tried in a small `Trainer.fit`. A function with a
    required argument is a whole run: it is called with a run directory, left at the cut by an exception, and called
    again; all its steps and its result are compared. A nested loop has no commits of its own: cut inside, the run resumes from
    the step in whose body it began. (Module globals survive that; in `run_and_kill` they do not.)

    Args:
        factory: makes the object anew; or the run function.
        cut: number of steps before the cut (0: before the first), several such numbers, or "every".
        steps: number of steps to take; None: two passes over an iterable, 20 of anything else, the whole run.
        advance: does step `number` (from 0) of an object and returns the value to compare.
        json_state: the state must be JSON, and the same after it was written and read as JSON.

    Raises:
        AssertionError: the first difference, with its step, place and both digests; or a state that cannot be saved.
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
        assert_object_resumes(factory, cut, steps, advance, json_state=json_state)

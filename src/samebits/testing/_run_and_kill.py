"""`run_and_kill`: runs a program in processes of its own, kills them, and restarts them until it ends."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cloudpickle

from samebits import _digest as digest
from samebits._arguments import is_int, require
from samebits._context import process
from samebits._objects.hashes import of_nested
from samebits.audit._child.kill_points import KILL_POINTS, Kill
from samebits.audit._first_difference import first_difference
from samebits.audit._verify import (
    BaselineFacts,
    ProcessOutcome,
    ProcessVariation,
    Request,
    Runner,
    facts_of,
    scratch_folder,
)
from samebits.checkpoint._store import CommitStore, run_directories
from samebits.errors import InvalidArgumentError, VerifyError
from samebits.train._committed_state import CommittedState

# The digest of the commits in the run directories that a program left.


RESULT = "samebits-result"
"""File with the digest of a function's result."""


def final_digest(root: Path) -> str:
    """Returns the digest of every run below `root` (objects, gradients, `run.state`), and of a result.

    Raises `VerifyError` when there is no run, or one has not finished.
    """
    parts = []
    for folder in run_directories(root):
        found = CommitStore(folder).newest()
        if found is None or not found[0].finished:
            raise VerifyError(
                f"run_and_kill: the run in {folder.name} did not come to its end: it was left by `break`?"
            )
        state = CommittedState.of(found[1])
        parts.append([str(folder.relative_to(root)), state.objects, state.grads, state.run_state])
    if not parts:
        raise VerifyError("run_and_kill: the program made no run directory: samebits.Run(run_dir, ...) does.")
    result = root / RESULT
    return digest.of_value([parts, result.read_text() if result.exists() else ""])


def newest_step(root: Path) -> int:
    """Returns the step of the newest commit below `root`; 0 without one."""
    found = [CommitStore(folder).newest() for folder in run_directories(root)]
    return max((manifest.step for manifest, _ in filter(None, found)), default=0)


# A function as a script: `python -m samebits.audit._child.launch SPEC function.py FUNCTION` calls it in a
# fresh process.


def save(function: Callable[[Path], Any], folder: Path) -> Path:
    """Writes `function` for `main`, by value with what it uses of its module, and returns the file."""
    module = sys.modules.get(function.__module__)
    by_value = module is not None and module.__name__ != "__main__"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        data = cloudpickle.dumps((sys.path, cloudpickle.dumps(function)))
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    path = folder / "function"
    path.write_bytes(data)
    return path


def main(path: str) -> None:
    """Calls the function in `path`, which the parent has written, with a run directory below the run root."""
    sys.path[:], data = pickle.loads(Path(path).read_bytes())  # noqa: S301
    function = pickle.loads(data)  # noqa: S301 - only now: it may import modules that this sys.path finds
    root = process.overrides.run_root
    assert root is not None
    (root / RESULT).write_text(of_nested(function(root / "run")).digest())


if __name__ == "__main__":
    main(sys.argv[1])


# The kills that the caller names, made definite by the steps of the baseline.


Place = int | str | tuple[str, int]
_RANDOM = "random"
_REPLAYED = 3
"""Maximum number of steps between the commit and the kill."""
_SHOWN = 20
"""Lines of a failed process's output."""
Program = str | os.PathLike[str] | Callable[[Path], Any]


@dataclass(frozen=True)
class PlannedKill:
    """The kill of one process: by itself at a place, or from outside after `instant` seconds."""

    process: ProcessVariation
    instant: float | None = None

    def description(self) -> str:
        """Returns the kill point in words."""
        if self.process.kill is None:
            return f"after {self.instant:.2f} s"
        return self.process.kill.description()


def check_names(places: Sequence[Place]) -> None:
    """Raises `InvalidArgumentError` for an unknown place."""
    for place in places:
        _split(place)


def check_places(places: Sequence[Place], facts: BaselineFacts) -> None:
    """Raises `InvalidArgumentError` for a place that the program does not reach."""
    for place in places:
        where, step = _split(place)
        if where == "validation" and not facts.validations:
            raise InvalidArgumentError("run_and_kill(at='validation'): the program has no validation.")
        if step is not None and step not in (facts.validations if where == "validation" else facts.steps):
            raise InvalidArgumentError(
                f"run_and_kill(at={place!r}): the program has steps {facts.steps[0]} to {facts.steps[-1]}, "
                f"and validations in the bodies of steps {list(facts.validations)}."
            )


def plan_kill(
    place: Place,
    following: Sequence[Place],
    reached: int,
    facts: BaselineFacts,
    seconds: float,
    draw: random.Random,
) -> PlannedKill:
    """Returns the kill at `place`, after the commit of step `reached` and before the kills at `following`.

    The commits before it are before the steps that those name, so that each can be reached.
    """
    where, step = _split(place)
    if where == _RANDOM:
        return PlannedKill(ProcessVariation(), draw.uniform(0, seconds))
    named = [following_step for _, following_step in map(_split, following) if following_step is not None]
    before = min(named, default=facts.steps[-1] + 1)
    if step is None:
        step = _draw_step(where, len(following), reached, before, facts, draw)
    latest = min(step - 1 if where == "commit" else step, before)
    commit = draw.randint(max(reached, latest - _REPLAYED), max(reached, latest))
    commits = (commit, step) if where == "commit" else (commit,)
    return PlannedKill(ProcessVariation(Kill(where, step), commit_steps=commits))


def _split(place: Place) -> tuple[str, int | None]:
    if isinstance(place, int):
        place = ("body", place)
    where, step = (place, None) if isinstance(place, str) else place
    choices = f"choose 'random', a step number, one of {tuple(KILL_POINTS)}, or (one of them, step)"
    fits = where in KILL_POINTS or (where == _RANDOM and step is None)
    require(fits, "run_and_kill", choices, at=place)
    return where, step


def _draw_step(
    where: str, remaining: int, reached: int, before: int, facts: BaselineFacts, draw: random.Random
) -> int:
    """Draws a step after `reached` and before `before`, early enough for the kills that follow."""
    possible = facts.validations if where == "validation" else facts.steps[1:] or facts.steps
    later = [step for step in possible if step > reached] or list(possible[-1:])
    later = [step for step in later if step < before] or later
    return draw.choice(later[: max(1, len(later) // (1 + remaining))])


@dataclass(frozen=True)
class KilledRun:
    """The result of `run_and_kill`.

    Example:
        >>> result = samebits.testing.KilledRun(
        ...     digest="5e02", expected="5e02", exit_codes=(-9, 0), kills=("in step 3",), difference="",
        ...     output="",
        ... )
        >>> result.equal, result.exit_codes
        (True, (-9, 0))
    """

    digest: str
    """Digest of the killed run's end: the last commit of each run directory, and a function's result."""
    expected: str
    """Digest of the end of the uninterrupted run."""
    exit_codes: tuple[int, ...]
    """Exit codes of the killed run's processes, in order: -9 for one that was killed; the last one is 0."""
    kills: tuple[str, ...]
    """The kill points, in words."""
    difference: str
    """The first difference of the two runs, in words; empty when their ends are equal."""
    output: str
    """The output of the killed run's processes."""

    @property
    def equal(self) -> bool:
        """True if the killed run ended with the bits of the other one."""
        return self.digest == self.expected


def run_and_kill(
    program: Program,
    *,
    at: Place | Sequence[Place] = "random",
    times: int = 1,
    seed: int = 0,
    args: Sequence[str] = (),
    timeout: float = 300.0,
    world_sizes: Sequence[int] = (),
) -> KilledRun:
    """Runs `program` once without kills, then with real SIGKILLs, started anew after each until it ends.

    ```python
    def test_my_training_survives():
        result = run_and_kill("train.py", at=["body", "validation", "random"], args=["--epochs", "2"])
        assert result.equal, result.difference
        assert result.exit_codes == (-9, -9, -9, 0)
    ```

    Each process is a fresh interpreter in a session of its own. Run directories are moved into a scratch
    folder that is removed afterwards, so the program's own are neither read nor written; other files are
    written where the program puts them.

    Args:
        program: a script's path, or a function of a run directory (it is copied by value together with the
            parts of its own module that it uses; imports inside it are safest).
        at: where to kill. "random": at an instant of the process's life; a step number: in the body of that
            step, at its backward; "body", "optimizer", "after_body", "validation" or "commit" (between a
            commit's tensors and its manifest): there, in a step that is drawn, later ones later; `(place,
            step)`: there in that step. A sequence: one kill for each.
        times: number of passes through `at`.
        seed: draws instants, steps, and the steps at which commits are made.
        args: command line arguments of a script.
        timeout: seconds after which a process has failed.
        world_sizes: the number of ranks of each start of the killed run, in turn, through torchrun where it
            is above 1: (4, 2, 3). The run without kills has the first. For a program with
            `run.steps(shards=)`.

    Raises:
        VerifyError: the program failed, took over `timeout`, uses no `samebits.Run`, or ended before a kill.
        InvalidArgumentError: `at` names a place that the program does not reach.

    Example:
        >>> samebits.testing.run_and_kill("train.py", at=["body", "lunch"])
        Traceback (most recent call last):
            ...
        samebits.errors.InvalidArgumentError: run_and_kill(at='lunch'): choose 'random', a step number, ...
    """
    require(times >= 1, "run_and_kill", "at least once", times=times)
    require(timeout > 0, "run_and_kill", "a number of seconds above 0", timeout=timeout)
    fits = all(is_int(size) and size >= 1 for size in world_sizes)
    require(fits, "run_and_kill", "numbers of processes, 1 or more", world_sizes=world_sizes)
    places: list[Any] = [at] if isinstance(at, str | int | tuple) else list(at)
    check_names(places)
    with scratch_folder() as scratch:
        script, arguments = _command(program, args, scratch)
        request = Request(script, arguments, seed=seed, in_place=True, world_sizes=tuple(world_sizes))
        runner = Runner(request, scratch)
        return asyncio.run(_KilledRuns(runner, scratch, timeout).result(places * times, random.Random(seed)))


def _command(program: Program, args: Sequence[str], scratch: Path) -> tuple[str, tuple[str, ...]]:
    if callable(program):
        if args:
            raise InvalidArgumentError(
                "run_and_kill(args=...): a function takes none; wrap it in a function without arguments."
            )
        return os.path.abspath(__file__), (str(save(program, scratch)),)
    path = Path(program).absolute()
    if not path.is_file():
        raise VerifyError(f"run_and_kill({os.fspath(program)!r}): there is no such file.")
    return str(path), tuple(map(str, args))


@dataclass
class _KilledRuns:
    """One `run_and_kill` under way."""

    runner: Runner
    scratch: Path
    timeout: float

    async def result(self, places: list[Place], draw: random.Random) -> KilledRun:
        """Runs all processes, one after another, and returns the result."""
        whole, root = await self._run_to_end(self.scratch / "whole"), self.scratch / "killed"
        if whole.record is None or not (facts := facts_of(whole.record)).uses_run:
            raise _error("it uses no samebits.Run, so nothing can be resumed", whole)
        check_places(places, facts)
        outcomes, kills = [], []
        for number, place in enumerate(places, 1):
            begin = newest_step(root)
            kill = plan_kill(place, places[number:], begin, facts, whole.ended.seconds, draw)
            outcomes.append(await self._run_killed(self._sized(kill, number - 1), root))
            if outcomes[-1].ended.returncode == 0 and kill.instant is None:
                raise VerifyError(_no_kill_message(place, kill, begin))
            if outcomes[-1].ended.returncode == -signal.SIGKILL:
                kills.append(kill.description())
        last = self._sized(PlannedKill(ProcessVariation()), len(places)).process
        outcomes.append(await self._run_to_end(root, last))
        expected, got = final_digest(self.scratch / "whole"), final_digest(root)
        records = [outcome.record for outcome in outcomes if outcome.record is not None]
        difference = ""
        if got != expected:
            found = first_difference(whole.record, *records)
            difference = found.sentence() if found else "the final commits differ"
        return KilledRun(
            digest=got,
            expected=expected,
            exit_codes=tuple(outcome.ended.returncode for outcome in outcomes),
            kills=tuple(kills),
            difference=difference,
            output="".join(outcome.ended.log.read_text(errors="replace") for outcome in outcomes),
        )

    def _sized(self, kill: PlannedKill, start: int) -> PlannedKill:
        """Returns the kill in a job of the number of ranks that this start of the program has."""
        sizes = self.runner.request.world_sizes
        size = sizes[start % len(sizes)] if sizes else None
        return replace(kill, process=replace(kill.process, world_size=size))

    async def _run_to_end(self, root: Path, process: ProcessVariation | None = None) -> ProcessOutcome:
        """Runs a process without a kill. Raises `VerifyError` when it fails or takes too long."""
        outcome = await self.runner.run(process or ProcessVariation(), root, self.timeout)
        if outcome.failure():
            raise _error(outcome.failure(), outcome)
        return outcome

    async def _run_killed(self, kill: PlannedKill, root: Path) -> ProcessOutcome:
        """Runs a process to its kill, or its end. Raises `VerifyError` when it fails or takes too long."""
        patience = self.timeout if kill.instant is None else kill.instant
        outcome = await self.runner.run(kill.process, root, patience)
        if outcome.failure() and (kill.instant is None or not outcome.ended.timed_out):
            raise _error(outcome.failure(), outcome)
        return outcome


def _error(reason: str, outcome: ProcessOutcome) -> VerifyError:
    return VerifyError(f"run_and_kill: {reason}. Its output:\n{outcome.ended.tail(_SHOWN)}")


def _no_kill_message(place: Place, kill: PlannedKill, begin: int) -> str:
    """Returns the message for a process that reached the run's end without its kill."""
    passed = kill.process.kill is not None and kill.process.kill.step < begin
    reason = (
        f"the run resumed from step {begin}, after it, because a kill at 'random' leaves the commits made by "
        "then; name steps before 'random'"
        if passed
        else "the process did not come to it; does each run of the program do the same steps?"
    )
    return (
        f"run_and_kill(at={place!r}): nothing was killed {kill.description()}, and the run has finished: "
        f"{reason}."
    )

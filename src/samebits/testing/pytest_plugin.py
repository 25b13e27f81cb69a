"""The pytest plugin: a test marked `samebits` is a training that is proven in fresh processes.

A project loads it by its name. It is no entry point of the package: pytest would then rewrite the assertions,
and so the code, of all of samebits, in each project that has it installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from samebits import audit, testing
from samebits._arguments import is_int, is_number, require, require_int
from samebits.errors import InvalidArgumentError, InvalidCallError, SamebitsError

MARK, RUN_DIR = "samebits", "run_dir"
FORM = 'samebits(checks=("run-again", "kill-mid-epoch"), steps=None, seed=0, timeout=None)'
_NOT_PASSED = "cannot be passed to the fresh process that trains. Pass plain values, or make it in the test"


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line("markers", f"{FORM}: a training; two runs, and a killed one, have equal bits")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory for `samebits.Run`; in a test marked `samebits`, one for each check."""
    return tmp_path / "run"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Verifies a marked test in place of calling it; fails with the first difference."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    if failure := _failure(pyfuncitem, mark, arguments):
        pytest.fail(failure, pytrace=False)
    return True


def _failure(test: pytest.Function, mark: pytest.Mark, arguments: dict[str, Any]) -> str:
    """Returns a bad verdict, or the reason why there is none; empty if all bits are equal."""
    script = testing._run_and_kill.__file__
    with audit._verify.scratch_folder() as scratch:
        try:
            options = _options(*mark.args, resumes=RUN_DIR in arguments, **mark.kwargs)
            saved = _save(test.obj, arguments, scratch)
            request = audit._verify.Request(script, (str(saved),), in_place=True, **options)
            report = audit._verify.verify(request)
        except audit._verify.SignalledError as signalled:  # not this test alone: pytest ends, as without us
            raise KeyboardInterrupt(f"{signalled}; no process is left") from None
        except SamebitsError as error:
            reason = str(error).removeprefix(f"{script}: ")
            return "\n".join((f"{test.name}: {reason}", *getattr(error, "__notes__", ())))
    audit._verify.show(report)  # pytest prints it where the test fails, and with -rP
    test.user_properties.append((MARK, report.verdict()))
    return report.verdict() if report.exit else ""


def _options(
    *unknown: Any,
    resumes: bool,
    checks: str | Sequence[str] | None = None,
    steps: int | None = None,
    seed: int = 0,
    timeout: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Returns the marker's arguments as those of a `Request`; docs/how-to/testing.md explains them.

    Each of `checks` must be proven. By default they depend on whether the test takes a run directory.
    """
    if unknown or more:
        raise InvalidCallError(f"{MARK}{unknown or more}: type @pytest.mark.{FORM}.")
    require(steps is None or is_int(steps), MARK, "a number of steps, from 1", steps=steps)
    require(timeout is None or is_number(timeout, 1), MARK, "a number of seconds, from 1", timeout=timeout)
    require_int(MARK, 0, seed=seed)
    default = ("run-again", "kill-mid-epoch") if resumes else ("run-again",)
    names = checks.split(",") if isinstance(checks, str) else default if checks is None else checks
    return {"groups": (*names,), "require": (*names,), "steps": steps, "seed": seed, "timeout": timeout}


def _save(test: Callable[..., Any], arguments: dict[str, Any], folder: Path) -> Path:
    """Writes the test with its arguments, as a function of a run directory, and returns the file."""

    @wraps(test)
    def train(run_dir: Path) -> None:
        test(**arguments | ({RUN_DIR: run_dir} if RUN_DIR in arguments else {}))

    if inspect.iscoroutinefunction(test):
        raise InvalidCallError("a coroutine function; write `def` instead of `async def`.")
    try:
        return testing._run_and_kill.save(train, folder)
    except Exception as error:
        name = next(_not_pickled(arguments, folder), "")
        what = f"the value of the fixture {name!r}" if name else "what it uses of its module"
        raise InvalidArgumentError(f"{what} {_NOT_PASSED}: {error}") from None


def _not_pickled(arguments: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yields the names of the fixtures whose values cannot be written to a file."""
    for name, value in arguments.items():
        try:
            testing._run_and_kill.save(lambda _, value=value: value, folder)
        except Exception:
            yield name

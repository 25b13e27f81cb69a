"""Iterators of Python's own around `run.steps` or `run.epochs`, which begin anew in a resumed process.

The loop is in such an iterator, or in a generator or an object that is in one. Only the list of all objects
shows it: 30 ms at 170,000 objects, once for each `for` statement.
"""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
from collections.abc import Iterator
from types import FrameType
from typing import Any

from samebits._context import process
from samebits._inspect.user_code import cell_of
from samebits._objects import budget
from samebits._program import LoopFrames
from samebits.errors import IncompleteStateError
from samebits.train._completeness.code_lines import LoopSource
from samebits.train._completeness.completeness import Look

_PAIRS = frozenset({zip, map, itertools.zip_longest})
_RESUME = frozenset({itertools.chain, itertools.starmap, itertools.takewhile, itertools.filterfalse})
_KINDS = _PAIRS | {enumerate, *(one for one in vars(itertools).values() if isinstance(one, type))} - _RESUME


def check_wrappers(loop: Any, number: str, look: Look) -> None:
    """Raises `IncompleteStateError` if such an iterator is around a loop, and serves more than output.

    `number`: what a program uses in the place of a count ("step.number").
    """
    checks, place = look.checks, (look.frame.f_code, look.frame.f_lasti)
    if not checks.enabled or not process.overrides.check_complete or place in checks.places:
        return
    checks.places.add(place)
    resumed = {id(one._live) for one in look.objects.values() if hasattr(one, "_live")}
    for wrapper, reader, parts in _wrappers(loop, look.frame):
        others = {n for n, one in enumerate(parts) if not isinstance(one, type(loop))}
        others = {n for n in others if id(getattr(parts[n], "position", parts[n])) not in resumed}
        targets = LoopSource(reader).targets()
        read = (one for n in others & targets.keys() for one in ast.walk(targets[n]))
        names = [one.id for one in read if isinstance(one, ast.Name)]
        with look, budget.one_check():
            look.program.add(reader.f_code)
            is_output = bool(targets) and all(look.flow.variable(reader.f_code, name) for name in names)
        path = names[0] if names else type(wrapper).__name__
        if checks.is_allowed(path) or (parts and (is_output or not others)):
            continue
        file = reader.f_code.co_filename
        error = IncompleteStateError(
            f"Run: {cell_of(file) or file}, line {reader.f_lineno}: {_advice(wrapper, path, number)} "
            f'What does no harm: Run(ignore=["{path}"]). check_complete=False turns the check off.'
        )
        if process.overrides.raise_incomplete:
            raise error
        checks.unraised[path] = error


def _wrappers(loop: Any, frame: FrameType) -> Iterator[tuple[Any, FrameType, list[Any]]]:
    """Yields the iterators, each with the frame that reads it and what it combines, with the loop itself."""
    readers = {id(loop): frame}
    while frame.f_back and (
        frame.f_code.co_flags & inspect.CO_GENERATOR or frame.f_code.co_name == "__next__"
    ):
        generator, frame = frame, frame.f_back
        readers |= dict.fromkeys([id(generator), id(generator.f_locals.get("self"))], frame)
    for one in [one for one in gc.get_objects() if type(one) in _KINDS]:
        held = gc.get_referents(one)
        if type(one) in _PAIRS:
            held = next((part for part in held if type(part) is tuple), held)
        keys = [id(getattr(part, "gi_frame", None) or part) for part in held]
        if reader := next((readers[key] for key in keys if key in readers), None):
            parts = [loop if key in readers else part for key, part in zip(keys, held, strict=True)]
            parts = parts if type(one) in _PAIRS else [0, loop] * isinstance(one, enumerate)
            yield one, LoopFrames(reader).user[0], parts


def _advice(wrapper: Any, path: str, number: str) -> str:
    kind = type(wrapper).__name__
    if isinstance(wrapper, enumerate):
        start = wrapper.__reduce__()[1][1]
        instead = f"{number} + {start}" if start else number
        count = "its count" if path == kind else path
        return f"{kind} counts from {start} again in a resumed run. Write {instead} in the place of {count}."
    if type(wrapper) in _PAIRS:
        return (
            f"what {kind} reads beside the loop begins anew in a resumed run. Take it by number, "
            f"values[{number} % len(values)]; or read both in one loader (samebits.data.Pipeline.zip)."
        )
    return (
        f"{kind} reads steps before the body of those before is done, or begins anew in a resumed run. In "
        f"the loop's body instead: if ({number} + 1) % 4 == 0: optimizer.step(); or if {number} == 99: "
        "run.stop()."
    )

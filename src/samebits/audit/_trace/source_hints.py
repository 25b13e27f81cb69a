"""Causes in Python: what a statement that wrote another value calls, in words, and what to do."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

from samebits._program import is_draw, syntax_tree
from samebits.audit._trace.causes import Cause
from samebits.audit._trace.first_op import FirstOp, SourceLine
from samebits.audit._trace.statements import statements_of

_SEED = "Call samebits.set_random_seed(seed) first; a generator of your own takes a seed where it is made"
_SOURCES = {
    "the clock": ("time time_ns perf_counter monotonic now today utcnow", "Take the number of the step"),
    "entropy of the system": (
        "urandom getrandom token_bytes token_hex randbelow SystemRandom default_rng RandomState uuid1 uuid4",
        _SEED,
    ),
    "the process": ("getpid get_ident gettempdir mkdtemp mkstemp gethostname", "Take a fixed name or number"),
    "an address or the hash seed": ("hash id", "Take a name, or zlib.crc32 of it"),
    "the order of a folder": ("listdir glob iglob rglob iterdir scandir walk", "Put sorted(...) around it"),
    "the order in which threads or processes end": (
        "as_completed imap_unordered get recv wait submit",
        "Take the results in the order in which they were asked for",
    ),
}
_BY_NAME = {name: kind for kind, (names, _) in _SOURCES.items() for name in names.split()}


def hint_of(first: FirstOp, group: str) -> Cause:
    """Returns the cause of a difference that is no op's, from the statement that it comes from."""
    if first.kind == "none":
        return Cause("not known: no run of the search differed again", seen=False)
    if first.kind == "generator" and first.came_in:
        return Cause("a random draw without a seed: the generator began in another state", _SEED)
    if first.came_in and group == "kill":
        return Cause(
            "state that the resume did not restore",
            "Keep it in the run (`run.state.NAME = ...`), or give the object to samebits.Run",
        )
    if first.came_in:
        return Cause("a value from before the traced steps", seen=False)
    if first.place is None:
        return Cause("not known: no statement of the script's wrote another value", seen=False)
    kinds = ["the order of a set"] if first.sets else _kinds(first.place)
    if not kinds and first.kind == "between" and not first.chain and not first.other_number:
        text = "something below torch's dispatcher wrote it: a compiled kernel, another thread, NumPy, C++"
        return Cause(
            text, "Run it with TORCH_COMPILE_DISABLE=1, or without threads, to see which", seen=False
        )
    if not kinds:
        return Cause("this statement gave another value, and nothing that it reads had one")
    kind = kinds[0]
    cure = _SOURCES[kind][1] if kind in _SOURCES else _CURES[kind]
    return Cause(f"{kind}: what the statement reads besides had equal values", cure)


_CURES = {
    "the order of a set": "Put sorted(...) around the set, or take a list",
    "a random draw": _SEED,
    "work in threads": "Take the results in the order in which they were asked for",
}


def nearest_source(first: FirstOp) -> FirstOp:
    """Returns the difference, from the nearest statement that asks the system; without one, as it is.

    A chain that ends at the stopwatch's start goes through the line that reads it.
    """
    for place in first.chain:
        if any(kind in _SOURCES for kind in _kinds(place)):
            return replace(first, place=place, came_in=False)
    return first


def _kinds(place: SourceLine) -> list[str]:
    """Returns the sources of other values that a statement calls, or iterates over."""
    tree = syntax_tree(place.file)
    nodes = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if place.first <= getattr(node, "lineno", 0) <= place.last
    ]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = [getattr(one.func, "attr", getattr(one.func, "id", "")) for one in calls]
    found = dict.fromkeys(_BY_NAME[name] for name in names if name in _BY_NAME)
    if any(name in ("map", "submit", "start", "join") for name in names):
        found["work in threads"] = None
    if any(is_draw(name) for name in names):
        found["a random draw"] = None
    return list(found)


def lines_that_assign(first: FirstOp) -> tuple[str, ...]:
    """Returns the lines of the script that assign the values that came into a step."""
    if not first.came_in:
        return ()
    return tuple(
        f"{Path(file).name}:{statement.first}"
        for file in first.files
        for statement in dict.fromkeys(statements_of(file).values())
        if any(path[-1] in first.names for path in statement.writes)
    )

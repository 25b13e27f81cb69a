"""Causes in Python: what a statement that wrote another value calls, in words, and what to do."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from samebits._program import is_draw, syntax_tree
from samebits.audit._trace.causes import Cause
from samebits.audit._trace.first_op import FirstOp, SourceLine
from samebits.audit._trace.statements import statements_of

_SEED = "Call samebits.set_random_seed(seed) first; a generator of your own takes a seed where it is made"
_FOLDER = "the order of a folder"
_SOURCES = {
    "the clock": ("time time_ns perf_counter monotonic now today utcnow", "Take the number of the step"),
    "entropy of the system": (
        "urandom token_bytes randbelow SystemRandom default_rng RandomState Random seed uuid1 uuid4",
        _SEED,
    ),
    "the process": ("getpid get_ident gettempdir mkdtemp mkstemp gethostname", "Take a fixed name or number"),
    "an address or the hash seed": ("hash id", "Take a name, or zlib.crc32 of it"),
    "the output of another program": (
        "check_output Popen popen getoutput getstatusoutput communicate",
        "Take what it says once, as a file or an argument of the script",
    ),
    _FOLDER: ("listdir glob iglob rglob iterdir scandir walk", "Put sorted(...) around it"),
    "the order in which threads or processes end": (
        "as_completed imap_unordered get recv wait submit",
        "Take the results in the order in which they were asked for",
    ),
}
_READERS = (
    *("read_text", "read_bytes", "readline", "readlines", "load", "loads", "load_file", "loadtxt"),
    *("genfromtxt", "fromfile", "read_csv", "memmap"),
)
_WITHOUT_ARGUMENTS = {"get", "wait", "default_rng", "RandomState", "Random", "seed", "start", "join"}
"""`queue.get()` waits for a thread, `settings.get("lr")` does not; `default_rng(1)` has a seed."""
_BY_NAME = {name: kind for kind, (names, _) in _SOURCES.items() for name in names.split()}


def hint_of(first: FirstOp, group: str) -> Cause:
    """Returns the cause of a difference that is no op's, from the statement that it comes from."""
    cause = _hint_of(first, group)
    if group == "workers" and first.kind == "structure" and not first.chain:
        return Cause("not known: in one run this ran in a loader's worker, which is not traced", seen=False)
    if first.guessed and cause.seen:
        return replace(
            cause, text=f"{cause.text}; it is only the nearest one that had another value", seen=False
        )
    return cause


def _hint_of(first: FirstOp, group: str) -> Cause:
    kinds = _kinds(first.place) if first.place else []
    if first.kind == "none":
        told = f"; in this step {first.place} asks for {kinds[0]}" if kinds else ""
        return Cause(f"not known: no run of the search differed again{told}", seen=False)
    if group == "world-sizes":
        draws = "a generator that is drawn from by the rank's shards" if first.kind == "generator" else ""
        held = "a value that differs by the rank or the number of processes" if first.came_in else ""
        what = draws or held or "a statement that differs by the rank or the number of processes"
        seen = bool(first.chain) or first.kind in ("generator", "value") or first.other_number
        guess = "" if seen else "; which statement chose so is not seen"
        return Cause(f"the number of processes: {what}{guess}", _CURE_OF_RANKS, seen)
    if first.kind == "generator" and first.came_in and group != "kill":
        return Cause("a random draw without a seed: the generator began in another state", _SEED)
    if first.came_in and group == "kill":
        return Cause("state that the resume did not restore", _cure_of_state(first))
    if first.came_in:
        return Cause("a value from before the traced steps", seen=False)
    if first.place is None:
        return Cause("not known: no statement of the script's wrote another value", seen=False)
    if first.sets and "the order of a set" not in kinds:
        kinds.insert(0, "the order of a set")
    if group == "kill":  # what asks the system differs in "run again", too
        kinds = [kind for kind in kinds if kind == "the contents of a file"]
    if not kinds and group == "kill":
        text = "state that the resume did not restore, which this statement reads: a value that is not traced"
        return Cause(text, _cure_of_state(first), seen=False)
    if not kinds and first.kind == "between" and not first.chain and not first.other_number:
        text = "something below torch's dispatcher wrote it: a compiled kernel, another thread, NumPy, C++"
        return Cause(
            text, "Run it with TORCH_COMPILE_DISABLE=1, or without threads, to see which", seen=False
        )
    seen = bool(first.chain) or first.kind == "value"
    if not kinds and first.compiled:
        cure = "Call samebits.enable_op_determinism() before torch.compile"
        return Cause("a compiled kernel: what the statement reads had equal values", cure, seen=seen)
    if not kinds:
        text = "this statement gave another value, and nothing that it reads had one, as far as it is traced"
        return Cause(f"not known: {text}", seen=False)
    kind = kinds[0]
    cure = _SOURCES[kind][1] if kind in _SOURCES else _CURES[kind]
    if kind == "work in threads":
        return Cause(f"{kind}, as far as one can see: this thread wrote no other value", cure, seen=False)
    what = " or ".join(kinds)  # which of several counts is not seen; nor which statement of a line
    at = first.place.first
    alone = sum(isinstance(one, ast.stmt) and one.lineno == at for one in _nodes(first.place)) == 1
    seen = len(kinds) == 1 and alone
    return Cause(f"{what}: what the statement reads besides had equal values", cure, seen=seen)


def _cure_of_state(first: FirstOp) -> str:
    """Returns what to do about state that is lost, with the line of its class and of the Run."""
    nodes = [
        (file, node) for file in first.files for node in ast.walk(syntax_tree(file) or ast.Module([], []))
    ]
    calls = [(file, node) for file, node in nodes if isinstance(node, ast.Call) and _name(node) == "Run"]
    runs = "".join(f" ({SourceLine(file, node.lineno, 0)})" for file, node in calls[:1])
    for file, node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        own = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and _is_self(one)}
        saves = [one.lineno for one in node.body if getattr(one, "name", "") == "state_dict"]
        for name in own.intersection(first.names) if saves else ():
            at = SourceLine(file, saves[0], 0)
            return f"Return `{name}` in its state_dict ({at}), and take it in load_state_dict"
        if own.intersection(first.names):
            told = f"Give its class ({SourceLine(file, node.lineno, 0)}) a state_dict and a load_state_dict"
            return f"{told}, and it to samebits.Run{runs}" if runs else told
    return f"Keep it in the run (`run.state.NAME = ...`), or give the object to samebits.Run{runs}"


def _is_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == "self"


_CURE_OF_RANKS = (
    "Compute it from the shard and the step, not from the rank; draw from torch's global generator, or give "
    "the generator to samebits.Run"
)
_CURES = {
    "the order of a set": "Put sorted(...) around the set, or take a list",
    "a random draw": _SEED,
    "the names in a folder": "Give the files fixed names, and sort by the name alone, not by the path",
    "work in threads": "Wait for each thread before its result is read; take results in the order asked for",
    "the contents of a file": "Give each run the same file; what the script writes belongs into run.state",
}


def nearest_source(first: FirstOp, group: str) -> FirstOp:
    """Returns the difference, from the nearest statement that asks the system; without one, as it is.

    A chain that ends at the stopwatch's start goes through the line that reads it.
    """
    if group == "world-sizes" and first.ops != (None, None):
        return _using_the_rank(first)
    chain = () if group == "kill" or first.kind == "op" else first.chain
    near = first.before if first.kind == "none" else (*chain, *first.opaque)
    asking = [place for place in near if _asks(place)]
    made = next((place for place in _assigning(first) if first.came_in and _asks(place)), None)
    root = chain[-1] if chain and _asks(chain[-1]) else made
    if root is not None and group != "kill":
        place = next((one for one in asking if _asks(one) & _asks(root)), root)
        return replace(first, place=place, came_in=False, guessed=first.guessed or place is made)
    if asking:
        guessed = first.guessed or (asking[0] in first.opaque and asking[0] not in chain)
        return replace(first, place=asking[0], came_in=False, guessed=guessed)
    if first.place and _kinds(first.place) == ["the names in a folder"]:
        named = next((place for place in first.before if {*_SOURCES} & {*_kinds(place)}), None)
        return first if named is None else replace(first, place=named, guessed=True)
    ops = [one["at"].rpartition(":") for one in first.ops if one is not None]
    own = [SourceLine(file, int(line), int(line)) for file, _, line in ops]
    drawn = (place for place in (*own, *first.before) if "a random draw" in _kinds(place) or _asks(place))
    if first.kind == "structure" and group != "kill" and not (first.place and _kinds(first.place)):
        near = next(drawn, None)
        return first if near is None else replace(first, place=near, guessed=True)
    if not first.other_number and not (first.place and _kinds(first.place)):
        threads = next((place for place in first.before if "work in threads" in _kinds(place)), None)
        return first if threads is None else replace(first, place=threads)
    return first


def _using_the_rank(first: FirstOp) -> FirstOp:
    """Returns the difference, from the line that reads the rank, or what a loop gave to it.

    To ask for the rank, and to loop over its shards, is no fault by itself.
    """
    ops = sorted((one for one in first.ops if one is not None), key=lambda one: "c10d" not in one["n"])
    file, _, line = ops[0]["at"].rpartition(":")
    own = SourceLine(file, int(line), int(line))
    collective = first.kind == "structure" and "c10d" in ops[0]["n"]  # one of the two jobs has it
    if first.guessed or collective:
        return replace(first, place=own, chain=(), names=())
    is_given = first.place is not None and any(isinstance(node, ast.For) for node in _nodes(first.place))
    is_rank = all(re.search("rank|world", name, re.IGNORECASE) for name in first.names)
    if not first.chain or not (is_given or is_rank):
        return first
    place = [own, *first.chain][-2]
    written = statements_of(place.file).get(place.first)
    return replace(first, place=place, names=tuple(path[-1] for path in written.writes) if written else ())


def _nodes(place: SourceLine) -> list[ast.AST]:
    tree = syntax_tree(place.file) or ast.Module([], [])
    return [node for node in ast.walk(tree) if place.first <= getattr(node, "lineno", 0) <= place.last]


def _asks(place: SourceLine) -> set[str]:
    """Returns what a statement asks the system for."""
    return _SOURCES.keys() & _kinds(place)


def _kinds(place: SourceLine) -> list[str]:
    """Returns the sources of other values that a statement calls, or iterates over."""
    nodes = _nodes(place)
    calls = [(node, _name(node)) for node in nodes if isinstance(node, ast.Call)]
    names = [name for node, name in calls if not (node.args and name in _WITHOUT_ARGUMENTS)]
    ordered = {id(one) for node, name in calls if name == "sorted" for one in ast.walk(node)}
    if any(id(node) in ordered and _BY_NAME.get(name) == _FOLDER for node, name in calls):
        return ["the names in a folder"]
    given = [one.value for node, _ in calls for one in node.keywords]  # `key=hash`
    names += [getattr(one, "attr", getattr(one, "id", "")) for one in given]
    own = {
        node.name
        for node in ast.walk(syntax_tree(place.file) or ast.Module([], []))
        if isinstance(node, ast.FunctionDef)
    }
    names = [name for name in names if name not in own]  # a `time` or a `get` of the user's
    found = dict.fromkeys(_BY_NAME[name] for name in names if name in _BY_NAME)
    if any(isinstance(node, ast.SetComp) for node in nodes) or {"set", "frozenset"} & {*names}:
        found["the order of a set"] = None
    if any(name in (".map", "submit", "start", "join") for name in names):
        found["work in threads"] = None
    if "entropy of the system" not in found and any(is_draw(name) for name in names):
        found["a random draw"] = None
    if {*_READERS} & {*names}:
        found["the contents of a file"] = None
    return list(found)


def _name(call: ast.Call) -> str:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if getattr(getattr(call.func, "value", None), "id", "") == "subprocess":
        return "Popen"
    return ".map" if name == "map" and isinstance(call.func, ast.Attribute) else name


def lines_that_assign(first: FirstOp) -> tuple[str, ...]:
    """Returns the lines of the script that assign the values that came into a step."""
    return tuple(map(str, _assigning(first))) if first.came_in else ()


def _assigning(first: FirstOp) -> list[SourceLine]:
    return [
        SourceLine(file, statement.first, statement.last)
        for file in first.files
        for statement in dict.fromkeys(statements_of(file).values())
        if any(path[-1] in first.names for path in statement.writes)
    ]

"""Two traces of one step: the first op that differs, and the statement that its difference comes from.

Ops are compared in their order. Statements and calls are compared by their place and how often they ran: a
branch that only prints is no difference of the step. From the op that differs the search goes back through
what its statement reads, to the earliest statement that wrote another value (a dynamic slice).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from samebits.audit._trace.line_tracer import OPAQUE, SET
from samebits.audit._trace.statements import ATTRIBUTE

_SEEDING = {
    f".{name}"
    for name in ["manual_seed", "seed", "set_random_seed", "seed_everything", "set_state", "set_rng_state"]
}
Kind = Literal["op", "structure", "between", "generator", "value", "state", "none"]


@dataclass(frozen=True)
class SourceLine:
    """A statement of the script's."""

    file: str
    first: int
    last: int

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.first}"


@dataclass
class Trace:
    """The lines of one trace."""

    ops: list[dict[str, Any]] = field(default_factory=list)
    lines: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    """Statements and calls by (kind, file's name, line, function, how often before), in their order. A check
    may have moved the folder."""
    statements: dict[int, tuple[SourceLine, list[str]]] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """The variables at the begin."""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The calls by the number of their frame."""
    generators: dict[str, str] = field(default_factory=dict)
    ends: frozenset[int] | None = None
    """The ops of a part from which the weights follow: those of a shard's gradients, or the optimizer's."""
    whole: bool = False
    failed: str = ""
    """The error with which the trace of the statements ended."""

    def parts(self) -> dict[tuple[Any, ...], Trace]:
        """Returns the parts of its steps: before the shards, each shard, and after them.

        A part has its statements, a shard also those before it, and the ops from which its gradients follow,
        or the optimizer's update: what is only logged may differ by the rank.
        """
        ops, lines = defaultdict[Any, list[int]](list), defaultdict[Any, list[Any]](list)
        for at, op in enumerate(self.ops):
            ops[tuple(op.get("part", ()))].append(at)
        for key, line in self.lines.items():
            lines[tuple(line.get("part", ()))].append((key[:-1], line))
        found = {}
        for key in ops.keys() | lines.keys():
            if len(key) == 1 or key[1:2] in (("shard",), ("after",)):  # not in a validation
                before = [*lines[()], *(lines[key[:1]] if len(key) > 1 else ())]
                found[key] = self._part(ops[key], [*before, *lines[key]], is_shard="shard" in key)
        return found

    def _part(self, ops: list[int], lines: list[Any], *, is_shard: bool) -> Trace:
        sums = [at for at in ops if "sums" in self.ops[at]]
        added = [one[3] for at in sums for one in self.ops[at]["i"]]
        ends = added if is_shard else [at for at in ops if self.ops[at]["p"] == "optimizer"]
        inside, needed, wanted = {*ops}.difference(sums), set[int](), [*ends]
        while wanted:
            at = wanted.pop()
            if at in inside and at not in needed:
                needed.add(at)
                wanted += [one[3] for one in self.ops[at]["i"]]
        numbers: dict[int | None, int] = {before: at for at, before in enumerate(sorted(needed))}
        last = frozenset(numbers[at] for at in ends if at in numbers)
        found, seen = replace(self, ops=[], lines={}, ends=last), Counter[Any]()
        for op in map(self.ops.__getitem__, sorted(needed)):
            inputs = [[*one[:3], numbers.get(one[3]), numbers.get(one[4])] for one in op["i"]]
            found.ops.append({**op, "i": inputs})
        for place, line in lines:
            found.lines[*place, seen[place]] = line
            seen[place] += 1
        return found

    def place(self, event: dict[str, Any]) -> SourceLine | None:
        """Returns the statement in which an event happened."""
        return self.statements[event["st"][0]][0] if event.get("st") else None

    def ran_before(self, event: dict[str, Any]) -> list[tuple[SourceLine, dict[str, Any]]]:
        """Returns the statements that ended before an event in its call, with their places."""
        frame = event["st"][1] if event.get("st") else None
        own = (one for one in self.lines.values() if one["k"] == "line" and one["at#"] < event["at#"])
        placed = ((self.place(one), one) for one in own if one.get("st") and one["st"][1] == frame)
        return [(place, one) for place, one in placed if place is not None]

    def element(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the call of a dataset's `__getitem__` in which an event happened."""
        statement = event.get("st")
        while statement is not None and (call := self.calls.get(statement[1])) is not None:
            if "element" in call:
                return call
            statement = call["st"]
        return None

    def files_of(self, element: int | str | None) -> tuple[str, ...]:
        """Returns the names of the files, but for modules, that were opened for an element, if it is one."""
        call = next((one for one in self.calls.values() if one.get("element") == element), None)
        if element is None or call is None:
            return ()
        lines = [line for line in self.lines.values() if "files" in line and self.element(line) is call]
        opened = (Path(one) for line in lines for one in line["files"])
        return tuple(dict.fromkeys(one.name for one in opened if one.suffix not in (".py", ".pyc")))

    def unwritten(self, op: dict[str, Any]) -> set[int]:
        """Returns the inputs of an op of which a part was never written: by their place among its tensors."""
        return {at for at, one in enumerate(op["i"]) if one[4] is not None}

    def reads(self, event: dict[str, Any]) -> set[str]:
        """Returns the keys that the statement of an event may have read."""
        if not event.get("st"):
            return set()
        number, frame = event["st"]
        plain = [name for name in self.statements[number][1] if not name.startswith(ATTRIBUTE)]
        own = {f"{frame}:{name}" for name in plain}
        return {*self.statements[number][1], *own, f"return of {number}:{frame}"}


def read_trace(path: str | Path) -> Trace:
    """Returns the trace in a file; of one that ends early, what there is."""
    found, seen, at = Trace(), Counter[Any](), 0
    flags: dict[str, Any] = {}
    states: dict[str, str] = {}
    for text in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(text)
        except ValueError:
            break
        kind = event["k"]
        event["at#"] = at = at + 1
        if kind == "op":
            event["flags"] = flags
            found.ops.append(event)
        elif kind == "flags":
            flags = event["f"]
        elif kind == "st":
            place = SourceLine(event["f"], event["a"], event["b"])
            found.statements[event["id"]] = place, event["r"]
        elif kind == "start":
            found.held, found.generators = event["v"], event["g"]
            states = found.generators
        elif kind == "failed":
            found.failed = event["why"]
        elif kind == "end":
            found.whole = True
        else:
            place = found.place(event)
            key = kind, place and Path(place.file).name, place and place.first, event["fn"]
            found.lines[*key, seen[key]] = event
            if kind == "call":
                found.calls[event["of"]] = event
            now = event.get("g", states)
            event["moved"] = {name for name in now if now[name] != states.get(name)}
            states = now
            seen[key] += 1
    return found


def by_part(traces: Iterable[Trace]) -> dict[tuple[Any, ...], Trace]:
    """Returns the parts of the steps in the traces of a job's ranks, in their order: each shard by itself.

    What is outside of the shards runs on all ranks: here it is the first one's.
    """
    found: dict[tuple[Any, ...], Trace] = {}
    for trace in traces:
        found = trace.parts() | found
    return dict(sorted(found.items(), key=lambda item: _place_of_part(*item[0])))


def _place_of_part(
    step: int, kind: str = "", number: int = -1, _: str = "", again: int = 0
) -> tuple[int, ...]:
    """Returns the step, the pass, and there the place: before the shards, each of them, after them."""
    return (step, number, 1, 0) if kind == "after" else (step, again, 0, number)


@dataclass(frozen=True)
class FirstOp:
    """The first difference of two traces."""

    kind: Kind
    """"op": other bits from equal inputs. "structure": another op, or another shape. "between": an input
    differs that no op wrote. "generator": a draw from another state. "value", "state": of Python's values,
    and no op's. "none": no op differs.
    """
    ops: tuple[dict[str, Any] | None, dict[str, Any] | None] = (None, None)
    number: int = 0
    """The number of the op in its trace."""
    place: SourceLine | None = None
    """The statement that the difference comes from."""
    names: tuple[str, ...] = ()
    """The variables that it wrote with another value, or that came into the step with one."""
    came_in: bool = False
    """The value was another one before the traced step."""
    chain: tuple[SourceLine, ...] = ()
    """The statements through which it went, the last one first."""
    guessed: bool = False
    """No statement is known that wrote it: the chain is that of the nearest one that wrote something."""
    unwritten: bool = False
    """The input was memory that nobody has written."""
    sets: tuple[str, ...] = ()
    """The sets that the statement reads."""
    before: tuple[SourceLine, ...] = ()
    """Where no statement is known that wrote it: those that ran before the op, the last one first."""
    whole: bool = False
    """Both traces go to the end of the step."""
    failed: str = ""
    """The error with which a trace of the statements ended before."""
    files: tuple[str, ...] = ()
    """The files of the program, as far as the traced step ran them."""
    element: int | str | None = None
    """The index of the dataset's element in whose `__getitem__` it ran."""
    read: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """The files that were opened for that element, in both runs."""
    opaque: tuple[SourceLine, ...] = ()
    """The statements that wrote what it reads and whose values nobody knows, the last one first."""
    compiled: bool = False
    """The statement called compiled kernels."""
    incoming: tuple[str, ...] = ()
    """All variables that had another value where the trace began."""

    @property
    def varies(self) -> bool:
        """True if the op gave several results when it was called several times."""
        return any(one is not None and "varies" in one for one in self.ops)

    @property
    def other_number(self) -> bool:
        """True if the op was given other numbers, not other tensors."""
        mine, theirs = self.ops
        return mine is not None and theirs is not None and mine["s"] != theirs["s"]


def first_op(a: Trace, b: Trace) -> FirstOp:
    """Returns the first difference of two traces of the same step."""
    differing = _Differing(a, b)
    found = _first_op(a, b, differing)
    wrote = [*(one for one, _ in differing.found), *(one for one in found.ops[:1] if one is not None)]
    element = next((a.element(one) for one in wrote if a.place(one) == found.place), None)
    index = None if element is None else element["element"]
    files = {Path(place.file).name: place.file for place, _ in a.statements.values()}
    if found.place is not None:  # a check may have moved the second run's
        name = Path(found.place.file).name
        found = replace(found, place=replace(found.place, file=files.get(name, found.place.file)))
    event = found.ops[0] if not found.chain else None
    here = [one for one in a.lines.values() if a.place(one) == found.place]
    reads = set().union(*(a.reads(one) for one in [*here, *([event] if event else [])]))
    written = {name: value for one in a.lines.values() for name, value in one["w"].items()} | a.held
    sets = {_plain(name) for name, value in written.items() if value.startswith(SET) and name in reads}
    opaque = [
        one
        for one in reversed(a.lines.values())
        if any(value.startswith(OPAQUE) and name in reads for name, value in one["w"].items())
    ]
    before: dict[SourceLine | None, None] = {}
    if found.kind == "none" or (found.kind != "op" and not found.chain):
        limit = found.ops[0]["at#"] if found.ops[0] is not None else float("inf")
        ran = [one for one in a.lines.values() if one["at#"] < limit]
        before = dict.fromkeys(a.place(one) for one in reversed(ran))
    unknown = tuple(place for place in before if place is not None)
    return replace(
        found,
        element=index,
        read=(a.files_of(index), b.files_of(index)),
        opaque=tuple(dict.fromkeys(place for place in map(a.place, opaque) if place is not None)),
        compiled=any("compiled" in one for one in here),
        incoming=tuple(sorted(map(_plain, differing.came_in))),
        whole=a.whole and b.whole,
        failed=a.failed or b.failed,
        files=tuple(files.values()),
        sets=tuple(sorted(sets)),
        before=unknown,
    )


def first_value(a: Trace, b: Trace, names: set[str]) -> FirstOp:
    """Returns the statement of a part that gave one of these variables another value."""
    differing = _Differing(a, b)
    for event, keys in differing.found:
        place, given = a.place(event), names & set(map(_plain, keys))
        if "part" in event and given and place is not None:
            before, wrote, _, last = differing._back(a.reads(event), event["at#"])
            chain, written = (place, *before), wrote or tuple(sorted(given))
            if last is not None and last["k"] == "call":  # it only hands over what a rank may have of its own
                chain, written = chain[:-1], ()
            return FirstOp("value", place=chain[-1], names=written, chain=chain, whole=a.whole and b.whole)
    return FirstOp("none", whole=a.whole and b.whole)


def _first_op(a: Trace, b: Trace, differing: _Differing) -> FirstOp:
    kinds: list[Kind | None] = []
    for mine, theirs in zip(a.ops, b.ops, strict=False):
        kinds.append(_difference(mine, theirs, a.unwritten(mine)))
        if kinds[-1] == "structure":
            break
    parted = kinds[-1:] == ["structure"] or len(kinds) == min(len(a.ops), len(b.ops)) < max(
        len(a.ops), len(b.ops)
    )
    number = _root(a, b, kinds)
    if number is None and not parted:
        return differing.of_values()
    if number is None:
        number = len(kinds) - (kinds[-1:] == ["structure"])
        mine, theirs = (trace.ops[number] if number < len(trace.ops) else None for trace in (a, b))
        return differing.back_from("structure", mine, theirs, number)
    mine, theirs = a.ops[number], b.ops[number]
    if kinds[number] == "generator":
        return differing.of_generator(mine, theirs, number)
    if kinds[number] == "between":
        return differing.back_from("between", mine, theirs, number)
    place, unwritten = a.place(mine), set() if _receives(mine) else a.unwritten(mine)
    file, _, line = mine.get("fw", "").rpartition(":")
    place = SourceLine(file, int(line), int(line)) if file else place
    if mine["flags"] != theirs["flags"]:
        place = differing.sets_flags(mine) or place
    elif unwritten:  # what took the memory
        place = a.place(a.ops[mine["i"][min(unwritten)][4]]) or place
    return FirstOp("op", (mine, theirs), number, place, unwritten=bool(unwritten))


def _root(a: Trace, b: Trace, kinds: list[Kind | None]) -> int | None:
    """Returns the first op that differs among those from which the weights got other bits.

    From an update that differs the search goes back to the ops that wrote its inputs: tensors of a clock that
    are only logged are no reason. Without such an update every op counts.
    """
    differ = [n for n, kind in enumerate(kinds) if kind not in (None, "structure")]
    updates = [n for n in differ if a.ops[n]["p"] == "optimizer"]
    backwards = [n for n in differ if a.ops[n]["p"] == "backward"]
    pending = updates[:1] or backwards[:1] or differ
    if a.ends is not None:
        pending = [n for n in differ if n in a.ends]
    seen, roots = set[int](), []
    made = {str(one[:3]) for op in a.ops for one in op["o"] if one is not None}
    while pending:
        number = pending.pop()
        if number in seen:
            continue
        seen.add(number)
        inputs = zip(a.ops[number]["i"], b.ops[number]["i"], strict=True)
        changed = [one for one, other in inputs if one[2] != other[2] and one[3] is not None]
        written = {one[3]: one for one in changed if kinds[one[3]] is not None or _receives(a.ops[one[3]])}
        writers = {number for number, one in written.items() if _wrote(a.ops[number], one, made)}
        pending += writers
        if not writers or kinds[number] != "between":
            roots.append(number)
    return min(roots, default=None)


def _receives(op: dict[str, Any]) -> bool:
    """Returns True for a receive of c10d: its output, which comes later, is known where it is read."""
    return op["n"].startswith("c10d::recv")


def _wrote(op: dict[str, Any], tensor: list[Any], made: set[str]) -> bool:
    """Returns False if a tensor only lies where an op wrote, and has bits that no op has given."""
    outputs = [one for one in op["o"] if one is not None and one[:2] == tensor[:2]]
    return not outputs or str(tensor[:3]) in made  # a view of them, such as a square matrix turned


def _shape(op: dict[str, Any]) -> Any:
    inputs = [one[:2] for one in op["i"]]
    outputs = [one and one[:2] for one in op["o"]]
    return op["n"], op["p"], op["m"], op["at"].rpartition(":")[2], inputs, outputs


def _difference(mine: dict[str, Any], theirs: dict[str, Any], unwritten: set[int]) -> Kind | None:
    if _shape(mine) != _shape(theirs):
        return "structure"
    if mine["s"] != theirs["s"] or any(
        one[2] != other[2] and at not in unwritten
        for at, (one, other) in enumerate(zip(mine["i"], theirs["i"], strict=True))
    ):
        return "between"
    if mine.get("g") != theirs.get("g"):
        return "generator"
    varies = mine.get("varies") or theirs.get("varies")
    if varies or [one and one[2] for one in mine["o"]] != [one and one[2] for one in theirs["o"]]:
        return "op"
    return None


class _Differing:
    """The statements and calls that wrote other values in two traces."""

    def __init__(self, a: Trace, b: Trace) -> None:
        self.a, self.b = a, b
        self.found: list[tuple[dict[str, Any], frozenset[str]]] = []
        """Events of `a` with the keys that have other values in `b`, in their order."""
        self.theirs: dict[int, dict[str, Any]] = {}
        """Their partners in `b`."""
        self.came_in = {name for name, value in a.held.items() if b.held.get(name, value) != value}
        differ = set(self.came_in)
        for mine, theirs in self._pairs():
            other = {_plain(name): value for name, value in theirs["w"].items()}
            keys = {name for name, value in mine["w"].items() if other.get(_plain(name), value) != value}
            if differ & a.reads(mine):  # an object that was made of what differs
                keys |= {name for name, value in mine["w"].items() if value.startswith(OPAQUE)}
            differ = (differ - mine["w"].keys()) | keys
            if keys:
                self.found.append((mine, frozenset(keys)))
                self.theirs[mine["at#"]] = theirs

    def back_from(
        self, kind: Kind, mine: dict[str, Any] | None, theirs: dict[str, Any] | None, number: int
    ) -> FirstOp:
        """Returns the difference at two ops, with the statement that it comes from."""
        trace, event = (self.a, mine) if mine is not None else (self.b, theirs)
        assert event is not None
        split = self._last_before_split(mine, theirs) if kind == "structure" else None
        wanted = trace.reads(event)
        if theirs is not None and kind == "structure":
            wanted |= self.b.reads(theirs)
        if split is not None:
            wanted |= self.a.reads(split)
        chain, names, came_in, last = self._back(wanted, event["at#"])
        parted = self._parted(last["at#"]) if last is not None and not came_in else {}
        if last is not None and (moved := sorted(last["moved"] & parted.keys())):
            begun = parted[moved[0]]
            place = self.a.place(last if begun is None else begun)
            return FirstOp("generator", (mine, theirs), number, place, names, begun is None, tuple(chain))
        chosen = None if split is None else self.a.place(split)
        if chain and chosen is not None and chosen not in chain:
            chain = [chosen, *chain]
        place = chain[-1] if chain else chosen or trace.place(event)
        if kind == "between" and not chain and not came_in and mine is not None and theirs is not None:
            before = [one for one in self.found if one[0]["at#"] < mine["at#"]]
            if before and (mine["s"] == theirs["s"] or mine["p"] == "optimizer"):  # the nearest that wrote
                wrote, keys = before[-1]
                chain, names, came_in, _ = self._back(set(keys), wrote["at#"] + 1)
                place = chain[-1] if chain else trace.place(wrote)
                return FirstOp(
                    kind, (mine, theirs), number, place, names, came_in, tuple(chain), guessed=True
                )
        return FirstOp(kind, (mine, theirs), number, place, names, came_in, tuple(chain))

    def _last_before_split(
        self, mine: dict[str, Any] | None, theirs: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """Returns the last statement that both runs executed before their ops part: it chose the way."""
        limits = [float("inf") if one is None else one["at#"] for one in (mine, theirs)]
        before = [one for one, other in self._pairs() if one["at#"] < limits[0] and other["at#"] < limits[1]]
        return before[-1] if before else None

    def _parted(self, limit: float) -> dict[str, dict[str, Any] | None]:
        """Returns the process' generators that have another state in `b` at a place of the trace of `a`, each
        with the event since which that is so; None, if the trace began so.
        """
        parted: dict[str, dict[str, Any] | None] = {
            name: None for name, state in self.a.generators.items() if self.b.generators.get(name) != state
        }
        for mine, theirs in self._pairs():
            if mine["at#"] >= limit:
                break
            for name, state in mine.get("g", {}).items():
                if theirs.get("g", {}).get(name) == state:
                    parted.pop(name, None)
                elif name in mine["moved"]:
                    parted.setdefault(name, mine)
        return parted

    def _begun_before(self, event: dict[str, Any]) -> set[str]:
        """Returns what a statement changed to another value, whose value before nobody has seen."""
        known = set(self.a.held)
        for one in self.a.lines.values():
            if one is event:
                break
            known |= one["w"].keys()
        keys = next(keys for one, keys in self.found if one is event)
        return {_plain(key) for key in keys & self.a.reads(event) - known}

    def _back(
        self, wanted: set[str], limit: float
    ) -> tuple[list[SourceLine], tuple[str, ...], bool, dict[str, Any] | None]:
        chain: list[SourceLine] = []
        names: tuple[str, ...] = ()
        last = None
        for event, keys in reversed(self.found):
            if event["at#"] >= limit or not keys & wanted:
                continue
            wanted = wanted | self.a.reads(event)
            names = tuple(sorted({_plain(name) for name in keys & wanted} or keys))
            last, place = event, self.a.place(event)
            if place is not None and place not in chain:
                chain.append(place)
        incoming = {_plain(name) for name in self.came_in & wanted}
        if last is not None and not incoming:
            incoming = self._begun_before(last)
        if incoming:
            return chain, tuple(sorted(incoming)), True, last
        branch = None if last is None else self._branch(last)
        if branch is None:
            return chain, names, False, last
        further, names, came_in, first = self._back(self.a.reads(branch), branch["at#"])
        place = self.a.place(branch)
        return [*chain, *([place] if place else []), *further], names, came_in, first or branch

    def _branch(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the statement after which the call of an event went another way in `b`, if what ran in one
        of the two alone wrote what the event reads.
        """
        ran = [self.a.ran_before(event), self.b.ran_before(self.theirs[event["at#"]])]
        lines = [[place.first for place, _ in one] for one in ran]
        alone = set((Counter(lines[0]) - Counter(lines[1])) + (Counter(lines[1]) - Counter(lines[0])))
        wrote = {
            _plain(name) for one in ran for place, line in one if place.first in alone for name in line["w"]
        }
        if not wrote & set(map(_plain, self.a.reads(event))):
            return None
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*lines, strict=False)))
        return ran[0][same - 1][1] if same else None

    def of_generator(self, mine: dict[str, Any], theirs: dict[str, Any], number: int) -> FirstOp:
        """Returns the statement that gave a generator another state: the last that seeded it, else the first
        that moved it; none, if it came into the step with that state.
        """
        ops = mine, theirs
        parted = self._parted(mine["at#"])
        if "torch" not in parted:  # a generator of the script's
            chain, names, came_in, _ = self._back(self.a.reads(mine), mine["at#"])
            place = chain[-1] if chain else self.a.place(mine)
            return FirstOp("generator", ops, number, place, names, came_in or not chain, tuple(chain))
        before = [event for event in self.a.lines.values() if event["at#"] < mine["at#"] and event["moved"]]
        seeds = [event for event in before if _SEEDING & self.a.reads(event)]
        event = seeds[-1] if seeds else parted["torch"]
        if event is None:
            return FirstOp("generator", ops, number, self.a.place(mine), came_in=True)
        chain, names, came_in, _ = self._back(self.a.reads(event), event["at#"])
        place = chain[-1] if chain else self.a.place(event)
        return FirstOp("generator", ops, number, place, names, came_in, tuple(chain))

    def sets_flags(self, op: dict[str, Any]) -> SourceLine | None:
        """Returns the last statement of either run that changed a setting of torch before an op."""
        for trace in (self.a, self.b):
            places = [trace.place(one) for one in trace.lines.values() if one.get("f")]
            if places:
                return places[-1]
        return None

    def _pairs(self) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        return ((one, self.b.lines[key]) for key, one in self.a.lines.items() if key in self.b.lines)

    def of_values(self) -> FirstOp:
        """Returns the first statement that wrote another value, if no op differs."""
        for event, keys in self.found:
            incoming = self.came_in & self.a.reads(event) or self._begun_before(event)
            names = tuple(sorted(map(_plain, incoming or keys)))
            kind: Kind = "state" if incoming else "value"
            return FirstOp(kind, place=self.a.place(event), names=names, came_in=bool(incoming))
        if self.came_in:
            read = set().union(*(self.a.reads(event) for event in self.a.lines.values()))
            names = {_plain(name) for name in self.came_in & read or self.came_in}
            return FirstOp("state", names=tuple(sorted(names)), came_in=True)
        last = None
        for key, event in self.a.lines.items():
            if key not in self.b.lines:  # a branch that one run alone took
                return FirstOp("value", place=last)
            last = self.a.place(event)
        if len(self.b.lines) > len(self.a.lines) and self.a.whole:
            return FirstOp("value", place=last)
        return FirstOp("none")


def _plain(key: str) -> str:
    """Returns a variable's name without the number of its frame, which another run may count otherwise."""
    if key.startswith("return of "):
        return "return"
    frame, colon, name = key.partition(":")
    return name if colon and frame.isdigit() else key.lstrip(ATTRIBUTE)

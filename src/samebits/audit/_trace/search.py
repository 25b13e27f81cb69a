"""The search: both sides are run again to the step that differs, traced there, and compared op by op.

`find_op` is what `samebits verify` does at its end for the row of its verdict. A side is the baseline, or the
processes of the check, each in its own surroundings; a side that was killed starts from its commit. What does
not differ this time is run again, a few times.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from samebits.audit._child.launch_spec import TraceSpec
from samebits.audit._first_difference import (
    LOCALS,
    Difference,
    first_difference,
    shortened,
    step_differences,
)
from samebits.audit._record.record_file import Record
from samebits.audit._trace.causes import REPEATS, Cause, cause_of_op, is_custom
from samebits.audit._trace.first_op import FirstOp, SourceLine, by_part, first_op, first_value, read_trace
from samebits.audit._trace.source_hints import hint_of, lines_that_assign, nearest_source
from samebits.audit._verify.check_plan import Check, ProcessVariation
from samebits.audit._verify.check_process import ProcessOutcome, Runner
from samebits.checkpoint._run_directory import COMMITS, MARKER

TRIES = 4
_AGAIN = 8
"""Calls of each op of the traced step, from the second try on."""
_WHOLE = 60
"""Steps from the script's first line that are traced, where a value was another one before the step."""
_INLINE = "for the trace the loaders read in the script's own process, without workers"


@dataclass(frozen=True)
class FoundOp:
    """The result of a search."""

    check: str
    first: FirstOp
    cause: Cause
    step: int
    rank: int | None = None
    shard: int | None = None
    tries: int = 1
    assigned: tuple[str, ...] = ()
    """The lines that assign the values that came into the step."""
    notes: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The finding in one line: the step, the line, the op, what it did."""
        where = "" if self.rank is None else f"rank {self.rank}, "
        where += "before the first step" if self.step < 0 else f"step {self.step}"
        where += "" if self.shard is None else f", shard {self.shard}"
        files = " against ".join(dict.fromkeys(", ".join(read) for read in self.first.read if read))
        element = f"element {self.first.element!r} of the data{files and f' ({files})'}, "
        element = "" if self.first.element is None else element
        return f"{where}: {element}{self._found()}"

    def _found(self) -> str:
        first = self.first
        op = first.ops[0] or first.ops[1]
        at = f"{Path(first.place.file).name}:{first.place.first}" if first.place else ""
        if first.kind == "none":
            return "no op and no value differed"
        if first.unwritten and op is not None:
            return f"{_of(op)}: {op['n']} read memory that nobody has written"
        if first.kind == "op" and op is not None:
            return f"{_of(op)}: {op['n']} gave other bits from equal inputs"
        if first.came_in:
            names = shortened([f"`{name}`" for name in first.names], 3)
            lines = f" (assigned at {shortened(self.assigned, 3)})" if self.assigned else ""
            if first.kind == "generator":
                return f"{at}: the first draw is from a generator in another state"
            return f"{names or 'a value'} came into the step with another value{lines}"
        wrote = shortened([f"`{name}`" for name in first.names if not name.startswith("return")], 3)
        said = f"gave {wrote} another value" if wrote else "gave another value, or chose another way"
        if first.kind == "structure" and not first.chain:
            mine, theirs = (_of(one) + f" {one['n']}" if one else "no op" for one in first.ops)
            return f"the runs part: {mine} against {theirs}"
        if first.kind == "generator":
            return f"{at} left the random generators in another state"
        if first.kind == "between" and not first.chain and first.other_number and op is not None:
            return f"{_of(op)}: {op['n']} was given another number"
        if first.kind == "between" and not first.chain and op is not None:
            return f"{_of(op)}: an input of {op['n']} has other bits, and no op wrote it"
        return f"{at} {said}"

    def lines(self) -> list[str]:
        """The lines below: where it shows, the way, the cause, the cure."""
        found = []
        op = self.first.ops[0] or self.first.ops[1]
        if self.first.place is not None:
            found.append(f"line: {_text(self.first.place)}")
        if op is not None and self.first.kind != "op":
            found.append(f"shows first in: {_of(op)}: {op['n']}")
        if len(self.first.chain) > 1:
            found.append("through: " + " <- ".join(map(str, self.first.chain)))
        found.append(f"cause: {self.cause.text}")
        found += [f"  {one}" for one in self.cause.distances]
        if self.cause.cure:
            found.append(f"what to do: {self.cause.cure.removesuffix('.')}.")
        return found + list(self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values, for `--json`."""
        op = self.first.ops[0] or self.first.ops[1]
        place = self.first.place
        return {
            "check": self.check,
            "sentence": self.sentence(),
            "kind": self.first.kind,
            "step": self.step,
            "rank": self.rank,
            "shard": self.shard,
            "op": op and op["n"],
            "phase": op and op["p"],
            "module": op and op["m"],
            "line": place and f"{place.file}:{place.first}",
            "names": list(self.first.names),
            "element": self.first.element,
            "files": [*dict.fromkeys(name for read in self.first.read for name in read)],
            "assigned": list(self.assigned),
            "cause": self.cause.to_dict(),
            "tries": self.tries,
            "notes": list(self.notes),
        }


def _of(op: dict[str, Any]) -> str:
    line = op.get("fw") or op["at"]
    line = f"{Path(line.rpartition(':')[0]).name}:{line.rpartition(':')[2]}"
    module = f"{op['m']} " if op["m"] else ""
    phase = "" if op["p"] == "forward" and not module else f"{op['p']} of " if module else f"{op['p']} "
    return f"{phase}{module}({line})" if module or phase else line


def _text(place: SourceLine) -> str:
    try:
        text = Path(place.file).read_text(encoding="utf-8").splitlines()[place.first - 1].strip()
    except (OSError, IndexError, UnicodeDecodeError):
        return str(place)
    return f"{place}: {text}"


@dataclass(frozen=True)
class Side:
    """One of the two runs: its processes, one after another, in their surroundings. The last is traced."""

    processes: tuple[ProcessVariation, ...] = (ProcessVariation(),)
    variants: tuple[int, ...] = (0,)
    run_dirs: tuple[tuple[Path, Path], ...] = ()
    """Folders of runs with equal commits, and their places below a run root: it starts from the newest."""


@dataclass
class Search:
    """A search for the op in which two runs of one script differ first."""

    runner: Runner
    check: Check
    difference: Difference
    baseline: Sequence[Record]
    """The records of the ranks of the first run."""
    sides: tuple[Side, Side]
    patience: float | None
    say: Callable[[str], None]
    ignore: Sequence[frozenset[str]]
    """The paths of locals of each rank that are no difference."""
    unsaved: tuple[str, ...] = ()
    """Paths of values that no commit has, as the run's own check found."""
    count: int = 0
    inline: bool = False
    """The loaders read in the script's process, where they are traced."""
    failures: dict[str, None] = field(default_factory=dict)

    async def find(self) -> FoundOp:
        """Returns what was found."""
        spec, step = self._window()
        if self._reads_in_workers():
            self.inline = True
            found = await self._compare(spec, step)
            if found.first.kind != "none":
                return replace(found, notes=(*found.notes, _INLINE))
            self.inline = False
        found = await self._compare(spec, step)
        if found.first.kind == "none" and self.difference.place == "end":  # each time it ends elsewhere
            return await self._compare(replace(spec, step=-1, stop=self._first_step() + 1), step)
        earlier = found.first.came_in or (found.first.guessed and found.first.incoming)
        if (
            earlier
            and self.check.group not in ("kill", "world-sizes")
            and 0 <= step < _WHOLE
            and spec.step >= 0
        ):
            whole = await self._compare(replace(spec, step=-1), step)
            found = whole if whole.first.kind != "none" else found
        return found

    def _reads_in_workers(self) -> bool:
        """Returns True if the batch differs first, and loaders' workers have read it."""
        end = self.baseline[self.difference.rank or 0].end or {}
        batch = self.difference.component in ("batch", "inputs") and self.check.group != "workers"
        return batch and any(end.get("loaders") or ())

    def _window(self) -> tuple[TraceSpec, int]:
        """Returns the part of the run to trace, and its step."""
        lines = self.baseline[self.difference.rank or 0].steps.values()
        step, place, first = self.difference.step, self.difference.place, self._first_step()
        loop = next((line.loop for line in lines if line.step == max(step, 0)), next(iter(lines)).loop)
        if place == "resumed":
            step += 1
        if place == "end":
            return TraceSpec("", loop, max(line.step for line in lines), None), step
        if place == "start" or (step <= first and self.check.group != "kill"):
            return TraceSpec("", loop, -1, first + 1), -1 if place == "start" else step
        return TraceSpec("", loop, step, step + 1), step

    def _first_step(self) -> int:
        return min(line.step for line in self.baseline[self.difference.rank or 0].steps.values())

    async def _compare(self, spec: TraceSpec, step: int) -> FoundOp:
        first, rank, number = FirstOp("none"), None, 0
        for number in range(1, TRIES + 1):
            again = _AGAIN if number > 1 else 0  # a race that is seldom shows in many calls
            outcomes = await self._both(replace(spec, repeats=again), apart=number > 1)
            files = [one for outcome in outcomes for one in _traces(outcome) if one.exists()]
            self.say(f"try {number}: {sum(one.stat().st_size for one in files) / 1e6:.1f} MB of traces")
            parted = self._parted(outcomes, step)
            if parted is not None and 0 <= parted < spec.step and number < TRIES:  # before the traced step
                step = int(parted)
                spec = replace(spec, step=step if step > self._first_step() else -1)
                continue
            if self.check.group == "world-sizes":
                first, rank = _earliest_part(_traces(outcomes[0]), _traces(outcomes[1]), self.difference)
            else:
                first, rank = _earliest(*map(_traces, outcomes))
            if parted == inf and not first.varies:  # what differs here made no other step
                first = FirstOp("none", before=first.before, files=first.files, whole=first.whole)
            if first.kind != "none" or (self.failures and not files):
                break
        notes = () if first.whole else ("a trace is cut short: the script did not come to the step's end",)
        if first.failed:
            notes += (f"the statements are traced up to an error of the trace: {first.failed}",)
        first = self._forgotten(nearest_source(first, self.check.group))
        cause = await self._cause(first, spec, step)
        if first.kind == "none" and self.failures:
            cause = Cause(
                "not known: the processes of the search did not run as those of the check", seen=False
            )
        notes += tuple(self.failures)
        ranked = rank if len(self.baseline) > 1 and self.check.group != "world-sizes" else None
        shard = rank if self.check.group == "world-sizes" else None
        lines = lines_that_assign(first)
        return FoundOp(self.check.name, first, cause, step, ranked, shard, number, lines, notes)

    def _parted(self, outcomes: tuple[ProcessOutcome, ProcessOutcome], step: int) -> float | None:
        """Returns the step in which two further runs differ first; infinity: in none; None: not known.

        Values that a script may only print, such as a clock's, count if the difference was one of them.
        """
        differ = {self.difference.component, *(name for name, _ in self.difference.others)}
        printed = {"generators", "inputs", *(() if differ <= {"locals", "generators", "inputs"} else LOCALS)}
        found, whole = [], self.difference.place == "step"
        for rank, (one, other) in enumerate(zip(*(outcome.records for outcome in outcomes), strict=False)):
            if self.check.group in ("kill", "world-sizes") or one is None or other is None:
                return None
            differing = step_differences(one, other, self.ignore[rank])
            found += [line.step for line, _, parts in differing if parts.keys() - printed][:1]
            whole &= step in {key[1] for key in one.steps.keys() & other.steps}
        return min(found, default=inf if whole else None)

    def _forgotten(self, first: FirstOp) -> FirstOp:
        """Returns the difference; where no statement shows it, of the values that the run's check misses."""
        lost = [path for path in self.unsaved if {*path.split(".")} & {*first.incoming}]
        if self.check.group != "kill" or not lost or hint_of(first, "kill").seen:
            return first
        names = tuple(path.rpartition(".")[2] for path in lost)
        return replace(first, names=names, came_in=True, place=None, chain=())

    async def _both(self, spec: TraceSpec, *, apart: bool = False) -> tuple[ProcessOutcome, ProcessOutcome]:
        """Runs both sides, at once or one after the other: then their clocks differ by more."""
        if apart:
            return await self._run(self.sides[0], spec), await self._run(self.sides[1], spec)
        one, other = await asyncio.gather(*(self._run(side, spec) for side in self.sides))
        return one, other

    async def _run(self, side: Side, spec: TraceSpec) -> ProcessOutcome:
        """Runs the processes of a side; returns the outcome of the last one, which is traced."""
        self.count += 1
        root = self.runner.scratch / f"root of trace {self.count}"
        if spec.step > 0:
            put = await asyncio.to_thread(put_commits, side.run_dirs, root, spec.step)
            if side.run_dirs and not put:
                self.say(f"no commit is from before step {spec.step}: the run starts from its beginning")
        outcome, last = None, len(side.processes) - 1
        for number, (process, variant) in enumerate(zip(side.processes, side.variants, strict=True)):
            trace = spec if number == last else None
            if self.inline:
                process = replace(process, num_workers=0)  # noqa: PLW2901
            outcome = await self.runner.run(process, root, self.patience, variant, trace)
        self.runner.remove_layer(root)
        assert outcome is not None
        if failed := outcome.failure():
            self.failures[f"in the search {failed}"] = None
        if side is self.sides[0] and self.check.group not in ("run-again", "busy", "diff"):
            self._check_bits(outcome)
        return outcome

    def _check_bits(self, outcome: ProcessOutcome) -> None:
        """Notes if the first run has other bits with a trace than without one."""
        for baseline, record in zip(self.baseline, outcome.records, strict=True):
            found = None if record is None else first_difference(baseline, record)
            if found is not None and found.place != "end":
                self.failures[f"with a trace the first run has other bits: {found.sentence()}"] = None

    async def _cause(self, first: FirstOp, spec: TraceSpec, step: int) -> Cause:
        mine, theirs = first.ops
        if self.check.group == "world-sizes" and first.kind == "op":
            return Cause("not known: in a job of another size the op is not called by itself", seen=False)
        if first.kind != "op" or mine is None or theirs is None:
            return hint_of(first, self.check.group)
        if mine["n"].startswith("c10d::recv_any_source"):
            text = "the order in which ranks send: it takes what comes first, and no rank's own op differs"
            return Cause(text, "Name the rank from which it receives: dist.recv(tensor, src=RANK)")
        if first.unwritten:
            text = "unwritten memory: a part of an input is as torch.empty took it, and nobody has written it"
            filled = await self._both(replace(spec, fill=True))
            again, _ = _earliest(*map(_traces, filled))
            equal = self._parted(filled, step) == inf
            seen = equal or again.kind == "none" or again.number > first.number
            text += "; filled with zeros it gives equal bits" if seen else ""
            return Cause(
                text, "Write it first, or take torch.zeros; samebits.enable_op_determinism() fills it", seen
            )
        repeats = REPEATS if is_custom(mine["n"]) else 0
        self.say(f"calling {mine['n']} alone, {REPEATS} times under each of several conditions")
        both = await self._both(replace(spec, capture=first.number, repeats=repeats, stop=None))
        pairs = [pair for pair in zip(*map(_traces, both), strict=False) if all(map(_is_saved, pair))]
        if not pairs:
            return Cause("not known: a further run did not reach the op", seen=False)
        return await cause_of_op(mine, theirs, pairs[0], self.runner.request.jobs)


def _traces(outcome: ProcessOutcome) -> list[Path]:
    """Returns the trace of each rank."""
    if len(outcome.records) == 1:
        return [outcome.trace]
    return [outcome.trace.with_name(f"{outcome.trace.name}{n}") for n in range(len(outcome.records))]


def _is_saved(file: Path) -> bool:
    return Path(f"{file}.op.json").exists()


def put_commits(run_dirs: Iterable[tuple[Path, Path]], root: Path, step: int) -> bool:
    """Copies of each run its newest commit from before a step, with which both sides begin; False: none."""
    put = False
    for run_dir, place in run_dirs:
        found = [one for one in (run_dir / COMMITS).glob("*-*") if one.name[:12].isdecimal()]
        commits = [one for one in found if int(one.name[:12]) <= step]
        if commits and not (root / place).exists():
            newest = max(commits, key=lambda one: one.name)
            shutil.copytree(newest, root / place / COMMITS / newest.name)
            shutil.copy(run_dir / MARKER, root / place)
            put = True
    return put


def runs_below(root: Path) -> tuple[tuple[Path, Path], ...]:
    """Returns the run directories below a run root, with their places in it."""
    return tuple((one.parent, one.parent.relative_to(root)) for one in root.rglob(MARKER))


def _earliest(ones: Sequence[Path], others: Sequence[Path]) -> tuple[FirstOp, int | None]:
    """Returns the first difference of the ranks: own ops count before receives, these before collectives."""
    found = []
    for rank, (one, other) in enumerate(zip(ones, others, strict=False)):
        if one.exists() and other.exists():
            first = first_op(read_trace(one), read_trace(other))
            op = first.ops[0] or first.ops[1]
            spread = 0 if op is None or "c10d" not in op["n"] else 1 if "recv" in op["n"] else 2
            found.append((first.kind == "none", spread, first.number, rank, first))
    if not found:
        return FirstOp("none"), None
    *_, rank, first = min(found, key=lambda one: one[:4])
    return first, rank if first.kind != "none" else None


def _earliest_part(
    ones: Sequence[Path], others: Sequence[Path], difference: Difference
) -> tuple[FirstOp, int | None]:
    """Returns the first difference of two jobs of other sizes, shard by shard, and its shard.

    Of values of Python's only those that differ at the step's end count: a list of own losses may differ.
    """
    a, b = (by_part(read_trace(path) for path in paths if path.exists()) for paths in (ones, others))
    roots = (re.split(r"[\[(]", path.removeprefix("len(").removesuffix(")"))[0] for path in difference.paths)
    names = {root.removesuffix(".keys").rpartition(".")[2] for root in roots}
    plain = difference.component in ("state", "locals")
    for key in a:
        if key not in b or key[0] < difference.step:
            continue
        first = first_value(a[key], b[key], names) if plain else first_op(a[key], b[key])
        if first.kind != "none" and (plain or first.ops != (None, None)):
            return first, key[2] if "shard" in key else None
    return FirstOp("none", whole=all(one.whole for one in (*a.values(), *b.values()))), None

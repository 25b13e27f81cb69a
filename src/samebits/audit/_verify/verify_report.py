"""The result of `verify`: one row per check, the cure for a difference, the verdict, and the same as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import distributions
from typing import Any

from samebits.audit._comparison import ComparedRuns
from samebits.audit._first_difference import Difference
from samebits.audit._trace.search import FoundOp
from samebits.audit._verify.check_plan import GROUPS, Check
from samebits.audit._verify.check_process import Request

SCHEMA = "samebits.verify/1"

ALL_EQUAL, DIFFERENT, COULD_NOT_RUN = 0, 1, 2


@dataclass(frozen=True)
class Circumstances:
    """The facts that advice depends on: how the script was started, and what its first run showed."""

    as_run: bool = False
    seeded: bool = False
    """The script calls samebits.set_random_seed."""
    switched: bool = False
    adapter: str = ""
    """The advice of an adapter for a value that is not saved; empty without one."""
    given: frozenset[str] = frozenset()
    """The names of the run's objects."""
    unsaved: Mapping[str, str] = field(default_factory=dict)
    """The paths that the run's own check for forgotten state found, each with its message."""


@dataclass(frozen=True)
class CheckRow:
    """The outcome of one check."""

    check: Check
    steps_compared: int = 0
    difference: Difference | None = None
    failed: str = ""
    """The failure of a process of the check where the baseline had none: its exception, a time-out."""
    output: str = ""
    """The last lines of that process."""
    could_not: str = ""
    """The reason why the check proves nothing: a kill without effect, a resume from the start, no step."""
    remark: str = ""
    """Notes of the processes' recorders that the baseline lacks, such as a variation without effect."""
    overshadowed: bool = False
    """It differs no earlier than "run again" does: its cause cannot be known."""

    @property
    def applies(self) -> bool:
        """True if the check proves anything about this script."""
        return not self.check.does_not_apply

    @property
    def equal(self) -> bool | None:
        """True if every step had the baseline's bits; None where that is unknown."""
        if (self.difference is not None or self.failed) and not self.overshadowed:
            return False
        return True if self.applies and not (self.could_not or self.overshadowed) else None

    @property
    def decides(self) -> bool:
        """True if the row counts for the exit status."""
        return self.check.promised and self.applies

    def result(self) -> str:
        if self.check.does_not_apply:
            return f"does not apply: {self.check.does_not_apply}"
        if self.overshadowed:
            unjudged = "not judged: no earlier than in 'run again'"
            return unjudged if self.difference else "not run: 'run again' differs"
        if self.difference is not None and not self.check.promised and self.difference.place == "step":
            rank = "" if self.difference.rank is None else f"rank {self.difference.rank} "
            return f"{rank}differs first at step {self.difference.step}"
        if self.difference is not None:
            return replace(self.difference, others=()).sentence()
        return self.failed.partition("\n")[0] or self.could_not or "equal"

    def cause(self) -> str:
        if self.difference is not None and not self.overshadowed:
            return self.difference.sentence()
        return self.failed or self.result()

    def notes(self) -> tuple[str, ...]:
        """The notes that a reader needs beside the result."""
        unmeasured = self.overshadowed and self.difference is None
        promised = ""
        if not self.check.promised:
            promised = "not promised" if unmeasured else "measured, not promised"
        promised += f": {self.check.unpromised}" if self.check.unpromised else ""
        return tuple(filter(None, (promised, self.check.note, self.remark)))

    def to_dict(self) -> dict[str, Any]:
        """Returns the row as plain values, for `--json`."""
        found = self.difference
        return {
            "check": self.check.name,
            "varied": self.check.varied,
            "promised": self.check.promised,
            "steps_compared": self.steps_compared,
            "equal": self.equal,
            "difference": found and found.to_dict(),
            "note": "; ".join(
                filter(None, (*self.notes(), "" if self.equal is False and found else self.cause()))
            ),
        }


@dataclass(frozen=True)
class VerifyReport:
    """All rows of one `verify`."""

    request: Request
    final: str
    environment: dict[str, Any]
    """The environment of the script's first process when it trained; empty if it did not end by itself."""
    rows: tuple[CheckRow, ...]
    notes: tuple[str, ...] = ()
    """The recorder's notes of the first run, with what it could not observe."""
    planned_steps: int | None = None
    """The number of steps that the whole run has; None: not known."""
    left_out: tuple[Check, ...] = ()
    """The checks for which `--within` left no time."""
    circumstances: Circumstances = Circumstances()
    files: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of the script, its modules and the files that it read, by path."""
    found: FoundOp | None = None
    """The first op, or statement, that differs in the row of the verdict."""
    runs: ComparedRuns | None = None
    """The first run, and that of the row of the verdict."""

    @property
    def exit(self) -> int:
        """0: all promised rows equal; 1: one is not; 2: none is unequal, but one proves nothing."""
        deciding = [row for row in self.rows if row.decides]
        if any(row.equal is False for row in deciding):
            return DIFFERENT
        selected = [row for row in self.rows if row.check.group != "run-again"]  # which always runs
        none_applies = "run-again" not in self.request.groups and not any(row.applies for row in selected)
        proves_nothing = not deciding or any(row.could_not for row in deciding) or self.missing
        return COULD_NOT_RUN if proves_nothing or (selected and none_applies) else ALL_EQUAL

    @property
    def missing(self) -> dict[str, str]:
        proven = {name for row in self.rows if row.decides and row.equal for name in _names_of(row.check)}
        why = {name: why for name, why in self._reasons() if name not in proven}
        required = [name for name in self.request.require if name not in proven]
        return {name: why.get(name, "not among the checks") for name in required}

    def _reasons(self) -> Iterator[tuple[str, str]]:
        for row in self.rows:
            unpromised = "" if row.decides else "measured, not promised"
            for name in _names_of(row.check):
                yield name, row.check.does_not_apply or unpromised or row.result()
        for check in self.left_out:
            for name in _names_of(check):
                yield name, self.no_time

    @property
    def no_time(self) -> str:
        """The reason why the checks of `left_out` did not run."""
        return f"left out by --within {self.request.within:g}"

    def verdict(self) -> str:
        """One sentence; bad news come with the cure."""
        if self.exit == COULD_NOT_RUN and self.missing:
            return f"NOT VERIFIED: required, and not proven: {in_parentheses(self.missing, '; ')}."
        if self.exit == COULD_NOT_RUN:
            why = (f"{row.check.name}: {row.could_not}" for row in self.rows if row.could_not)
            return f"NOT VERIFIED: {next(why, self._in_vain())}."
        if self.exit == ALL_EQUAL:
            return self._proven()
        row = failing_row(self.rows)
        assert row is not None
        is_found = self.found is not None and self.found.cause.seen  # it says what to do itself
        cure = "" if is_found else cure_of(row.check, row.difference, self.circumstances)
        return f"NOT REPRODUCIBLE: {row.check.name}: {row.cause().removesuffix('.')}. {cure}".strip()

    def _proven(self) -> str:
        """Returns in words what the rows prove. VERIFIED is claimed only of a run killed and resumed."""
        rows = [row for row in self.rows if row.decides]
        by_group = {group: [row.check for row in rows if row.check.group == group] for group in GROUPS}
        ways = [way for group, checks in by_group.items() if (way := _way_in_words(group, checks))]
        word = "VERIFIED" if any(row.check.group == "kill" for row in rows) else "REPRODUCED"
        steps = min(row.steps_compared for row in rows)
        steps_in_words = f"{'all ' if steps > 1 else ''}{steps} step{'' if steps == 1 else 's'}"
        short = "" if self.request.steps is None else f" of a short run (--steps {self.request.steps})"
        short += f" of each of {self.request.ranks} ranks" if self.request.ranks > 1 else ""
        said = f"{word}: the same bits in {steps_in_words}{short}, {_join_words(ways)}."
        missing = self._not_proven()
        return f"{said} Not proven: {in_parentheses(missing, '; ')}." if missing else said

    def _not_proven(self) -> dict[str, str]:
        """Returns the groups with a row that does not count, and those without a row, and why."""
        idle = (row.check for row in self.rows if not row.decides)
        found = {_TITLES[check.group]: check.does_not_apply or "measured, not promised" for check in idle}
        selected = {group.partition("-")[0] for group in self.request.groups}
        left_out = [_TITLES[group] for group in ("kill", "workers", "threads") if group not in selected]
        late = [_TITLES[check.group] if check.group != "kill" else check.name for check in self.left_out]
        return {
            **dict.fromkeys(late, self.no_time if late else ""),
            **found,
            **dict.fromkeys(left_out, "left out by --checks"),
        }

    def not_applying(self) -> dict[str, str]:
        """Returns the groups with a row that does not apply to this script, and why."""
        idle = (row.check for row in self.rows if not row.applies)
        return {_TITLES[check.group]: check.does_not_apply for check in idle}

    def _in_vain(self) -> str:
        reasons = dict.fromkeys(row.check.does_not_apply for row in self.rows if not row.applies)
        return "no selected check applies" + (f": {'; '.join(reasons)}" if reasons else "")

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain values, for `--json`: all rows, and their environment."""
        return {
            "schema": SCHEMA,
            "script": self.request.script,
            "args": list(self.request.args),
            "options": {
                "steps": self.request.steps,
                "checks": list(self.request.groups),
                "nproc_per_node": self.request.nproc_per_node,
                "world_sizes": list(self.request.world_sizes),
                "require": list(self.request.require),
                "within": self.request.within,
            },
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "planned_steps": self.planned_steps or None,  # 0: no loop of a Run
            "verdict": self.verdict(),
            "exit": self.exit,
            "proven": [row.check.name for row in self.rows if row.decides and row.equal],
            "final": self.final,
            "seed": self.request.seed,
            "not_run": {
                **{row.check.name: row.check.does_not_apply for row in self.rows if not row.applies},
                **{check.name: self.no_time for check in self.left_out},
            },
            "environment": self.environment,
            "installed": {
                one.name: one.version for one in sorted(distributions(), key=lambda one: one.name.lower())
            },
            "files": dict(self.files),
            "notes": list(self.notes),
            "rows": [row.to_dict() for row in self.rows],
            "first_op": self.found and self.found.to_dict(),
        }


def failing_row(rows: Iterable[CheckRow]) -> CheckRow | None:
    """Returns the row that the verdict is about, if it is bad."""
    return next((row for row in rows if row.decides and row.equal is False and not row.overshadowed), None)


def in_parentheses(reasons: Mapping[str, str], between: str = ", ") -> str:
    """Returns `name (reason)` for each, in one line."""
    return between.join(f"{name} ({reason})" for name, reason in reasons.items())


def _names_of(check: Check) -> tuple[str, ...]:
    """Returns the names by which `--checks` and `--require` select it: its group, and of a kill its own."""
    return tuple(filter(None, (check.group, check.option)))


_TITLES = {
    "busy": "busy processes",
    "replicas": "equal replicas",
    "world-sizes": "other world sizes",
    "kill": "killed and resumed",
    "workers": "loader workers",
    "threads": "number of threads",
    "cpu": "CPU",
}


_WAYS = {
    "run-again": "run again",
    "replicas": "with equal replicas",
    "busy": "beside busy processes",
    "cpu": "as on a CPU with AVX2",
}


def _way_in_words(group: str, checks: list[Check]) -> str:
    """Returns in which way the bits were shown to be the same; empty without a check."""
    if not checks:
        return ""
    if group == "kill":
        return f"killed and resumed in {len(checks)} way{'' if len(checks) == 1 else 's'}"
    varied = [check.processes[0] for check in checks if check.processes]
    if group == "world-sizes":
        sizes = [[str(process.world_size) for process in check.processes] for check in checks]
        went_on = [f", killed with {one[0]} and resumed with {one[1]}" for one in sizes if len(one) > 1]
        return f"as {_join_words([one[0] for one in sizes if len(one) == 1])} processes{''.join(went_on)}"
    if group == "workers":
        return f"with {_join_words([str(process.num_workers) for process in varied])} loader workers"
    if group == "threads":
        return f"with {_join_words([str(process.threads) for process in varied])} threads"
    return _WAYS[group]


def _join_words(items: list[str]) -> str:
    """Returns the items as a sentence lists them: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))


_OUTSIDE = "the clock, entropy of the system, a process id, the order of a set or of os.listdir"
_ALWAYS = {
    "locals": f"It must not depend on {_OUTSIDE}, or a random number that was not seeded",
    "batch": "The batch must not depend on the clock, the order of a set or of os.listdir, a generator that "
    "was not seeded, or on what another element left in its worker, such as a memo of a draw",
    "optimizer": "The optimizer's settings must not depend on the clock, the order of a set, or a random "
    "number that was not seeded",
    "inputs": f"These must not depend on {_OUTSIDE}, or a random number that was not seeded",
    "loss": "The computation must not depend on the clock, the order of a set, or a random number that was "
    "not seeded",
}
_UNSEEDED = {
    "initial": "Call samebits.set_random_seed(seed) before the model is built",
    "generators": "Something draws random numbers that were not seeded: call samebits.set_random_seed(seed) "
    "first, or let `--run` set the seeds of a script as it is",
}
_SEEDED = {
    "initial": f"A seed is set: the first values must not depend on {_OUTSIDE}",
    "generators": "A seed is set: the script seeds this generator anew, or draws from it another number of "
    f"times, by what differs between two runs ({_OUTSIDE})",
}
_BY_GROUP = {
    "threads": "What computes outside of torch (NumPy, SciPy, an extension in C++) may split its work by the "
    "number of threads: compute it in torch",
    "world-sizes": "Share each batch out by shards, `for step, shards in run.steps(loader, epochs, "
    "shards=S)`, and compute what all ranks need from all shards (shards.sum); no draw, number or collective "
    "of the script's own may follow the rank, and zero_grad and clipping stand behind the loop over shards",
    "cpu": "What computes outside of torch (NumPy, PIL, OpenCV) may give other bits on another CPU: compute "
    "it in torch, or once and store it",
}
_KILLED = {
    "locals": "Keep what lives from one step to the next in the run (`run.state.NAME = ...`), or give the "
    "object to it (`samebits.Run(..., name=object)` or `run.add`)",
    "inputs": "Something that makes the model's inputs, besides the batch, is not in the run: give the "
    "object to samebits.Run, or keep the value in `run.state`; a cursor of a database cannot be saved",
    "optimizer": "Give the optimizer, and whatever sets its learning rate, to samebits.Run, so that a "
    "restart restores them",
    "batch": "Take batches from `run.steps(samebits.data.DataLoader(...))` and keep no position of your own",
    "model": "Give every module that changes to samebits.Run, so that a restart restores it",
    "buffers": "Give every module that changes to samebits.Run, so that a restart restores it",
    "memory": "A restart does not restore it: keep the value in `run.state`, or give the object to "
    "samebits.Run; what is changed in the middle of the training, set in every step, or before the loop",
    "loss": "Something that the loss depends on is not in the run: give the object to samebits.Run, or keep "
    "the value in `run.state`",
    "generators": "A generator of your own is state: `run.add` it, or draw from the global ones",
}
_WORKER_COPY = (
    "Keep no counters or caches on the dataset object: each loader worker has its own copy. Transforms that "
    "draw from generators of their own (MONAI's, albumentations') are equal in samebits.data.DataLoader, and "
    "not in torch's"
)
_WORKERS = {"batch": _WORKER_COPY, "locals": _WORKER_COPY, "generators": _WORKER_COPY}
_FROM_RANK_0 = (
    "Every rank must make the same update: no draw, number or buffer of its own may go into the parameters "
    "(draw from a key: `samebits.random.uniform(samebits.random.fold_in(key, step.number), ...)`), and every "
    "module that trains must be called through DistributedDataParallel"
)
_REPLICAS = {
    "model": _FROM_RANK_0,
    "optimizer": _FROM_RANK_0,
    "buffers": "Set the buffer alike on all ranks. DistributedDataParallel overwrites buffers with those of "
    "rank 0 only in a forward, only of the module that it was given, and not with "
    "broadcast_buffers=False",
}

_IN_A_LOADER = re.compile(r"(dataset|sampler|batch_sampler|collate_fn|worker_init_fn)\b")
_PART_OF_A_LOADER = re.compile(r"\.(dataset|sampler|batch_sampler|collate_fn)\b")
_ATTRIBUTE = re.compile(r"(?!self\.)([A-Za-z_]\w*)\.(?!keys\(\))")
"""A local object's attribute, such as `sched.last_epoch`; no mapping's keys."""


def cure_of(check: Check, difference: Difference | None, seen: Circumstances) -> str:
    """Returns the cure that the first component to differ suggests for such a check; empty if none does."""
    if difference is None:
        return ""
    special = {"kill": _KILLED, "workers": _WORKERS, "replicas": _REPLICAS}.get(check.group, {})
    is_initial = difference.place == "start" and difference.component in {"model", "buffers"}
    component = "initial" if is_initial else difference.component
    seeds = _SEEDED if seen.as_run or seen.seeded else _UNSEEDED
    cure = _cure_by_name(difference) or (_cure_of_lost(difference, seen) if check.group == "kill" else "")
    cure = cure or special.get(component) or _BY_GROUP.get(check.group) or seeds.get(component)
    cure = cure or _ALWAYS.get(component, "")
    if cure == _ALWAYS["loss"] and not (seen.as_run or seen.switched):
        cure += "; `--run` shows whether samebits.enable_op_determinism() fixes it"
    return f"{cure.removesuffix('.')}." if cure else ""


def _cure_by_name(difference: Difference) -> str:
    """Returns the cure for the first leaf to differ by its name: a callback's, a generator in a loader."""
    path = difference.paths[0] if difference.paths else ""
    if path.startswith("callbacks["):
        return "Return it from the callback's state_dict and take it back in load_state_dict"
    if difference.component == "generators" and _IN_A_LOADER.match(path):
        return (
            "Seed it where it is made, such as `numpy.random.default_rng(seed)`, or give the data to a "
            "samebits.data.DataLoader"
        )
    return ""


def _cure_of_lost(difference: Difference, seen: Circumstances) -> str:
    """Returns what saves a value that a resume lost: by the adapter, by the run's check, by its name."""
    lasts = {path.rpartition(".")[2] for path in difference.paths}  # the run may know it by another way to it
    named = [path for path in seen.unsaved if path.rpartition(".")[2] in lasts]
    named = sorted(named, key=lambda path: path not in difference.paths)
    named = named or [*(seen.unsaved if difference.component in _CONSEQUENCES else ())]
    own = f"Outside of verify it is an error: {seen.unsaved[named[0]]}" if named else ""
    if own or seen.adapter:
        return "\n".join(filter(None, (own, seen.adapter)))
    path = difference.paths[0] if difference.paths else ""
    if difference.component == "locals" and _PART_OF_A_LOADER.search(path):
        return (
            f"A commit holds a loader's position, and not {path}: compute it from the index, or from the "
            "epoch in set_epoch(epoch)"
        )
    attribute = _ATTRIBUTE.match(path)
    if difference.component != "locals" or not attribute:
        return ""
    name = attribute[1]
    if name in seen.given:
        return f"{name} was given to the run, and its state_dict leaves {path} out: save and load it there"
    return (
        f'Give it to the run, before the loop: run.add("{name}", {name}); where it has no state_dict, '
        f'run.add("{name}", samebits.state.attributes({name}))'
    )


_CONSEQUENCES = {"inputs", "loss", "optimizer", "model", "output"}
"""Components whose difference does not show which value was lost."""

"""The checks that `verify` runs for one script, drawn from the facts of its first run (the baseline)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from samebits._context import Across
from samebits.audit._child.kill_points import Kill

GROUPS = ("run-again", "busy", "replicas", "world-sizes", "kill", "workers", "threads", "cpu")
"""The groups that `--checks` selects from, in the order of the table."""
WORKERS, THREADS = (0, 1, 3), (1, 3)


class KillRow(NamedTuple):
    """A row of "kill": the name that `--checks` takes, and its title in the table."""

    option: str
    title: str
    title_without_validation: str = ""


MID_EPOCH = KillRow("kill-mid-epoch", "killed mid-epoch, resumed")
EPOCH_END = KillRow("kill-epoch-end", "killed at an epoch's last step, resumed")
TWICE = KillRow(
    "kill-twice",
    "killed in a validation, then in a save, resumed twice",
    "killed in a step, then in a save, resumed twice",
)
KILL_ROWS = (MID_EPOCH, EPOCH_END, TWICE)
KILLS = tuple(row.option for row in KILL_ROWS)


@dataclass(frozen=True)
class BaselineFacts:
    """The facts of the baseline. Step numbers are global and count from `first`."""

    steps: tuple[int, ...]
    epoch_lasts: frozenset[int]
    epoch_firsts: frozenset[int]
    validations: tuple[int, ...]
    uses_run: bool
    planned: int | None = None
    """The number of steps of the whole run, where `steps` are its first ones; None: not known."""
    loaders: list[int] | None = None
    """The script's number of workers for each of its loaders; None: not known."""
    torch_loaders: Sequence[int] = ()
    """Those of `loaders` that are torch's, if it reads such a loader."""
    other_loaders: str = ""
    """The packages that make loaders of their own."""
    across: Across | None = None
    """The least that the switch promised in any step (`across`). None: it was off in one."""
    avx512: bool = True
    """Torch has AVX-512 on this CPU; without it the row of another CPU varies little."""
    ranks: int = 1
    """The number of processes of a job."""
    world_sizes: tuple[int, ...] = ()
    """The numbers of processes to compare; the baseline has the first."""
    layout: str = ""
    """The weights on the ranks: "replicated" or "FSDP2"."""
    unequal_replicas: str = ""
    """The reason why replicas may differ after a step; empty: DistributedDataParallel keeps them equal."""


@dataclass(frozen=True)
class ProcessVariation:
    """The variations of one process of a check from the baseline."""

    kill: Kill | None = None
    commit_steps: tuple[int, ...] | None = None
    num_workers: int | None = None
    torch_workers: bool = True
    """The number is that of torch's loaders, too."""
    threads: int | None = None
    older_cpu: bool = False
    """Its libraries play a CPU without AVX-512 (`AVX2_ENVIRONMENT`)."""
    moved: bool = False
    """It runs in the current folder under another path."""
    busy: bool = False
    """Every core has other work to do besides."""
    world_size: int | None = None
    """The number of its ranks."""
    variables: tuple[tuple[str, str], ...] = ()
    """Of its environment, by name."""


@dataclass(frozen=True)
class Check:
    """One row: its processes run one after another in one run root, and must give the baseline's bits."""

    group: str
    name: str
    varied: str = ""
    processes: tuple[ProcessVariation, ...] = ()
    promised: bool = True
    unpromised: str = ""
    """The reason why it is not promised."""
    does_not_apply: str = ""
    note: str = ""
    option: str = ""
    """The name by which `--checks` takes it alone."""


def run_again(*, as_run: bool = False) -> Check:
    """Returns the first row: the same command a second time. `samebits run` fixes the hash seed."""
    varied = "TMPDIR, the folder's path, order of directory listings, speed"
    varied = varied if as_run else f"hash seed, {varied}"
    return Check("run-again", "run again", varied, (ProcessVariation(moved=True),))


def checks_after(facts: BaselineFacts, groups: tuple[str, ...], seed: int) -> list[Check]:
    """Returns every row after the first two runs, for those of `groups` that were selected."""
    found: list[Check] = []
    if "busy" in groups:
        found.append(Check("busy", "beside busy processes", "one per core", (ProcessVariation(busy=True),)))
    if "replicas" in groups and (facts.ranks > 1 or groups == ("replicas",)):
        found.append(_replicas(facts))
    if "world-sizes" in groups and (facts.world_sizes or groups == ("world-sizes",)):
        found += _world_sizes(facts, random.Random(f"{seed} world sizes"))
    kills = kill_checks(facts, random.Random(seed))
    found += [check for check in kills if check.option in groups or "kill" in groups]
    if "workers" in groups:
        found += [_workers(facts, number) for number in WORKERS]
    if "threads" in groups:
        found += [_threads(facts, number) for number in THREADS]
    if "cpu" in groups and (facts.across == "machines" or groups == ("cpu",)):
        found.append(_older_cpu(facts))
    return found


def within(checks: list[Check], seconds: float, each: float, jobs: int) -> tuple[list[Check], list[Check]]:
    """Returns the checks that fit into `seconds`, `jobs` at a time, and the others; a process takes `each`.

    Those that tell least beyond the others are left out first: the CPU, busy processes, further numbers of
    threads and workers, kills after the first one. "run again" always stays.
    """
    kept = list(checks)

    def cost() -> float:
        return (1 + sum(len(check.processes) for check in kept)) * each / jobs

    groups = ["cpu", "busy", "threads", "workers", "kill", "threads", "workers", "kill"]
    for number, group in enumerate(groups):
        same = [check for check in kept if check.group == group and check.processes]
        spared = 1 if group in groups[number + 1 :] else 0
        for check in reversed(same[spared:]):
            if cost() <= seconds:
                break
            kept.remove(check)
    return kept, [check for check in checks if check not in kept]


def _replicas(facts: BaselineFacts) -> Check:
    name = "replicas equal"
    if facts.ranks == 1:
        why = "the script runs as one process; --nproc-per-node N starts more"
        return Check("replicas", name, does_not_apply=why)
    note = facts.unequal_replicas
    return Check("replicas", name, "the ranks of the baseline", promised=not note, note=note)


def _world_sizes(facts: BaselineFacts, draw: random.Random) -> list[Check]:
    """Returns a row for each further number of processes, and one that goes on with another one."""
    if not facts.world_sizes:
        return [Check("world-sizes", "other world sizes", does_not_apply="--world-sizes 1,2,3 names them")]
    first, *others = facts.world_sizes
    varied = f"world size, {facts.layout}"
    runs = {size: (ProcessVariation(world_size=size),) for size in others}
    found = [Check("world-sizes", _processes(size), varied, one) for size, one in runs.items()]
    last = others[-1]
    resumed = others[-2] if len(others) > 1 else first
    name = f"killed with {_processes(last)}, resumed with {_processes(resumed)}"
    if not facts.uses_run or facts.steps[-1] == facts.steps[0]:
        return [*found, Check("world-sizes", name, does_not_apply="the script does not use samebits.Run")]
    killed, going_on = _mid_epoch(facts, draw).processes
    kill = killed.kill and Kill(killed.kill.at, killed.kill.step)  # all ranks
    assert kill is not None
    assert killed.commit_steps is not None
    varied = f"SIGKILL of all ranks {kill.description()}, saved before step {killed.commit_steps[0]}"
    processes = replace(killed, kill=kill, world_size=last), replace(going_on, world_size=resumed)
    return [*found, Check("world-sizes", name, varied, processes)]


def _processes(number: int) -> str:
    return "1 process" if number == 1 else f"{number} processes"


def kill_checks(facts: BaselineFacts, draw: random.Random) -> list[Check]:
    """Returns three rows: killed mid-epoch; at an epoch's last step; twice, first in a validation."""
    if not facts.uses_run:
        why = "the script does not use samebits.Run"
    elif facts.steps[-1] == facts.steps[0]:
        why = "a run of one step has no boundary to resume from"
    else:
        return [_mid_epoch(facts, draw), _epoch_end(facts, draw), _twice(facts, draw)]
    return [Check("kill", row.title, does_not_apply=why, option=row.option) for row in KILL_ROWS]


def _mid_epoch(facts: BaselineFacts, draw: random.Random) -> Check:
    """Returns a commit strictly inside an epoch, and a kill one to three steps later, in the same epoch.

    In the second half of the run where there is one: state that a resume loses has had time to matter. The
    commit is at an odd step where it can be: gradients summed over 2, 4 or 8 batches are never empty there.
    """
    inside = set(facts.steps[1:]) - facts.epoch_firsts
    middle = inside - facts.epoch_lasts
    before = {step: _before(step, inside, facts.epoch_lasts) for step in middle}
    pairs = [(commit, step) for step in middle for commit in before[step] if commit < step]
    # Epochs of three, two, one batches have less of a middle: take the nearest.
    pairs = pairs or [(step, step) for step in middle or inside or facts.steps[1:]]
    half = facts.steps[len(facts.steps) // 2]
    late = [pair for pair in pairs if pair[0] >= half] or pairs
    commit, step = draw.choice(sorted([pair for pair in late if pair[0] % 2] or late))
    place = draw.choice(("body", "optimizer"))
    kill = Kill(place, step, draw.randrange(facts.ranks) if facts.ranks > 1 else None)
    return _killed_once(MID_EPOCH, facts, kill, commit)


def _before(step: int, inside: set[int], lasts: frozenset[int]) -> list[int]:
    """Returns the boundaries up to three steps before `step` that no epoch's end separates from it."""
    found = []
    for boundary in range(step, step - 4, -1):
        if boundary not in inside or (boundary < step and boundary in lasts):
            break
        found.append(boundary)
    return found


def _epoch_end(facts: BaselineFacts, draw: random.Random) -> Check:
    """Returns a kill at the last step of an epoch, of one that others follow where there is one."""
    lasts = [step for step in facts.steps[1:] if step in facts.epoch_lasts] or [facts.steps[-1]]
    step = draw.choice(lasts[:-1] or lasts)
    commit = max(facts.steps[1], step - draw.randrange(4))
    kill = Kill(draw.choice(("optimizer", "after_body")), step)
    return _killed_once(EPOCH_END, facts, kill, commit)


def _twice(facts: BaselineFacts, draw: random.Random) -> Check:
    """Returns a kill in a validation (or optimizer step), and one between a save's tensors and manifest."""
    first, end = facts.steps[1], facts.steps[-1] + 1
    validations = [step for step in facts.validations if step >= first]
    early = validations[:-1] or validations
    step = draw.choice(early or list(facts.steps[1:-1]) or [first])
    # Only rank 0 is known to validate; others may wait for it.
    kill = Kill("validation" if early else "optimizer", step, 0 if facts.ranks > 1 else None)
    commit = max(first, step - draw.randrange(4))
    save = draw.randrange(step + 1, end) if step + 1 < end else end
    title = TWICE.title if early else TWICE.title_without_validation
    second = Kill("commit", save)
    varied = f"{_describe(facts, kill, commit)}; then {_sigkill(facts, second)}"
    resumed = ProcessVariation(second, (save,))
    processes = (ProcessVariation(kill, (commit,)), resumed, ProcessVariation())
    return Check("kill", title, varied, processes, option=TWICE.option)


def _killed_once(row: KillRow, facts: BaselineFacts, kill: Kill, commit: int) -> Check:
    processes = (ProcessVariation(kill, (commit,)), ProcessVariation())
    return Check("kill", row.title, _describe(facts, kill, commit), processes, option=row.option)


def _describe(facts: BaselineFacts, kill: Kill, commit: int) -> str:
    return f"{_sigkill(facts, kill)}, saved before step {commit}"


def _sigkill(facts: BaselineFacts, kill: Kill) -> str:
    killed = "all ranks" if kill.rank is None else f"rank {kill.rank}"
    return f"SIGKILL {f'of {killed} ' if facts.ranks > 1 else ''}{kill.description()}"


def _workers(facts: BaselineFacts, number: int) -> Check:
    name = f"{number} loader worker{'' if number == 1 else 's'}"
    if facts.loaders == []:
        why = "the script makes no torch or samebits loader"
        if facts.other_loaders:
            why = f"{facts.other_loaders} makes the loaders, and their workers are not varied"
        return Check("workers", name, does_not_apply=why)
    # where there are both, torch's are left alone: a difference would not show whose it is
    both = 0 < len(facts.torch_loaders) < len(facts.loaders or ())
    own = (Counter(facts.loaders) - Counter(facts.torch_loaders if both else ())).keys()
    notes = ["the script's own number"] if own == {number} else []
    notes += ["torch's DataLoader keeps its number, as another may give other bits"] if both else []
    is_torchs = bool(facts.torch_loaders) and not both
    return Check(
        "workers",
        name,
        f"num_workers={number}",
        (ProcessVariation(num_workers=number, torch_workers=not both),),
        promised=not is_torchs,
        unpromised=_TORCHS_WORKERS if is_torchs else "",
        note="; ".join(notes),
    )


_TORCHS_WORKERS = (
    "torch's DataLoader may give other bits with another number of workers, samebits.data.DataLoader does not"
)


def _older_cpu(facts: BaselineFacts) -> Check:
    name = "a CPU with AVX2"
    if facts.across != "machines":
        why = 'the script does not call enable_op_determinism(across="machines")'
        return Check("cpu", name, does_not_apply=why)
    note = "emulated" if facts.avx512 else "emulated, and torch has no AVX-512 here: little was varied"
    return Check("cpu", name, "libraries use no AVX-512", (ProcessVariation(older_cpu=True),), note=note)


def _threads(facts: BaselineFacts, number: int) -> Check:
    name = f"{number} thread{'' if number == 1 else 's'}"
    promised = facts.across in ("threads", "machines")
    return Check("threads", name, "intra-op threads", (ProcessVariation(threads=number),), promised=promised)

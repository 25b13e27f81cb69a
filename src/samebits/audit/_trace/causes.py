"""The cause of an op's other bits: it is called alone, in fresh processes, with one thing changed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from samebits.audit._trace.saved_op import digest_of, read_op
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.audit._verify.child_processes import run_child
from samebits.determinism import table
from samebits.errors import InvalidArgumentError

REPEATS = 20
_LIMIT_S = 120.0
_FILLED = {"MALLOC_PERTURB_": "85", "MALLOC_MMAP_THRESHOLD_": str(1 << 31)}
"""glibc fills what it gives and takes back with other bytes (mallopt(3)), also of large tensors."""
_OWN_SPACES = frozenset({"aten", "prims", "quantized", "mkldnn", "c10d", "_c10d_functional"})


@dataclass(frozen=True)
class Replay:
    """The results of an op that was called alone under one condition."""

    condition: str
    results: tuple[str, ...]
    """A digest of all that each call gave; none if it could not be called so."""
    note: str = ""

    @property
    def distinct(self) -> int:
        """The number of different results."""
        return len(set(self.results))


@dataclass(frozen=True)
class Cause:
    """The reason for other bits, as far as it was seen, and what to do."""

    text: str
    cure: str = ""
    seen: bool = True
    """It was seen in a replay or in both traces; else it is what is left."""
    replays: tuple[Replay, ...] = ()
    distances: tuple[str, ...] = ()
    """The distance of each run's result from the exact one."""

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values."""
        replays = [
            {"condition": one.condition, "calls": len(one.results), "results": one.distinct, "note": one.note}
            for one in self.replays
        ]
        return {**vars(self), "replays": replays, "distances": list(self.distances)}


def is_custom(op: str) -> bool:
    """Returns True for an op that a process without the script does not know."""
    return op.partition("::")[0] not in _OWN_SPACES


async def cause_of_op(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], files: tuple[Path, Path], jobs: int
) -> Cause:
    """Returns the cause of an op's other bits from equal inputs.

    Args:
        mine: the op's line in the first trace, with the flags of that moment.
        theirs: the line in the second.
        files: the op as it was saved in a run of each (`save_op`).
        jobs: processes at a time.
    """
    saved, outs = read_op(str(files[0]))
    _, others = read_op(str(files[1]))
    if saved["why_not"]:
        return Cause(f"it cannot be called alone: {saved['why_not']}", seen=False)
    if is_custom(mine["n"]):
        return _of_custom(saved)
    flags, other = mine["flags"], theirs["flags"]
    conditions: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("as it was", {"flags": flags}, {}),
        ("with 1 thread", {"flags": flags, "threads": 1}, {}),
        ("with the switch", {"flags": flags, "switch": "threads"}, {}),
        ("memory filled with other bytes", {"flags": flags}, _FILLED),
        ("without AVX-512 and the libraries' own choice", {"flags": flags}, AVX2_ENVIRONMENT),
        ("inputs at another address", {"flags": flags, "shift": 16}, {}),
    ]
    if other != flags:
        conditions.insert(1, (f"as in the other run ({_changed(flags, other)})", {"flags": other}, {}))
    slots = asyncio.Semaphore(jobs)
    exact = files[0].with_name(files[0].name + ".exact")
    work = [_replay(files[0], slots, *one) for one in conditions]
    work.append(_replay(files[0], slots, "in float64", {"exact": str(exact), "repeats": 0}, {}))
    *replays, _ = await asyncio.gather(*work)
    found = {one.condition.partition(" (")[0]: one for one in replays}
    cause = _verdict(mine, flags, other, found, digest_of(outs), digest_of(others) if others else "")
    entry = _entry(mine["n"])
    return replace(
        cause,
        cure=cause.cure or _cure(cause, entry),
        replays=tuple(replays),
        distances=tuple(_distances(exact, outs, others)),
    )


async def _replay(
    file: Path,
    slots: asyncio.Semaphore,
    condition: str,
    settings: dict[str, Any],
    environment: dict[str, str],
) -> Replay:
    log = file.with_name(f"{file.name}.{abs(hash(condition))}.log")
    settings = {"repeats": REPEATS, **settings}
    command = [sys.executable, "-m", "samebits.audit._trace.saved_op", str(file), json.dumps(settings)]
    async with slots:
        ended = await run_child(command, {**os.environ, **environment}, log, _LIMIT_S)
    if ended.returncode:
        return Replay(condition, (), note=ended.tail(1).strip()[:200])
    return Replay(condition, tuple(json.loads(ended.tail(1))["digests"]))


def _changed(flags: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {flags[name]} -> {other[name]}" for name in flags if flags[name] != other[name])


def _of_custom(saved: Mapping[str, Any]) -> Cause:
    """Returns the cause for an op that only the script's process knows: it was called again there."""
    as_it_was = Replay("as it was", tuple(saved["here"]))
    alone = Replay("with 1 thread", tuple(saved["here, 1 thread"]))
    text = "this custom op gives other bits from equal inputs"
    if as_it_was.distinct > 1:
        more = "with 1 thread, too" if alone.distinct > 1 else "not with 1 thread"
        text += f": seen in {REPEATS} calls in the script's process, {more}"
    else:
        text += f": seen 0 of {REPEATS} times in the script's process"
    cure = (
        "Mend its kernel (a race, unwritten memory, a draw of its own), or replace it; "
        "`samebits.declare_op(NAME, deterministic=False)` makes the switch refuse it"
    )
    return Cause(text, cure, as_it_was.distinct > 1, (as_it_was, alone))


def _verdict(
    op: Mapping[str, Any],
    flags: Mapping[str, Any],
    other: Mapping[str, Any],
    found: Mapping[str, Replay],
    mine: str,
    theirs: str,
) -> Cause:
    base, alone = found["as it was"], found["with 1 thread"]
    filled = found["memory filled with other bytes"]
    vectors = found["without AVX-512 and the libraries' own choice"]
    shifted, elsewhere = found["inputs at another address"], found.get("as in the other run")
    if not base.results:
        return Cause(f"it could not be called alone: {base.note}", seen=False)
    most = max(base.distinct, shifted.distinct)
    as_it_was = f"{most} different results in {REPEATS} calls with equal inputs"
    if most > 1 and alone.distinct == 1:  # a race may show in one process and not in another
        return Cause(f"a sum in no order: {as_it_was}, and one result with 1 thread")
    if most > 1 and "g" in op:
        return Cause(f"a random draw without a seed: {as_it_was}")
    if most > 1 and filled.distinct == 1:
        return Cause(f"unwritten memory: {as_it_was}, and one result where all memory is filled first")
    if max(most, filled.distinct) > 1:
        return Cause(f"unwritten memory, or a race that 1 thread has, too: {as_it_was}", seen=False)
    if elsewhere is not None and elsewhere.results[:1] not in ((), base.results[:1]):
        changed = [name for name in flags if flags[name] != other[name]]
        what = "the number of threads" if changed == ["threads"] else "a flag of the library"
        both = (mine, theirs) == (base.results[0], elsewhere.results[0])
        told = "it gives each run's bits" if both else "it gives other bits, too"
        return Cause(f"{what}: {_changed(flags, other)}; called alone {told}")
    if filled.results[:1] not in ((), base.results[:1]) and shifted.results[:1] == base.results[:1]:
        return Cause("unwritten memory: its result changes with what was in memory before")
    if theirs and theirs in vectors.results and theirs != mine:
        return Cause("the instruction set: without AVX-512 it gives the other run's bits")
    if shifted.results[:1] not in ((), base.results[:1]):
        return Cause("the address of its inputs: 16 bytes further it gives other bits")
    told = f"seen 0 of {REPEATS}: called alone it always gives the same bits"
    if theirs and mine != theirs:
        whose = {mine: "the first run's", theirs: "the second run's"}
        told += f", {whose.get(base.results[0], 'those of neither run')}"
    return Cause(f"not known: {told}", seen=False)


def _entry(op: str) -> Any:
    try:
        return table.lookup(op, "cpu")
    except (InvalidArgumentError, KeyError):
        return None


def _cure(cause: Cause, entry: Any) -> str:
    across = "threads" if cause.text.startswith(("the number of threads", "a sum")) else "runs"
    across = "machines" if cause.text.startswith(("the instruction set", "the address")) else across
    told = "" if entry is None else f" (the op table: {entry.verdict})"
    if cause.text.startswith("a flag"):
        return "Set it once, before the training, to one value"
    if cause.text.startswith("unwritten"):
        return f"Write the memory before it is read; samebits.enable_op_determinism() fills it{told}"
    return f'samebits.enable_op_determinism(across="{across}") gives the same bits, or refuses the op{told}'


def _distances(exact: Path, outs: list[torch.Tensor], others: list[torch.Tensor]) -> list[str]:
    if not exact.exists():
        return []
    found = []
    truth = load_file(str(exact))
    for which, values in (("first", outs), ("second", others)):
        worst = 0.0
        for number, value in enumerate(values):
            right = truth.get(str(number))
            if right is None or right.shape != value.shape or not value.is_floating_point():
                continue
            rounded = right.to(value.dtype)
            unit = torch.finfo(value.dtype).eps * rounded.abs().clamp_min(torch.finfo(value.dtype).tiny)
            apart = ((value.double() - right).abs() / unit.double()).nan_to_num(0, 0, 0)
            worst = max(worst, float(apart.max()) if apart.numel() else 0.0)
        if values:
            found.append(f"{which} run: at most {worst:.3g} ulps from the exact value")
    return found

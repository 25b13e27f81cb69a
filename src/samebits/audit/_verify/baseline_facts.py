"""The facts of a baseline's record on which the plan of checks depends."""

from __future__ import annotations

from typing import Any

from samebits.audit._child.loader_workers import OWN_LOADERS
from samebits.audit._record.read_record import Record, RecordLine
from samebits.audit._verify.check_plan import BaselineFacts


def facts_of(record: Record, *others: Record) -> BaselineFacts:
    """Returns steps, ends of epochs, validations inside a body, use of `Run`, loader workers, the switch's
    promise.

    `record` is that of rank 0, `others` those of the other ranks of a job.
    """
    lines = list(record.steps.values())
    end = record.end or {}
    return BaselineFacts(
        steps=tuple(sorted(line.step for line in lines)),
        epoch_firsts=frozenset(line.step for line in lines if line.batch_index == 0),
        epoch_lasts=_epoch_lasts(lines),
        validations=tuple(sorted(line.step for line in lines if "eval" in line.values)),
        uses_run=_uses_run(end),
        loaders=end.get("loaders"),
        other_loaders=", ".join(
            note.removesuffix(OWN_LOADERS) for note in end.get("notes", ()) if note.endswith(OWN_LOADERS)
        ),
        across=end.get("across"),
        ranks=1 + len(others),
        unequal_replicas=_unequal_replicas(end),
    )


def _unequal_replicas(end: dict[str, Any]) -> str:
    replicas = end.get("replicas", {})
    if not replicas.get("ddp"):
        return "no DistributedDataParallel was called"
    in_a_step = replicas["sharded"] and not _uses_run(end)
    return (
        "ZeroRedundancyOptimizer exchanges parameters after the step of its own optimizer"
        if in_a_step
        else ""
    )


def _uses_run(end: dict[str, Any]) -> bool:
    return any(seen.startswith("loop ") for seen in end.get("seen", ()))


def _epoch_lasts(lines: list[RecordLine]) -> frozenset[int]:
    """Returns the last step of every epoch, and of the run."""
    newest = {(line.loop, line.epoch): line.step for line in lines}
    return frozenset(newest.values())

"""What a baseline's record tells about the script, as far as the plan of checks depends on it."""

from __future__ import annotations

from samebits.audit.record.reading import Line, Record
from samebits.audit.verify.plan import Facts


def facts_of(record: Record) -> Facts:
    """Steps, ends of epochs, validations inside a body, use of `Run`, loader workers, thread invariance."""
    lines = list(record.steps.values())
    end = record.end or {}
    return Facts(
        steps=tuple(sorted(line.step for line in lines)),
        epoch_firsts=frozenset(line.step for line in lines if line.batch_index == 0),
        epoch_lasts=_epoch_lasts(lines),
        validations=tuple(sorted(line.step for line in lines if "eval" in line.values)),
        uses_run=any(seen.startswith("loop ") for seen in end.get("seen", ())),
        loaders=end.get("loaders"),
        thread_invariant=bool(end.get("thread_invariant")),
    )


def _epoch_lasts(lines: list[Line]) -> frozenset[int]:
    """The last step of every epoch, of the run's too."""
    newest = {(line.loop, line.epoch): line.step for line in lines}
    return frozenset(newest.values())

"""Compares a whole run, left at a boundary by an exception and called again, with an uninterrupted one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from samebits._context import Observer, Position, observed, process
from samebits._objects.hashes import of_nested
from samebits.audit._first_difference import Difference, first_difference
from samebits.audit._record.record_file import Record, RecordFile, read_record
from samebits.audit._record.recorder import Recorder, recording
from samebits.callbacks import Callback
from samebits.data import DataLoader
from samebits.random import set_random_seed
from samebits.random._process import generator_states
from samebits.testing._stepper import CALL, Cut, cuts
from samebits.trainer import Trainer

RunFunction = Callable[[Path], Any]


class _CutReached(BaseException):
    """Raised at the cut: no program catches it by accident."""


class _LeaveAtCut(Observer):
    """Leaves the run at the start of the body of step `cut`; the commit that it resumes from is durable."""

    def __init__(self, cut: int) -> None:
        self._cut = cut

    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        if step.step == self._cut:
            raise _CutReached


def assert_run_resumes(train: RunFunction, cut: Cut) -> None:
    name = getattr(train, "__name__", "the run")
    with tempfile.TemporaryDirectory(prefix="samebits-") as scratch:
        folder = Path(scratch)
        expected, whole = _record(train, folder / "whole", folder / "record")
        for at in cuts(cut, len(whole.steps)):
            begin, nested = _resumes_from(whole, at)
            _cut(train, folder / f"run{at}", at, begin)
            value, rest = _record(train, folder / f"run{at}", folder / f"record{at}")
            where = f"{CALL}: {name}, cut before step {at}{nested}"
            _compare(where, whole, rest, begin)
            if value != expected:
                raise AssertionError(
                    f"{where}: it returns another value: {expected} uninterrupted, {value} now"
                )


def _resumes_from(whole: Record, at: int) -> tuple[int, str]:
    """Returns the commit from which a run left before step `at` resumes; a reason if that is another step."""
    loops = {step: loop for loop, step in whole.steps}
    if "/" not in loops.get(at, ""):
        return at, ""
    begin = max(step for step, loop in loops.items() if step < at and "/" not in loop)
    return begin, (
        f" (inside the loop {loops[at]!r}; a nested loop has no commits of its own, so the run resumes from "
        f"step {begin}, in whose body it began)"
    )


def _record(train: RunFunction, run_dir: Path, folder: Path) -> tuple[str, Record]:
    """Calls `train`; returns the digest of its result, and the record of its steps."""
    with closing(RecordFile(folder)) as file:
        recorder = Recorder(file)
        with _fresh_process(), recording(recorder, "", level="state", every=1, allowed=(str(run_dir),)):
            value = of_nested(train(run_dir)).digest()
        recorder.finish()
    return value, read_record(folder)


def _cut(train: RunFunction, run_dir: Path, at: int, commit: int) -> None:
    with _fresh_process(), observed(_LeaveAtCut(at)):
        process.overrides = replace(process.overrides, commit_steps=(commit,))
        with suppress(_CutReached):
            train(run_dir)


@contextmanager
def _fresh_process() -> Iterator[None]:
    """Restores the settings of this process that a run changes."""
    before = dict(vars(process))
    with generator_states.preserve_states():
        try:
            # Lost state shows in the bits here, and is reported with the step that it changes.
            process.overrides = replace(process.overrides, check_complete=False)
            yield
        finally:
            vars(process).update(before)


def _compare(what: str, whole: Record, rest: Record, begin: int) -> None:
    if begin == len(whole.steps) and not rest.steps:  # it had finished
        return
    began = (rest.end or {}).get("resumed_from")
    if began != begin:
        raise AssertionError(
            f"{what}: called again, it began at step {began or 0}. Does it give its run directory to Run?"
        )
    found = first_difference(whole, rest)
    if found is not None:
        raise AssertionError(f"{what}: {found.sentence()}{_hashes(found, whole, rest)}")


def _hashes(found: Difference, whole: Record, rest: Record) -> str:
    """Returns the hashes of the first leaf that differs, where both records have it."""
    path = next(iter(found.paths), "")
    lines = [line for record in (whole, rest) for line in (*record.initial, *record.steps.values())]
    leaves = [one.leaves.get(found.component, {}).get(path) for one in lines if one.step == found.step]
    before, after = leaves[0] if leaves else None, leaves[-1] if leaves else None
    return f" ({path}: {before} uninterrupted, {after} now)" if before and after and before != after else ""


def fit_with(callback: Callback, run_dir: Path) -> Any:
    """Runs a fit of 3 epochs of 4 batches; returns history, weights, and the state of `callback`."""
    set_random_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randn(8, 4), torch.randn(8, 1))
    trainer = Trainer(model, torch.nn.functional.mse_loss, optimizer, callbacks=[callback])
    loader = DataLoader(data, batch_size=2, shuffle=True)
    validation = DataLoader(data, batch_size=4)
    history = trainer.fit(loader, 3, validation_data=validation, run_dir=run_dir, verbose=False)
    return history.history, model.state_dict(), callback.state_dict()

"""The recorder: digests of everything that makes up a training step, taken from outside while a script runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import xxhash

from samebits.audit.record.file import RecordFile, start_line
from samebits.audit.record.observe import TorchListener, torch_hooks
from samebits.audit.record.subjects import Subjects
from samebits.audit.record.writes import outside, writes
from samebits.context import Observer, Position, observed, process, run_dirs
from samebits.determinism.notices import notices
from samebits.determinism.settings import active
from samebits.digest import ALGORITHM
from samebits.train.reach import locals as loop_locals
from samebits.train.reach.generators import generators
from samebits.train.reach.leaves import Leaves, nested, of_nested


class StopScript(BaseException):
    """Ends a script that has no `Run` after the steps asked for; not an error."""


@dataclass
class _Step:
    """What was seen of the step under way."""

    position: Position
    due: bool
    ends: bool
    """Whether the loop may end after this step: the end of an epoch."""
    components: dict[str, Leaves] = field(default_factory=dict)
    losses: list[Any] = field(default_factory=list)
    evaluations: Any = field(default_factory=xxhash.xxh3_128)
    evaluated: int = 0


def _survives(method: Callable[..., None]) -> Callable[..., None]:
    """Whatever goes wrong while recording becomes a note: the user's run goes on."""

    @functools.wraps(method)
    def guarded(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.note(f"recorder: {method.__name__}: {type(error).__name__}: {error}")

    return guarded


class Recorder(Observer, TorchListener):
    """Writes one line per step: of a `Run`'s loops; without one per optimizer step; without that per forward.

    Args:
        file: where the lines go.
        level: "loss" (losses and learning rates) or "state" (everything).
        every: only each `every`-th step, and the last one of each epoch.
        stop_after_steps: ends a script without `Run` after so many steps.
    """

    def __init__(
        self, file: RecordFile, *, level: str = "state", every: int = 1, stop_after_steps: int | None = None
    ) -> None:
        self.file = file
        self.notes: list[str] = []
        self.folders: list[str | Path | None] = []
        """Where the script may write."""
        self.files: dict[str, None] = {}
        """What it opened for writing."""
        self._start = os.getcwd()
        self.loaders: list[int] = []
        """The number of workers that the script gave each loader it made."""
        self._full = level == "state"
        self._every = every
        self._stop_after = stop_after_steps
        self._subjects = Subjects(self.note)
        self._runs = 0
        self._loops: list[str] = []
        self._step: _Step | None = None
        self._begun = False
        self._trains = False
        self._held: dict[str, Leaves] | None = None
        self._steps = 0
        self._threads: list[int] = []
        self._any_threads = True
        """Whether every step so far was made by ops whose bits do not depend on the thread count."""
        self._resumed_from: int | None = None

    def note(self, text: str) -> None:
        """Keeps a remark for the last line, once."""
        if text not in self.notes:
            self.notes.append(text)

    # Events of a Run.

    @_survives
    def run_opened(self, run: Any) -> None:
        """Takes over from the counting of optimizer steps."""
        self._runs += 1
        self.folders += run_dirs(run.run_dir)
        self._trains, self._begun, self._step = True, False, None
        self._subjects.open_run(run)

    @_survives
    def workers_wanted(self, number: int) -> None:
        """A pipeline's own number of workers, for `verify`'s table."""
        self.loaders.append(number)

    @_survives
    def boundary(self, run: Any, step: Position, frame: FrameType) -> None:
        """Writes the line of the step that is over, or the first line of this process."""
        if step.loop not in self._loops:
            self._loops.append(step.loop)
        if not self._begun:
            self._begun = True
            self._resumed_from = step.step if run.resumed else None
            before = Position(step.loop, step.epoch, step.batch_index - 1, step.step - 1)
            self._initial(before, frame, fresh=not run.resumed)
        elif self._step is not None:
            self._step.ends |= run.stop_asked or process.overrides.stop_after_steps == step.step
            self._write(self._step, frame)
        self._step = None

    @_survives
    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        """Takes the generators and the batch."""
        self._step = self._begin(step, ends_epoch=ends_epoch)
        if self._full and self._step.due:
            self._step.components = {"generators": generators(), "batch": of_nested(batch)}

    @_survives
    def run_closed(self, run: Any, *, finished: bool) -> None:
        """Writes the step that a `break` or an exception left."""
        self._runs -= 1
        if self._step is not None:
            self._write(self._step, None)
        self._step = None

    # Events of torch.

    @_survives
    def backward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Keeps the losses."""
        if not self._trains:
            self._trains, self._held = True, None
        if not self._runs:
            self._open_plain_step()
        if self._step is not None and self._step.due:
            self._step.losses += [
                root.item() if root.numel() == 1 and root.is_cpu else root.detach() for root in roots
            ]

    @_survives
    def forward(
        self, module: torch.nn.Module, inputs: tuple[Any, ...], output: Any, *, evaluates: bool
    ) -> None:
        """Keeps what a model saw and gave: the batch of a plain script, evaluations, the steps of an inference."""
        self._subjects.see_root(module, trains=not evaluates)
        if not self._trains:
            self._infer(inputs, output)
        if not self._runs and not evaluates:
            self._open_plain_step()
        step = self._step
        if step is None and not self._runs and self._trains:
            step = self._open_plain_step()
        if step is None or not step.due or not self._full:
            return
        if evaluates:
            step.evaluated += 1
            for _, hashed in nested(output):
                step.evaluations.update(hashed)
        elif not self._runs:
            before = step.components.get("batch", Leaves((), b""))
            seen = of_nested(inputs, str(len(before.names)) if before.names else "")
            step.components["batch"] = Leaves(before.names + seen.names, before.hashes + seen.hashes)

    @_survives
    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Ends a step of a plain script."""
        self._trains, self._held = True, None
        self._subjects.see_optimizer(optimizer)
        if self._runs:
            return
        step = self._open_plain_step()
        if self._full and step.due:
            step.components["generators"] = generators()
        self._write(step, None)
        self._step = None
        if self._stop_after is not None and self._steps >= self._stop_after:
            raise StopScript

    # Lines.

    def finish(self, error: BaseException | None = None) -> str | None:
        """Writes the last line, after the script's end, and returns the final digest (None: no model was seen)."""
        self._flush_inference()
        for text in (*outside(self.files, self.folders, self._start), *notices()):
            self.note(text)
        final, seen = None, []
        try:
            seen = self._subjects.summary() + [f"loop {name}" for name in self._loops]
            final = self._subjects.final() if self._subjects.summary() else None
        except Exception as failure:
            self.note(f"recorder: finish: {type(failure).__name__}: {failure}")
        line = {
            "kind": "end",
            "final": final,
            "steps": self._steps,
            "seen": seen,
            "not_seen": self._not_seen(),
        }
        line |= {
            "notes": self.notes,
            "loaders": self.loaders,
            "resumed_from": self._resumed_from,
            "threads": self._threads,
            "thread_invariant": self._any_threads and bool(self._threads),
        }
        if self._step is not None and self._step.evaluated:
            line["eval"] = _evaluations(self._step)
        line["error"] = None if error is None else f"{type(error).__name__}: {error}"
        self.file.write(line)
        return final

    def _begin(self, position: Position, *, ends_epoch: bool) -> _Step:
        threads = torch.get_num_threads()
        self._threads = [self._threads[0] if self._threads else threads, threads]
        settings = active()
        self._any_threads &= settings is not None and settings.thread_invariant
        return _Step(position, ends_epoch or position.step % self._every == 0, ends_epoch)

    def _open_plain_step(self) -> _Step:
        if not self._begun:
            self._begun = True
            self._initial(Position("", 0, -1, -1), None, fresh=True)
        if self._step is None:
            self._step = self._begin(Position("", 0, self._steps, self._steps), ends_epoch=False)
        return self._step

    def _initial(self, before: Position, frame: FrameType | None, *, fresh: bool) -> None:
        components = self._subjects.take() if self._full else {}
        if self._full and fresh:
            components["generators"] = generators()
        if self._full and frame is not None:
            components |= self._locals(frame, at_exit=False)
        line = {"kind": "initial", "step": before.step, "loop": before.loop, "epoch": before.epoch}
        line |= {
            "batch_index": before.batch_index,
            "threads": torch.get_num_threads(),
            "lr": _hex(self._subjects.learning_rates()),
        }
        self.file.write_components(line, components)

    def _write(self, step: _Step, frame: FrameType | None) -> None:
        self._steps += 1
        if not step.due:
            return
        at = step.position
        line: dict[str, Any] = {"kind": "step", "step": at.step, "loop": at.loop, "epoch": at.epoch}
        line["batch_index"] = at.batch_index
        line["loss"] = [_loss(loss) for loss in step.losses]
        line["lr"] = _hex(self._subjects.learning_rates())
        if self._full:
            step.components |= self._subjects.take()
            if frame is not None:
                step.components |= self._locals(frame, at_exit=step.ends)
            if step.evaluated:
                line["eval"] = _evaluations(step)
        self.file.write_components(line, step.components)

    def _locals(self, frame: FrameType, *, at_exit: bool) -> dict[str, Leaves]:
        return loop_locals.take(frame, self._subjects.objects(), self._subjects.loader(), at_exit=at_exit)

    def _infer(self, inputs: tuple[Any, ...], output: Any) -> None:
        """A forward before any training: a step of an inference, unless a backward follows at once."""
        self._flush_inference()
        self._held = {"batch": of_nested(inputs), "output": of_nested(output)} if self._full else {}

    def _flush_inference(self) -> None:
        if self._held is None:
            return
        at = self._steps
        line = {"kind": "step", "step": at, "loop": "inference", "epoch": 0, "batch_index": at, "loss": []}
        if at % self._every == 0:
            self.file.write_components(line, self._held)
        self._steps += 1
        self._held = None

    def _not_seen(self) -> list[str]:
        missing = [] if self._full else ["everything but losses and learning rates (level loss)"]
        if not self._subjects.summary():
            missing.append("no model was called")
        if self._trains and not self._subjects.optimizers():
            missing.append("no optimizer took a step")
        if self._trains and not self._loops:
            missing.append("locals and epochs (the script has no samebits.Run)")
        return missing


@contextmanager
def recording(
    recorder: Recorder, script: str, *, level: str, every: int, allowed: tuple[str | None, ...]
) -> Iterator[None]:
    """Subscribes `recorder` to everything while the block runs; what it hooked is as before afterwards."""
    recorder.file.write(start_line(script, level, every))
    recorder.folders += allowed
    with observed(recorder), torch_hooks(recorder), writes(recorder.files):
        yield


def _evaluations(step: _Step) -> str:
    return f"{ALGORITHM}:{step.evaluations.hexdigest()}"


def _loss(value: Any) -> str:
    """A loss as `float.hex`, or the digest of one that is no single real number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value).hex() if isinstance(value, float | int) else of_nested(value).digest()


def _hex(values: list[float]) -> list[str]:
    return [value.hex() for value in values]

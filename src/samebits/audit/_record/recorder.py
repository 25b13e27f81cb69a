"""The recorder: digests of everything that makes up a training step, taken from outside the script."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from samebits._context import ACROSS, Across, Observer, Position, observed, process, run_dirs
from samebits._native import compiled_here
from samebits._objects.hashes import Leaves, of_nested
from samebits._objects.rng_states import generators
from samebits.audit._record.observed_objects import ObservedObjects, UpdateDetector
from samebits.audit._record.opened_files import digests, lines_outside, record_opened_files
from samebits.audit._record.record_file import RecordFile, start_line
from samebits.audit._record.record_lines import LineWriter, ObservedStep
from samebits.audit._record.torch_hooks import (
    LoaderWorkers,
    TorchListener,
    generator_states,
    torch_hooks,
    watch_loaders,
)
from samebits.determinism import environment_fingerprint
from samebits.determinism._warn_once import notices


class StopScript(BaseException):
    """Ends a script that has no `Run` after the given number of steps; not an error."""


def _note_exceptions(method: Callable[..., None]) -> Callable[..., None]:
    """Turns any exception while recording into a note: the user's run continues."""

    @functools.wraps(method)
    def guarded(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.note(f"recorder: {method.__name__}: {type(error).__name__}: {error}")

    return guarded


class Recorder(Observer, TorchListener):
    """Writes a line per step of a `Run`'s loop; without one, per update of the parameters, or per forward.

    An update is an optimizer's step, or a change of the parameters without one between a gradient and the
    next forward. Where both alternate, they are one step, the optimizer's. Forwards before the first update
    are no steps.

    Args:
        file: the file of the lines.
        level: "loss" (losses and learning rates) or "state" (everything).
        every: only each `every`-th step, and the last one of each epoch.
        stop_after_steps: ends a script without `Run` after that number of steps.
    """

    def __init__(
        self,
        file: RecordFile,
        *,
        level: str = "state",
        every: int = 1,
        stop_after_steps: int | None = None,
        all_memory: bool = False,
        digest_files: bool = False,
    ) -> None:
        self.file = file
        self.notes: list[str] = []
        self.before_step: Callable[[str, int], None] = lambda _loop, _step: None
        """Called with the loop and the step that the script is about to begin; with -1 before all."""
        self.folders: list[str | Path | None] = []
        """Where the script may write."""
        self.files: dict[str, None] = {}
        """Files that the script opened for writing."""
        self.read: dict[str, None] | None = {} if digest_files else None
        """Files that it opened for reading; None: they are not recorded."""
        self._start, self._began = os.getcwd(), time.time()
        self._sharded = False
        """True if a backward ran in a shard (`run.steps(shards=...)`)."""
        self.loaders = LoaderWorkers([], [])
        self._reads_torchs = False
        """True if a loader was read that draws as torch's does."""
        self._loader_generators: dict[str, str] = {}
        """Path to the state's hash, of the torch loaders' generators when the loader was first iterated."""
        self._full = level == "state"
        self._every = every
        self._stop_after = stop_after_steps
        self._subjects = ObservedObjects(self.note)
        self._lines = LineWriter(file, self._subjects, full=self._full, all_memory=all_memory)
        self._runs = 0
        self._loops: dict[str, int | None] = {}
        """The loops that were begun, and the number of steps that each has if nothing cuts it."""
        self._updates = UpdateDetector(self._subjects.parameters)
        self._step: ObservedStep | None = None
        self._held: ObservedStep | None = None
        """A step without an optimizer, the first since one with: an optimizer's next step joins it."""
        self._second_manual_update = False
        """True if a second one followed."""
        self._begun = False
        self._trains = False
        self._steps = self._forwards = 0
        self._early: list[bytes] = []
        """The hashes of the outputs of the evaluations before the first step."""
        self._threads: list[int] = []
        self._across: set[Across | None] = set()
        """The promises of the switch in the steps so far; None: it was off in one."""
        self._harmless: set[str] = set()
        """Paths of values that the runs know to be printed only, or are to ignore."""
        self._cures: dict[str, Any] = {}
        """For `verify`'s advice: that of an adapter and of the run's check, and the run's objects."""
        self._resumed_from: int | None = None
        self._settings: tuple[Any, ...] | None = None
        """The switch and the number of threads in the newest step."""
        self._environment: dict[str, Any] = {}
        """The fingerprint of that step: a switch that is on in a `with` block is off at the script's end."""

    def note(self, text: str) -> None:
        """Keeps a remark for the last line, once."""
        if text not in self.notes:
            self.notes.append(text)

    # Events of a Run.

    @_note_exceptions
    def run_opened(self, run: Any) -> None:
        self._write_held()
        self._updates.optimizer_stepped(None)  # a change since a gradient may be the run's restore
        self._runs += 1
        self.folders += run_dirs(run.run_dir)
        if run.run_dir is not None:
            self.file.write({"kind": "run", "run_dir": str(run.run_dir)})
        self._trains, self._begun, self._step = True, False, None
        self._subjects.open_run(run)

    @_note_exceptions
    def workers_wanted(self, number: int) -> None:
        self.loaders.samebits.append(number)

    @_note_exceptions
    def loader_begins(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        self._reads_torchs = True
        if self._full:
            self._loader_generators = generator_states(loader) | self._loader_generators

    @_note_exceptions
    def boundary(self, run: Any, step: Position, frame: FrameType) -> None:
        if step.loop not in self._loops:
            self._loops[step.loop] = self._subjects.planned_steps()
        if not self._begun:
            self._begun = True
            self._resumed_from = step.step if run.resumed else None
            before = Position(step.loop, step.epoch, step.batch_index - 1, step.step - 1)
            self._initial(before, frame, fresh=not run.resumed)
        elif self._step is not None:
            self._step.ends |= run.parts.stop_requested or process.overrides.stop_after_steps == step.step
            if self._step.inputs:
                self._step.components["inputs"] = self._step.batch()
            self._write(self._step, frame)
        self._step = None
        self.before_step(step.loop, step.step)

    @_note_exceptions
    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        self._step = self._begin(step, ends_epoch=ends_epoch)
        if self._full and self._step.due:
            self._step.components = {"generators": generators(), "batch": of_nested(batch)}

    @_note_exceptions
    def run_closed(self, run: Any, *, finished: bool) -> None:
        self._runs -= 1
        checks = run.parts.completeness
        self._harmless |= checks.harmless
        unsaved = {path: (type(one).__name__, str(one)) for path, one in checks.unraised.items()}
        self._cures = {"adapter": run.parts.cures, "unsaved": unsaved, "given": [*run.objects]}
        if checks.printed:
            self.note(f"not compared, as they are only printed: {', '.join(sorted(checks.printed))}")
        if self._step is not None:
            self._write(self._step, None)
        self._step = None

    # Events of torch.

    @_note_exceptions
    def backward(self, roots: tuple[torch.Tensor, ...]) -> None:
        self._trains = True
        self._sharded |= "shard" in process.rank_key
        if not self._runs:
            self._open_plain_step()
            self._expect_update()
        if self._step is not None and self._is_recorded(self._step):
            self._step.losses += [
                root.item() if root.numel() == 1 and root.is_cpu else root.detach() for root in roots
            ]

    @_note_exceptions
    def gradient(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Keeps what may be the loss, in case parameters are updated with it."""
        if self._runs:
            return
        self._expect_update()
        if self._step is not None:
            self._step.differentiated += [root.detach() for root in roots if root.numel() == 1]

    @_note_exceptions
    def forward_begins(self) -> None:
        """Ends a step whose parameters were changed without an optimizer."""
        if not self._runs and self._updates.has_update():
            self._end_manual_update()
            self._stop_at_limit()

    @_note_exceptions
    def forward(
        self, module: torch.nn.Module, inputs: tuple[Any, ...], output: Any, *, evaluates: bool
    ) -> None:
        """Keeps a model's inputs and outputs: a plain script's batch, evaluations, steps of an inference."""
        self._subjects.add_module(module, trains=not evaluates)
        if not self._trains:
            self._infer(inputs, output, evaluates=evaluates)
        if not self._runs and (self._trains or not evaluates):
            self._open_plain_step()
        step = self._step
        if step is None or not self._full or not self._is_recorded(step):
            return
        if evaluates:
            step.outputs.append(of_nested(output).hashes)
        else:
            step.inputs.append(of_nested(inputs))

    @_note_exceptions
    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        self._updates.optimizer_begins()

    @_note_exceptions
    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._trains = True
        self._subjects.add_optimizer(optimizer)
        self._updates.optimizer_stepped(None)
        if self._runs:
            return
        step = self._open_plain_step()
        if self._held is not None:
            self._held.join(step)
            step, self._held = self._held, None
        self._second_manual_update = False
        self._take(step)
        self._updates.optimizer_stepped(step.components.get("model"))
        self._write(step, None)
        self._step = None
        self._stop_at_limit()

    # Steps of a plain script.

    def _open_plain_step(self) -> ObservedStep:
        if not self._begun:
            self._begun = True
            self._initial(Position("", 0, -1, -1), None, fresh=True)
        if self._step is None:
            number = self._steps + (self._held is not None)
            self._step = self._begin(Position("", 0, number, number), ends_epoch=False)
        return self._step

    def _is_recorded(self, step: ObservedStep) -> bool:
        """Returns True if `step` is recorded: it is due, or may turn out to be a part of one that is."""
        return step.due or (self._held is not None and self._held.due)

    def _expect_update(self) -> None:
        """Notes the generators at a gradient: without an optimizer the last point surely inside the step."""
        step = self._step
        if self._updates.gradient() and self._full and step is not None and self._is_recorded(step):
            step.components["generators"] = generators()

    def _end_manual_update(self) -> None:
        """Ends an update without an optimizer; the first after an optimizer's may belong to the next's."""
        self._trains = True
        step, self._step = self._open_plain_step(), None
        step.losses = step.losses or step.differentiated
        self._take(step, step.components.get("generators"))
        if self._held is None and not self._second_manual_update:
            self._held = step
            return
        self._second_manual_update = True
        self._write_held()
        if not self._reached_limit():
            self._write(step, None)

    def _write_held(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._write(held, None)

    def _take(self, step: ObservedStep, drawn: Leaves | None = None) -> None:
        """Takes the state at the end of a plain step; `drawn`: the generators, if they were taken before."""
        if not self._full or not self._is_recorded(step):
            return
        if step.inputs:
            step.components["batch"] = step.batch()
        step.components["generators"] = drawn or generators()
        step.components |= self._subjects.take()

    def _reached_limit(self) -> bool:
        return self._stop_after is not None and self._steps >= self._stop_after

    def _stop_at_limit(self) -> None:
        if self._reached_limit():
            raise StopScript

    # Lines.

    def finish(self, error: BaseException | None = None) -> str | None:
        """Writes the last line, after the script's end; returns the final digest (None: no model seen)."""
        self._end_plain_steps()
        for text in (*lines_outside(self.files, self.folders, self._start), *notices()):
            self.note(text)
        final, seen, replicas, layout = None, [], {}, "replicated"
        try:
            seen = self._subjects.summary() + [f"loop {name}" for name in self._loops]
            layout = "FSDP2" if self._subjects.has_dtensors() else layout
            final = self._subjects.final() if self._subjects.summary() else None
            replicas = self._subjects.replicas() if "RANK" in os.environ else {}
        except Exception as failure:
            self.note(f"recorder: finish: {type(failure).__name__}: {failure}")
        line = {
            "kind": "end",
            "final": final,
            "steps": self._steps if self._trains else self._forwards,
            "trains": self._trains,
            "seen": seen,
            "not_seen": self._limitations(),
        }
        line |= {
            "notes": self.notes,
            "loaders": [*self.loaders.samebits, *self.loaders.torchs],
            "torch_loaders": self.loaders.torchs if self._reads_torchs else [],
            "resumed_from": self._resumed_from,
            "planned": None if None in self._loops.values() else sum(filter(None, self._loops.values())),
            "threads": self._threads,
            "layout": layout,
            "sharded": self._sharded,
            "across": min(self._across, key=(None, *ACROSS).index, default=None),
            "environment": self._environment_of_steps(),
            "harmless": sorted(self._harmless),
            "cures": {**self._cures, "seeded": process.seeded},
            "compiled": [len(compiled_here), sum(compiled_here.values())],
        }
        if self._loader_generators:
            line["loader_generators"] = self._loader_generators
        if replicas:
            line["replicas"] = replicas
        if self.read is not None:
            line["files"] = self._digests(self.read)
        if self._step is not None and self._step.outputs:
            line["eval"] = self._step.evaluations()
        notes = getattr(error, "__notes__", ())
        line["error"] = None if error is None else "\n".join([f"{type(error).__name__}: {error}", *notes])
        self.file.write(line)
        return final

    def _digests(self, paths: Iterable[str]) -> dict[str, str]:
        modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        read = [path for path in paths if os.path.realpath(path) not in self.files]
        return digests([*filter(None, modules), *read], self.folders, self._start, self._began)

    @_note_exceptions
    def _end_plain_steps(self) -> None:
        """Ends the last update of a plain script, which no forward follows."""
        if not self._runs and self._updates.has_update() and not self._reached_limit():
            self._end_manual_update()
        if not self._reached_limit():
            self._write_held()

    def _begin(self, position: Position, *, ends_epoch: bool) -> ObservedStep:
        self._note_environment()
        return ObservedStep(position, ends_epoch or position.step % self._every == 0, ends_epoch)

    def _note_environment(self) -> None:
        threads = torch.get_num_threads()
        self._threads = [self._threads[0] if self._threads else threads, threads]
        settings = process.op_determinism
        if self._settings != (settings, threads):
            self._settings = settings, threads
            self._environment = environment_fingerprint()
        self._across.add(None if settings is None else settings.across)

    def _environment_of_steps(self) -> dict[str, Any]:
        """Returns the fingerprint of the newest step; the current one if nothing that counts has changed."""
        unchanged = self._settings in (None, (process.op_determinism, torch.get_num_threads()))
        return environment_fingerprint() if unchanged else self._environment

    def _initial(self, before: Position, frame: FrameType | None, *, fresh: bool) -> None:
        self._lines.initial(before, frame, self._early, fresh=fresh)
        self._early = []

    def _write(self, step: ObservedStep, frame: FrameType | None) -> None:
        self._steps += 1
        if step.due:
            self._lines.step(step, frame)
        if not self._runs:
            self.before_step("", step.position.step + 1)

    def _infer(self, inputs: tuple[Any, ...], output: Any, *, evaluates: bool) -> None:
        """Notes a forward before any training: a step of an inference, unless training follows."""
        self._note_environment()
        number, self._forwards = self._forwards, self._forwards + 1
        gave = of_nested(output) if self._full else Leaves((), b"")
        if self._full and evaluates and self._step is None:
            self._early.append(gave.hashes)
        if number % self._every == 0:
            self._lines.forward(number, inputs, gave, evaluates=evaluates)

    def _limitations(self) -> list[str]:
        missing = [] if self._full else ["everything but losses and learning rates (level loss)"]
        if not self._subjects.summary():
            missing.append("no model was called")
        if self._trains and not self._subjects.optimizers() and not self._subjects.saved_by_adapters():
            missing.append("the state of what updates the parameters: no torch optimizer took a step")
        if self._trains and not self._loops:
            missing.append("locals and epochs (the script has no samebits.Run)")
        return missing


@contextmanager
def recording(
    recorder: Recorder,
    script: str,
    *,
    level: str,
    every: int,
    allowed: tuple[str | Path | None, ...],
    seed: int | None = None,
) -> Iterator[None]:
    """Subscribes `recorder` to everything while the block runs; its hooks are removed afterwards."""
    recorder.file.write(start_line(script, level, every, seed))
    recorder.folders += allowed
    files, loaders = record_opened_files(recorder.files, recorder.read), watch_loaders(recorder.loader_begins)
    with observed(recorder), torch_hooks(recorder), files, loaders:
        yield

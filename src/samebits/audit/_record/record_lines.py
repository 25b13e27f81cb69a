"""The lines of a record, as digests, and what is noted of a step until its line is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from samebits._byte_digest import of_bytes
from samebits._context import Position
from samebits._objects import structure
from samebits._objects.hashes import Leaves, of_nested, plain
from samebits._objects.rng_states import generators
from samebits._objects.walk import LeafWalk
from samebits._program import LoopFrames, take
from samebits.audit._record.observed_objects import ObservedObjects
from samebits.audit._record.record_file import RecordFile


@dataclass
class ObservedStep:
    """A step in progress."""

    position: Position
    due: bool
    """True if its number is one that is recorded."""
    ends: bool
    """True if the loop may end after this step: the end of an epoch."""
    components: dict[str, Leaves] = field(default_factory=dict)
    losses: list[Any] = field(default_factory=list)
    differentiated: list[Any] = field(default_factory=list)
    """Numbers whose gradient `torch.autograd.grad` computed."""
    inputs: list[Leaves] = field(default_factory=list)
    """The inputs of each training forward: the batch of a plain script."""
    outputs: list[bytes] = field(default_factory=list)
    """The hashes of the outputs of evaluations."""

    def batch(self) -> Leaves:
        """Returns the inputs of all forwards as one component, the second's numbered after the first's."""
        names: tuple[str, ...] = ()
        for seen in self.inputs:
            prefix = str(len(names)) if names else ""
            names += tuple(".".join(filter(None, (prefix, name))) for name in seen.names)
        return Leaves(names, b"".join(seen.hashes for seen in self.inputs))

    def evaluations(self) -> str:
        return of_bytes(*self.outputs)

    def join(self, later: ObservedStep) -> None:
        """Adds the observations of `later`: the two were one step, which ends where that one does."""
        self.losses += later.losses
        self.differentiated += later.differentiated
        self.inputs += later.inputs
        self.outputs += later.outputs
        self.components = later.components


class LineWriter:
    """Writes lines about `subjects` to `file`; at level "loss" (not `full`) without components.

    With `all_memory`, a component `memory` holds what no other has.
    """

    def __init__(
        self, file: RecordFile, subjects: ObservedObjects, *, full: bool, all_memory: bool = False
    ) -> None:
        self._all_memory = all_memory
        self._file = file
        self._subjects = subjects
        self._full = full

    def initial(self, before: Position, frame: FrameType | None, early: list[bytes], *, fresh: bool) -> None:
        """Writes the state before the first body of a process, and the outputs of `early` evaluations."""
        components = self._subjects.take() if self._full else {}
        if self._full and fresh:
            components["generators"] = generators()
        if self._full and frame is not None:
            components |= self._locals(frame, at_exit=False)
        line = {
            "kind": "initial",
            **_place(before),
            "threads": torch.get_num_threads(),
            "lr": self._learning_rates(),
        }
        if early:
            line["eval"] = of_bytes(*early)
        self._file.write_components(line, components)

    def step(self, step: ObservedStep, frame: FrameType | None) -> None:
        line: dict[str, Any] = {"kind": "step", **_place(step.position)}
        line["loss"] = [_loss(loss) for loss in step.losses]
        line["lr"] = self._learning_rates()
        if self._full:
            if "model" not in step.components:
                step.components |= self._subjects.take()
            if frame is not None:
                step.components |= self._locals(frame, at_exit=step.ends)
            if step.outputs:
                line["eval"] = step.evaluations()
        self._file.write_components(line, step.components)

    def forward(self, number: int, inputs: tuple[Any, ...], gave: Leaves, *, evaluates: bool) -> None:
        """Writes a forward before any training; in training mode with the model, which may train so."""
        components = {"batch": of_nested(inputs), "output": gave} if self._full else {}
        if self._full and not evaluates:
            components["model"] = self._subjects.parameters()
        line = {"kind": "forward", **_place(Position("inference", 0, number, number)), "loss": []}
        self._file.write_components(line, components)

    def _learning_rates(self) -> list[str]:
        return [rate.hex() for rate in self._subjects.learning_rates()]

    def _locals(self, frame: FrameType, *, at_exit: bool) -> dict[str, Leaves]:
        objects, loader = self._subjects.objects(), self._subjects.loader()
        taken = take(frame, objects, loader, at_exit=at_exit)
        return {**taken, "memory": take_memory(frame, objects, loader)} if self._all_memory else taken


def _place(at: Position) -> dict[str, Any]:
    return {"step": at.step, "loop": at.loop, "epoch": at.epoch, "batch_index": at.batch_index}


def _loss(value: Any) -> str:
    """Returns a loss as `float.hex`, or the digest of one that is no single real number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value).hex() if isinstance(value, float | int) else of_nested(value).digest()


_MOST = 2000
"""The leaves of a program that `take_memory` reads."""


def take_memory(frame: FrameType, objects: dict[str, Any], loader: Any) -> Leaves:
    """Returns the values that the loop in `frame` holds, its modules' structure, the process's settings."""
    frames = LoopFrames(frame)
    held = {**frames.script_globals, **frames.carried[0], **objects}
    walk = LeafWalk(_MOST, thorough=True)
    walk.skip(objects)
    for name, value in sorted(held.items()):
        walk.value(name, value, 0)
    if loader is not None:
        walk.value(frames.name_of(loader), loader, 0)
    frames.release()
    found = walk.leaves().by_name()
    modules = [(name, value) for name, value in sorted(held.items()) if isinstance(value, torch.nn.Module)]
    for path, parts in {**structure.of_modules(modules), "": structure.of_process()}.items():
        found |= {f"{path}.{name}".lstrip("."): plain(repr(value)) for name, value in parts.items()}
    return Leaves(tuple(found), b"".join(found.values()))

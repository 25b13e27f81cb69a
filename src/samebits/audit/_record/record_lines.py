"""The lines of a record, as digests."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from samebits._context import Position
from samebits._inspect._program import carried_locals
from samebits._inspect.rng_states import generators
from samebits._inspect.tree import Leaves, of_nested
from samebits.audit._record import memory
from samebits.audit._record.observed_objects import ObservedObjects
from samebits.audit._record.record_file import RecordFile
from samebits.audit._record.step_observations import ObservedStep, digest_of


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
            line["eval"] = digest_of(early)
        self._file.write_components(line, components)

    def step(self, step: ObservedStep, frame: FrameType | None) -> None:
        """Writes the state after the body of `step`, with the locals of `frame`."""
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
        """Writes one forward before any training; of one in training mode the model, too: some train without gradients."""
        components = {"batch": of_nested(inputs), "output": gave} if self._full else {}
        if self._full and not evaluates:
            components["model"] = self._subjects.parameters()
        line = {"kind": "forward", **_place(Position("inference", 0, number, number)), "loss": []}
        self._file.write_components(line, components)

    def _learning_rates(self) -> list[str]:
        return [rate.hex() for rate in self._subjects.learning_rates()]

    def _locals(self, frame: FrameType, *, at_exit: bool) -> dict[str, Leaves]:
        objects, loader = self._subjects.objects(), self._subjects.loader()
        taken = carried_locals.take(frame, objects, loader, at_exit=at_exit)
        return {**taken, "memory": memory.take(frame, objects, loader)} if self._all_memory else taken


def _place(at: Position) -> dict[str, Any]:
    return {"step": at.step, "loop": at.loop, "epoch": at.epoch, "batch_index": at.batch_index}


def _loss(value: Any) -> str:
    """Returns a loss as `float.hex`, or the digest of one that is no single real number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value).hex() if isinstance(value, float | int) else of_nested(value).digest()

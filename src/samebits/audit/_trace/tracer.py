"""The trace of one step of a script, written to a file: its ops, its statements, its generators."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

import torch

from samebits._inspect.user_code import outwards
from samebits.audit._child.launch_spec import TraceSpec
from samebits.audit._record.torch_hooks import TorchListener
from samebits.audit._trace.line_tracer import LineTracer
from samebits.audit._trace.op_tracer import Lines, OpTracer, is_unwritten
from samebits.audit._trace.saved_op import save_op, varies


class Tracer(TorchListener):
    """Traces as `spec` says; `before_step` is called when the program is about to begin a step."""

    def __init__(self, spec: TraceSpec) -> None:
        self._spec = spec
        self._file = open(spec.file, "w", encoding="utf-8", buffering=1 << 20)  # noqa: SIM115 (`close`)
        self._lines = Lines(self._file)
        self._statements = LineTracer(self._lines)
        self._ops = OpTracer(self._lines, self._statements.statement_of, self._before_op)
        self._ops.fill = spec.fill
        self.running = False

    def before_step(self, loop: str, step: int) -> None:
        """Begins the trace, or ends it and the process."""
        spec = self._spec
        if step >= 0 and loop != spec.loop:
            return
        if self.running and spec.stop is not None and step >= spec.stop:
            self.close()
            os._exit(0)
        if not self.running and step == spec.step:
            frame = next((one for one in outwards(sys._getframe(1)) if self._statements._follows(one)), None)
            self._start(frame)

    def _start(self, frame: FrameType | None) -> None:
        self.running = True
        self._ops.start()
        self._statements.start(frame)

    def close(self) -> None:
        """Ends the trace; the file is whole."""
        if self.running:
            self.running = False
            self._statements.stop()
            self._ops.stop()
            self._lines.add(k="end")
        self._file.close()

    def optimizer_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes that the ops to come are an optimizer's."""
        self._ops.in_optimizer = True

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Notes the end of these."""
        self._ops.in_optimizer = False

    def _before_op(self, number: int, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Returns True if the op was to be called several times, and gave several results."""
        if number == self._spec.capture:
            self._statements.stop()
            save_op(self._spec.file, func, args, kwargs, self._spec.repeats)
            os._exit(0)  # whatever the script would do at its end, and its workers see to themselves
        repeats = self._spec.repeats if self._spec.capture is None and func.namespace == "aten" else 0
        return repeats > 0 and not is_unwritten(func) and varies(func, args, kwargs, repeats)

"""Kills the current process (SIGKILL) at a given kill point of a given step."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from samebits._context import Observer, Position
from samebits.audit._record.torch_hooks import TorchListener


class Killer(Observer, TorchListener):
    """Kills this process once, at `at` of step `step` (see `LaunchSpec.kill`), after `last_words(at, step)`.

    With `parent`, the process that started this one is killed, too: torchrun, with which all ranks die.
    "body": at the backward of the step, or when the batch is passed to the loop in a script that calls none.
    """

    def __init__(
        self, at: str, step: int, last_words: Callable[[str, int], None], *, parent: bool = False
    ) -> None:
        self._at, self._target = at, step
        self._last_words = last_words
        self._parent = parent
        self._now: int | None = 0
        self._in_run = False
        self._stepped = self._backward_seen = self._body_over = False

    def run_opened(self, run: Any) -> None:
        """Counts the steps of the run from here on."""
        self._in_run, self._now = True, None

    def boundary(self, run: Any, step: Position, frame: FrameType) -> None:
        """Kills after the body of the step before; one without backward, or that accumulates gradients, ends here at
        the latest.
        """
        self._body_over = True
        if self._now == step.step - 1:
            # "validation": this step's evaluations all came before its optimizer step, so none has killed it yet.
            self._kill_if("after_body", "body", "optimizer", "validation")
        self._now = None

    def commit_writing(self, run: Any, step: Position) -> None:
        """Kills between the tensors and the manifest."""
        if self._at == "commit" and step.step == self._target:
            self._kill()

    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        """Kills when the batch is passed to the loop."""
        self._now, self._stepped = step.step, False
        if self._body_over and not self._backward_seen and step.batch_index:
            self._kill_if("body")

    def validation_begins(self, run: Any, step: Position) -> None:
        """Kills in a validation of the library's."""
        self._kill_if("validation")

    def backward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Kills in the middle of the body."""
        self._backward_seen = True
        self._kill_if("body")

    def forward(
        self, module: torch.nn.Module, inputs: tuple[Any, ...], output: Any, *, evaluates: bool
    ) -> None:
        """Kills in an evaluation after the optimizer step, in the same body."""
        if evaluates and self._stepped:
            self._kill_if("validation")

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Kills right after the optimizer."""
        self._stepped = True
        self._kill_if("optimizer")
        if not self._in_run:
            self._kill_if("after_body")
            self._now = (self._now or 0) + 1

    def _kill_if(self, *places: str) -> None:
        if self._at in places and self._now == self._target:
            self._kill()

    def _kill(self) -> None:
        self._last_words(self._at, self._target)
        if self._parent:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

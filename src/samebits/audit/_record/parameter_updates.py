"""Training without an optimizer of torch's, seen by what it does: parameters that a gradient has changed."""

from __future__ import annotations

from collections.abc import Callable

from samebits._inspect.tree import Leaves


class Updates:
    """Tells whether parameters have changed between a gradient and the next forward, by another hand than an optimizer's.

    Only that span is looked at, so what changes without a gradient (initial weights, copies into a target network) or
    inside a forward (a BatchNorm's buffers, a moving average) is no update. Where optimizers step after each gradient,
    nothing is hashed for it but at the very first one. At level "loss", where an optimizer's step leaves no hash, the
    first update after one is told together with the second.

    Args:
        parameters: gives all parameters of the trained models as they are now.
    """

    def __init__(self, parameters: Callable[[], Leaves]) -> None:
        self._parameters = parameters
        self._before: Leaves | None = None
        """The parameters at the gradient, or after the optimizer's step before it."""
        self._waits = False
        """Whether a gradient was computed, and nothing has told yet who uses it."""
        self._looks = True
        """Whether the next gradient is worth a hash."""
        self._in_step = False

    def gradient(self) -> bool:
        """A backward is about to run. Whether it may be one that no optimizer uses."""
        if self._waits or self._in_step:
            return False
        self._waits = True
        if self._looks:
            self._before = self._parameters()
        return self._looks

    def optimizer_begins(self) -> None:
        """From here to its end, what changes is the optimizer's (some call the model in between)."""
        self._in_step = True

    def optimizer_stepped(self, parameters: Leaves | None) -> None:
        """An optimizer has used the gradient, and left `parameters` (None: not hashed)."""
        self._in_step = self._waits = self._looks = False
        self._before = parameters

    def made(self) -> bool:
        """Whether there was an update since the gradient; asked before each forward, and at the end."""
        if not self._waits or self._in_step:
            return False
        self._waits, self._looks = False, True
        before, self._before = self._before, None
        return before is not None and self._parameters() != before

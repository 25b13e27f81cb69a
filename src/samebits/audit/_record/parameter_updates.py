"""Training without an optimizer of torch's: detects parameters that changed after a gradient."""

from __future__ import annotations

from collections.abc import Callable

from samebits._inspect.tree import Leaves


class UpdateDetector:
    """Detects parameters that changed between a gradient and the next forward without an optimizer.

    Only that span is checked, so a change without a gradient (initial weights, copies into a target network) or inside
    a forward (a BatchNorm's buffers, a moving average) is no update. Where optimizers step after each gradient, only
    the very first one is hashed for it. At level "loss", where an optimizer's step leaves no hash, the first update
    after one is reported together with the second.

    Args:
        parameters: returns all parameters of the trained models as they are now.
    """

    def __init__(self, parameters: Callable[[], Leaves]) -> None:
        self._parameters = parameters
        self._before: Leaves | None = None
        """The parameters at the gradient, or after the optimizer's step before it."""
        self._gradient_unused = False
        """True if a gradient was computed, and its user is not known yet."""
        self._hash_next = True
        """True if the next gradient is hashed."""
        self._in_step = False

    def gradient(self) -> bool:
        """Notes that a backward is about to run. Returns True if it may be one that no optimizer uses."""
        if self._gradient_unused or self._in_step:
            return False
        self._gradient_unused = True
        if self._hash_next:
            self._before = self._parameters()
        return self._hash_next

    def optimizer_begins(self) -> None:
        """Notes that changes are the optimizer's from here to the end of its step (some call the model in between)."""
        self._in_step = True

    def optimizer_stepped(self, parameters: Leaves | None) -> None:
        """Notes that an optimizer has used the gradient, and left `parameters` (None: not hashed)."""
        self._in_step = self._gradient_unused = self._hash_next = False
        self._before = parameters

    def has_update(self) -> bool:
        """Returns True if there was an update since the gradient; called before each forward, and at the end."""
        if not self._gradient_unused or self._in_step:
            return False
        self._gradient_unused, self._hash_next = False, True
        before, self._before = self._before, None
        return before is not None and self._parameters() != before

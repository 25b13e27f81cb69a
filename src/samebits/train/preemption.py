"""SIGTERM becomes a flag that the run reads between two iterations."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

EXIT_PREEMPTED = 75
"""Exit code of a run that was stopped by SIGTERM and committed: start it again (EX_TEMPFAIL of sysexits.h)."""


class Preemption:
    """While installed, SIGTERM sets `requested`; a second one during a commit does no harm."""

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None
        self._installed = False

    def install(self) -> None:
        """Takes SIGTERM over; only the main thread may (Python's rule), elsewhere nothing is done."""
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGTERM, self._note)
            self._installed = True

    def uninstall(self) -> None:
        """Puts the previous handler back."""
        if self._installed:
            signal.signal(signal.SIGTERM, self._previous)
            self._installed = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True

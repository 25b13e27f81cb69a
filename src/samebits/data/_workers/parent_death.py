"""A worker lives as long as its parent wants it: not longer than the parent, and not shorter because of SIGTERM or Ctrl-C."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
_LOOK = 1.0
"""Seconds between two looks at whether the parent lives, where the kernel does not tell."""


@contextmanager
def signals_blocked() -> Iterator[None]:
    """SIGTERM and SIGINT wait until the block is over; processes that are forked inside begin with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def live_with(parent: int, *, by_thread: bool = False) -> None:
    """Ties this process to `parent`. `by_thread`: it was forked by a thread that may end before its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if (
        sys.platform == "linux" and not by_thread
    ):  # the kernel watches the thread that forked, not the process
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    _outlive_sigterm(parent)


def _outlive_sigterm(parent: int) -> None:
    """SIGTERM ends this worker only when the parent sends it: a whole group is sent it, and the run commits first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while os.getppid() == parent:
            received = signal.sigtimedwait({signal.SIGTERM}, _LOOK)
            if received is not None and received.si_pid == parent:
                os._exit(0)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

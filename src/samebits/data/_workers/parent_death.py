"""The lifetime of a worker: it ends with its parent, and not earlier because of SIGTERM or Ctrl-C."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1
_CHECK_INTERVAL = 1.0
"""Seconds between two checks that the parent lives, where the kernel does not notify."""


@contextmanager
def block_signals() -> Iterator[None]:
    """Delays SIGTERM and SIGINT until the block ends; processes forked inside begin with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tie_to_parent(parent: int, *, by_thread: bool = False) -> None:
    """Ties this process to `parent`. `by_thread`: it was forked by a thread that may end before its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # The kernel watches the thread that forked, not the process.
    if sys.platform == "linux" and not by_thread:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    _ignore_group_sigterm(parent)


def _ignore_group_sigterm(parent: int) -> None:
    """Ends this worker on SIGTERM only if the parent sent it: it is sent to a whole group, and the run commits first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while os.getppid() == parent:
            received = signal.sigtimedwait({signal.SIGTERM}, _CHECK_INTERVAL)
            if received is not None and received.si_pid == parent:
                os._exit(0)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()

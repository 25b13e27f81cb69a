"""SIGTERM, SIGUSR1 and the first Ctrl-C end a run at its next boundary: a commit, exit code 75, bounded time.

Python runs a signal's handler between two bytecodes of the main thread. So the handler only notes the signal,
unless the program is where nothing can be lost (start-up, between loops, waiting for a batch): there it
raises. A thread, woken by the C-level handler through a pipe, ends the process when the main one is late.
"""

from __future__ import annotations

import atexit
import builtins
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeVar

from samebits._context import process
from samebits._inspect import user_code

EXIT_PREEMPTED = 75
"""Exit code of a run that a signal stopped: start it again to resume (EX_TEMPFAIL of sysexits.h)."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_RESERVE = 0.1
"""Share of the grace period that is kept for ending the process itself."""
_FLUSH_S = 0.3


Fetched = TypeVar("Fetched")


class Interrupted(BaseException):
    """Raised for a signal while the run waits for a batch: its state is that of the boundary before."""


class Preemption:
    """Signal handlers that set `requested`, which the loop checks at each boundary.

    Args:
        grace: seconds from the first signal to the end of the process.
        plan: returns the next commit, in words, for the line on stderr.
        durable: returns the commit that a restart resumes from, in words, for the last line.
    """

    def __init__(self, grace: float, plan: Callable[[], str], durable: Callable[[], str]) -> None:
        self.requested: signal.Signals | None = None
        self.single_process = True
        """True if this process alone decides where to stop; else it stops at a boundary, as all ranks."""
        self.prints = True
        """True if the last line is printed here: on the rank that commits."""
        self._grace = grace
        self._plan, self._durable = plan, durable
        self._previous: dict[signal.Signals, Any] = {}
        self.waiting = False
        """True if the run waits for a batch."""
        self._idle = self._saves = self._left = False
        self._interrupts = 0
        self._deadline = 0.0
        self._over = threading.Event()
        self._pipe: tuple[int, int] | None = None
        self._fd_before = -1

    def install(self) -> None:
        """Installs the handlers for start-up: a signal now ends the program at once. Warns if it cannot."""
        if threading.current_thread() is not threading.main_thread():
            user_code.warn(
                "Run: entered outside of the main thread, where Python delivers no signals: SIGTERM, SIGUSR1 "
                "and Ctrl-C do not commit. Earlier commits are unaffected. Enter the run in the main thread."
            )
            return
        self._idle = True
        for number in SIGNALS:
            previous = signal.getsignal(number)
            # None: a handler in C, which could not be restored
            if previous is not None and previous != signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)
        self._start_watch()
        process.preemption = self

    def uninstall(self) -> None:
        """Restores the previous handlers; while a signal is ending the process, further ones are ignored.

        A kernel lives on: it gets its handlers back.
        """
        if self._pipe is None:
            return
        self._idle = self.waiting = False
        self._stop_watch()
        if self.requested is None or _in_ipython():
            self._restore_handlers()
        else:
            self._left = True
            atexit.register(self._watch_exit)
        process.preemption = None

    @property
    def idle(self) -> bool:
        """True if the program is outside of loops: a signal ends it at once."""
        return self._idle

    @idle.setter
    def idle(self, value: bool) -> None:
        self._idle = value and self._pipe is not None

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Delays a second Ctrl-C until the end of the block, a commit."""
        self._saves = True
        try:
            yield
        finally:
            self._saves = False
        if self._interrupts > 1:
            self._interrupt()

    @property
    def installed(self) -> bool:
        return self._pipe is not None

    def fetch(self, read: Callable[[], Fetched], on_signal: Callable[[], object]) -> Fetched:
        """Returns `read()`, a batch; at a signal meanwhile calls `on_signal`, which ends the program."""
        try:
            try:
                self.waiting = self.single_process
                return read()
            finally:
                self.end_wait()  # a signal may still interrupt here
        except (Exception, Interrupted):  # a loader raises, too, when its workers were signalled
            if self.requested is not None and self.single_process:
                on_signal()
            raise

    def end_wait(self) -> None:
        """Notes that the batch has arrived, or will not."""
        self.waiting = False

    def leave(self) -> NoReturn:
        """Prints the step that a restart resumes from, and ends the program with exit code 75.

        The stop button of a notebook ends the cell. Other signals end the kernel, which survives SystemExit.
        """
        why = "another rank got a signal" if self.requested is None else self.requested.name
        if _in_ipython() and self.requested is signal.SIGINT:
            stop = KeyboardInterrupt("samebits: stopped")
            _shorten_traceback(stop, lambda: f"{self._durable()}; run the cell again to resume")
            raise stop
        if _in_ipython() and self.requested is not None:
            self._exit_process(f"{why}: {self._durable()}; run the notebook again to resume")
        if self.prints:
            _print(f"{why}: {self._durable()}; start the same command again to resume")
        raise SystemExit(EXIT_PREEMPTED)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number)
        if self._left:
            self._on_late_signal(name)
            return
        self._interrupts += name is signal.SIGINT
        first, self.requested = self.requested is None, self.requested or name
        if first:
            self._deadline = time.monotonic() + self._grace
            key = "the stop button" if _in_ipython() else "Ctrl-C"
            again = f" ({key} again stops at once, without a commit)" if name is signal.SIGINT else ""
            _print(f"{name.name}: {self._plan()}{again}")
            self._wake(number)
        previous = self._previous.get(name)
        if callable(previous) and previous is not signal.default_int_handler:
            previous(number, frame)
        if name is signal.SIGINT and self._interrupts > 1 and not self._saves:
            self._interrupt()
        if self.waiting:
            self.waiting = False
            raise Interrupted
        if self._idle and self.single_process:
            self._idle = False
            self.leave()

    def _interrupt(self) -> NoReturn:
        stop = KeyboardInterrupt("samebits: stopped at once")
        _shorten_traceback(stop, self._durable)
        raise stop

    def _on_late_signal(self, number: signal.Signals) -> None:
        """Handles a signal while the program exits with 75; after long, passes it to the previous handler."""
        if time.monotonic() < self._deadline:
            return
        self._restore_handlers()
        os.kill(os.getpid(), number)

    def _restore_handlers(self) -> None:
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, previous)
        self._previous.clear()

    # The watch ends the process when its main thread does not react in time.

    def _start_watch(self) -> None:
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._fd_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        # Somebody's event loop: it keeps its pipe, ours is written to by the handler
        if self._fd_before != -1:
            signal.set_wakeup_fd(self._fd_before)
        watch, pipe = self._watch, self._pipe[0]
        threading.Thread(target=watch, args=(pipe,), name="samebits-grace", daemon=True).start()

    def _stop_watch(self) -> None:
        assert self._pipe is not None
        if self._fd_before == -1:
            signal.set_wakeup_fd(-1)
        self._over.set()
        with suppress(OSError):
            os.write(self._pipe[1], b"\0")
        os.close(self._pipe[1])
        self._pipe = None

    def _wake(self, number: int) -> None:
        if self._pipe is not None and self._fd_before != -1:
            os.write(self._pipe[1], bytes([number]))

    def _watch(self, reader: int) -> None:
        wanted = {int(number) for number in self._previous}
        came = b""
        while not self._over.is_set() and not wanted.intersection(came):
            came = os.read(reader, 64)
        if not self._over.wait((1 - _RESERVE) * self._grace):
            number = self.requested or signal.Signals(min(wanted.intersection(came)))
            self._exit_process(
                f"{number.name}: the program did not react within {self._grace:g} s; {self._durable()}"
            )
        os.close(reader)  # not before: further signals are written to the pipe

    def _watch_exit(self) -> None:
        """Watches the interpreter's end: a hang there (waiting for a child) ends with the grace."""
        # Python puts the default back before it frees modules: exit code -15, not 75
        for number in self._previous:
            signal.signal(number, signal.SIG_IGN)
        left = self._deadline - _RESERVE * self._grace - time.monotonic()
        timer = threading.Timer(max(left, 0.0), self._exit_process, ["the interpreter did not end by itself"])
        timer.daemon = True
        timer.start()

    def _exit_process(self, text: str) -> NoReturn:
        _print(f"{text}; exit code {EXIT_PREEMPTED}")
        flush = threading.Thread(target=_flush, daemon=True)  # the main thread may hold the lock of a stream
        flush.start()
        flush.join(_FLUSH_S)
        for child in multiprocessing.active_children():
            # As the interpreter's own end does; workers of torch's DataLoader would outlive us
            if child.daemon:
                child.kill()
        os._exit(EXIT_PREEMPTED)

    def _forget(self) -> None:
        """Resets a forked child: its signals are its own."""
        if self._pipe is None:
            return
        if self._fd_before == -1:
            signal.set_wakeup_fd(-1)
        for descriptor in self._pipe:
            os.close(descriptor)
        self._pipe, self._idle, self.waiting = None, False, False
        self._restore_handlers()


def _reset_child() -> None:
    if process.preemption is not None:
        with suppress(ValueError, OSError):
            process.preemption._forget()
        process.preemption = None


os.register_at_fork(after_in_child=_reset_child)


def _in_ipython() -> bool:
    return hasattr(builtins, "__IPYTHON__")


def _print(text: str) -> None:
    """Prints to stderr, from a handler or another thread too: Python's streams refuse to be entered twice."""
    try:
        print(f"samebits: {text}", file=sys.stderr, flush=True)
    except (RuntimeError, ValueError, OSError):
        with suppress(OSError):
            os.write(2, f"samebits: {text}\n".encode())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


def _shorten_traceback(stop: BaseException, durable: Callable[[], str]) -> None:
    """Makes an uncaught `stop` one line. `durable` is called then: leaving the run ends its last commit."""
    stop.__dict__["_render_traceback_"] = lambda: [f"{stop}; {durable()}"]  # IPython asks for it
    if _in_ipython():
        return
    before = sys.excepthook

    def hook(raised: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error is stop:
            sys.excepthook = before
            print(f"{error}; {durable()}", file=sys.stderr)
        else:
            before(raised, error, trace)

    sys.excepthook = hook

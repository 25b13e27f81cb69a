"""Waiting for what other processes do."""

import time


def wait_until(fact, seconds=120):
    """Waits for `fact()`; False when it does not come true."""
    deadline = time.monotonic() + seconds
    while not fact() and time.monotonic() < deadline:
        time.sleep(0.02)
    return fact()


def is_alive(process):
    """Whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{process}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""Runs a function in a forked process: a crash or a hang costs that call."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any


def in_a_process(function: Callable[[], Any], seconds: float) -> Any | None:
    """Returns the function's result, as JSON holds it; None where the process ended without one, or took longer."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            with os.fdopen(writer, "w") as output:
                json.dump(function(), output)
        finally:
            os._exit(0)
    os.close(writer)
    text, until = b"", time.monotonic() + seconds
    while select.select([reader], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(reader, 1 << 16)
        if not part:
            break
        text += part
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        return json.loads(text)
    except ValueError:
        return None

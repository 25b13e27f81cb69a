"""The user's own line behind a call: what errors and warnings name."""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch

_PASSED_OVER = {"torch", "triton", "samebits", "contextlib"}
"""Packages whose frames stand between the user's line and an op, or the switch."""
_GENERATED = ("<eval_with_key>", f"{os.path.dirname(torch.__file__)}{os.sep}")
"""Files of generated code, which has no module: that of a captured graph, and what torch writes into its own folder."""
_BACKWARD = "_engine_run_backward"
"""The one function of torch (torch/autograd/graph.py) that every backward goes through."""


def caller() -> tuple[str, int]:
    """File and line of the innermost frame outside torch, Triton and samebits; in a backward, of what called backward.

    autograd runs a CUDA backward on a thread of its own, which has no frame of the user's: there it is the line that
    waits in another thread for this backward.
    """
    frame = _outside(sys._getframe(1)) or _waiting_for_backward() or sys._getframe(1)
    return frame.f_code.co_filename, frame.f_lineno


def where() -> str:
    """The user's line as `file:line`."""
    file, line = caller()
    return f"{file}:{line}"


def _outside(frame: FrameType | None) -> FrameType | None:
    while frame and (
        str(frame.f_globals.get("__name__")).partition(".")[0] in _PASSED_OVER
        or frame.f_code.co_filename.startswith(_GENERATED)
    ):
        frame = frame.f_back
    return frame


def _waiting_for_backward() -> FrameType | None:
    for stack in sys._current_frames().values():
        frame: FrameType | None = stack
        while frame:
            if frame.f_code.co_name == _BACKWARD:
                return _outside(frame)
            frame = frame.f_back
    return None

"""Errors after which a process can no longer use the device: what comes behind them would fail, too, and says nothing."""

from __future__ import annotations

import torch

_WORDS = ("CUDA error", "Triton Error [CUDA]")
"""In what torch, and Triton at a launch, say of the device. Triton's is a plain RuntimeError."""
_PASSING = ("_STATUS_", "invalid configuration argument", "invalid argument", "out of memory")
"""In such words where the device mostly lives on: a library lacks the dtype (`CUDA error: CUSPARSE_STATUS_NOT_SUPPORTED`),
or a launch was refused. The device itself is asked then."""


def is_fault(error: BaseException) -> bool:
    """Whether it tells of such an error; too little memory is none."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    text = str(error)
    if not isinstance(error, torch.AcceleratorError) and not any(word in text for word in _WORDS):
        return False
    return not any(word in text for word in _PASSING) or spoilt("cuda")


def spoilt(device: str) -> bool:
    """Whether the device no longer answers: a fault lasts, and whatever error it first showed as may not name it."""
    try:
        wait(device)
    except Exception:
        return True
    return False


def wait(device: str) -> None:
    """Until the device has done the work of this process, if it was given any; raises what went wrong there meanwhile."""
    if device == "cuda" and torch.cuda.is_initialized():
        torch.cuda.synchronize()

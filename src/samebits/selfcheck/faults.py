"""Errors after which a process can no longer use the device: what comes behind them would fail, too, and says nothing."""

from __future__ import annotations

import torch

_WORDS = ("CUDA error", "Triton Error [CUDA]")
"""In what torch, and Triton at a launch, say of the device. Triton's is a plain RuntimeError."""


def is_fault(error: BaseException) -> bool:
    """Whether it tells of such an error; too little memory is none."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    return isinstance(error, torch.AcceleratorError) or any(word in str(error) for word in _WORDS)


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

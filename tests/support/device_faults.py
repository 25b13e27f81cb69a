"""Errors after which a process can no longer use the device: later results would fail, too, and prove nothing."""

import torch

_WORDS = ("CUDA error", "Triton Error [CUDA]")
"""Words in the errors of torch, and of Triton at a launch, about the device. Triton's is a plain RuntimeError."""
_PASSING = ("_STATUS_", "invalid configuration argument", "invalid argument", "out of memory")
"""Parts of such errors after which the device mostly still works: a library lacks the dtype (`CUDA error:
CUSPARSE_STATUS_NOT_SUPPORTED`), or a launch was refused. The device itself is tested then."""


def is_fault(error):
    """True for such an error; too little memory is none."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    text = str(error)
    if not isinstance(error, torch.AcceleratorError) and not any(word in text for word in _WORDS):
        return False
    return not any(word in text for word in _PASSING) or is_device_lost("cuda")


def is_device_lost(device):
    """True if the device no longer answers: a fault lasts, and the error that showed it first may not name it."""
    try:
        wait(device)
    except Exception:
        return True
    return False


def wait(device):
    """Waits until the device has done the work of this process, if any; raises the errors of that work."""
    if device == "cuda" and torch.cuda.is_initialized():
        torch.cuda.synchronize()

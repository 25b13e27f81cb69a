"""`torch.set_flush_denormal` on every thread of torch's ops: torch sets it for the calling thread alone.

New threads inherit it from the one that starts them, so that whether all have it depends on what ran before.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial

import torch

from samebits._inspect.patching import Patches, stand_in
from samebits._native.torch_threads import parallel
from samebits.determinism._environment import flushes_denormals
from samebits.errors import ConflictError

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def watch(patches: Patches) -> None:
    """Makes `torch.set_flush_denormal` reach all threads; one that was set before reaches them now."""
    own = torch.set_flush_denormal
    call = partial(_set_everywhere, own)
    if flushes_denormals():
        call(True)
    patches.put(torch, "set_flush_denormal", stand_in(own, call))


def _set_everywhere(own: Callable[[bool], bool], mode: bool) -> bool:
    supported = own(mode)
    if supported:
        if parallel is None:
            own(False)
            raise ConflictError(
                "torch.set_flush_denormal: this torch has no OpenMP runtime that samebits knows, so it would "
                "hold for one thread only. Call it before enable_op_determinism() and before the first op, "
                "or leave it out."
            )
        # No team is larger than the threads that there are; with more, all that wait for work take part.
        tasks = "/proc/self/task"
        threads = max(torch.get_num_threads(), len(os.listdir(tasks)) if os.path.isdir(tasks) else 1)
        parallel(_BODY(lambda _: own(mode) and None), None, threads, 0)
    return supported

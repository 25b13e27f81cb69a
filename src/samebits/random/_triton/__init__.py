"""The back end for keys on CUDA: Triton kernels with the bits of the CPU kernels.

Importing this package does not import Triton: `launchers` does.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from samebits.errors import UnimplementedError


def launchers(caller: str) -> Any:
    """Returns the module whose functions fill CUDA tensors from CUDA keys.

    Raises `UnimplementedError`, naming samebits.random.`caller`, where Triton is not installed.
    """
    try:
        return import_module("samebits.random._triton.launch")
    except ModuleNotFoundError as missing:
        if missing.name != "triton":
            raise
        raise UnimplementedError(
            f"samebits.random.{caller} with a key on CUDA needs Triton, which is not installed: pip install "
            "triton (torch's CUDA builds for Linux bring it), or draw on the CPU and move the result: "
            f"{caller}(key.cpu(), ...).to('cuda')"
        ) from None

"""The environment fingerprint: the inputs of the bits besides the program. Recorded and compared."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import asdict
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from samebits import arithmetic
from samebits._context import VERSION, process
from samebits._inspect import user_code

TESTED_TORCH = ("2.11.0", "2.13.0", "2.15.0")
"""Versions of torch that passed the tests and have a reviewed op table (docs/reference/versions.md)."""

LIBRARY_VARIABLES = (
    "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "MKL_DYNAMIC", "OMP_DYNAMIC",
    "OMP_THREAD_LIMIT", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "SAMEBITS_CPU_NAME",
)  # fmt: skip
"""Variables by which libraries choose their kernels; none of thread counts: the count itself is recorded."""

_PACKAGES = ("samebits", "torch", "numpy", "llvmlite")


class UntestedVersionWarning(UserWarning):
    """Warns that samebits was not tested with this version of torch."""


@cache
def _fixed() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "torch_tested": running_version() in TESTED_TORCH,
        "platform": f"{platform.system()}-{platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip(),
        "cpu": _cpu_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "arithmetic_bits": arithmetic.BITS,
    }


def environment_fingerprint() -> dict[str, Any]:
    """Returns plain values that name the software and hardware of this process, to read and to compare.

    Example:
        >>> with samebits.enable_op_determinism(across="threads"):
        ...     here = samebits.determinism.environment_fingerprint()
        >>> here["op_determinism"]
        {'enabled': True, 'across': 'threads', 'on_unimplemented': 'raise'}
        >>> sorted(here["packages"])
        ['llvmlite', 'numpy', 'samebits', 'torch']
    """
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        **_fixed(),
        "gpus": gpus,
        "cuda": None
        if not gpus
        else {"runtime": torch.version.cuda, "cudnn": torch.backends.cudnn.version()},
        "threads": torch.get_num_threads(),
        "op_determinism": _op_determinism(),
        **_libraries(),
        "flags": {
            "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "float32_matmul_precision": _matmul_precision(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            **({"flush_denormal": True} if flushes_denormals() else {}),
            **(_cuda_precisions() if gpus else {}),
        },
    }


def _libraries() -> dict[str, Any]:
    """Returns the variables that are set, under one name, or nothing: older commits have no such entry."""
    found = {name: os.environ[name] for name in LIBRARY_VARIABLES if name in os.environ}
    return {"libraries": found} if found else {}


def flushes_denormals() -> bool:
    """Returns True if this thread takes numbers below 2**-1022 for 0 (`set_flush_denormal`, -ffast-math)."""
    smallest = float.fromhex("0x1p-1074")
    return smallest * 1.0 == 0.0


def _matmul_precision() -> str:
    """Returns torch's name of the precision; those of the backends where they differ."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        backends: Any = torch.backends
        return f"cuda {backends.cuda.matmul.fp32_precision}, mkldnn {backends.mkldnn.matmul.fp32_precision}"


def _cuda_precisions() -> dict[str, Any]:
    """Returns settings for shorter sums and products on a GPU: TensorFloat-32 in cuDNN, sums of 16 bits."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found = {"cuda_matmul_fp32_precision": getattr(matmul, "fp32_precision", None)}
    for name in ("conv", "rnn"):
        found[f"cudnn_{name}_fp32_precision"] = getattr(getattr(cudnn, name, None), "fp32_precision", None)
    for name in ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "fp16_accumulation"):
        found[name] = getattr(matmul, f"allow_{name}", None)
    return {name: value if value is None else str(value) for name, value in found.items()}


def _op_determinism() -> dict[str, Any]:
    """Returns the flag of torch, and the settings of the switch."""
    settings = process.op_determinism
    enabled = {"enabled": torch.are_deterministic_algorithms_enabled()}
    return enabled if settings is None else {**enabled, **asdict(settings)}


def _warn_if_untested() -> None:
    """Warns when this torch is not among the tested versions."""
    if running_version() not in TESTED_TORCH:
        message = (
            f"samebits was tested with torch {', '.join(TESTED_TORCH)}, not with {torch.__version__}: "
            "run `samebits verify` on your script before you rely on it."
        )
        user_code.warn(message, UntestedVersionWarning)


def running_version() -> str:
    """Returns the version of the running torch, without its build."""
    return torch.__version__.split("+")[0]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # samebits from a folder of sources, say
        return VERSION if package == "samebits" else None


def _keep_products_from_addresses() -> None:
    """Asks MKL for one branch of its kernels on CPUs not Intel's; it reads that at its first product.

    Without, small products there depend on where in memory their factors begin (bench/product_addresses.py).
    """
    if torch.backends.mkl.is_available() and not _cpu_model().startswith("Intel"):
        os.environ.setdefault("MKL_CBWR", "AUTO")


def products_follow_addresses() -> bool:
    """Returns True if MKL computed a product, on a CPU not Intel's, before samebits could set its branch."""
    if os.environ.get("MKL_CBWR") != "AUTO" or _cpu_model().startswith("Intel"):
        return False
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    branch = getattr(ctypes.CDLL(str(library)), "mkl_serv_cbwr_get", None) if library.exists() else None
    return branch is not None and branch(1) == 1  # MKL_CBWR_BRANCH, MKL_CBWR_BRANCH_OFF of mkl_service.h


def _cpu_model() -> str:
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.lower().startswith("model name"):
                    return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


_warn_if_untested()  # once, at the first import of anything that computes
_keep_products_from_addresses()

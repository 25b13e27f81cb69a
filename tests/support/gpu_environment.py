"""The machine in the report: device, driver, clocks, versions. No names of hosts, no paths."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import torch

from samebits.determinism import environment_fingerprint

_QUERY = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,ecc.mode.current,mig.mode.current"
_PACKAGES = (
    "triton",
    "torchao",
    "sklearn",
    "pytest",
    "cloudpickle",
    "numba",
    "safetensors",
    "xxhash",
    "typer",
    "rich",
)


def facts(version: str) -> dict[str, Any]:
    """Returns the facts of this process and its first GPU; `version` is that of samebits."""
    found = environment_fingerprint()
    gpu = torch.cuda.get_device_properties(0)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "samebits": version,
        "gpu": gpu.name,
        "capability": f"{gpu.major}.{gpu.minor}",
        "memory_gib": round(gpu.total_memory / 2**30, 1),
        "multiprocessors": gpu.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "python": found["python"],
        "cpu": found["cpu"],
        "missing": [name for name in _PACKAGES if find_spec(name) is None],
        **_driver(),
    }


def _driver() -> dict[str, str]:
    """Returns the current output of nvidia-smi; nothing where there is none."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_QUERY.split(","), map(str.strip, line.split(",")), strict=False))


def reason_without_gpu() -> str:
    """Returns why no part can run; empty where torch sees a GPU."""
    if torch.cuda.is_available():
        return ""
    built = (
        f"was built for CUDA {torch.version.cuda}, and finds no device"
        if torch.version.cuda
        else "was built without CUDA"
    )
    return f"no GPU: torch {torch.__version__} {built} (torch.cuda.is_available() is False). `--dry-run` needs none."

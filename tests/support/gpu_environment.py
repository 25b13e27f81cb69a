"""Prints the facts of the machine for the report, as JSON: device, driver, clocks, versions. No names of hosts, no paths.

Exit status 3: this Python has no torch that sees a GPU; 4: it lacks packages, which are printed.
"""

import json
import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec

import gpu_report

_QUERY = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,ecc.mode.current,mig.mode.current"
_NEEDED = ("cloudpickle", "llvmlite", "numpy", "pytest", "rich", "safetensors", "typer", "xxhash")
_USED = ("triton", "torchao", "sklearn", "pytest_timeout", "hypothesis")


def facts():
    """The facts of this Python and its first GPU."""
    import torch

    import samebits
    from samebits.determinism import environment_fingerprint

    found = environment_fingerprint()
    gpu = torch.cuda.get_device_properties(0)
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "samebits": samebits.__version__,
        "sources": gpu_report.sources("src/samebits", "lab", "tests/gpu", "tests/support"),
        "formulations": gpu_report.formulations(),
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
        "missing": [name for name in _USED if find_spec(name) is None],
        **_driver(),
    }


def _driver():
    """The present output of nvidia-smi; nothing where there is none."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader", "--id=0"]
    try:
        line = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_QUERY.split(","), map(str.strip, line.split(","))))


def main():
    if sys.version_info < (3, 11) or find_spec("torch") is None:
        return 3
    import torch

    if not torch.cuda.is_available():
        return 3
    if lacks := [name for name in _NEEDED if find_spec(name) is None]:
        print(f"torch {torch.__version__} lacks {', '.join(lacks)}")
        return 4
    print(json.dumps(facts()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

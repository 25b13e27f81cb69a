"""The objects of installed packages that may hold training state: all but those of a few packages that hold none."""

from __future__ import annotations

import functools

from samebits._inspect.user_code import owner_of_module

_OUTPUT = frozenset(
    """tqdm rich tensorboard tensorboardX wandb mlflow neptune comet_ml clearml aim swanlab loguru structlog matplotlib
    seaborn plotly bokeh altair PIL imageio pandas polars pyarrow tabulate colorama click typer omegaconf hydra yacs absl
    tokenizers sentencepiece tiktoken regex requests urllib3 fsspec huggingface_hub filelock psutil GPUtil pynvml
    prometheus_client google IPython ipykernel pytest _pytest hypothesis sympy numba llvmlite triton cv2""".split()  # noqa: SIM905
)
"""Packages that write what others compute, read files, or compile: what their objects count reaches no weight."""


@functools.lru_cache(maxsize=4096)
def may_hold_state(kind: type) -> bool:
    """Returns True if instances of a class are of an installed package, and may hold state that training reads.

    torch, NumPy, Python's library and samebits have readers of their own.
    """
    if owner_of_module(kind.__module__) != "installed":
        return False
    return kind.__module__.partition(".")[0] not in _OUTPUT

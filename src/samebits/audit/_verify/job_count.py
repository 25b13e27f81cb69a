"""The number of processes of a check that run at the same time."""

from __future__ import annotations

import os

import torch


def jobs() -> int:
    """Returns the number of jobs. Two take 0.6 of the time on two cores; on a GPU its memory may not be enough for two."""
    return 1 if torch.cuda.is_available() else min(2, os.cpu_count() or 1)

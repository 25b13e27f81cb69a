"""LSTM layers are composed of products, sigmoid and tanh, which are covered: oneDNN has one opaque kernel for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def composed() -> Iterator[None]:
    """A block in which torch composes LSTM layers: its flag for oneDNN is off, which other covered ops do not look at."""
    torchs = torch._C  # at the end of the process the module's own names are gone
    before = torchs._get_mkldnn_enabled()
    torchs._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torchs._set_mkldnn_enabled(before)

"""The record of a run: digests of everything that makes up a training step."""

from typing import TYPE_CHECKING

from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.audit._record import record_file as record_file
    from samebits.audit._record import recorder as recorder
    from samebits.audit._record import torch_hooks as torch_hooks

__getattr__, __dir__ = attach(__name__)

"""Libraries that build a torch `DataLoader` out of the attributes of one that they are given.

Accelerate does so: its loader would shuffle and draw as torch's, and have none of our state. Each of its functions that
builds one reads all arguments of the given loader, `multiprocessing_context` included, which is a property in torch.
"""

from __future__ import annotations

import sys
from typing import Any

import torch.utils.data as torch_data

from samebits.errors import UnimplementedError

_TORCHS: Any = torch_data.DataLoader.multiprocessing_context
_ACCELERATE = "accelerate"


class NeverRebuilt:
    """Raises `UnimplementedError` where Accelerate reads the arguments of a loader to build its own."""

    @property
    def multiprocessing_context(self) -> Any:
        """Returns the context that loader workers are started with, as torch's property."""
        if str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] == _ACCELERATE:
            raise UnimplementedError(
                "accelerator.prepare(...) was given a samebits.data.DataLoader, and would build a torch DataLoader of it, "
                "with other batches and without their state. Prepare the rest only, and iterate the samebits loader:\n"
                "    model, optimizer = accelerator.prepare(model, optimizer)\n"
                "    for step, batch in run.steps(loader):  # tensors move by batch.to(accelerator.device)\n"
                "Under several processes it takes sampler=torch.utils.data.distributed.DistributedSampler(dataset, seed=1)."
            )
        return _TORCHS.fget(self)

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        _TORCHS.fset(self, context)

"""A pipeline as a dataset, for torch's `DataLoader`, Lightning and Accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from samebits.errors import UnimplementedError


class PipelineDataset(IterableDataset[Any]):
    """The elements of a pipeline, for `torch.utils.data.DataLoader(dataset, batch_size=None)`.

    Each `iter()` is the next epoch, as with the pipeline itself; the position is the pipeline's.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise UnimplementedError(
                "a samebits pipeline in a worker of torch's DataLoader: each worker would read all of it, and none would know "
                "its position. Give the DataLoader num_workers=0 and the pipeline its own workers: "
                "pipeline.with_options(num_parallel_calls=4).as_iterable_dataset()"
            )
        return iter(self._pipeline)

    def __len__(self) -> int:
        return len(self._pipeline)

    @property
    def endless(self) -> bool:
        """True if the pipeline is known to have no end."""
        return self._pipeline.endless

    def state_dict(self) -> dict[str, Any]:
        """Returns the pipeline's position; see `Pipeline.state_dict`."""
        return self._pipeline.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes the next `iter()` from a position; see `Pipeline.load_state_dict`."""
        self._pipeline.load_state_dict(state)

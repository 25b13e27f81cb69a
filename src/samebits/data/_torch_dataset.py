"""A pipeline for code that wants a dataset: torch's `DataLoader`, Lightning, Accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from samebits.errors import UnimplementedError


class PipelineDataset(IterableDataset[Any]):
    """The elements of a pipeline, for `torch.utils.data.DataLoader(dataset, batch_size=None)`.

    Each `iter()` is the next epoch, as with the pipeline itself, and the position is the pipeline's.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise UnimplementedError(
                "a samebits pipeline in a worker of torch's DataLoader: each worker would read all of it, and nobody would know "
                "its position. Give the DataLoader num_workers=0 and the pipeline workers of its own: "
                "pipeline.with_options(num_parallel_calls=4).as_iterable_dataset()"
            )
        return iter(self._pipeline)

    def __len__(self) -> int:
        return len(self._pipeline)

    def state_dict(self) -> dict[str, Any]:
        """The pipeline's position: `Pipeline.state_dict`."""
        return self._pipeline.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The next `iter()` goes on from there: `Pipeline.load_state_dict`."""
        self._pipeline.load_state_dict(state)

"""The batches of a `DataLoader` as a stage: what defines them, for the fingerprint."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from samebits.data._loader_batches.batch_order import BatchOrder
from samebits.data._stages.stage import Stage


class LoaderBatches(Stage):
    """The batches of a dataset in an order."""

    kind = "DataLoader"

    def __init__(
        self, order: BatchOrder, dataset: Any, batch_size: int | None, drop_last: bool, order_name: str
    ) -> None:
        super().__init__()
        self.order, self.dataset = order, dataset
        self._parameters = {
            "dataset": type(dataset).__name__, "length": len(dataset), "batch_size": batch_size, "drop_last": drop_last,
            "order": order_name,
        }  # fmt: skip

    @property
    @override
    def length(self) -> int:
        return self.order.batches

    @override
    def parameters(self) -> dict[str, Any]:
        return self._parameters

    @override
    def parts(self) -> list[str]:
        return [f"{self.kind}({name}={value})" for name, value in self._parameters.items()]

"""The parts of a batch: inputs, target and weights, on the model's device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from samebits.errors import InvalidArgumentError

LABELS = "labels"
"""The target's key in a batch that is a dict, as in transformers."""


@dataclass(frozen=True)
class TrainingBatch:
    """One batch in its parts; missing parts are None."""

    inputs: Any
    target: Any = None
    weight: Any = None
    """One weight per sample, or per element of the loss."""

    def __len__(self) -> int:
        """Returns the number of samples: the first dimension of the target, else of the first tensor."""
        first = next(_tensors(self.target), next(_tensors(self.inputs), None))
        return len(first) if first is not None and first.ndim else 1


def split_batch(batch: Any) -> TrainingBatch:
    """Returns the parts of `(inputs,)`, `(inputs, target)`, `(inputs, target, weight)`, a dict, or inputs.

    The target of a dict is its entry "labels". Raises `InvalidArgumentError` for a tuple of another length.
    """
    if isinstance(batch, Mapping):
        return TrainingBatch(
            {name: value for name, value in batch.items() if name != LABELS}, batch.get(LABELS)
        )
    if not isinstance(batch, tuple | list):
        return TrainingBatch(batch)
    if not 1 <= len(batch) <= 3:
        raise InvalidArgumentError(
            f"Trainer: a batch is a {type(batch).__name__} of {len(batch)}. Give (inputs, target) or "
            "(inputs, target, weight); several inputs go into a tuple or a dict, ((a, b), target), or pass "
            "Trainer(forward=...)."
        )
    return TrainingBatch(*batch)


def call_model(model: torch.nn.Module, inputs: Any) -> Any:
    """Returns the model's output: inputs are passed by name (dict), in order (tuple), or as one argument."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def move_to(value: Any, device: torch.device) -> Any:
    """Returns `value` with its tensors (and other objects with a method `to`) on `device`."""

    def move(item: Any) -> Any:
        if isinstance(item, torch.Tensor) and item.device == device:
            return item
        return item.to(device, non_blocking=True) if isinstance(item, torch.Tensor) else item.to(device)

    return _map(move, value, "to")


def detach(value: Any) -> Any:
    """Returns `value` with its tensors detached from their graph, inside dicts, lists and tuples."""
    return _map(lambda item: item.detach(), value, "detach")


def device_of(model: torch.nn.Module) -> torch.device:
    """Returns the device of the model's first parameter; the CPU for a model without any."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def concatenate(outputs: list[Any]) -> Any:
    """Returns all batches' outputs as one: tensors along dimension 0, inside tuples, lists and dicts."""
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(outputs) if first.ndim else torch.stack(outputs)
    if isinstance(first, Mapping):
        return {name: concatenate([one[name] for one in outputs]) for name in first}
    if isinstance(first, tuple | list):
        return type(first)(concatenate(list(items)) for items in zip(*outputs, strict=True))
    raise InvalidArgumentError(
        f"Trainer.predict: the model returned a {type(first).__name__}. Only tensors, and tuples, lists and "
        "dicts of them, can be concatenated."
    )


def _map(function: Callable[[Any], Any], value: Any, method: str) -> Any:
    """Returns `value` with `function` applied to objects with the method, inside dicts, lists and tuples."""
    if hasattr(value, method):
        return function(value)
    if (isinstance(value, Mapping) and method == "to") or type(value) is dict:
        return {name: _map(function, item, method) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(function, item, method) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_map(function, item, method) for item in value)
    return value


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | tuple | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)

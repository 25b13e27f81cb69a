"""Classes of other packages whose state is known: by name, so that none of them is imported."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from samebits._objects.generators import generators_in
from samebits._objects.parts import attributes_of, own_names
from samebits._objects.rng_states import RESTORABLE, restore_state, state_of
from samebits.errors import InvalidArgumentError, RunMismatchError
from samebits.state._attributes import Attributes
from samebits.state._parts import CONTAINERS, is_plain

_NO_STATE_OF_GYMNASIUM = frozenset(
    (
        *("screen", "clock", "window", "window_surface", "surf", "isopen", "mujoco_renderer"),
        *("episode_start_time", "episode_start_times", "time_queue"),
        *("_cached_spec", "_saved_kwargs", "metadata", "_metadata", "P", "desc", "initial_state_distrib"),
    )
)
"""Attributes of gymnasium's own classes: what is drawn on a screen, clocks, tables that never change."""


_FIXED_IN_METRICS = frozenset({"_device", "_dtype", "_defaults", "_persistent"})


class HeldGenerators:
    """An adapter that saves all random generators that can be reached from an object, and nothing else."""

    target: Any
    """The object whose generators are saved."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def state_dict(self) -> dict[str, Any]:
        return {path.lstrip("."): state_of(one) for path, one in generators_in([("", self.target)])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the states; raises `RunMismatchError` if the object holds other generators."""
        found = {path.lstrip("."): one for path, one in generators_in([("", self.target)])}
        if found.keys() != state_dict.keys():
            paths = ", ".join(sorted(found.keys() ^ state_dict.keys())[:4])
            raise RunMismatchError(
                f"{type(self.target).__name__}: the random generators {paths} are not in both, the object "
                "and the commit."
            )
        for path, state in state_dict.items():
            restore_state(found[path], state)


def _environment(target: Any, call: str) -> Attributes:
    if type(target).__name__ == "AsyncVectorEnv":
        raise InvalidArgumentError(
            f"{call}: the environments of an AsyncVectorEnv are in processes of their own, where their state "
            'cannot be read. Use gymnasium.make_vec(..., vectorization_mode="sync").'
        )
    return Attributes(target, (), call, is_state=is_state_of_environment)


def is_state_of_environment(owner: Any, name: str, item: Any) -> bool:
    """Returns False for an attribute of a gymnasium environment that is a picture, a clock or a table."""
    if _package(type(item)) == "pygame" or type(item).__qualname__ == "EnvSpec":
        return False
    return _package(type(owner)) != "gymnasium" or name not in _NO_STATE_OF_GYMNASIUM


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _metric(target: Any, call: str) -> Attributes:
    """Returns the adapter of a torchmetrics Metric(Collection), whose state_dict leaves the values out."""
    paths = []
    for path, module in target.named_modules():
        inner = "".join(f"._modules[{name!r}]" for name in path.split(".") if name).removeprefix(".")
        paths += [f"{inner}.{name}".removeprefix(".") for name in _names_in_metric(module)]
    return Attributes(target, paths, call)


def _names_in_metric(module: Any) -> list[str]:
    """Returns the declared states of a metric, and its plain attributes: wrappers count in them."""
    if not (name_of_known(type(module)) or "").startswith("torchmetrics."):
        return []
    own = own_names(type(module)) | _FIXED_IN_METRICS
    plain = [name for name, item in attributes_of(module).items() if name not in own and is_plain(item)]
    return [*dict.fromkeys([*getattr(module, "_defaults", ()), *plain])]


def _generators(target: Any, _: str) -> HeldGenerators:
    return HeldGenerators(target)


_KNOWN: dict[str, Callable[[Any, str], Attributes | HeldGenerators]] = {
    "gymnasium.Env": _environment,
    "gymnasium.VectorEnv": _environment,
    "torchmetrics.Metric": _metric,
    "torchmetrics.MetricCollection": _metric,
    "accelerate.Accelerator": lambda target, call: Attributes(
        target, ("step", "gradient_state.sync_gradients"), call
    ),
    "monai.Randomizable": _generators,
    "albumentations.BaseCompose": _generators,
    "albumentations.BasicTransform": _generators,
}
"""By package and class: the adapter for it, and for classes that are made from it."""
_GENERATORS_ONLY = frozenset(
    [name for name, adapter in _KNOWN.items() if adapter is _generators]
    + ["kornia._BasicAugmentationBase", "kornia.SequentialBase", "kornia.RandomGeneratorBase"]
)


@functools.lru_cache(maxsize=4096)
def name_of_known(kind: type) -> str | None:
    """Returns the name in `_KNOWN` of a class or of its nearest base there."""
    names = (f"{_package(base)}.{base.__qualname__}" for base in kind.__mro__)
    return next((name for name in names if name in _KNOWN), None)


@functools.lru_cache(maxsize=4096)
def keeps_only_generators(kind: type) -> bool:
    """Returns True for a class whose generators are its state: each call overwrites what else it keeps."""
    return not _GENERATORS_ONLY.isdisjoint(f"{_package(base)}.{base.__qualname__}" for base in kind.__mro__)


def parts_with_state(target: Any) -> dict[str, Any]:
    """Returns the objects with a state_dict that the adapter of `target` leaves to the run, by name.

    Accelerate's scaler of fp16 losses is one: only the Accelerator and its optimizers hold it.
    """
    is_accelerator = name_of_known(type(target)) == "accelerate.Accelerator"
    scaler = getattr(target, "scaler", None) if is_accelerator else None
    return {} if scaler is None else {"scaler": scaler}


@functools.lru_cache(maxsize=4096)
def is_known(kind: type) -> bool:
    """Returns True if there is an adapter for objects of this class; by the class alone, and cheap."""
    held = issubclass(kind, (*RESTORABLE, np.ndarray)) or kind in CONTAINERS - {tuple, frozenset}
    return held or name_of_known(kind) is not None


def adapter_for(target: Any, call: str = "samebits.state.adapter_for") -> Attributes | HeldGenerators | None:
    """Returns the adapter of `Run(name=target)` and `run.add` for an object of a known class, else None.

    Known are random generators (`np.random.Generator`, `np.random.RandomState`, `random.Random`,
    `torch.Generator`), lists, dicts, deques, sets and arrays of what can be saved, environments of gymnasium,
    metrics of torchmetrics, the counters of Accelerate's `Accelerator`, and the generators of transforms of
    MONAI and albumentations.

    Raises:
        InvalidArgumentError: the class is known, and this object holds something that cannot be saved; the
            message names it.

    Example:
        >>> from collections import deque
        >>> losses = deque([0.5, 0.25], maxlen=2)
        >>> saved = samebits.state.adapter_for(losses).state_dict()
        >>> losses.append(7.0)
        >>> samebits.state.adapter_for(losses).load_state_dict(saved)
        >>> losses
        deque([0.5, 0.25], maxlen=2)
    """
    kind = type(target)
    if not is_known(kind):
        return None
    name = name_of_known(kind)
    return Attributes(target, (), call) if name is None else _KNOWN[name](target, call)

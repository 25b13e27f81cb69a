"""Runs each overload that is dispatched again, on the same inputs, at several thread counts, and compares bytes."""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from samebits import _digest as digest
from samebits.determinism.table._overload_facts import reviewed

THREADS = (2, 2, 1, 3)
LARGE = 200_003
SPLIT = 100_000
"""Elements from which equal bits over threads prove something: torch splits element-wise work at 32,768."""
REPLAYS = 8
"""Replays of one overload in one OpInfo, at most."""
KINDS = 6
"""Kinds of arguments with which an overload runs on large tensors, at most."""

Outcome = tuple[bool, bool | None]
"""Equal from run to run; equal over threads, None where nothing was large enough to be split."""


class Replay(TorchDispatchMode):
    """Runs each dispatched overload again at several thread counts, and notes whether the bytes were equal."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[Outcome]] = defaultdict(list)
        self.enlarged: set[Any] = set()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.name().removeprefix("aten::")
        row = reviewed().rows.get(name)
        self.counts[name] += 1
        if (
            row
            and not func.is_view
            and not name.startswith(("empty", "new_empty"))
            and self.counts[name] <= REPLAYS
        ):
            self._replay(func, args, kwargs)
            if {"pointwise", "reduction"} & {tag.name for tag in func.tags} and not func._schema.is_mutable:
                for large_args, large_kwargs in self._enlarge(func, args, kwargs):
                    self._replay(func, large_args, large_kwargs)
        return func(*args, **kwargs)

    def _replay(self, func: Any, args: Any, kwargs: Any) -> None:
        try:
            seen = list(_outcomes(func, args, kwargs))
        except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
            return  # the call itself raises, or a format that it does not take
        runs = seen[0] == seen[1]
        large = _largest(args, kwargs) >= SPLIT
        self.found[func.name()].append((runs, len(set(seen)) == 1 if large else None))

    def _enlarge(self, func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
        """Yields the call on large tensors, once for each kind of arguments."""
        kind = (func, tuple(_kind(leaf) for leaf in pytree.tree_leaves((args, kwargs))))
        if kind in self.enlarged or sum(one[0] is func for one in self.enlarged) >= KINDS:
            return
        self.enlarged.add(kind)
        for dtype, drawn in itertools.product(
            (torch.float32, torch.bfloat16, torch.float64), (_normal, _positive)
        ):
            draw = functools.partial(drawn, generator=torch.Generator().manual_seed(1), dtype=dtype)
            yield pytree.tree_map(functools.partial(_large, draw=draw), (args, kwargs))


def _outcomes(func: Any, args: Any, kwargs: Any) -> Iterator[str]:
    before = torch.get_rng_state()
    for threads in THREADS:
        own_args, own_kwargs = pytree.tree_map(_copied, (args, kwargs))
        torch.set_rng_state(before)
        torch.set_num_threads(threads)
        try:
            result = func(*own_args, **own_kwargs)
        finally:
            torch.set_num_threads(2)
        leaves = pytree.tree_leaves((result, own_args if func._schema.is_mutable else ()))
        yield digest.of_value([leaf for leaf in leaves if isinstance(leaf, torch.Tensor)])
    torch.set_rng_state(before)


def _copied(leaf: Any) -> Any:
    if isinstance(leaf, torch.Generator):
        return leaf.clone_state()
    return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf


def _largest(args: Any, kwargs: Any) -> int:
    return max(
        (leaf.numel() for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)),
        default=0,
    )


def _kind(leaf: Any) -> Any:
    return (leaf.dtype, leaf.dim() == 0) if isinstance(leaf, torch.Tensor) else repr(leaf)


def _normal(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * 2).to(dtype)


def _positive(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(shape, generator=generator).abs() + 0.3).to(dtype)


def _large(leaf: Any, draw: Callable[[tuple[int, ...]], torch.Tensor]) -> Any:
    """Returns a tensor of as many dimensions, all of size 1 but a long last one; anything but a dense tensor stays."""
    if (
        not isinstance(leaf, torch.Tensor)
        or leaf.layout is not torch.strided
        or leaf.is_quantized
        or leaf.is_nested
        or leaf.dim() == 0
        or not leaf.numel()
    ):
        return leaf
    shape = (*([1] * (leaf.dim() - 1)), LARGE)
    if leaf.dtype.is_floating_point:
        return draw(shape)
    return leaf.flatten().repeat(LARGE // leaf.numel() + 1)[:LARGE].reshape(shape)

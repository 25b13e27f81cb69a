"""Inductor's C++ reductions split by size, so that their bits do not depend on the thread count.

Inductor gives each thread its own accumulator where the outermost loop is a reduction, so a sum's order of
additions depends on the number of threads. Here a large reduction with few results becomes two, by the same
rule that Inductor has for GPUs: partial results over chunks of the input, in parallel, then one pass over the
partial results. No loop that reduces is ever run in parallel. Pointwise loops need nothing: Inductor gives
whole vectors to threads, so that the same elements are in the scalar tail at any thread count.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

_PARTS = 64
"""Parts that threads share, at least: a reduction with fewer results is split into as many."""
_LARGE = 16384
"""Fewer elements than this are reduced faster by one thread than by two."""
_LENGTH = 4096
"""Elements of a chunk at most: over longer ones Inductor sums with a cascade, at four times the time."""
_LANES = 16
_SPLIT = ("sum", "max", "min", "any", "xor_sum")  # a product of many partial products would be less accurate


def chunks(results: int, elements: int) -> int:
    """Returns the number of chunks in which each of `results` results adds its `elements`; 1: not split.

    Preferred are chunks of whole vectors, then of one length: else the rest is a reduction of its own.
    """
    parts = -(-_PARTS // results)
    if parts == 1 or results * elements < _LARGE or elements < 4 * parts:
        return 1
    least = max(parts, -(-elements // _LENGTH))
    even = [count for count in range(least, 4 * least) if elements % count == 0]
    whole = (count for count in even if elements // count % _LANES == 0)
    return next(whole, even[0] if even else least)


def split_by_size(ir: ModuleType, num_splits: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `torch._inductor.ir.Reduction.num_splits`, with our rule on the CPU."""
    parameters = inspect.signature(num_splits)

    @functools.wraps(num_splits)
    def by_size(*args: Any, **kwargs: Any) -> Any:
        hint, split = num_splits(*args, **kwargs)
        arguments = parameters.bind(*args, **kwargs).arguments
        if arguments["device"].type != "cpu":
            return hint, split
        return hint, _chunks_of(
            ir, arguments["reduction_type"], arguments["ranges"], arguments["reduction_numel"]
        )

    return by_size


def split_evenly(ir: ModuleType, create: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `torch._inductor.ir.Reduction.create` for chunks of one length; the rest is added to them.

    Inductor's way with a shorter last chunk tests every element for the end: 1.4 times the time of a sum.
    """
    parameters = inspect.signature(create)

    @functools.wraps(create)
    def in_two(cls: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = parameters.bind(cls, *args, **kwargs).arguments
        size = ir.V.graph.sizevars.simplify(ir.sympy_product(arguments["reduction_ranges"]))
        count = (
            _chunks_of(ir, arguments["reduction_type"], arguments["ranges"], size)
            if cls is ir.Reduction
            else 1
        )
        if arguments["device"].type != "cpu" or size % count == 0:
            return create(cls, *args, **kwargs)
        return _split_in_two(ir, arguments, size, count)

    return in_two


def _split_in_two(ir: ModuleType, arguments: dict[str, Any], size: Any, count: int) -> Any:
    """Returns the reduction of the largest part that `count` divides, combined with that of the rest."""
    inner, kind, dtype = arguments["inner_fn"], arguments["reduction_type"], arguments["dst_dtype"]
    flat, rest = ir.View.dynamic_reshape_indexer(arguments["reduction_ranges"], [size]), size % count
    common = {name: arguments[name] for name in ("device", "src_dtype", "ranges", "reduction_type")}
    # As Inductor does between two layers: partial results of two bytes are kept in four.
    common["dst_dtype"] = torch.float32 if dtype in {torch.float16, torch.bfloat16} else dtype

    def part(start: Any, length: Any) -> Any:
        def element(index: Any, reduced: Any) -> Any:
            return inner(index, flat([reduced[0] + start]))

        reduced_part = ir.Reduction.create(inner_fn=element, reduction_ranges=[length], **common)
        reduced_part.realize()
        return reduced_part.make_loader()

    head, tail = part(0, size - rest), part(size - rest, rest)
    combine = ir.get_reduction_combine_fn(kind, arguments["src_dtype"])

    def combined(index: Any) -> Any:
        return ir.ops.to_dtype(combine(head(index), tail(index)), dtype)

    return ir.Pointwise.create(
        device=arguments["device"], dtype=dtype, inner_fn=combined, ranges=list(arguments["ranges"])
    )


def parallel_over_results(cpp: ModuleType, max_parallel_depth: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `LoopNest.max_parallel_depth` of Inductor's C++ code, which never names a loop that reduces."""

    @functools.wraps(max_parallel_depth)
    def without_reductions(nest: Any) -> Any:
        depth = 0
        for loop in nest.loops or ():
            if loop.is_reduction:
                break
            depth += 1
        return cpp.ParallelDepth(parallel_depth=depth, start_depth=0)

    return without_reductions


def _chunks_of(ir: ModuleType, kind: str, ranges: Any, elements: Any) -> int:
    """Returns `chunks`, for reductions that Inductor can split and whose sizes are known when it compiles."""
    results = ir.sympy_product(ranges)
    if kind not in _SPLIT or not (results.is_Integer and elements.is_Integer):
        return 1
    return chunks(int(results), int(elements))

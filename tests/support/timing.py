"""Times of calls, against each other: interleaved, medians; by CUDA's events on a GPU, else by the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch

from samebits.selfcheck.case import Target

Call = Callable[[], object]
_ROUND_NS = 20e6
"""A round repeats its call for about this time: launches of a few microseconds are timed together."""


def nanoseconds(call: Call, times: int, device: str) -> float:
    """Returns the time of one call: the mean of `times` calls."""
    if device == "cpu":
        began = time.perf_counter_ns()
        for _ in range(times):
            call()
        return (time.perf_counter_ns() - began) / times
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e6 / times


def capture_graph(call: Call, times: int, device: str) -> Call:
    """Returns that number of calls as one CUDA graph, whose replay costs no launches: the time of the kernels alone. On a CPU
    as they are.
    """
    if device == "cpu":
        return lambda: [call() for _ in range(times)]
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # compilation and allocation are not captured
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    return graph.replay


def medians(calls: Mapping[str, Call], target: Target, rounds: int = 15) -> dict[str, list[float]]:
    """Returns the nanoseconds of a call in each of the interleaved rounds, by name; two calls of each before are not timed."""
    rounds = 2 if target.small else rounds
    for call in calls.values():
        nanoseconds(call, 2, target.device)
    slowest = max(nanoseconds(call, 1, target.device) for call in calls.values())
    times = 1 if target.small else max(1, min(50, int(_ROUND_NS / max(slowest, 1.0))))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(nanoseconds(call, times, target.device))
    return taken


def compare(ours: Call, theirs: Call, target: Target, rounds: int = 15) -> tuple[float, float, float]:
    """Returns the nanoseconds of a call of ours and of theirs, and how many times as fast ours is: medians, the last
    one of the ratios.
    """
    taken = medians({"ours": ours, "theirs": theirs}, target, rounds)
    pairs = list(zip(taken["ours"], taken["theirs"], strict=True))
    return median(taken["ours"]), median(taken["theirs"]), median(b / a for a, b in pairs)

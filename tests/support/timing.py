"""Times of calls, against each other: interleaved, medians; by CUDA's events on a GPU, else by the wall clock."""

import time
from statistics import median

import torch

_ROUND_NS = 20e6
"""A round repeats its call for about this time: launches of a few microseconds are timed together."""


def nanoseconds(call, times, device):
    """The time of one call: the mean of `times` calls."""
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


def capture_graph(call, times, device):
    """That number of calls as one CUDA graph, whose replay costs no launches. On a CPU as they are."""
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


def compare(calls, target, rounds=15):
    """(nanoseconds of our call, of theirs, the median of the ratios theirs over ours) of a pair of calls.

    The rounds are interleaved; two calls of each before are not timed.
    """
    ours, theirs = calls
    rounds = 2 if target.small else rounds
    for call in calls:
        nanoseconds(call, 2, target.device)
    slowest = max(nanoseconds(call, 1, target.device) for call in calls)
    times = 1 if target.small else max(1, min(50, int(_ROUND_NS / max(slowest, 1.0))))
    taken = [[nanoseconds(call, times, target.device) for call in (ours, theirs)] for _ in range(rounds)]
    own, other = zip(*taken)
    return median(own), median(other), median(b / a for a, b in taken)

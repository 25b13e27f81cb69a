"""The calls of composites, as the profiler sees them: it names every overload that goes through the dispatcher."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from samebits.determinism.table._overload_facts import reviewed


def calls_of(run: Callable[[], Any]) -> dict[str, set[str]]:
    """Returns the calls of each composite overload while `run` ran: the overloads below it that are not composite."""
    rows = reviewed().rows
    config = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    profiler: Any = torch.autograd.profiler.profile(experimental_config=config)
    with profiler:
        run()
    found: dict[str, set[str]] = defaultdict(set)
    open_events: dict[int, list[tuple[str, int]]] = defaultdict(list)
    events = sorted(profiler.kineto_results.events(), key=lambda event: (event.start_ns(), -event.end_ns()))
    for event in events:
        stack = open_events[event.start_thread_id()]
        while stack and stack[-1][1] <= event.start_ns():
            stack.pop()
        name = ".".join(filter(None, (event.name().removeprefix("aten::"), event.overload_name())))
        if event.name().startswith("aten::") and name in rows:
            _attribute(found, name, [above for above, _ in stack])
            stack.append((name, event.end_ns()))
    return found


def _attribute(calls: dict[str, set[str]], name: str, above: list[str]) -> None:
    rows = reviewed().rows
    if "composite" in rows[name].kernels:
        calls.setdefault(name, set())  # known, even if it calls nothing
        return
    for caller in reversed(above):
        if "composite" not in rows[caller].kernels:
            return  # inside of a kernel: that one answers for it
        calls[caller].add(name)

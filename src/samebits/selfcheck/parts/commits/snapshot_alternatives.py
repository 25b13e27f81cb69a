"""Two ways to take a snapshot of 100 MB after each step: as commits do it, and asynchronously. Only times, to choose by."""

from __future__ import annotations

import time
from typing import Protocol

import torch

from samebits.selfcheck.case import Measured, Results, Target

STEPS = 40
_PRODUCTS = 20
"""Products of 2048 x 2048 matrices: a step of some milliseconds."""
EXPECTED: Results = {"waiting": [float(STEPS)] * 2, "beside": [float(STEPS)] * 2, "torn": 0}


class Way(Protocol):
    """Takes snapshots of one tensor."""

    host: torch.Tensor
    """The last snapshot, once it is complete."""

    def take(self) -> None:
        """Takes a snapshot; writes after the return are not in it."""
        ...

    def settle(self) -> None:
        """Waits for the last snapshot."""
        ...


class Waiting:
    """A way in which the training waits: for the device, then for the copy."""

    def __init__(self, state: torch.Tensor) -> None:
        self._state = state
        self.host = torch.empty_like(state, device="cpu", pin_memory=True)

    def take(self) -> None:
        """Copies; the copy is complete at the return."""
        torch.cuda.synchronize()
        self.host.copy_(self._state, non_blocking=True)
        torch.cuda.synchronize()

    def settle(self) -> None:
        """Returns at once."""


class Beside:
    """A way with a copy on the device, which a stream transfers while the next step runs."""

    def __init__(self, state: torch.Tensor) -> None:
        self._state, self._kept = state, torch.empty_like(state)
        self.host = torch.empty_like(state, device="cpu", pin_memory=True)
        self._stream, self._there = torch.cuda.Stream(state.device), torch.cuda.Event()

    def take(self) -> None:
        """Waits for the one before: there is one copy on the device."""
        self._there.synchronize()
        self._kept.copy_(self._state)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self.host.copy_(self._kept, non_blocking=True)
            self._there.record(self._stream)

    def settle(self) -> None:
        """Waits for the copy."""
        self._there.synchronize()


def measure(target: Target) -> Measured:
    """Measures milliseconds per step without snapshots and in both ways; the values of the last snapshots, and how many
    were torn.
    """
    state = torch.zeros(25_000_000, device=target.device)
    work = torch.randn(2048, 2048, device=target.device)
    ways: dict[str, Way] = {"waiting": Waiting(state), "beside": Beside(state)}
    figures: dict[str, float | str] = {"ms/step, none": _trained(state, work, None)}
    results: Results = {}
    for name, way in ways.items():
        state.zero_()
        figures[f"ms/step, {name}"] = _trained(state, work, way)
        results[name] = [float(way.host.min()), float(way.host.max())]
    results["torn"] = sum(_torn(state, work, way) for way in ways.values())
    return Measured(results, figures)


def _step(state: torch.Tensor, work: torch.Tensor) -> None:
    for _ in range(_PRODUCTS):
        work = (work @ work).tanh()
    state += 1


def _trained(state: torch.Tensor, work: torch.Tensor, way: Way | None) -> float:
    _step(state, work)
    state.zero_()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        _step(state, work)
        if way is not None:
            way.take()
    if way is not None:
        way.settle()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS * 1e3


def _torn(state: torch.Tensor, work: torch.Tensor, way: Way) -> int:
    """Returns how many snapshots are not of one moment, or of another one, while the next step runs."""
    state.zero_()
    found = 0
    for number in range(1, 6):
        _step(state, work)
        way.take()
        state += 100  # the next step
        way.settle()
        found += not bool((way.host == number).all())
        state -= 100
    return found

"""The work of the analysis grows as the graph does, in shapes of graphs that tempt it to look at all for each."""

import sys

import pytest
import torch

from samebits.replica import analyze, capture
from samebits.replica._analysis.storage_layout import StorageLayout

LINEAR = 4.3
"""Times the work of a quarter: 4 or less, as some of it comes once; a term that is quadratic shows at these sizes."""


def lists(tensors):
    scaled = torch._foreach_mul(tensors, 0.5)
    torch._foreach_add_(tensors, scaled)


def slices(tensors):
    for place, one in enumerate(tensors[1:]):
        tensors[0][place : place + 1].add_(one[:1])


def chain(tensors):
    found = tensors[0]
    for one in tensors[1:]:
        found = found * one
    return found


def bytecodes(call):
    """How many instructions of Python a call runs."""
    counted = 0

    def trace(frame, event, argument):
        nonlocal counted
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counted += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return counted


def growth(form):
    """How many times the instructions four times the tensors take."""
    few, many = (capture(form, [torch.ones(256) for _ in range(size)], world_size=4) for size in (64, 256))
    analyze(few)  # what is read once per process
    return bytecodes(lambda: analyze(many)) / bytecodes(lambda: analyze(few))


@pytest.mark.slow
@pytest.mark.parametrize("form", [lists, slices, chain])
def test_four_times_the_graph_is_four_times_the_work(form):
    """Over lists, over slices of one buffer and over a chain, the instructions that are run grow as the nodes do."""
    assert 3 < growth(form) < LINEAR


@pytest.mark.slow
def test_a_walk_over_all_for_each_is_counted(monkeypatch):
    """The check sees work that is not linear: a layout that looks at a whole list for each of its tensors."""
    monkeypatch.setattr(
        StorageLayout, "storages", lambda self, node: {place.storage for place in self.places[node]}
    )
    assert growth(lists) > LINEAR

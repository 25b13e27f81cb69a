"""Time of the replica-equal analysis over the size of the graph: python bench/replica.py [nodes]

The graph is captured once as blocks of ops and collectives and copied to the size that is asked for, so that only the
analysis is timed: seconds of the process, one thread, the median of three. `ratio` is the time of 10 times the nodes.
"""

import copy
import statistics
import sys
import time

import torch
import torch.distributed._functional_collectives as fc
from torch.fx import Graph
from torch.fx._lazy_graph_module import _LazyGraphModule

from samebits.replica import Equal, analyze, capture

torch.set_num_threads(1)
GOALS = {8: 3.0, 4096: 10.0}
"""Seconds for 100,000 nodes, by the number of ranks."""
RATIO = 8, 13


def block(w, x, mesh):
    y = torch.tanh(x @ w) * 0.5
    g = fc.all_reduce(y, "sum", (mesh, 1))
    w.sub_(fc.all_reduce(g * 0.9, "avg", (mesh, 0)), alpha=0.1)
    v = w.view(-1)
    v[:2].mul_(0.9)
    return y


def grown(step, nodes):
    """The step with its body repeated: each copy reads the output of the one before in place of `x`."""
    source, graph = step.module.graph, Graph()
    inputs = [node for node in source.nodes if node.op == "placeholder"]
    names = {node: graph.node_copy(node) for node in inputs}
    body = [node for node in source.nodes if node.op == "call_function"]
    groups, result = {}, None
    for _ in range(max(1, nodes // len(body))):
        for node in body:
            names[node] = graph.node_copy(node, lambda one: names[one])
            fresh(names[node], node)
            if node in step.groups:
                groups[names[node]] = step.groups[node]
        result = names[next(iter(source.nodes.__reversed__())).args[0][0]]
        names[inputs[1]] = result
    graph.output([result])
    larger = copy.copy(step)
    larger.module, larger.groups = _LazyGraphModule(step.module, graph), {}  # no code for what nobody runs
    for new, old in zip(larger.module.graph.nodes, graph.nodes, strict=True):
        new.meta = old.meta
        if old in groups:
            larger.groups[new] = groups[old]
    return larger


def fresh(new, old):
    """A storage of its own for what is no view, as tracing would have given it."""
    value = old.meta["val"]
    given = {one.meta["val"].untyped_storage()._cdata for one in old.all_input_nodes}
    new.meta = dict(old.meta)
    if value.untyped_storage()._cdata not in given:
        new.meta["val"] = value.clone()


def seconds(step):
    times = []
    for _ in range(3):
        started = time.process_time()
        report = analyze(step, {"w": Equal()})
        times.append(time.process_time() - started)
    assert report.is_replica_equal("w")
    assert not report.is_replica_equal("x")
    return statistics.median(times)


def main():
    nodes = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    for mesh in ({"dp": 2, "tp": 4}, {"dp": 64, "tp": 64}):
        step = capture(block, torch.ones(4, 4), torch.ones(4, 4), mesh=mesh)
        small, large = grown(step, nodes // 10), grown(step, nodes)
        first, second = seconds(small), seconds(large)
        ranks, count = mesh["dp"] * mesh["tp"], len(large.module.graph.nodes)
        goal = GOALS[ranks] * nodes / 100_000
        print(
            f"{ranks:5} ranks  {count:7} nodes  {second:6.2f} s (goal: {goal:.1f})  "
            f"ratio {second / first:5.1f} (goal: {RATIO[0]} to {RATIO[1]})",
            flush=True,
        )


if __name__ == "__main__":
    main()

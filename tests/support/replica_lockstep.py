"""A captured step on all of its ranks in one process, node by node, each rank with its own tensors and generators.

The second oracle beside `LocalTensorMode`, of which a test checks that it agrees: it runs each rank's own graph, goes
into branches and loops with those ranks that take them, and says when a collective would wait for ever.
"""

import contextlib
import copy
import operator
import sys

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.fx.node import map_arg

from replica_collectives import COLLECTIVES
from samebits import replica

capturing = sys.modules[replica.capture.__module__]  # the package has the function under this name


class Hang(Exception):
    """Some members of a group do not reach its collective."""


class Graphs:
    """The graph of each rank of a captured step, and the ranks of each collective as that rank sees them."""

    def __init__(self, world_size, mesh):
        self.world_size, self.mesh, self.modules, self.groups = world_size, mesh, [], {}

    def keep(self, module):
        self.modules.append(module)
        for part in module.modules():
            for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
                if str(node.target) in COLLECTIVES:
                    self.groups[node] = _ranks(node, part)

    def of(self, rank):
        return self.modules[rank if len(self.modules) > 1 else 0]

    def group(self, node, rank):
        """The ranks of a collective; of a rank whose graph was not captured, along the same axes of the mesh."""
        held = self.groups[node]
        return held if len(self.modules) > 1 else self._along(held)[rank]

    def _along(self, first):
        places = np.arange(self.world_size).reshape(self.mesh)
        for fixed in ([], [0], [1]) if places.ndim == 2 else ([],):
            along = [axis for axis in range(places.ndim) if axis not in fixed]
            rows = places.transpose(*fixed, *along).reshape(
                -1, int(np.prod([places.shape[a] for a in along]))
            )
            if tuple(rows[0].tolist()) == first:
                return {rank: tuple(row) for row in rows.tolist() for rank in row}
        raise AssertionError(f"{first} lies along no axis of {self.mesh}")


def _ranks(node, owner):
    for given in (*node.args, *node.kwargs.values()):
        if isinstance(given, str) and given not in {"sum", "avg", "max", "min", "product"}:
            return tuple(dist.get_process_group_ranks(_resolve_process_group(given)))
        if isinstance(given, torch.fx.Node) and given.op == "get_attr":
            with contextlib.suppress(RuntimeError, TypeError):
                return tuple(
                    dist.get_process_group_ranks(dist.ProcessGroup.unbox(getattr(owner, given.target)))
                )
    raise AssertionError(f"{node.format_node()} has no group")


@contextlib.contextmanager
def kept_graphs(world_size, mesh, everywhere=True):
    """Captures inside of it leave their graphs. Unless `everywhere`, the code runs as rank 0 only: it does not ask for its rank."""
    found = Graphs(world_size, mesh)
    trace_of, ranks_to_run = capturing.trace_of, capturing._ranks_to_run

    def keeping(rank, module):
        found.keep(module)
        return trace_of(rank, module)

    capturing.trace_of = keeping
    if not everywhere:
        capturing._ranks_to_run = lambda ranks, axes: [0]
    try:
        yield found
    finally:
        capturing.trace_of, capturing._ranks_to_run = trace_of, ranks_to_run


class Ranks:
    """The processes: a generator state and the memory of closed-over tensors for each rank, over several steps."""

    def __init__(self, graphs, seeds):
        self.graphs, self.states, self.held = graphs, {}, {}
        for rank, seed in enumerate(seeds):
            self.states[rank, None] = torch.Generator().manual_seed(seed).get_state()
        self.seen = {}
        """Of each value of the step, by name: the bits on each rank, when it was made."""

    def step(self, inputs):
        """Runs one step with a list of tensors for each rank; what each returns."""
        self.seen = {}
        ranks = list(range(self.graphs.world_size))
        return self._run([self.graphs.of(rank) for rank in ranks], ranks, inputs, self.seen)

    def _run(self, modules, ranks, inputs, seen=None):
        env, given = [{} for _ in ranks], [iter(one) for one in inputs]
        for nodes in zip(*(module.graph.nodes for module in modules)):
            first = nodes[0]
            if first.op == "placeholder":
                values = [next(one) for one in given]
            elif first.op == "get_attr":
                values = [self._attribute(*one) for one in zip(modules, nodes, ranks)]
            else:
                args = [map_arg(node.args, held.__getitem__) for node, held in zip(nodes, env)]
                if first.op == "output":
                    return [one[0] for one in args]
                kwargs = [map_arg(node.kwargs, held.__getitem__) for node, held in zip(nodes, env)]
                values = self._call(nodes, ranks, args, kwargs)
            for node, held, value in zip(nodes, env, values):
                held[node] = value
            if seen is not None:
                bits = [bits_of(value) for value in values]
                if bits[0] is not None:
                    seen[first.name] = bits
        raise AssertionError("no output")

    def _attribute(self, module, node, rank):
        value = module
        for part in node.target.split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            return value
        if (rank, id(module)) not in self.held:  # one copy for all: views of one memory stay so
            names = [one.target for one in module.graph.nodes if one.op == "get_attr"]
            values = {name: operator.attrgetter(name)(module) for name in names}
            values = {name: one for name, one in values.items() if isinstance(one, torch.Tensor)}
            self.held[rank, id(module)] = copy.deepcopy(values)
        return self.held[rank, id(module)][node.target]

    def _call(self, nodes, ranks, args, kwargs):
        target = nodes[0].target
        name = str(target)
        if isinstance(target, torch._ops.HigherOrderOperator):
            return getattr(self, f"_{name}")(ranks, args)
        if name in COLLECTIVES:
            return self._collective(nodes, ranks, args, kwargs)
        if name.endswith("wait_tensor.default"):
            return [one[0] for one in args]
        if isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags:
            return [self._draw(target, *one) for one in zip(ranks, args, kwargs)]
        values = [target(*one, **more) for one, more in zip(args, kwargs)]
        if name.startswith("aten.empty"):
            for rank, value in zip(ranks, values):
                value.fill_(rank + 2)  # memory that nobody wrote holds anything
        return values

    def _draw(self, target, rank, args, kwargs):
        own = kwargs.get("generator")
        key, generator = (rank, None if own is None else id(own)), own or torch.default_generator
        if key not in self.states:  # an own generator starts as it was captured: alike on all ranks
            self.states[key] = torch.Generator().manual_seed(0).get_state()
        generator.set_state(self.states[key])
        value = target(*args, **kwargs)
        self.states[key] = generator.get_state()
        return value

    def _collective(self, nodes, ranks, args, kwargs):
        place, done = {rank: index for index, rank in enumerate(ranks)}, {}
        for node, rank in zip(nodes, ranks):
            group = self.graphs.group(node, rank)
            if rank in done:
                continue
            if not set(group) <= set(ranks):
                raise Hang(f"{node.format_node()} over {group} is reached by {ranks}")
            members = [(*args[place[one]], *kwargs[place[one]].values()) for one in group]
            results = COLLECTIVES[str(node.target)](members)
            done.update(zip(group, results, strict=True))
        return [done[rank] for rank in ranks]

    # --- bodies ---

    def _only(self, chosen, ranks, modules, inputs):
        """What a body gives on some of the ranks."""
        mine = [index for index, one in enumerate(chosen) if one]
        if not mine:
            return {}
        found = self._run(*([one[index] for index in mine] for one in (modules, ranks, inputs)))
        return dict(zip(mine, found))

    def _cond(self, ranks, args):
        chosen = [bool(one[0]) for one in args]
        inputs = [one[3] for one in args]
        yes = self._only(chosen, ranks, [one[1] for one in args], inputs)
        no = self._only([not one for one in chosen], ranks, [one[2] for one in args], inputs)
        return [{**yes, **no}[index] for index in range(len(ranks))]

    def _while_loop(self, ranks, args):
        carry, going = [list(one[2]) for one in args], [True] * len(ranks)
        while True:
            inputs = [(*held, *one[3]) for held, one in zip(carry, args)]
            asked = self._only(going, ranks, [one[0] for one in args], inputs)
            going = [
                index in asked and bool(torch.as_tensor(_one(asked[index]))) for index in range(len(ranks))
            ]
            if not any(going):
                return [tuple(held) for held in carry]
            for index, after in self._only(going, ranks, [one[1] for one in args], inputs).items():
                carry[index] = list(after)

    def _scan(self, ranks, args):
        carry, rows = [list(one[1]) for one in args], [[] for _ in ranks]
        for row in range(len(args[0][2][0])):
            inputs = [(*held, *(x[row] for x in one[2]), *one[3]) for held, one in zip(carry, args)]
            for index, after in enumerate(self._run([one[0] for one in args], ranks, inputs)):
                count = len(carry[index])
                carry[index] = list(after[:count])
                rows[index].append(after[count:])
        return [(*held, *(torch.stack(column) for column in zip(*one))) for held, one in zip(carry, rows)]

    def _invoke_subgraph(self, ranks, args):
        return self._run([one[0] for one in args], ranks, [one[2:] for one in args])


def _one(value):
    return value[0] if isinstance(value, (list, tuple)) else value


def bits_of(value):
    """The bits of a tensor, or of all in a list; None of what is no tensor."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, (list, tuple)):
        held = [one for one in map(bits_of, value) if one is not None]
        return b"|".join(held) if held else None
    return None

"""Programs of ops and collectives, and the bits that torch's own `LocalTensorMode` gives each of their values on each rank."""

import logging

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from replica_lockstep import bits_of
from samebits import replica

logging.getLogger("torch.__trace").propagate = False  # pytest would keep megabytes of it
RANKS, INPUTS, SIZE = 4, 3, 8
CLASSES = [(0, 0, 0, 0), (0, 1, 2, 3), (0, 0, 1, 1), (0, 1, 0, 1), (0, 0, 0, 1)]
"""Label of each rank, for the inputs."""


def group(mesh, name):
    return dist.group.WORLD if name == "world" else mesh.get_group(name)


OPS = {
    "add": lambda mesh, a, b: a + b,
    "mul": lambda mesh, a, b: a * b + 0.5,
    "sin": lambda mesh, a, b: a.sin(),
    "sum": lambda mesh, a, b: a.sum() + b,
    "where": lambda mesh, a, b: torch.where(a > 0, a, b),
    "roll": lambda mesh, a, b: a.roll(1, 0),
    "zeros_like": lambda mesh, a, b: torch.zeros_like(a) + 2,
    "cat": lambda mesh, a, b: torch.cat([a[:4], b[4:]]),
    "sort": lambda mesh, a, b: torch.sort(a, 0)[0],
    "view_add_": lambda mesh, a, b: _then(a[2:5].add_(b[2:5]), a),
    "row_copy_": lambda mesh, a, b: _then(a[0].copy_(b[1]), a),
    "column_copy_": lambda mesh, a, b: _then(a[:, 0].copy_(b[:, 1]), a),
    "half_copy_": lambda mesh, a, b: _then(a[:4].copy_(b[:4]), a[4:].copy_(b[4:]), a),
    "view": lambda mesh, a, b: a.view(-1).view(SIZE, 2),
    "transposed_mul_": lambda mesh, a, b: _then(a.t().mul_(b.t()), a),
    "zero_": lambda mesh, a, b: a.zero_(),
    "fill_row_": lambda mesh, a, b: _then(a[3].fill_(1.5), a),
    "index_put_": lambda mesh, a, b: a.index_put_((torch.argsort(b[:, 0]),), b.clone()),
    "foreach": lambda mesh, a, b: torch._foreach_add([a, b], [a * 2, b])[1],
    "foreach_": lambda mesh, a, b: _then(torch._foreach_mul_([a.clone(), b], 1.5), b),
    "chunk": lambda mesh, a, b: a.chunk(2)[1].clone().repeat(2, 1),
    "rand": lambda mesh, a, b: torch.rand_like(a),
    "dropout": lambda mesh, a, b: torch.nn.functional.dropout(a, 0.5),
    "uniform_": lambda mesh, a, b: _then(a[4:].uniform_(), a),
    "all_reduce": lambda mesh, a, b, g="world": fc.all_reduce(a, "sum", group(mesh, g)) + 0,
    "max_reduce": lambda mesh, a, b, g="world": fc.all_reduce(a, "max", group(mesh, g)) + 0,
    "all_gather": lambda mesh, a, b, g="world": fc.all_gather_tensor(a, 0, group(mesh, g))[:SIZE].clone(),
    "whole_gather": lambda mesh, a, b, g="world": fc.all_gather_tensor(a, 0, group(mesh, g)).sum(0) + b,
    "reduce_scatter": lambda mesh, a, b, g="world": fc.reduce_scatter_tensor(
        a, "sum", 0, group(mesh, g)
    ).repeat(group(mesh, g).size(), 1),
    "zero_update": lambda mesh, a, b, g="world": (
        fc.all_gather_tensor(fc.reduce_scatter_tensor(a, "sum", 0, group(mesh, g)) * 0.5, 0, group(mesh, g))
        + 0
    ),
    "broadcast": lambda mesh, a, b, g="world": fc.broadcast(a, 0, group(mesh, g)) + 0,
    "all_to_all": lambda mesh, a, b, g="world": fc.all_to_all_single(a, None, None, group(mesh, g)) + 0,
    "dist.all_reduce": lambda mesh, a, b, g="world": _then(dist.all_reduce(a, group=group(mesh, g)), a),
    "dist.broadcast": lambda mesh, a, b, g="world": _then(
        dist.broadcast(a, group_src=0, group=group(mesh, g)), a
    ),
}
COLLECTIVE = [name for name, op in OPS.items() if op.__defaults__]


def _then(*values):
    return values[-1]


def program(instructions):
    """A step of `instructions`, each (op, first value, second value, group), over the values made so far."""

    def step(x0, x1, x2, mesh):
        values = [x0, x1, x2]
        for name, one, two, where in instructions:
            a, b = values[one % len(values)], values[two % len(values)]
            extra = {"g": where} if name in COLLECTIVE else {}
            values.append(OPS[name](mesh, a, b, **extra))
        return values

    return step


class Recorder(torch.fx.Interpreter):
    """Keeps, of every value when it is made, which ranks hold the same bits."""

    def __init__(self, module, mesh=None):
        super().__init__(module)
        self.labels, self.mesh = {}, mesh

    def run_node(self, node):
        result = super().run_node(node)
        if isinstance(result, torch.Tensor):
            self.labels[node.name] = labels(result)
        return result

    def call_function(self, target, args, kwargs):
        if str(target).startswith("c10d."):  # the groups of the capture are gone: take those of the same name
            args = [self._again(one) for one in args]
        return super().call_function(target, tuple(args), kwargs)

    def _again(self, argument):
        try:
            old = dist.ProcessGroup.unbox(argument)
        except (RuntimeError, TypeError):
            return argument
        return group(self.mesh, old.group_desc.removeprefix("mesh_").replace("default_pg", "world")).boxed()


def labels(value):
    if not isinstance(value, LocalTensor):
        return (0,) * RANKS
    seen = {}
    held = [bits_of(value._local_tensors[rank]) for rank in range(RANKS)]
    return tuple(seen.setdefault(bits, len(seen)) for bits in held)


class World:
    """A fake process group of RANKS with a 2 x 2 mesh."""

    def __enter__(self):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
        return torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def __exit__(self, *_):
        dist.destroy_process_group()


def simulated(step, classes, seed):
    """(labels of every node when made, labels of the inputs afterwards) of one step on RANKS ranks.

    All ranks start with the same generator state.
    """
    held = drawn_inputs(classes, seed)
    with World() as mesh, LocalTensorMode(RANKS):
        torch.manual_seed(seed)
        inputs = [LocalTensor(one) for one in held]
        recorder = Recorder(step.module, mesh)
        recorder.run(*inputs)
        return recorder.labels, [labels(one) for one in inputs]


def drawn_inputs(classes, seed):
    """For each input, a tensor per rank: the same bits within a class."""
    drawn = torch.Generator().manual_seed(seed)
    held = []
    for one in classes:
        by_class = {label: torch.randn(SIZE, 2, generator=drawn) for label in sorted(set(one))}
        held.append({rank: by_class[one[rank]].clone() for rank in range(RANKS)})
    return held


def declarations(step, classes):
    inputs = {}
    for index, one in enumerate(classes):
        inputs[f"x{index}"] = replica.Partition(
            [[r for r in range(RANKS) if one[r] == label] for label in set(one)]
        )
    return inputs | {name: replica.Equal() for name in step.kinds if name.startswith("generator")}

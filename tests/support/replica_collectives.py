"""Collectives over tensors that lie side by side in one process: what each member of each group gets, computed plainly.

Order counts, as with a real backend: the members of a group are reduced from the first to the last.
"""

import operator
from functools import reduce as fold

import torch

REDUCTIONS = {
    "sum": operator.add,
    "avg": operator.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": operator.mul,
}


def reduced(tensors, op="sum"):
    total = fold(REDUCTIONS[op], [one.clone() for one in tensors])
    return total / len(tensors) if op == "avg" else total


def parts(tensor, count):
    return [one.clone() for one in tensor.chunk(count)]


# functional: a list with the arguments of each member -> a list with the result of each member


def all_reduce(members):
    total = reduced([one[0] for one in members], members[0][1])
    return [total.clone() for _ in members]


def all_gather(members):
    return [torch.cat([one[0] for one in members]) for _ in members]


def reduce_scatter(members):
    return parts(reduced([one[0] for one in members], members[0][1]), len(members))


def broadcast(members):
    return [members[members[0][1]][0].clone() for _ in members]


def all_to_all(members):
    sent = []
    for tensor, _, splits, *_ in members:
        sent.append(list(tensor.split(splits)) if splits else list(tensor.chunk(len(members))))
    return [torch.cat([one[position] for one in sent]) for position in range(len(members))]


def coalesced(one):
    """The collective on each tensor of a list."""

    def each(members):
        columns = zip(*(tensors for tensors, *_ in members))
        rest = [given[1:] for given in members]
        done = [one([(tensor, *more) for tensor, more in zip(column, rest)]) for column in columns]
        return [list(results) for results in zip(*done)]

    return each


def in_place(one):
    """The functional collective, into its first argument."""

    def write(members):
        results = one(members)
        return [_copied(given[0], result) for given, result in zip(members, results)]

    return write


def out(one):
    """The functional collective, into its last argument."""

    def write(members):
        results = one(members)
        return [_copied(given[-1], result) for given, result in zip(members, results)]

    return write


def _copied(targets, results):
    pairs = zip(targets, results) if isinstance(targets, (list, tuple)) else [(targets, results)]
    for target, result in list(pairs):
        target.copy_(result)
    return targets


# c10d: (targets, sources, ...), results as the ops of torch.distributed give them


def listed(targets):
    return [(list(one), None) for one in targets]


def c10d_allreduce(members):
    total = reduced([one[0][0] for one in members])
    return listed([[one[0][0].copy_(total)] for one in members])


def c10d_broadcast(members):
    root = members[members[0][2]][0][0].clone()
    return listed([[one[0][0].copy_(root)] for one in members])


def c10d_reduce(members):
    """The root gets the sum. What the others hold afterwards nobody promises: here, all something else."""
    total = reduced([one[0][0] for one in members])
    for position, (tensors, *_) in enumerate(members):
        tensors[0].copy_(total if position == members[0][3] else total * 0.1 + position)
    return [None for _ in members]


def c10d_allgather_base(members):
    whole = torch.cat([one[1].reshape(-1) for one in members])
    return [(one[0].copy_(whole.view(one[0].shape)), None) for one in members]


def c10d_allgather(members):
    held = [one[1][0].clone() for one in members]
    for outputs, *_ in members:
        _copied(outputs[0], held)
    return listed([[list(one[0][0])] for one in members])


def c10d_reduce_scatter_base(members):
    mine = parts(reduced([one[1] for one in members]), len(members))
    return [(one[0].copy_(part.view(one[0].shape)), None) for one, part in zip(members, mine)]


def c10d_reduce_scatter(members):
    totals = [reduced([one[1][0][position] for one in members]) for position in range(len(members))]
    return listed([[one[0][0].copy_(total)] for one, total in zip(members, totals)])


def c10d_alltoall_base(members):
    results = all_to_all([(one[1].clone(), None, one[4] or None) for one in members])
    for one, result in zip(members, results):
        one[0].copy_(result)
    return [None for _ in members]


def c10d_alltoall(members):
    sent = [[tensor.clone() for tensor in one[1]] for one in members]
    for position, one in enumerate(members):
        _copied(one[0], [row[position] for row in sent])
    return listed([one[0] for one in members])


COLLECTIVES = {
    "_c10d_functional.all_reduce.default": all_reduce,
    "_c10d_functional.all_reduce_.default": in_place(all_reduce),
    "_c10d_functional.all_reduce_coalesced.default": coalesced(all_reduce),
    "_c10d_functional.all_reduce_coalesced_.default": in_place(coalesced(all_reduce)),
    "_c10d_functional.all_gather_into_tensor.default": all_gather,
    "_c10d_functional.all_gather_into_tensor_out.default": out(all_gather),
    "_c10d_functional.all_gather_into_tensor_coalesced.default": coalesced(all_gather),
    "_c10d_functional.reduce_scatter_tensor.default": reduce_scatter,
    "_c10d_functional.reduce_scatter_tensor_coalesced.default": coalesced(reduce_scatter),
    "_c10d_functional.broadcast.default": broadcast,
    "_c10d_functional.broadcast_.default": in_place(broadcast),
    "_c10d_functional.all_to_all_single.default": all_to_all,
    "c10d.allreduce_.default": c10d_allreduce,
    "c10d.broadcast_.default": c10d_broadcast,
    "c10d.reduce_.default": c10d_reduce,
    "c10d._allgather_base_.default": c10d_allgather_base,
    "c10d.allgather_.default": c10d_allgather,
    "c10d._reduce_scatter_base_.default": c10d_reduce_scatter_base,
    "c10d.reduce_scatter_.default": c10d_reduce_scatter,
    "c10d.alltoall_base_.default": c10d_alltoall_base,
    "c10d.alltoall_.default": c10d_alltoall,
}
COLLECTIVES.update(
    {
        name.replace("_c10d_functional.", "_c10d_functional_autograd."): one
        for name, one in COLLECTIVES.items()
    }
)

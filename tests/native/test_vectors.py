"""Vectors of 16 lanes in kernels: what a part reads and writes, and the order in which lanes are joined."""

import numpy as np
import pytest
import torch

from exact_sums import tree
from samebits._native import vectors
from samebits._native.kernel_threads import on_team

BEYOND = 9.0
COUNTS = range(17)


def copier(memory):
    """The kernel that copies the first lanes of a vector, and one of each other instruction of memory."""
    load, store, one, put_one = (
        kind[memory] for kind in (vectors.LOAD, vectors.STORE, vectors.LOAD_ONE, vectors.STORE_ONE)
    )

    def copy(chunk, args):
        # args: 1 source, 2-4 targets, 5 elements
        store(args[2], load(args[1], args[5]), args[5])
        store(args[3], load(args[1]))
        put_one(args[4], one(args[1]))

    return on_team(copy, name=f"copy_{memory}")


@pytest.mark.parametrize("memory", vectors.SIZE)
def test_a_part_of_a_vector_is_read_and_written_alone(memory):
    """Of 0 to 16 elements in each type, the first ones are copied and no other is touched; whole vectors and one number too."""
    copy, dtype = copier(memory), getattr(torch, memory)
    source = (torch.arange(16) / 4 - 2).to(dtype)
    for count in COUNTS:
        part, whole, one = (torch.full((18,), BEYOND, dtype=dtype) for _ in range(3))
        copy(1, source.data_ptr(), part.data_ptr(), whole.data_ptr(), one.data_ptr(), count)
        for target, length in ((part, count), (whole, 16), (one, 1)):
            assert torch.equal(target[:length], source[:length])
            assert (target[length:] == BEYOND).all()


def joiner(chunk, args):
    # args: 1 the numbers, 2 the results
    lanes = vectors.LOAD["float64"](args[1])
    store = vectors.STORE_ONE["float64"]
    store(args[2], vectors.added(lanes))
    store(args[2] + 8, vectors.multiplied(lanes))
    store(args[2] + 16, vectors.largest(lanes))


join = on_team(joiner)


def test_lanes_are_joined_by_halves():
    """Sums and products take the upper half to the lower, again and again; from left to right they have other bits."""
    orders = set()
    for seed in range(20):
        x, found = np.random.default_rng(seed).normal(size=16), np.empty(3)
        join(1, x.ctypes.data, found.ctypes.data)
        assert found.tolist() == [tree(x), tree(x, np.multiply), x.max()]
        orders.add(found[0] == sum(x.tolist()))
    assert False in orders
    x[5] = np.nan
    join(1, x.ctypes.data, found.ctypes.data)
    assert np.isnan(found).all()

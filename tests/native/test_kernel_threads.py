"""Teams: each chunk runs once, whatever the number of threads; variants are declared before they are made."""

import itertools

import numpy as np
import torch

from samebits._native import carray
from samebits._native.kernel_threads import count_up, declared, int64_at, on_team, variants


def count(chunk, args):
    # args: 0 chunks, 1 a counter for each, 2 one for all, 3 what is added
    carray(int64_at(args[1]), (args[0],))[chunk] += args[3]
    count_up(int64_at(args[2]))


counted = on_team(count)


def test_each_chunk_runs_once():
    """1 to 200 chunks on 1 to 7 threads, called with numbers or with bytes: each is counted once, and all together."""
    for chunks, threads in itertools.product((1, 2, 3, 64, 200), (1, 2, 3, 7)):
        torch.set_num_threads(threads)
        each, total = np.zeros(chunks, np.int64), np.zeros(1, np.int64)
        counted(chunks, each.ctypes.data, total.ctypes.data, 5)
        packed = np.array([0, chunks, each.ctypes.data, total.ctypes.data, 5], np.int64)
        counted.run_packed(chunks, packed.tobytes())
        assert (each == 10).all()
        assert total[0] == 2 * chunks


def test_a_chunk_that_runs_twice_is_seen():
    """Negative control: a second call with fewer chunks runs the first ones again, and their counters say so."""
    each, total = np.zeros(4, np.int64), np.zeros(1, np.int64)
    counted(4, each.ctypes.data, total.ctypes.data, 5)
    counted(2, each.ctypes.data, total.ctypes.data, 5)
    assert each.tolist() == [10, 10, 5, 5]


def test_variants_are_declared_before_they_are_made():
    """`declared` names a kernel for each combination that is asked for, and no other; a second call makes none again."""
    made = []

    @variants(size=(1, 2, 3), wide=(False, True), only=lambda *, size, wide: wide or size < 3)
    def kernel_of(size, wide):
        made.append((size, wide))
        return on_team(count, name=f"variant_{size}_{wide}")

    assert made == []
    names = {name.rpartition(".")[2] for name in declared() if "variant_" in name}
    assert names == {
        f"variant_{size}_{wide}" for size, wide in itertools.product((1, 2, 3), (False, True))
    } - {"variant_3_False"}
    declared()
    assert sorted(made) == [(1, False), (1, True), (2, False), (2, True), (3, True)]
    assert kernel_of(3, True) is kernel_of(3, True)

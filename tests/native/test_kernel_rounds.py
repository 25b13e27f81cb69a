"""Kernels called in turn: each call sees what all threads have written in the calls before it."""

import numpy as np
import torch

from samebits._native import carray
from samebits._native.kernel_rounds import _PACK, Call, run_rounds
from samebits._native.kernel_threads import float64_at, on_team

CHUNKS, EACH = 8, 512


def _sum_of_neighbours(chunk, args):
    # args: 1 the numbers before, 2 those after
    before = carray(float64_at(args[1]), (CHUNKS * EACH,))
    after = carray(float64_at(args[2]), (CHUNKS * EACH,))
    for index in range(EACH):
        here = chunk * EACH + index
        after[here] = before[(here + EACH) % (CHUNKS * EACH)] + 1.0


sum_of_neighbours = on_team(_sum_of_neighbours)


def after_rounds(rounds):
    """Two calls a round, each of which reads what other threads have written in the call before."""
    numbers = np.zeros((2, CHUNKS * EACH))
    first, second = (one.ctypes.data for one in numbers)
    there = Call(sum_of_neighbours, CHUNKS, (first, second), (0, 0))
    back = Call(sum_of_neighbours, CHUNKS, (second, first), (0, 0))
    run_rounds([there, back], rounds)
    return numbers[0]


def test_a_call_sees_what_every_thread_wrote_before_it():
    """With 1 to 5 threads each number is that of a loop in Python; calls of a team that does not wait give others."""
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        assert (after_rounds(300) == 600.0).all()


def test_threads_that_do_not_wait_for_one_another_are_seen(monkeypatch):
    """The same rounds on a team without its barriers end with other numbers: so the test above can fail."""
    torch.set_num_threads(3)
    monkeypatch.setattr("samebits._native.kernel_rounds._PACK", lambda *numbers: _PACK(*numbers[:-1], 0))
    # So many rounds that the other threads wake before the first has done them all alone, on a machine with much to do.
    assert any((after_rounds(30_000) != 60_000.0).any() for _ in range(20))


def test_arguments_move_on_from_round_to_round():
    """Round r reads row r and writes row r + 1, so that the last row has counted all rounds."""
    numbers = np.zeros((11, CHUNKS * EACH))
    row = numbers.strides[0]
    run_rounds(
        [Call(sum_of_neighbours, CHUNKS, (numbers.ctypes.data, numbers.ctypes.data + row), (row, row))], 10
    )
    assert (numbers == np.arange(11.0)[:, None]).all()

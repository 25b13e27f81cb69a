"""What a walk sees of the iterators that a program holds."""

import pytest
import torch

from samebits._context import Position, process
from samebits._objects.walk import leaves_in
from samebits.data import DataLoader, Pipeline

MADE = {
    "loader": lambda: DataLoader(torch.arange(40), batch_size=2, shuffle=True, seed=1),
    "pipeline": lambda: Pipeline.range(40).shuffle().batch(2).with_options(seed=1),
}


@pytest.mark.parametrize("kind", MADE)
def test_an_iterator_of_a_loader_or_a_pipeline_is_its_position(kind):
    """A walk sees that a held iterator has moved; two at one place are equal."""
    first, second = iter(MADE[kind]()), iter(MADE[kind]())
    before = leaves_in("it", first)
    next(first)
    moved = leaves_in("it", first)
    next(second)
    assert moved != before and moved == leaves_in("it", second)


@pytest.mark.parametrize("kind", MADE)
def test_an_iterator_begun_anew_in_each_step_has_not_changed(kind):
    """Negative control: iterators keyed by two steps of a run have given other batches and are at one place."""
    made, seen, batches = MADE[kind](), [], []
    try:
        for step in (4, 5):
            process.position = Position("train", 0, step, step)
            iterator = iter(made)
            batches.append(next(iterator).tolist())
            seen.append(leaves_in("it", iterator))
    finally:
        process.position = None
    assert batches[0] != batches[1] and seen[0] == seen[1]

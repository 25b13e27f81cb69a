"""A library that would make a torch loader of ours gets an error; one that leaves it as it is works."""

import pytest
import torch

import samebits
from samebits.errors import UnimplementedError

accelerate = pytest.importorskip("accelerate")


def loader(**arguments):
    return samebits.data.DataLoader(torch.arange(40), batch_size=4, shuffle=True, seed=1, **arguments)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "prepare",
    [
        lambda own: accelerate.Accelerator(cpu=True).prepare(own),
        lambda own: accelerate.Accelerator(cpu=True).prepare(torch.nn.Linear(1, 1), own),
        lambda own: accelerate.Accelerator(cpu=True).prepare_data_loader(own),
        lambda own: accelerate.data_loader.prepare_data_loader(own),
        lambda own: accelerate.skip_first_batches(own, 2),
    ],
)
def test_accelerate_makes_no_torch_loader_of_it(prepare, workers):
    """`accelerator.prepare(loader)` and all that build a loader of its arguments raise, with the line to type."""
    with pytest.raises(UnimplementedError, match=r"model, optimizer, loader = accelerator.prepare\("):
        prepare(loader(num_workers=workers))


def test_what_is_prepared_otherwise_goes_on():
    """Control: torch's loader is prepared, a model beside our loader too, and the batches are those without Accelerate."""
    accelerator = accelerate.Accelerator(cpu=True)
    theirs = accelerator.prepare(torch.utils.data.DataLoader(torch.arange(40), batch_size=4))
    assert [batch.tolist() for batch in theirs][1] == [4, 5, 6, 7]
    assert isinstance(accelerator.prepare(torch.nn.Linear(1, 1)), torch.nn.Module)
    assert [batch.tolist() for batch in loader()] == [batch.tolist() for batch in loader(num_workers=2)]
    own = loader(num_workers=1, multiprocessing_context="fork")
    assert own.multiprocessing_context.get_start_method() == "fork"

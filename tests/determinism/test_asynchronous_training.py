import sys

import pytest
import torch
from torch import nn

import samebits
from samebits.errors import UnimplementedError


@pytest.fixture(autouse=True)
def seeded():
    samebits.set_random_seed(0)


@pytest.fixture
def on():
    with samebits.enable_op_determinism():
        yield


def shared_model():
    return nn.Linear(2, 2).share_memory()


def test_rpc_is_refused(on):
    """init_rpc raises under the switch, before it connects to anything, and names the synchronous way."""
    with pytest.raises(
        UnimplementedError, match="init_rpc at .*test_asynchronous_training.py.*DistributedDataParallel"
    ):
        torch.distributed.rpc.init_rpc("worker", rank=0, world_size=1)


@pytest.mark.slow
def test_a_distributed_optimizer_imported_under_the_switch_is_refused(python):
    """DistributedOptimizer is not imported by enabling; imported later it raises when constructed, and is put back."""
    out = python(
        "import sys, samebits, torch\n"
        "samebits.set_random_seed(0)\n"
        "finders = list(sys.meta_path)\n"
        "samebits.enable_op_determinism()\n"
        "print('torch.distributed.optim' in sys.modules)\n"
        "from torch.distributed.optim import DistributedOptimizer\n"
        "try:\n    DistributedOptimizer(torch.optim.SGD, [])\n"
        "except samebits.errors.UnimplementedError as error:\n    print(type(error).__name__)\n"
        "samebits.enable_op_determinism(False)\n"
        "DistributedOptimizer(torch.optim.SGD, [])\n"
        "print(finders == sys.meta_path)\n"
    ).stdout
    assert out.split() == ["False", "UnimplementedError", "True"]


@pytest.mark.parametrize(
    "share",
    [shared_model, lambda: nn.Parameter(torch.ones(2)).share_memory_()],
)
def test_parameters_in_shared_memory_are_refused(on, share):
    """Sharing parameters (Hogwild) raises under the switch."""
    with pytest.raises(UnimplementedError, match="Hogwild"):
        share()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizer_over_shared_parameters_is_refused(make):
    """Parameters that are in shared memory already: the optimizer over them raises when it is constructed."""
    model = shared_model()
    make(model.parameters(), 0.1)  # negative control: without the switch it is a user's own business
    with samebits.enable_op_determinism():
        with pytest.raises(UnimplementedError, match=f"{make.__name__} at .*shared memory"):
            make(model.parameters(), 0.1)
        make(nn.Linear(2, 2).parameters(), 0.1)


def test_batches_in_shared_memory_pass(on):
    """What loader workers hand over is in shared memory, and is no parameter."""
    assert torch.ones(3).share_memory_().is_shared()
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, multiprocessing_context="fork")
    assert [batch.sum().item() for (batch,) in loader] == [6.0, 22.0]


def test_sharing_is_torchs_own_without_the_switch():
    """Negative control: with the switch off nothing of this is refused."""
    assert all(p.is_shared() for p in shared_model().parameters())
    assert "torch.distributed.rpc" in sys.modules

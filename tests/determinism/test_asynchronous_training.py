import sys
import threading
import time
import warnings

import pytest
import torch
from torch import nn

import samebits
from samebits._context import process
from samebits.errors import ConflictWarning, UnimplementedError


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


class FirstIsSlow(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        time.sleep(0.6 * (i == 0))
        return i


def out_of_order():
    return torch.utils.data.DataLoader(FirstIsSlow(), batch_size=2, num_workers=2, in_order=False)


def test_a_loader_without_order_keeps_it():
    """in_order=False of torch's loader: under the switch, and in a run without it, batches come in order, with a warning; else (control) not."""
    process.notices.clear()
    assert torch.cat(list(out_of_order())).tolist() != list(range(12))
    with samebits.enable_op_determinism(), pytest.warns(ConflictWarning, match="in_order=False"):
        assert torch.cat(list(out_of_order())).tolist() == list(range(12))
    process.notices.clear()
    with (
        samebits.Run(None, model=nn.Linear(1, 1)) as run,
        pytest.warns(ConflictWarning, match="in_order=False"),
    ):
        assert torch.cat([batch for _, batch in run.steps(out_of_order())]).tolist() == list(range(12))


def trained(optimizer, turns):
    """Steps the optimizer in a thread, waiting for its turns."""

    def steps():
        for turn in turns:
            turn.acquire()
            optimizer.step()

    thread = threading.Thread(target=steps)
    thread.start()
    return thread


def test_two_threads_that_train_in_turn_are_told(on):
    """Threads that step one optimizer alternately get a warning; one that goes on where another ended, or takes over, none (control)."""
    process.notices.clear()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(torch.ones(2)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
        turn = threading.Semaphore(1)
        trained(optimizer, [turn]).join()
        optimizer.step()
        assert not process.notices
    one, two = threading.Semaphore(0), threading.Semaphore(0)
    threads = [trained(optimizer, [one] * 2), trained(optimizer, [two] * 2)]
    for turn in (one, two, one, two):
        turn.release()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert "train the same parameters" in process.notices["threads"]

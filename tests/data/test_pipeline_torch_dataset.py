"""A pipeline in other people's loaders, and on a device."""

import json

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from samebits.data import Pipeline
from samebits.errors import InvalidArgumentError, UnimplementedError

pytestmark = pytest.mark.timeout(120)


def noisy(n):
    return {"x": torch.rand(3) + n, "n": n}


def pipeline(**options):
    return Pipeline.range(40).shuffle().map(noisy).batch(4).with_options(seed=2, **options)


def plain(batches):
    return [(batch["x"].tolist(), batch["n"].tolist()) for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_loader_gives_the_pipelines_elements(workers):
    """Two epochs through torch's DataLoader are the pipeline's two epochs, and it knows their length."""
    direct = pipeline()
    loader = DataLoader(pipeline(num_parallel_calls=workers).as_iterable_dataset(), batch_size=None)
    assert len(loader) == 10
    epochs = [plain(loader), plain(loader)]
    assert epochs == [plain(direct), plain(direct)] and epochs[0] != epochs[1]


@pytest.mark.parametrize("cut", [0, 1, 7, 10, 13])
def test_a_position_taken_through_torchs_loader_resumes(cut):
    """state_dict of the dataset counts what the loader handed out; another loader goes on with the same bits."""
    whole = pipeline()
    expected = plain(whole) + plain(whole)
    dataset = pipeline(num_parallel_calls=2).as_iterable_dataset()
    loader = DataLoader(dataset, batch_size=None)
    got = []
    while len(got) < cut:
        for batch in loader:
            got += plain([batch])
            if len(got) == cut:
                state = json.loads(json.dumps(dataset.state_dict()))
                break
    if cut == 0:
        state = dataset.state_dict()
    resumed = pipeline().as_iterable_dataset()
    resumed.load_state_dict(state)
    loader = DataLoader(resumed, batch_size=None)
    rest = plain(loader)
    if cut + len(rest) < 20:
        rest += plain(loader)
    assert got + rest == expected


def test_torchs_workers_are_refused_with_the_cure():
    """A pipeline is not split among torch's workers: the error says where workers belong."""
    loader = DataLoader(
        pipeline().as_iterable_dataset(), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(UnimplementedError, match="num_workers=0.*num_parallel_calls"):
        next(iter(loader))


def test_in_torchs_workers_a_pipeline_of_its_own_has_no_workers():
    """A dataset that reads a pipeline inside torch's worker reads it there: daemons have no children."""

    class Reads(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return sum(batch["x"].sum() for batch in pipeline(num_parallel_calls=2))

    loader = DataLoader(Reads(), num_workers=1, multiprocessing_context="fork")
    assert [x.item() for x in loader] == [Reads()[0].item(), Reads()[1].item()]


def test_the_cpu_is_a_device():
    """prefetch(device="cpu") gives the same elements and the same state, whatever they hold besides tensors."""
    there = iter(pipeline().prefetch(2, device="cpu"))
    here = iter(pipeline())
    assert plain([next(there), next(there)]) == plain([next(here), next(here)])
    assert there.state_dict() == here.state_dict()
    mixed = Pipeline.range(2).map(lambda n: (np.arange(3), "text", n)).prefetch(1, device="cpu")
    assert list(mixed.with_options(seed=1))[1][1:] == ("text", 1)


def test_a_device_gets_tensors_wherever_they_are():
    """Tensors in dicts, lists and tuples are moved; shown with the meta device, which every machine has."""
    moved = next(
        iter(
            Pipeline.range(2)
            .map(lambda n: {"a": [torch.ones(2), (torch.ones(1), 3)]})
            .prefetch(1, device="meta")
            .with_options(seed=1)
        )
    )
    assert moved["a"][0].device.type == moved["a"][1][0].device.type == "meta" and moved["a"][1][1] == 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to ask for")
def test_a_device_that_is_not_there_is_refused_at_once():
    """CUDA and pinned memory without a CUDA device, and what is no device, are errors when they are asked for."""
    with pytest.raises(InvalidArgumentError, match="device='cuda:0'.*no CUDA"):
        pipeline().prefetch(2, device="cuda:0")
    with pytest.raises(InvalidArgumentError, match="pin_memory=True.*no CUDA"):
        pipeline(pin_memory=True)
    with pytest.raises(InvalidArgumentError, match="device='gpu'"):
        pipeline().prefetch(2, device="gpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("workers", [0, 2])
def test_elements_on_a_gpu_are_those_of_the_cpu(workers):
    """With CUDA initialised workers come from the server; the copies are complete when the next kernel reads them."""
    torch.zeros(1, device="cuda")
    moved = pipeline(num_parallel_calls=workers).prefetch(2, device="cuda")
    assert plain({name: x + 0 for name, x in batch.items()} for batch in moved) == plain(pipeline())

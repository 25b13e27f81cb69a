"""`samebits.data.check` of loaders: each reading in a process of its own."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, RandomSampler

import samebits
from samebits.data import DataLoader, Pipeline, check
from samebits.errors import InvalidArgumentError, PipelineDifferenceError, PipelineError


class Noisy(Dataset):
    """Elements from generators of the process and of its own."""

    def __init__(self):
        self.own = np.random.default_rng()

    def __len__(self):
        return 30

    def __getitem__(self, index):
        return torch.rand(2) + index + self.own.random()


class Counting(Noisy):
    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return torch.tensor([index, self.reads])


class CountingLater(Noisy):
    """Its count matters after more calls than a loader compares."""

    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return torch.tensor([index, max(0, self.reads - 8)])


class Remembering(Noisy):
    """Keeps the first draw of its process."""

    kept = None

    def __getitem__(self, index):
        if self.kept is None:
            self.kept = torch.rand(2)
        return self.kept + index


LOADERS = {
    "shuffled": {"batch_size": 4, "shuffle": True},
    "one by one": {"batch_size": None},
    "sampler": {"batch_size": 4, "sampler": RandomSampler(range(30))},
    "persistent workers": {"batch_size": 4, "num_workers": 2, "persistent_workers": True},
}


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_is_read_in_all_ways(name):
    """0, 2 and 3 workers, and resumed: one digest, the same again; the loader's next epoch is still its first."""
    loader = DataLoader(Noisy(), seed=1, **LOADERS[name])
    assert check(loader) == check(loader) != check(DataLoader(Noisy(), seed=2, **LOADERS[name]))
    assert loader.state_dict()["epoch"] == 0


@pytest.mark.parametrize(
    ("dataset", "workers", "way"), [(CountingLater, [2], "with 2 workers"), (Counting, [], "resumed")]
)
def test_a_dataset_that_counts_is_named(dataset, workers, way):
    """Negative control: the way of reading that differs, the first batch, and the dataset."""
    loader = DataLoader(dataset(), 4, seed=1)
    with pytest.raises(PipelineDifferenceError, match=rf"{way}.*differs.*Counting\w* gives different bits"):
        check(loader, workers)


def test_a_collate_function_that_counts_is_named():
    """Negative control: the dataset is not blamed."""
    calls = []

    def collate(rows):
        calls.append(0)
        return torch.stack(rows) + len(calls)

    with pytest.raises(PipelineDifferenceError, match=r"collate_fn .*collate\) gives different bits"):
        check(DataLoader(Noisy(), 4, collate_fn=collate, seed=1))


def test_a_dataset_that_remembers_a_draw_is_refused():
    """Which element a process reads first would decide for all others in it: the error names what holds the draw."""
    with pytest.raises(PipelineError, match="Remembering.*draw is remembered in"):
        check(DataLoader(Remembering(), 4, seed=1))


def test_other_loaders_are_refused():
    """torch's own loader gets the line to type; a dataset, too."""
    with pytest.raises(
        InvalidArgumentError, match=r"torch's DataLoader; samebits.data.DataLoader\(\.\.\.\) takes"
    ):
        check(torch.utils.data.DataLoader(Noisy()))
    with pytest.raises(InvalidArgumentError, match="from_source"):
        check(Noisy())


def test_a_pipeline_has_the_digest_of_before():
    """Pipelines are read as they were: the digest is that of their elements."""
    samebits.set_random_seed(1)
    numbers = Pipeline.range(30).shuffle().batch(4)
    assert check(numbers) == iter_digest(numbers)


def iter_digest(pipeline):
    iterator = iter(pipeline)
    for _ in iterator:
        pass
    return iterator.state_dict()["digest"]

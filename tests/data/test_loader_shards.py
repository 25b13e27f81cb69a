"""A loader read by logical shards: each rank loads its own alone, together they are the batch, and keys of elements stay."""

import pytest
import torch

import samebits
from samebits.data._options import OwnShards

SIZE, ROWS = 48, 12


class Drawing(torch.utils.data.Dataset):
    """Elements that draw; it notes which are read in this process."""

    read = []

    def __len__(self):
        return SIZE

    def __getitem__(self, index):
        Drawing.read.append(index)
        return torch.tensor([float(index)]), torch.rand(1)


class AtOnce(Drawing):
    """One that reads a whole batch."""

    def __getitems__(self, indices):
        return [(torch.tensor([float(index)]), torch.rand(1)) for index in indices]


def collate(elements):
    return [*torch.utils.data.default_collate(elements), torch.rand(1)]


def keyed(number, key):
    return torch.tensor([float(number)]), samebits.random.uniform(key, (1,))


def with_keys(batch, key):
    return [*batch, key.view(torch.int64)]


def drawing(batch):
    return [*batch, torch.rand(2)]


Pipeline = samebits.data.Pipeline
LOADERS = {
    "loader": lambda workers: samebits.data.DataLoader(
        Drawing(), batch_size=ROWS, shuffle=True, num_workers=workers, seed=1
    ),
    "collate function": lambda workers: samebits.data.DataLoader(
        Drawing(), batch_size=ROWS, shuffle=True, num_workers=workers, seed=1, collate_fn=collate
    ),
    "pipeline": lambda workers: (
        Pipeline.from_source(Drawing())
        .shuffle()
        .batch(ROWS)
        .map(drawing)
        .with_options(num_parallel_calls=workers, seed=1)
    ),
    "stream": lambda workers: (
        Pipeline.from_iterable(list(range(SIZE)))
        .map(keyed)
        .batch(ROWS)
        .map_batches(with_keys)
        .with_options(num_parallel_calls=workers, seed=1)
    ),
    "sampler": lambda workers: samebits.data.DataLoader(
        Drawing(), batch_size=ROWS, num_workers=workers, seed=1, sampler=list(reversed(range(SIZE)))
    ),
}


def read(loader, **options):
    with loader._reading_as(options):
        batches = iter(loader)
    return list(batches)


def by_shards(make, shards, world_size, workers):
    """The batch of each (batch, shard), as the ranks read them."""
    found = {}
    for rank in range(world_size):
        own = OwnShards(shards, rank, world_size)
        for number, batches in enumerate(read(make(workers), shards=own)):
            found |= {(number, shard): one for shard, one in zip(own.numbers, batches, strict=True)}
    return [part for place in sorted(found) for part in found[place]]


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("shards", [4, 6])
def test_shards_are_equal_for_any_ranks_and_workers(name, shards):
    """1 to 4 ranks, 0 and 2 workers: the same shards, whose rows and draws are those of the whole batch."""
    make = LOADERS[name]
    expected = by_shards(make, shards, 1, 0)
    for world_size in (1, 2, 3, 4):
        for workers in (0, 2):
            found = by_shards(make, shards, world_size, workers)
            assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
    whole, parts = list(make(0)), len(expected) // (SIZE // ROWS) // shards
    for number, batch in enumerate(whole):
        for part in (0, 1):
            joined = torch.empty_like(batch[part])
            for shard in range(shards):
                joined[shard::shards] = expected[(number * shards + shard) * parts + part]
            assert torch.equal(joined, batch[part])


def test_a_rank_reads_its_own_rows_alone():
    """The elements that the ranks read are disjoint, and together all."""
    read_by = []
    for rank in range(3):
        Drawing.read.clear()
        read(LOADERS["loader"](0), shards=OwnShards(6, rank, 3))
        read_by.append(set(Drawing.read))
    assert set.union(*read_by) == set(range(SIZE)) and sum(map(len, read_by)) == SIZE


def test_shards_of_a_dataset_that_reads_at_once():
    """`__getitems__` gets the rows of one shard, with draws keyed by the first of them: any ranks are alike."""

    def make(workers):
        return samebits.data.DataLoader(AtOnce(), batch_size=ROWS, shuffle=True, seed=1, num_workers=workers)

    expected = by_shards(make, 6, 1, 0)
    assert all(map(torch.equal, by_shards(make, 6, 4, 2), expected))


@pytest.mark.parametrize("name", LOADERS)
def test_every_second_batch_is_the_whole_ones(name):
    """A validation that two ranks share reads each batch once, with the bits that one process reads."""
    whole = list(LOADERS[name](0))
    for first in (0, 1):
        for workers in (0, 2):
            own = read(LOADERS[name](workers), every=(first, 2))
            assert len(own) == len(whole[first::2])
            for mine, theirs in zip(own, whole[first::2], strict=True):
                assert all(map(torch.equal, mine, theirs))

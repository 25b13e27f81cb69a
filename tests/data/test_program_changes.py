import functools
import types
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, WeightedRandomSampler

import samebits
from samebits import _digest as digest
from samebits.data import DataLoader, Pipeline
from samebits.data._workers.program_changes import ReachedValues
from samebits.errors import ConflictWarning, PipelineMismatchError

LEVEL, CONFIG = 0, {"scale": 1.0}


class Images(Dataset):
    """Each part of it is something that a program may change between two epochs."""

    of_class = 0

    def __init__(self, count=24):
        self.x, self.array, self.count = torch.arange(24.0), np.arange(24.0), count
        self.names, self.transform = list(range(count)), None
        self.flag, self.config = 0, types.SimpleNamespace(strength=0)

    def __len__(self):
        return min(self.count, len(self.names))

    def __getitem__(self, index):
        value = (
            self.x[index % 24] + self.array[index % 24] + self.names[index] + self.changed() + torch.rand(())
        )
        return value if self.transform is None else self.transform(value)

    def changed(self):
        return (
            self.flag
            + self.of_class
            + self.config.strength
            + LEVEL
            + CONFIG["scale"]
            + getattr(self, "late", 0)
        )


class Mix:
    alpha = 1.0

    def __call__(self, rows):
        rows = torch.stack(rows)
        return rows + rows.roll(1, 0) * self.alpha


def of_dataset(change):
    def build():
        dataset = Images()
        return {"dataset": dataset, "shuffle": True}, functools.partial(change, dataset)

    return build


def of_subset():
    subset = Subset(Images(), list(range(24)))
    return {"dataset": subset, "shuffle": True}, lambda epoch: setattr(
        subset, "indices", list(range(epoch, 24))
    )


def of_sampler():
    sampler = WeightedRandomSampler(torch.ones(24), 24)
    weights = torch.eye(24, dtype=torch.double)
    return {"dataset": Images(), "sampler": sampler}, lambda epoch: setattr(
        sampler, "weights", weights[epoch] + 0.01
    )


def of_collate():
    mix = Mix()
    return {"dataset": Images(), "collate_fn": mix}, lambda epoch: setattr(mix, "alpha", epoch / 10)


def of_closure():
    level = 0

    def collate(rows):
        return torch.stack(rows) + level

    def change(epoch):
        nonlocal level
        level = epoch

    return {"dataset": Images(), "collate_fn": collate}, change


def noise(value):
    return value + torch.rand(())


CHANGES = {
    "attribute": of_dataset(lambda data, epoch: setattr(data, "flag", 10 * epoch)),
    "new attribute": of_dataset(lambda data, epoch: setattr(data, "late", epoch)),
    "attribute of the class": of_dataset(lambda data, epoch: setattr(Images, "of_class", epoch)),
    "attribute of a part": of_dataset(lambda data, epoch: setattr(data.config, "strength", epoch)),
    "global variable": of_dataset(lambda data, epoch: globals().update(LEVEL=epoch)),
    "item of a global dict": of_dataset(lambda data, epoch: CONFIG.update(scale=float(epoch))),
    "transform": of_dataset(lambda data, epoch: setattr(data, "transform", noise if epoch == 1 else None)),
    "list that grows": of_dataset(lambda data, epoch: (data.names.extend([7] * 5), setattr(data, "count", 99))),
    "length that falls": of_dataset(lambda data, epoch: setattr(data, "count", 24 - 5 * epoch)),
    "array": of_dataset(lambda data, epoch: setattr(data, "array", np.full(24, epoch + 0.5))),
    "array, in place": of_dataset(lambda data, epoch: data.array.__iadd__(1)),
    "tensor, in place": of_dataset(lambda data, epoch: data.x.add_(1)),
    "indices of a subset": of_subset,
    "weights of a sampler": of_sampler,
    "attribute of a collate object": of_collate,
    "variable of a closure": of_closure,
}  # fmt: skip


def read(kind, workers=0, *, between=True, epochs=3, resumed=None, persistent=False):
    """The batches, where `change` is called before each epoch, or in the body of its second batch."""
    samebits.set_random_seed(3)
    globals().update(LEVEL=0, CONFIG={"scale": 1.0})
    Images.of_class = 0
    arguments, change = CHANGES[kind]()
    loader = DataLoader(batch_size=4, num_workers=workers, persistent_workers=persistent, **arguments)
    batches, states = [], []
    for epoch in range(epochs):
        if between:
            change(epoch)
        if resumed and epoch < resumed["epoch"]:
            continue
        if resumed:
            loader.load_state_dict(resumed)
            resumed = None
        for number, batch in enumerate(loader):
            batches.append(digest.of_value(batch))
            states.append(loader.state_dict())
            if number == 1 and not between:
                change(epoch)
    return batches, states


QUICK = {"attribute", "transform", "length that falls", "array, in place"}


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in QUICK else pytest.mark.slow) for kind in CHANGES]
)
def test_workers_have_what_the_program_changed(kind):
    """What changes between two epochs reaches 2 workers, new or persistent, and a resume in each epoch, as it does 0."""
    batches, states = read(kind)
    assert read(kind, 2)[0] == batches
    assert read(kind, 2, persistent=True)[0] == batches
    for cut in (2, len(batches) // 2, len(batches) - 2):
        assert read(kind, resumed=states[cut - 1])[0] == batches[cut:]


@pytest.mark.parametrize(
    "kind",
    [
        "attribute",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in ("transform", "array, in place", "variable of a closure")
        ),
    ],
)
def test_a_change_in_mid_epoch_reaches_the_next_batch(kind):
    """Batches that workers have computed ahead are dropped: the next one has the change, as without workers."""
    batches, _ = read(kind, between=False)
    assert read(kind, 2, between=False)[0] == batches == read(kind, 1, between=False, persistent=True)[0]
    assert batches != read(kind, epochs=1)[0] + read(kind)[0][6:]


def test_a_large_array_changed_in_mid_epoch_is_seen_in_the_next():
    """Negative control, and the limit that docs/explanation/limits.md names: NumPy does not tell that an array was written to."""

    def batches(workers):
        data = Images()
        data.array = np.zeros(100_000)
        loader = DataLoader(data, batch_size=4, num_workers=workers, persistent_workers=workers > 0)
        for _ in range(2):
            for number, batch in enumerate(loader):
                yield batch.tolist()
                if number == 1:
                    data.array += 1

    alone, ahead = list(batches(0)), list(batches(2))
    assert alone[:2] == ahead[:2] and alone[2] != ahead[2]
    assert alone[6:8] == ahead[6:8]


def test_what_changes_at_each_batch_is_read_in_this_process():
    """A strength that follows the step is right with workers, too, and a warning says why they do not work."""

    def batches(workers):
        mix = Mix()
        for number, batch in enumerate(
            DataLoader(Images(), batch_size=2, num_workers=workers, collate_fn=mix, seed=1)
        ):
            mix.alpha = number / 12
            yield digest.of_value(batch)

    expected = list(batches(0))
    with pytest.warns(ConflictWarning, match=r"changes `Mix.alpha` between batches"):
        assert list(batches(2)) == expected


def test_persistent_workers_live_on_while_nothing_changes():
    """Workers are the same processes in each epoch, until something is changed, or something cannot be compared."""

    def workers_of(data, change):
        loader = DataLoader(data, batch_size=4, num_workers=1, persistent_workers=True, seed=1)
        pools = []
        for epoch in range(2):
            list(loader)
            pools.append(loader._kept_workers[0])
            change(epoch)
        list(loader)
        return [pool is loader._kept_workers[0] for pool in pools]

    data = Images()
    data.unread = 0
    assert workers_of(data, lambda epoch: setattr(data, "unread", epoch)) == [True, True]
    assert workers_of(data, lambda epoch: setattr(data, "flag", epoch)) == [False, False]
    data.names = list(map(torch.tensor, range(1000)))  # more than are looked into
    assert workers_of(data, lambda epoch: None) == [False, False]


def test_a_map_of_a_pipeline_has_what_the_program_changed():
    """A map's object that changes in mid-epoch, of a pipeline that never ends, is as without workers."""

    class Shift:
        by = 0

        def __call__(self, x):
            return x + self.by + torch.rand(())

    def elements(workers):
        shift = Shift()
        pipeline = (
            Pipeline.range(8).map(shift).batch(2).repeat().with_options(seed=2, num_parallel_calls=workers)
        )
        for number, element in zip(range(30), pipeline, strict=False):
            yield element.tolist()
            if number in (9, 20):
                shift.by = number

    assert list(elements(2)) == list(elements(0))


def test_a_collate_method_does_not_see_the_counters_of_its_trainer():
    """What the code of the functions does not name may change at each step without a new start of the workers."""

    class Trainer:
        def __init__(self):
            self.step, self.pad = 0, 1.0

        def collate(self, rows):
            return torch.stack(rows) * self.pad

        def train(self):
            loader = DataLoader(Images(), batch_size=2, num_workers=2, collate_fn=self.collate, seed=1)
            for _ in loader:
                self.step += 1
            return self.step

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Trainer().train() == 12
    trainer = Trainer()
    reached = ReachedValues([trainer.collate], whole=True)
    trainer.step += 1
    assert reached.changed() is None and not reached.may_differ([trainer.collate])
    trainer.pad = 2.0
    assert reached.changed().endswith("Trainer.pad") and reached.may_differ([trainer.collate])


def test_a_position_in_an_epoch_of_another_length_is_refused():
    """Negative control: a position belongs to an epoch of its length, which the message names."""
    _, states = read("length that falls")
    loader = DataLoader(Images(), batch_size=4, shuffle=True, seed=3)
    with pytest.raises(PipelineMismatchError, match="length=24"):
        loader.load_state_dict(states[-1])

import functools
import json
import multiprocessing
import os
import random
import re
import signal
import tempfile
import time
import warnings
from collections import UserDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import samebits
from samebits import _digest as digest
from samebits._context import Position, process
from samebits.data import DataLoader, Pipeline
from samebits.errors import (
    ConflictWarning,
    EmptyDatasetError,
    InvalidArgumentError,
    PipelineError,
    PipelineMismatchError,
    UnimplementedError,
    UnseededError,
)
from samebits.random._process import generator_states
from waiting import is_alive, wait_until


class Noisy(Dataset):
    """Every element draws from all three global generators, like an unmodified augmentation."""

    def __init__(self, length=37):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.tensor(
            [index, torch.randn(()).item(), np.random.randn(), random.random(), torch.rand(()).item()]
        )


class Counting(Noisy):
    """Negative control: what an element gets depends on how many were read before."""

    calls = 0

    def __getitem__(self, index):
        self.calls += 1
        return torch.tensor([index, self.calls])


def mixup(elements):
    batch = torch.stack(elements)
    return batch.roll(1, 0) * torch.rand(1) + batch * np.random.rand()


@pytest.fixture(autouse=True)
def seeded():
    samebits.set_random_seed(11)


def stream(loader, epochs=2):
    return [[digest.of_value(batch) for batch in loader] for _ in range(epochs)]


ORDERS = {
    "in order": {"batch_size": 5},
    "shuffled": {"batch_size": 5, "shuffle": True},
    "drop_last": {"batch_size": 5, "shuffle": True, "drop_last": True},
    "one by one": {"batch_size": None, "shuffle": True},
    "sampler": {"batch_size": 4, "sampler": lambda: WeightedRandomSampler(torch.arange(1.0, 38), 30)},
    "sampler with generator": {
        "batch_size": 4,
        "sampler": lambda: RandomSampler(range(37), generator=torch.Generator().manual_seed(3)),
    },
    "batch_sampler": {"batch_sampler": lambda: BatchSampler(RandomSampler(range(37)), 6, drop_last=False)},
    "collate draws": {"batch_size": 5, "shuffle": True, "collate_fn": mixup},
}


def make(order, dataset=None, **more):
    arguments = {k: v() if k.endswith("sampler") else v for k, v in ORDERS[order].items()}
    return DataLoader(dataset or Noisy(), **arguments, **more)


@pytest.mark.first_case_quick
@pytest.mark.parametrize("order", ORDERS)
def test_same_bits_for_any_number_of_workers(order):
    """0, 1 and 3 workers give the same stream, for elements and collates that draw from the global generators."""
    expected = stream(make(order))
    assert stream(make(order, num_workers=1)) == expected
    assert stream(make(order, num_workers=3)) == expected
    assert expected[0] != expected[1]


def test_persistent_workers_give_the_same_stream():
    """Workers that live over epochs give the stream of no workers."""
    assert stream(make("shuffled", num_workers=2, persistent_workers=True), 3) == stream(make("shuffled"), 3)


class CountingBatches(Noisy):
    """The same, of a dataset that reads a whole batch, holds a large array, and returns a plain count."""

    def __init__(self):
        super().__init__()
        self.large, self.seen = np.zeros(1 << 18), []

    def __getitems__(self, indices):
        self.seen.append(len(indices))
        return [(self.large[index], len(self.seen)) for index in indices]


class Previous(Noisy):
    """Adds the element before, which is 0 at first."""

    last = torch.zeros(1)

    def __getitem__(self, index):
        before, self.last = self.last, torch.tensor([float(index)])
        return before + index


def counting_collate():
    calls = 0

    def collate(rows):
        nonlocal calls
        calls += 1
        return torch.tensor([calls, len(rows)])

    return collate


@pytest.mark.parametrize("kind", ["element", "batch", "previous", "collate", "iterator"])
def test_what_depends_on_the_calls_before_is_read_in_this_process(kind):
    """A count, an element before, an iterator: 0 and 2 workers give the stream of torch's loader with 0, and a warning."""

    def build(kind_of_loader, **more):
        if kind == "collate":
            return kind_of_loader(Noisy(), 5, collate_fn=counting_collate(), **more)
        if kind == "iterator":
            return kind_of_loader(Noisy(), 5, collate_fn=lambda rows, it=iter(range(99)): next(it), **more)
        datasets = {"element": Counting, "batch": CountingBatches, "previous": Previous}
        return kind_of_loader(datasets[kind](), 5, **more)

    expected = stream(build(torch.utils.data.DataLoader))
    assert stream(build(DataLoader)) == expected
    with pytest.warns(ConflictWarning, match="DataLoader: .* has a side effect"):
        assert stream(build(DataLoader, num_workers=2)) == expected


class Caching(Noisy):
    """Negative control: it keeps what it has computed, and counts for a printout."""

    def __init__(self):
        super().__init__()
        self.cache, self.calls, self.index = {}, 0, None

    def __getitem__(self, index):
        self.calls += 1
        self.index = index
        if index not in self.cache:
            self.cache[index] = torch.tensor([self.index * 2.0])
        return self.cache[index]


def test_a_cache_and_a_count_that_no_element_has_leave_workers_at_work():
    """What a call leaves without a trace in an element is no reason to read in this process: no warning."""
    loader = make("in order", Caching(), num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConflictWarning)
        assert stream(loader) == stream(make("in order", Caching()))
    assert loader.dataset.calls == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_collate_function_with_a_generator_that_cannot_be_set_is_refused(workers):
    """The system's generator, in an object that the collate function holds, in tokens or arrays: a PipelineError."""

    class Dropout:
        def tokens(self, rows):
            return [[random.SystemRandom().randrange(9) for _ in range(20)] for _ in rows]

        def arrays(self, rows):
            return UserDict(x=torch.stack(rows) + int.from_bytes(os.urandom(4), "little"))

    for collate in (
        Dropout().tokens,
        functools.partial(Dropout().arrays),
        lambda rows, held=Dropout(): held.tokens(rows),
    ):
        with pytest.raises(PipelineError, match=r"collate_fn .*two calls for batch 0"):
            list(DataLoader(Noisy(), 5, num_workers=workers, collate_fn=collate))


@pytest.mark.first_case_quick
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_resumes_at_every_batch(order, workers):
    """From the state after any batch, through JSON, a new loader with other workers continues with the same bits."""
    whole = [batch for epoch in stream(make(order), 2) for batch in epoch]
    steps = len(make(order))
    for cut in range(0, steps + 1, 1 if workers == 0 else 4):
        loader = make(order)
        batches = iter(loader)
        for _ in range(cut):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        resumed = make(order, num_workers=workers)
        resumed.load_state_dict(state)
        assert [batch for epoch in stream(resumed, 2) for batch in epoch] == whole[cut:], cut


@pytest.mark.parametrize("order", ["sampler", "batch_sampler of lists"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_has_changed_in_mid_epoch_ends_the_resume(order, workers):
    """Other indices for the batches that were given are refused, before a batch; changed for later ones only, or at an epoch's end, nothing is."""
    weights, lists = torch.ones(37, dtype=torch.float64), [[1, 2], [3], [4, 5, 6], [7, 8]]
    make_order = {
        "sampler": lambda: {"batch_size": 4, "sampler": WeightedRandomSampler(weights, 30)},
        "batch_sampler of lists": lambda: {"batch_sampler": lists},
    }[order]
    loader, whole = (DataLoader(Noisy(), seed=1, **make_order()) for _ in range(2))
    states = [loader.state_dict() for _ in zip(range(2), loader, strict=False)]
    assert len(list(whole)) == len(whole)
    weights[5], lists[0][0] = 100.0, 9
    for state in states:
        changed = DataLoader(Noisy(), seed=1, num_workers=workers, **make_order())
        changed.load_state_dict(state)
        with pytest.raises(PipelineMismatchError, match="gives other indices for the first"):
            next(iter(changed))
    changed.load_state_dict(whole.state_dict())
    assert len(list(changed)) == len(changed)
    lists[0][0], lists[3][0] = 1, 9
    if order != "sampler":
        changed.load_state_dict(states[1])
        assert len(list(changed)) == 2


@pytest.mark.parametrize("order", ["shuffled", "sampler", "collate draws"])
def test_the_state_is_that_of_a_pipeline(order):
    """A loader's state has a pipeline's schema, and is after a resume that of the whole epoch; its digest is of a sampler's indices."""
    whole, cut = make(order), make(order, num_workers=2)
    batches, begun = iter(whole), iter(cut)
    for _ in range(5):
        next(batches)
    next(begun), next(begun)
    resumed = make(order)
    resumed.load_state_dict(json.loads(json.dumps(cut.state_dict())))
    rest = iter(resumed)
    for _ in range(3):
        next(rest)
    assert resumed.state_dict() == whole.state_dict() == batches.state_dict() != cut.state_dict()
    assert whole.state_dict().keys() == Pipeline.range(3).with_options(seed=1).state_dict().keys()
    assert (whole.state_dict()["digest"] == "0" * 16) == ("sampler" not in order)


def test_prefetched_batches_are_not_counted():
    """The state tells the batches handed out, not those that workers made ahead."""
    loader = make("in order", num_workers=2, prefetch_factor=4)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert (state["delivered"], state["state"]) == (1, 1)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["shuffled", "sampler", "collate draws"])
def test_the_callers_generators_do_not_move(order, workers):
    """Creating, iterating, abandoning and resuming a loader leaves torch's, NumPy's and Python's generators alone."""
    torch.randn(1), np.random.randn(), random.gauss(0, 1)  # leaves a kept normal behind in each
    before = generator_states.digest()
    loader = make(order, num_workers=workers)
    next(iter(loader))
    stream(loader)
    loader.load_state_dict(loader.state_dict())
    stream(loader, 1)
    assert generator_states.digest() == before
    torch.rand(1)
    assert generator_states.digest() != before


def test_shuffling_is_a_permutation_that_depends_on_seed_and_epoch():
    """Each epoch visits each element once, in an order of its own; another seed, another order."""
    loader = DataLoader(range(1000), batch_size=7, shuffle=True)
    epochs = [torch.cat(list(loader)).tolist() for _ in range(3)]
    assert all(sorted(order) == list(range(1000)) for order in epochs)
    assert len({tuple(order) for order in epochs}) == 3
    other = DataLoader(range(1000), batch_size=7, shuffle=True, seed=12)
    assert torch.cat(list(other)).tolist() != epochs[0]


def test_the_seed_comes_from_the_argument_the_generator_or_the_process():
    """seed=, generator= and set_random_seed with the same number give the same order."""
    by_process = list(DataLoader(range(50), shuffle=True))
    samebits.set_random_seed(99)
    by_argument = list(DataLoader(range(50), shuffle=True, seed=11))
    by_generator = list(DataLoader(range(50), shuffle=True, generator=torch.Generator().manual_seed(11)))
    assert by_process == by_argument == by_generator
    assert list(DataLoader(range(50), shuffle=True)) != by_process


def test_drawing_twice_the_same_index_augments_twice():
    """Sampling with replacement does not repeat the augmentation of an element: it is keyed by its ordinal."""
    loader = DataLoader(Noisy(), batch_size=50, sampler=[7] * 50)
    (batch,) = loader
    assert len(set(batch[:, 1].tolist())) == 50


def test_elements_of_large_seeds_differ():
    """Seeds 7 and 7 + 2^32 give different elements (torch.manual_seed would give the same)."""
    a, b = (torch.cat(list(DataLoader(Noisy(), batch_size=8, seed=seed))) for seed in (7, 7 + 2**32))
    assert not torch.equal(a[:, 1:], b[:, 1:])


def test_inside_a_run_another_loader_is_keyed_by_the_position():
    """A loader iterated in the body of a run's loop gives the same batches at the same step, whatever came before."""
    loader = make("shuffled")
    process.position = Position("train", 0, 4, 4)
    first = stream(loader, 2)
    assert first[0] == first[1]
    process.position = Position("train", 0, 5, 5)
    assert stream(loader, 1)[0] != first[0]
    process.position = None
    assert loader.state_dict()["epoch"] == 0


def test_getitems_is_used_and_keyed():
    """A dataset that reads whole batches (`__getitems__`) is asked for batches, with generators set per batch."""

    class Batched(Noisy):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    assert stream(make("shuffled", Batched())) == stream(make("shuffled", Batched(), num_workers=2))


def test_initial_seed_inside_an_element_does_not_tell_the_worker():
    """torch.initial_seed() in `__getitem__`, often used to seed libraries, depends on the element alone."""

    class Seed(Noisy):
        def __getitem__(self, index):
            return torch.initial_seed()

    assert stream(make("in order", Seed())) == stream(make("in order", Seed(), num_workers=3))


def test_worker_info_shows_the_users_dataset():
    """get_worker_info().dataset in worker_init_fn is the user's own dataset."""

    def init(worker):
        torch.utils.data.get_worker_info().dataset.length = 1000 + worker

    class Length(Noisy):
        def __getitem__(self, index):
            return self.length

    (batch,) = DataLoader(Length(), batch_size=37, num_workers=1, worker_init_fn=init)
    assert batch.tolist() == [1000] * 37


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"num_workers": -1}, InvalidArgumentError, "num_workers=-1"),
        ({"num_workers": 1.5}, InvalidArgumentError, "num_workers=1.5"),
        ({"batch_size": 0}, InvalidArgumentError, "batch_size=0"),
        ({"seed": -3}, InvalidArgumentError, "seed=-3"),
        ({"shuffle": True, "sampler": [1]}, InvalidArgumentError, "mutually exclusive"),
        ({"in_order": False}, UnimplementedError, "in_order"),
        ({"dataset": []}, EmptyDatasetError, "length 0"),
        ({"dataset": 3}, InvalidArgumentError, "__len__"),
    ],
)
def test_bad_arguments_are_named(arguments, error, words):
    """A bad argument raises one clear error that names it."""
    with pytest.raises(error, match=words):
        DataLoader(**{"dataset": Noisy(), **arguments})


def test_iterable_datasets_are_refused():
    """An IterableDataset has no element numbers; the error says what to do."""

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(UnimplementedError, match="map-style"):
        DataLoader(Stream())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"batch_size": 6}, r"DataLoader\(batch_size=6\) was different"),
        ({"shuffle": False}, r"DataLoader\(order=shuffle=False\) was different"),
        ({"drop_last": True}, r"DataLoader\(drop_last=True\) was different"),
        ({"seed": 4}, "seed 4 was different"),
        ({"dataset": Noisy(36)}, r"DataLoader\(length=36\) was different"),
        ({"dataset": Counting()}, r"DataLoader\(dataset=Counting\) was different"),
    ],
)
def test_a_position_of_another_pipeline_is_refused(change, named):
    """load_state_dict names what differs between the two pipelines."""
    state = DataLoader(Noisy(), batch_size=5, shuffle=True).state_dict()
    other = DataLoader(**{"dataset": Noisy(), "batch_size": 5, "shuffle": True, **change})
    with pytest.raises(PipelineMismatchError, match=named):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    "state", [{}, {"epoch": 1}, {"epoch": 1, "batch_index": 0, "pipeline": {"seed": 11}}, None, [1]]
)
def test_what_is_no_state_is_refused(state):
    """Anything that is not a state of this class is refused by name."""
    with pytest.raises(PipelineMismatchError, match="not a state"):
        DataLoader(Noisy()).load_state_dict(state)


@pytest.mark.slow
def test_unseeded_under_the_switch_raises(python):
    """With the switch on and no seed, a loader refuses to make an order; off, it differs from run to run as torch's."""
    out = python(
        "import samebits\nsamebits.enable_op_determinism()\n"
        "try:\n    next(iter(samebits.data.DataLoader(range(9), shuffle=True)))\n"
        "except samebits.errors.UnseededError as error:\n    print('refused', error)\n"
    ).stdout
    assert "refused" in out and "set_random_seed" in out
    source = "import samebits\nprint([int(x) for x in samebits.data.DataLoader(range(99), shuffle=True)])"
    assert python(source).stdout != python(source).stdout
    assert UnseededError.__mro__[2] is RuntimeError


@pytest.mark.slow
def test_workers_need_no_main_guard(python):
    """A script without `if __name__ == "__main__"` may use workers."""
    assert (
        "ok"
        in python(
            "import samebits\nprint(len(list(samebits.data.DataLoader(range(9), num_workers=2, seed=1))), 'ok')"
        ).stdout
    )


@pytest.mark.slow
def test_workers_die_with_their_parent(python):
    """SIGKILL of the training process leaves no worker behind."""
    out = python(
        "import os, signal, samebits, multiprocessing\n"
        "it = iter(samebits.data.DataLoader(range(9), num_workers=2, seed=1))\nnext(it)\n"
        "print(*[p.pid for p in multiprocessing.active_children()], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
        code=-9,
    ).stdout
    pids = [int(p) for p in out.split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(map(is_alive, pids)), 50)


def test_an_error_in_a_worker_keeps_its_traceback():
    """An exception in the dataset reaches the caller with the user's line, from a worker as from the process itself."""

    class Broken(Noisy):
        def __getitem__(self, index):
            raise KeyError("no such image")

    for workers in (0, 1):
        before = generator_states.digest()
        with pytest.raises(KeyError, match="no such image"):
            next(iter(make("in order", Broken(), num_workers=workers)))
        assert generator_states.digest() == before


class Unlucky(torch.utils.data.Dataset):
    """Nine elements; number 7 raises."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        return 9

    def __getitem__(self, index):
        if index == 7:
            raise self.error
        return torch.full((2,), index)


class UnluckyAtOnce(Unlucky):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Unpicklable(Exception):
    def __init__(self, file, why):
        super().__init__(f"{file}: {why}")


def told(dataset, workers, **options):
    """The type, the message and the notes of what an epoch in batches of two raises."""
    loader = samebits.data.DataLoader(dataset, seed=1, num_workers=workers, **{"batch_size": 2, **options})
    with pytest.raises(Exception) as caught:
        for _ in loader:
            pass
    return caught.type, str(caught.value), "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_users_code_is_told_with_its_element_and_batch(workers):
    """What a dataset or a collate_fn raises keeps its type and message, and a note names class, index, batch and worker."""
    where = ", in worker [01]" if workers else "$"
    kind, message, notes = told(Unlucky(ValueError("cannot decode")), workers)
    assert (kind, message) == (ValueError, "cannot decode")
    assert re.search(rf"raised by Unlucky\[7\], for batch 3 of the epoch{where}", notes), notes
    kind, _, notes = told(Unlucky(OSError(5, "no disk")), workers, batch_size=None)
    assert kind is OSError and re.search(rf"Unlucky\[7\], for batch 7 of the epoch{where}", notes), notes
    kind, _, notes = told(UnluckyAtOnce(KeyError(3)), workers)
    assert kind is KeyError and "by UnluckyAtOnce.__getitems__, for batch 3" in notes, notes
    kind, _, notes = told(list(map(torch.ones, range(4))), workers)  # of unequal lengths
    assert kind is RuntimeError and "by collate_fn (default_collate), for batch 0" in notes, notes


def test_an_error_that_cannot_be_pickled_keeps_its_message():
    """An exception that no other process can rebuild comes as a PipelineError that says what it was."""
    kind, message, notes = told(Unlucky(Unpicklable("a.png", "cut off")), 1)
    assert kind is PipelineError and message.endswith("Unpicklable: a.png: cut off"), message
    assert "raised by Unlucky[7]" in notes


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stop_iteration_in_a_dataset_does_not_end_the_epoch(workers):
    """StopIteration in __getitem__ is an error; torch's loader (control) silently leaves out the rest of the epoch."""
    loader = samebits.data.DataLoader(Unlucky(StopIteration()), batch_size=2, seed=1, num_workers=workers)
    with pytest.raises(PipelineError, match=r"StopIteration, raised by Unlucky\[7\], for batch 3"):
        list(loader)
    assert len(list(torch.utils.data.DataLoader(Unlucky(StopIteration()), batch_size=2))) == 3 < len(loader)


@given(
    length=st.integers(1, 60),
    size=st.integers(1, 20),
    drop=st.booleans(),
    epochs=st.integers(1, 3),
    data=st.data(),
)
def test_any_cut_resumes(length, size, drop, epochs, data):
    """For any length, batch size and cut point, the resumed stream is the tail of the whole."""

    def new():
        return DataLoader(Noisy(length), batch_size=size, shuffle=True, drop_last=drop, seed=5)

    whole = [b for e in stream(new(), epochs) for b in e]
    cut = data.draw(st.integers(0, len(whole)))
    loader, got = new(), []
    while len(got) < cut:
        for batch in loader:
            got.append(digest.of_value(batch))
            if len(got) == cut:
                break
        if len(new()) == 0:
            break
    resumed = new()
    resumed.load_state_dict(loader.state_dict())
    while len(got) < len(whole):
        got += [digest.of_value(batch) for batch in resumed]
    assert got == whole


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_an_abandoned_epoch_does_not_reach_the_next(persistent):
    """Batches that workers made for an epoch that was left early are not given out in the next one."""
    expected = stream(make("shuffled"), 21)[20]
    loader = make("shuffled", num_workers=2, persistent_workers=persistent, prefetch_factor=2)
    for _ in range(20):
        batches = iter(loader)
        next(batches)
        time.sleep(0.01)  # more is done than asked for
        next(batches)
    assert stream(loader, 1)[0] == expected


def test_two_iterations_share_persistent_workers():
    """An iteration inside another's has the same persistent workers, and takes no batch of the other's away."""
    loader, alone = make("shuffled", num_workers=2, persistent_workers=True), make("shuffled")
    position = Position("train", 0, 4, 4)
    inner = [digest.of_value(batch) for batch in alone._iter_at(position, 3)]
    outer = []
    for batch in loader:
        outer.append(digest.of_value(batch))
        assert [digest.of_value(batch) for batch in loader._iter_at(position, 3)] == inner
    assert outer == stream(alone, 1)[0] and len(loader._kept_workers) == 1


@pytest.mark.parametrize("order", ["shuffled", "sampler", "one by one"])
def test_skipped_batches_are_not_read(order):
    """`skip_batches` goes to a later batch, of a sampler of the user's, too, and reads no element before it."""
    dataset = Counting()
    batches = iter(make(order, dataset))
    next(batches)
    before = dataset.calls
    batches.skip_batches(3)
    assert dataset.calls == before
    assert [digest.of_value(batch) for batch in _skipped(order)] == stream(make(order), 1)[0][4:]


def _skipped(order):
    batches = iter(make(order, num_workers=2))
    next(batches)
    batches.skip_batches(3)
    return batches


def test_a_dropped_iterator_ends_its_workers_and_leaves_the_position():
    """Workers end with the iterator, as torch's do, while the loader still knows the position."""
    before = {process.pid for process in multiprocessing.active_children()}
    loader = make("shuffled", num_workers=2)
    batches = iter(loader)
    first = digest.of_value(next(batches))
    assert len({process.pid for process in multiprocessing.active_children()} - before) == 2
    del batches
    assert {process.pid for process in multiprocessing.active_children()} == before
    resumed = make("shuffled")
    resumed.load_state_dict(loader.state_dict())
    assert [first, *stream(resumed, 1)[0]] == stream(make("shuffled"), 1)[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_caught_error_comes_again(workers):
    """After an error of the dataset the next batch raises it again: the epoch does not end early, no batch is left out."""
    batches = iter(DataLoader(Unlucky(ValueError("cannot decode")), 2, seed=1, num_workers=workers))
    assert len([next(batches) for _ in range(3)]) == 3
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot decode"):
            next(batches)


def test_persistent_workers_are_the_same_processes():
    """Workers with persistent_workers=True live from epoch to epoch; without it each epoch has its own."""

    class Pid(Noisy):
        def __getitem__(self, index):
            return os.getpid()

    for persistent in (False, True):
        loader = DataLoader(Pid(4), num_workers=1, persistent_workers=persistent)
        first, second = ({int(pid) for pid in loader} for _ in range(2))
        assert len(first) == 1 and (first == second) == persistent and os.getpid() not in first


def test_the_timeout_is_an_error():
    """`timeout` seconds without a batch raise a RuntimeError (torch's class) that names the batch and the dataset."""

    class Waiting(Noisy):
        def __getitem__(self, index):
            time.sleep(200 if index == 9 else 0)
            return index

    for timeout in (0.5, 4.0, 32.0):  # a loaded machine may not have the first ones so soon
        told = rf"batch . of DataLoader\(dataset=Waiting.*{timeout} seconds"
        with pytest.raises(RuntimeError, match=told) as caught:
            list(DataLoader(Waiting(), batch_size=4, num_workers=2, timeout=timeout))
        if "batch 2 of" in str(caught.value):
            return
    raise AssertionError(str(caught.value))


@pytest.mark.parametrize("context", ["fork", "spawn", multiprocessing.get_context("forkserver")])
def test_a_multiprocessing_context_gives_the_same_stream(context):
    """fork, and what torch's loader starts by importing `__main__` again, which ours does not."""
    data = TensorDataset(torch.arange(60.0).view(20, 3))
    expected = stream(DataLoader(data, batch_size=6, shuffle=True), 1)
    assert (
        stream(
            DataLoader(data, batch_size=6, shuffle=True, num_workers=1, multiprocessing_context=context), 1
        )
        == expected
    )


def test_a_loader_in_a_worker_reads_by_itself():
    """A dataset that iterates a loader with workers of its own, in a worker or not, gives the same elements."""

    class Nested(Noisy):
        def __getitem__(self, index):
            return sum(int(x) for x in DataLoader(range(index + 1), num_workers=2, seed=3))

    assert stream(make("in order", Nested(7), num_workers=2), 1) == stream(make("in order", Nested(7)), 1)


def test_a_killed_worker_is_replaced():
    """SIGKILL of a worker gives one warning and the same stream; torch's loader raises."""

    class Fatal(Noisy):
        def __getitem__(self, index):
            if torch.utils.data.get_worker_info() is not None and index == 11 and not os.path.exists(flag):
                open(flag, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(index)

    with tempfile.TemporaryDirectory() as folder:
        flag = os.path.join(folder, "killed")
        with pytest.warns(RuntimeWarning, match="signal 9.*same bits"):
            assert stream(make("shuffled", Fatal(), num_workers=2), 1) == stream(make("shuffled"), 1)

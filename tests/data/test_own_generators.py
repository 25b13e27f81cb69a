"""Generators that belong to objects: the same batches for any number of workers and after a resume."""

import functools
import os
import random
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Dataset, RandomSampler, Subset

import samebits
from samebits import _digest as digest
from samebits.data import DataLoader, Pipeline
from samebits.errors import ConflictWarning, PipelineError, UnseededError
from samebits.random._process import generator_states

script_generator = np.random.default_rng(3)


class Own:
    """A transform with one generator of each kind, in attributes, in a list, and as a bound method."""

    of_class = random.Random(5)

    def __init__(self, seed=3):
        self.several = [np.random.default_rng(seed), {"legacy": np.random.RandomState(seed)}]
        self.torch = torch.Generator().manual_seed(3 if seed is None else seed)
        self.choose = random.Random(seed).random

    def __call__(self, x):
        numpy, legacy = self.several[0], self.several[1]["legacy"]
        drawn = [
            numpy.random(),
            numpy.integers(0, 9, dtype=np.uint32),
            legacy.normal(),
            self.of_class.gauss(0, 1),
        ]
        return torch.tensor([float(x), *drawn, torch.rand((), generator=self.torch), self.choose()])


class Lazy:
    """Makes its generator at the first call, for each process another one."""

    generator = None

    def __call__(self, x):
        if self.generator is None:
            self.generator = np.random.default_rng(os.getpid())
        return torch.tensor([x, self.generator.random()])


class Added:
    """The same, in an attribute that was not there."""

    def __call__(self, x):
        if not hasattr(self, "generator"):
            self.generator = np.random.default_rng(os.getpid())
        return torch.tensor([x, self.generator.random()])


class Reseeding(Own):
    """Makes new generators from the process's, as the documented line does: `t.set_random_seed(int(torch.randint(...)))`."""

    def __call__(self, x):
        self.several[0] = np.random.default_rng(int(torch.randint(2**31, ())))
        return super().__call__(x)


def of_script(x):
    return torch.tensor([x, script_generator.random()])


def closure():
    generator = np.random.default_rng(3)
    return lambda x: torch.tensor([x, generator.random()])


def two_closures():
    first, second = closure(), closure()  # two variables of one name
    return lambda x: torch.stack([first(x), second(x)])


TRANSFORMS = {
    "attributes": Own,
    "unseeded": lambda: Own(None),
    "closure": closure,
    "two closures": two_closures,
    "global variable": lambda: of_script,
    "partial": lambda: functools.partial(Own()),
    "method": lambda: Own().__call__,
    "made at the first call": Lazy,
    "added at the first call": Added,
    "reseeding": Reseeding,
}


class Items(Dataset):
    def __init__(self, transform, length=23):
        self.transform, self.length = transform, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.transform(index)


class Gathered(Items):
    def __getitems__(self, indices):
        return [self.transform(index) for index in indices]


def collate_with(generator):
    return lambda rows: torch.stack(rows) + generator.random()


LOADERS = {
    "dataset": lambda f, **more: DataLoader(Items(f), 4, shuffle=True, **more),
    "batches at once": lambda f, **more: DataLoader(Gathered(f), 4, shuffle=True, **more),
    "one by one": lambda f, **more: DataLoader(Items(f), None, shuffle=True, **more),
    "subset": lambda f, **more: DataLoader(
        ConcatDataset([Subset(Items(f), range(9)), Items(f)]), 4, shuffle=True, **more
    ),
    "collate": lambda f, **more: DataLoader(
        Items(f), 4, collate_fn=collate_with(np.random.default_rng(1)), **more
    ),
}


@pytest.fixture(autouse=True)
def seeded():
    samebits.set_random_seed(11)


def stream(loader, epochs=2):
    return [[digest.of_value(batch) for batch in loader] for _ in range(epochs)]


def stream_of_torch(transform, workers):
    torch.manual_seed(1)
    loader = torch.utils.data.DataLoader(Items(transform), 4, num_workers=workers)
    return stream(loader, 1)


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transforms_own_generators_give_the_same_batches_for_any_number_of_workers(name):
    """0, 2 and 5 workers, and another object whose generators stand elsewhere: one stream, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=ConflictWarning)
        expected = stream(LOADERS["dataset"](TRANSFORMS[name]()))
        drawn_before = TRANSFORMS[name]()
        drawn_before(1)
        assert stream(LOADERS["dataset"](drawn_before, num_workers=2)) == expected
        assert stream(LOADERS["dataset"](TRANSFORMS[name](), num_workers=5)) == expected
    assert expected[0] != expected[1]


def test_torchs_loader_gives_other_batches_for_other_workers():
    """Negative control: torch's own DataLoader over the same dataset."""
    assert stream_of_torch(Own(), 0) != stream_of_torch(Own(), 2)


@pytest.mark.parametrize("where", LOADERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_continues_with_the_same_batches(where, workers):
    """From the state after any batch a new loader over a new object gives the rest."""
    loader = LOADERS[where](Own(None), num_workers=workers)
    first, states = [], []
    for batch in loader:
        first.append(digest.of_value(batch))
        states.append(loader.state_dict())
    for done in (1, 3):
        again = LOADERS[where](Own(None), num_workers=2 - workers)
        again.load_state_dict(states[done - 1])
        assert [digest.of_value(batch) for batch in again] == first[done:]


def test_elements_and_generators_draw_differently():
    """No two elements and no two generators of a kind get the same numbers."""
    rows = torch.cat(list(DataLoader(Items(two_closures()), 4)))
    assert len(set(rows[:, :, 1].flatten().tolist())) == 2 * 23


@pytest.mark.parametrize("workers", [0, 2])
def test_the_users_generators_do_not_move(workers):
    """A generator that dataset, sampler and training loop share draws in the loop as if there were no loader."""
    transform = Own()
    shared = transform.torch
    sampler = RandomSampler(range(23), generator=shared)
    states = [
        digest.of_value(shared.get_state()),
        transform.several[0].bit_generator.state,
        transform.of_class.getstate(),
    ]
    legacy = transform.several[1]["legacy"].get_state()[1].tolist()
    for _ in DataLoader(Items(transform), 4, sampler=sampler, num_workers=workers):
        assert digest.of_value(shared.get_state()) == states[0]
        assert [transform.several[0].bit_generator.state, transform.of_class.getstate()] == states[1:]
    assert transform.several[1]["legacy"].get_state()[1].tolist() == legacy


def test_a_samplers_own_generators_are_functions_of_the_epoch():
    """A sampler that draws from a NumPy generator of its own gives the same order again, and after a resume."""

    class Order(torch.utils.data.Sampler):
        def __init__(self):
            self.generator = np.random.default_rng()

        def __iter__(self):
            for _ in range(20):
                yield int(self.generator.integers(0, 23))

    loader = DataLoader(range(23), 4, sampler=Order())
    expected, state = [], None
    for number, batch in enumerate(loader):
        expected.append(batch.tolist())
        state = loader.state_dict() if number == 1 else state
    again = DataLoader(range(23), 4, sampler=Order())
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == expected[2:]


def test_a_worker_init_fn_that_reseeds_changes_nothing():
    """The usual cure for torch's loader may stay: batches are the same with it."""
    transform = Own()

    def reseed(worker):
        transform.several[0] = np.random.default_rng(worker)
        transform.torch.manual_seed(worker)

    expected = stream(LOADERS["dataset"](Own()))
    assert stream(LOADERS["dataset"](transform, num_workers=2, worker_init_fn=reseed)) == expected


def test_generators_that_are_replaced_between_epochs_are_found():
    """A new transform in the second epoch draws from the epoch's key."""
    expected = stream(LOADERS["dataset"](Own()))
    items = Items(Own())
    loader = DataLoader(items, 4, shuffle=True)
    first = stream(loader, 1)
    items.transform = Own(99)
    assert [*first, *stream(loader, 1)] == expected


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", TRANSFORMS)
def test_pipelines_run_them_in_parallel_without_a_warning(name):
    """`map` of a function that reaches such a generator: no ConflictWarning, workers, the same elements when resumed."""

    def make(workers):
        numbers = Pipeline.from_source(list(range(150))).map(TRANSFORMS[name](), num_parallel_calls=workers)
        return numbers.batch(4).with_options(seed=3)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=ConflictWarning)
        expected = [digest.of_value(batch) for batch in make(0)]
        assert [digest.of_value(batch) for batch in make(2)] == expected
        half = iter(make(0))
        for _ in range(20):
            next(half)
        resumed = make(2)
        resumed.load_state_dict(half.state_dict())
        assert [digest.of_value(batch) for batch in resumed] == expected[20:]


def test_threads_do_not_share_a_generator():
    """With executor="thread" worker processes compute such a function, and a warning says why."""
    numbers = Pipeline.range(40).map(closure()).batch(4).with_options(seed=3)
    expected = [digest.of_value(batch) for batch in numbers]
    with pytest.warns(ConflictWarning, match="generators that all threads share"):
        threads = numbers.with_options(executor="thread", num_parallel_calls=2)
        assert [digest.of_value(batch) for batch in threads] == expected


def test_a_function_with_a_parameter_rng_may_have_a_generator_besides():
    """Its own generator is set for each call, too."""
    generator = np.random.default_rng(1)
    numbers = Pipeline.range(40).map(lambda x, rng: [rng.random(), generator.random()]).with_options(seed=3)
    first = list(numbers)
    assert list(numbers.with_options(num_parallel_calls=2)) == first
    generator.random()
    assert list(numbers.with_options(num_parallel_calls=0)) == first != list(numbers)


class Hidden:
    """Stands for a generator in C++: it cannot be reached from the function that draws from it."""

    def __init__(self):
        self.draw = iter(lambda: random.SystemRandom().random(), None)

    def __call__(self, x):
        return torch.tensor([x, random.SystemRandom().random() + 0 * torch.rand(())])


@pytest.mark.parametrize("workers", [0, 2])
def test_what_cannot_be_reached_raises_at_the_first_element(workers):
    """A draw from the system differs between two calls with the same keys: the error names the dataset and the cure."""
    with pytest.raises(PipelineError, match=r"DataLoader: Items: two calls for element 0 .*cannot be set"):
        next(iter(DataLoader(Items(Hidden()), 4, num_workers=workers)))
    with pytest.raises(PipelineError, match=r"Pipeline.map\(Hidden\): two calls for element 0"):
        next(
            iter(
                Pipeline.from_source(list(range(9)))
                .map(Hidden())
                .with_options(seed=1, num_parallel_calls=workers)
            )
        )


def test_counters_times_and_memos_do_not_raise():
    """Negative control: an element with numbers besides its arrays that change, and a dataset that keeps what it read."""

    class Harmless(Items):
        reads = 0

        def __init__(self):
            super().__init__(None)
            self.kept = {}

        def __getitem__(self, index):
            self.reads += 1
            self.kept[index] = index
            noise = torch.rand(3)
            return {"x": noise, "reads": self.reads, "pid": os.times().elapsed}

    dataset = Harmless()
    assert len(list(DataLoader(dataset, 4))) == 6 and dataset.reads == 23


@settings(max_examples=20, deadline=None)
@given(batch=st.integers(1, 30), drawn=st.integers(0, 50), done=st.integers(0, 22))
def test_elements_do_not_depend_on_batches_or_earlier_draws(batch, drawn, done):
    """Any batch size, any number of draws before, any starting point: element o is the same."""
    with generator_states.preserve_states():
        expected = torch.cat(list(DataLoader(Items(Own()), 23, seed=4)))
        transform = Own()
        for _ in range(drawn):
            transform(1)
        loader = DataLoader(Items(transform), batch, seed=4)
        rest = loader._iterate(loader._key(), 0)
        rest.skip_batches(done // batch)
        assert torch.equal(torch.cat(list(rest)), expected[done // batch * batch :])


# Libraries


@pytest.fixture
def quiet():
    os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("error", category=ConflictWarning)
        yield


def images():
    return np.random.default_rng(0).integers(0, 256, (23, 32, 32, 3), dtype=np.uint8)


def albumentations(kind):
    library = pytest.importorskip("albumentations")
    crop = library.RandomCrop(24, 24)
    seed = {"seed": 7} if kind == "seeded" else {}
    parts = [crop, library.HorizontalFlip(p=0.5), library.GaussNoise(p=0.5)]
    transform, data = crop if kind == "bare" else library.Compose(parts, **seed), images()

    def augment(index):
        if kind == "reseeded":
            transform.set_random_seed(int(torch.randint(2**31, ())))
        return torch.as_tensor(np.ascontiguousarray(transform(image=data[index])["image"]))

    return augment


def test_an_unseeded_transform_needs_no_seed_inside_a_loader(quiet):
    """Under the switch an unseeded random.Random of albumentations draws in a loader, where it is set; outside (control) it raises."""
    samebits.set_random_seed(3)
    with samebits.enable_op_determinism():
        augment = albumentations("unseeded")
        batches = [
            [
                batch.tolist()
                for batch in samebits.data.DataLoader(Mapped(augment), batch_size=4, num_workers=workers)
            ]
            for workers in (0, 2)
        ]
        with pytest.raises(UnseededError, match="random.Random"):
            augment(0)
    assert batches[0] == batches[1]


class Mapped(torch.utils.data.Dataset):
    """The elements that a function makes of an index."""

    def __init__(self, function):
        self.function = function

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return self.function(index)


def monai(kind):
    library = pytest.importorskip("monai.transforms")
    bare = library.RandGaussianNoise(prob=0.5)
    transform, data = bare, images().transpose(0, 3, 1, 2).astype(np.float32)
    if kind != "bare":
        crop = library.RandSpatialCrop((24, 24), random_size=False)
        transform = library.Compose([crop, library.RandRotate90(prob=0.5), bare])
    if kind == "seeded":
        transform.set_random_state(7)

    def augment(index):
        if kind == "reseeded":
            transform.set_random_state(int(torch.randint(2**31, ())))
        return torch.as_tensor(np.ascontiguousarray(transform(data[index])))

    return augment


@pytest.mark.first_case_quick
@pytest.mark.parametrize("kind", ["unseeded", "seeded", "bare", "reseeded"])
@pytest.mark.parametrize("library", [albumentations, monai])
def test_library_transforms_give_the_same_batches_for_any_number_of_workers(library, kind, quiet):
    """albumentations and MONAI: 0 = 2 = 5 workers, in loaders and in pipelines; torch's loader differs."""
    if library is albumentations and kind in ("unseeded", "bare"):  # its draw is the process's own entropy
        assert stream_of_torch(library(kind), 0) != stream_of_torch(library(kind), 2)
    expected = stream(LOADERS["dataset"](library(kind)))
    assert stream(LOADERS["dataset"](library(kind), num_workers=2)) == expected
    assert stream(LOADERS["dataset"](library(kind), num_workers=5)) == expected
    numbers = [
        Pipeline.from_source(list(range(23)))
        .map(library(kind), num_parallel_calls=workers)
        .batch(4)
        .with_options(seed=3)
        for workers in (0, 2)
    ]
    assert stream(numbers[0], 1) == stream(numbers[1], 1)


@pytest.mark.first_case_quick
@pytest.mark.parametrize("kind", ["map", "transform", "shuffle", "iterable"])
def test_datasets_of_hugging_face(kind, quiet):
    """`map`, `with_transform`, an unseeded `shuffle` and an iterable that shuffles: the same for other workers, and resumed."""
    library = pytest.importorskip("datasets")
    library.disable_progress_bars()

    def make(workers):
        samebits.set_random_seed(11)
        data = library.Dataset.from_dict({"x": [[i, i + 1] for i in range(24)]})
        if kind == "map":
            data = data.map(
                lambda r: {"x": [v + float(torch.rand(())) for v in r["x"]]}, load_from_cache_file=False
            )
        elif kind == "transform":
            data = data.with_transform(lambda b: {"x": torch.tensor(b["x"]) + torch.randn(len(b["x"]), 2)})
        elif kind == "shuffle":
            data = data.shuffle()
        else:
            data = data.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=8)
            return Pipeline.from_iterable(data).batch(4).with_options(num_parallel_calls=workers)
        return DataLoader(
            data.with_format("torch") if kind != "transform" else data, 4, shuffle=True, num_workers=workers
        )

    loader = make(0)
    expected = [[digest.of_value(batch) for batch in loader] for _ in range(2)]
    assert stream(make(2)) == expected
    loader = make(0)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    again = make(2)
    again.load_state_dict(loader.state_dict())
    assert stream(again, 1)[0] == expected[0][3:]

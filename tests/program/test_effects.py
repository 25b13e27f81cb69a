"""Reading user functions: which of them leave something changed, and which cannot draw from the process's generators."""

import functools
import importlib.util
import itertools
import random as python_random
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from torch.utils.data import Subset, TensorDataset, default_collate

from samebits import random
from samebits._program import effects as purity
from samebits.data import Pipeline
from samebits.data._calls.process_generators import Draws
from samebits.data._collate import PadCollate
from samebits.data._stages.sources import Source
from samebits.errors import ConflictWarning
from samebits.random._process import generator_states


def load_corpus(name="purity_corpus"):
    """A fresh copy: its impure functions change it."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "support" / f"{name}.py")
    corpus = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(corpus)
    return corpus


def side_effects(function):
    """The changes that outlast a call, as far as reading the code shows them."""
    return list(purity.read(function).findings.values())


def noticed(function, tries=3):
    """What reading and trying out find, as a pipeline does."""
    reading = purity.read(function)
    found = [finding.variable for finding in reading.findings.values()]
    if not found:
        before = purity.snapshot(reading)
        rng = {"rng": np.random.default_rng(0)} if getattr(function, "__name__", "") == "draws" else {}
        with generator_states.preserve_states():
            for x in range(tries):
                function(x, **rng)
        found = purity.changed(before, purity.snapshot(reading))
    return found


def test_no_impure_function_of_the_corpus_is_missed():
    """All 14 impure functions are found, and the finding names the variable; false alarms of the 16 others: none."""
    corpus = load_corpus()
    assert (len(corpus.IMPURE), len(corpus.PURE)) == (14, 16)
    for function, variable in corpus.IMPURE.items():
        found = noticed(function)
        assert found and any(variable in name for name in found), (function, found)
    false_alarms = {function: noticed(function) for function in corpus.PURE}
    false_alarms = {function: found for function, found in false_alarms.items() if found}
    print(f"0 of 14 impure functions missed, {len(false_alarms)} false alarms: {false_alarms}")
    assert not false_alarms


def test_reading_alone_finds_all_but_the_hidden_one():
    """What no code shows is found by comparing captured state only: the second way is needed, and the first is not blind."""
    corpus = load_corpus()
    unread = [function.__name__ for function in corpus.IMPURE if not side_effects(function)]
    assert unread == ["hidden"]


def test_aliases_helpers_and_containers_hide_no_side_effect():
    """32 more impure functions and 20 pure ones: none is missed, none is blamed, and all are read to the end."""
    probes = load_corpus("purity_probes")
    for function in probes.IMPURE:
        reading = purity.read(function)
        assert reading.findings and reading.complete, function
    for function in probes.PURE:
        reading = purity.read(function)
        assert (reading.findings, reading.may_draw, reading.complete) == ({}, None, True), function


N = 0


def counts_by_name(x):
    globals()["N"] += 1
    return 100 * x + N


def test_a_count_in_globals_is_made_in_one_process():
    """`globals()["N"] += 1` is read as `N += 1` is: with 2 workers the batches are those of 0, and a warning names N."""
    global N
    numbers, found = Pipeline.range(8).map(counts_by_name).batch(4).with_options(seed=1), []
    for workers in (0, 2):
        N = 0
        with pytest.warns(ConflictWarning, match="changes `N`") if workers else nullcontext():
            found.append(torch.cat(list(numbers.with_options(num_parallel_calls=workers))).tolist())
    assert found[0] == found[1] == [100 * x + x + 1 for x in range(8)]


def test_a_finding_names_variable_kind_line_and_file():
    """A finding tells the file and the line of the change."""
    corpus = load_corpus()
    (found,) = side_effects(corpus.counts_in_a_global)
    assert (found.variable, found.kind) == ("total", "global variable set")
    assert found.file == corpus.__file__
    assert "total += 1" in Path(found.file).read_text().splitlines()[found.line - 1]


# Draws

IMAGES = np.zeros((8, 28, 28, 1), np.uint8)


def cheap(i):
    return np.full(8, i, np.int64)


def augment(image, rng):
    h, w, _ = image.shape
    padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
    y, x = rng.integers(0, 9, 2)
    out = padded[y : y + h, x : x + w]
    if rng.random() < 0.5:
        out = out[:, ::-1]
    out = out.astype(np.float32) + np.float32(rng.uniform(-32, 32))
    out += rng.standard_normal(out.shape, dtype=np.float32) * np.float32(8)
    return np.clip(out, 0, 255).astype(np.uint8)


DROPOUT = torch.nn.Dropout()


class Images:
    def __init__(self, transform=None):
        self.images, self.transform = IMAGES, transform

    def __len__(self):
        return 8

    def __getitem__(self, index):
        image = self.images[index]
        return image if self.transform is None else self.transform(image)


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, x):
        for transform in self.transforms:
            x = transform(x)
        return x


def flipped(image):
    return image[::-1].copy() if torch.rand(()) < 0.5 else image


def scaled(image):
    return image.astype(np.float32) / 255


def control_flow(x):
    for number in range(3):
        try:
            with open("a") as file:
                y = [int(line) for line in file if line]
        except ValueError as error:
            [parts.append(error) for parts in ([],)]
            continue
        finally:
            x = x + 1
        match y:
            case [1, *rest]:
                return rest
            case {"a": z}:
                return z
    else:
        return {k: v for k, v in zip(y, *[y], strict=True)}
    a, *b = y
    return f"{a!r:>{x}} {b}", lambda q, *, r=x: q + r


QUIET = {
    "cheap map": cheap,
    "augmentation with rng": augment,
    "with key": lambda x, key: x + random.uniform(key, 1).item(),
    "default_collate": default_collate,
    "pad collate": PadCollate(0, None),
    "list": [1, 2].__getitem__,
    "dict": {1: 2}.__getitem__,
    "range": range(4).__getitem__,
    "array": IMAGES.__getitem__,
    "tensor": torch.arange(4).__getitem__,
    "TensorDataset": TensorDataset(torch.arange(4)).__getitem__,
    "Subset": Subset(TensorDataset(torch.arange(4)), [1, 2]).__getitem__,
    "dataset": Images(Compose(scaled, scaled)).__getitem__,
    "own generator": lambda x: np.random.default_rng((7, x)).normal(),
    "Random of one's own": lambda x: python_random.Random(x).random(),
    "partial": functools.partial(np.multiply, 3),
    "comprehension": lambda x: {n: [n * y for y in range(x)] for n in range(3)},
    "torch": lambda x: torch.stack([torch.as_tensor(x).float().sum().clamp(min=1)] * 2),
    "with, try, match": control_flow,
    "generator function": lambda x: (n for n in range(x)),
}
HOLDER = torch.nn.Identity()
HOLDER.transforms = [flipped]

LOUD = {
    "forward of a module": lambda x: DROPOUT.forward(x),
    "a library's object that calls mine": lambda x: HOLDER(x),
    "an installed package": lambda x: xxhash.xxh64(x),
    "torch.rand": lambda x: x + torch.rand(()).item(),
    "np.random": lambda x: x + np.random.rand(),
    "random": lambda x: x + python_random.random(),
    "random.choice": lambda x: python_random.choice(x),
    "in place": lambda x: x.bernoulli_(),
    "dropout": lambda x: torch.nn.functional.dropout(x),
    "nondeterministic_seeded op": lambda x: torch.multinomial(x, 1),
    "a module": torch.nn.Dropout(),
    "by getattr": lambda x: getattr(torch, "ra" + "nd")(1),
    "by eval": lambda x: eval("torch.rand(())"),
    "what it is given": lambda x: x(),
    "its method": lambda x: x.render(),
    "in a loop": lambda x: [flipped(one) for one in x],
    "given on": lambda x: list(map(flipped, x)),
    "as a sort's key": lambda x: sorted(x, key=lambda _: python_random.random()),
    "in a dataset": Images(Compose(scaled, flipped)).__getitem__,
    "by partial": functools.partial(flipped),
    "by a cached function": functools.cache(flipped),
    "by an alias": lambda x: (lambda f: f(()))(torch.rand),
    "by a container": lambda x: {"f": np.random.normal}["f"](),
}


@pytest.mark.parametrize("name", QUIET)
def test_is_proven_quiet(name):
    """Functions of this kind draw from no generator of the process, and reading them shows it."""
    reading = purity.read(QUIET[name])
    assert (reading.may_draw, reading.findings, reading.complete) == (None, {}, True)


@pytest.mark.parametrize("name", LOUD)
def test_is_not_proven_quiet(name):
    """Functions of this kind may draw: the negative control of the proof."""
    assert purity.read(LOUD[name]).may_draw is not None


def test_quiet_pipelines_cost_no_captures(monkeypatch):
    """A pipeline whose functions are proven quiet captures the generators' states once, not for each task."""
    counted = []
    original = generator_states.preserve_states
    monkeypatch.setattr(generator_states, "preserve_states", lambda: counted.append(1) or original())
    list(Pipeline.from_source(IMAGES).map(augment).batch(1).with_options(seed=1))
    assert len(counted) <= 3
    few = len(counted)
    list(Pipeline.from_source(IMAGES).map(flipped).batch(1).with_options(seed=1))
    assert len(counted) >= few + len(IMAGES)


def test_a_wrong_proof_is_corrected_by_the_first_task():
    """If what was proven quiet draws all the same, the first task shows it, and is computed again as if not proven."""
    draws = Draws(may_draw=False)
    source = Source([0, 1, 2, 3])

    def task():
        from samebits.data._calls.user_function import Function

        return Function(lambda x: torch.rand(()).item(), "map").call_each((1, 2), [0, 1], [0, 1])

    with generator_states.preserve_states():
        first = draws.run(task)
        torch.rand(7)
        assert draws.run(task) == first
    assert source.length == 4


def test_objects_of_libraries_are_looked_into_for_functions_of_the_users():
    """A library's callable that holds a function with a side effect has that side effect; its own code is not read."""
    seen = []
    holder = torch.nn.Identity()
    holder.transforms = [seen.append, lambda x: seen.append(x)]
    assert {found.variable for found in side_effects(lambda x: holder(x))} == {"seen"}


class Lazily:
    """Opens its file in the process that reads it."""

    def __init__(self, path):
        self.path, self.file, self.first, self.count = path, None, None, None

    def __getitem__(self, index):
        if self.file is None:
            self.file = np.load(self.path, mmap_mode="r")
        return self.file[index].copy()

    def first_of_all(self, index):
        if self.first is None:
            self.first = [index]
        return self.first

    def counts(self, index):
        if self.count is None:
            self.count = 0
        self.count += 1
        return index


def test_what_is_opened_at_the_first_need_is_no_side_effect(tmp_path):
    """`if self.file is None: self.file = open(...)` is the same in every process; what keeps the first element is not."""
    np.save(tmp_path / "data.npy", np.arange(4))
    data = Lazily(tmp_path / "data.npy")
    assert noticed(data.__getitem__) == []
    assert noticed(Lazily("").first_of_all) == ["Lazily.first_of_all.first"] or noticed(
        Lazily("").first_of_all
    )
    assert noticed(Lazily("").counts)


class _Unknown:
    """Operators and items of a class of the user's are read, too."""

    def __init__(self):
        self.reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return index

    def __len__(self):
        return 4


def test_the_source_is_read_as_well():
    """A dataset that counts its reads has a side effect, which is found."""
    (found,) = side_effects(_Unknown().__getitem__)
    assert found.variable.endswith("reads")


def test_iterators_and_files_that_are_captured_are_state(tmp_path):
    """next(), a loop over a captured iterator, a read of an open file; a captured generator is set for each call."""
    iterator, rng = iter(range(9)), np.random.default_rng(0)
    file = (tmp_path / "lines").open("w+")

    def loops(x):
        for y in iterator:
            return y

    cases = [
        loops,
        lambda x: list(itertools.islice(iterator, 2)),
        lambda x: file.write(str(x)),
        lambda x: file.readline(),
        lambda x: open(tmp_path / "log", "a").write(str(x)),
    ]
    for case in cases:
        assert side_effects(case), case
    assert not side_effects(lambda x: rng.normal())
    assert not side_effects(lambda x: open(tmp_path / "log").read())
    file.close()

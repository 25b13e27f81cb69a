"""Functions that remember: what they drew is an error that names it, what they computed is not."""

import functools
import importlib.util
import random
import subprocess
import sys
import warnings
import weakref
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from samebits._context import process
from samebits._inspect.library_code import is_library_code
from samebits._objects import rng_states
from samebits._objects.keepers import keepers
from samebits._program import effects as purity
from samebits.data import DataLoader, Pipeline, check
from samebits.data._calls import process_generators
from samebits.data._calls.own_generators import OwnGenerators
from samebits.data._calls.remembered_draws import Memos
from samebits.data._calls.user_function import key_words
from samebits.errors import ConflictWarning, PipelineDifferenceError, PipelineError
from samebits.random._process import generator_states

TABLE = {}
KEPT = None


class OfClass:
    kept = None

    def __call__(self, x):
        if OfClass.kept is None:
            OfClass.kept = random.random()
        return x + OfClass.kept


class OfObject:
    def __call__(self, x):
        if not hasattr(self, "kept"):
            self.kept = torch.rand(()).item()
        return x + self.kept


class Property:
    @functools.cached_property
    def kept(self):
        return torch.rand(()).item()

    def __call__(self, x):
        return x + self.kept


class Method:
    @functools.lru_cache  # noqa: B019
    def noise(self, label):
        return np.random.normal(size=2).sum() + label

    def __call__(self, x):
        return x + self.noise(x % 3)


def lru_of_torch():
    @functools.lru_cache
    def noise():
        return torch.rand(()).item()

    return lambda x: x + noise()


def lru_of_numpy():
    @functools.lru_cache(maxsize=8)
    def noise(label):
        return np.random.rand() + label

    return lambda x: x + noise(x % 3)


def cache_of_python():
    @functools.cache
    def noise():
        return random.random()

    return lambda x: x + noise()


def kept_normal():
    noise = functools.cache(lambda: np.random.randn())
    return lambda x: x + noise()


def closure_dict():
    memo = {}

    def f(x):
        if "noise" not in memo:
            memo["noise"] = torch.rand(()).item()
        return x + memo["noise"]

    return f


def closure_variable():
    memo = None

    def f(x):
        nonlocal memo
        memo = random.random() if memo is None else memo
        return x + memo

    return f


def default_dict(x, memo={}):  # noqa: B006
    return x + memo.setdefault("noise", None) if memo.get("noise") else x + _set(memo)


def _set(memo):
    memo["noise"] = random.random()
    return memo["noise"]


def global_dict(x):
    if "noise" not in TABLE:
        TABLE["noise"] = torch.rand(()).item()
    return x + TABLE["noise"]


def global_variable(x):
    global KEPT
    if KEPT is None:
        KEPT = np.random.rand()
    return x + KEPT


def of_function(x):
    if not hasattr(of_function, "kept"):
        of_function.kept = random.random()
    return x + of_function.kept


def by_exec():
    space = {"torch": torch}
    exec(
        "m = {}\ndef f(x):\n  m['a'] = m['a'] if 'a' in m else torch.rand(()).item()\n  return x + m['a']",
        space,
    )
    return space["f"]


def by_partial():
    noise = functools.cache(lambda: torch.rand(()).item())
    return functools.partial(lambda inner, x: x + inner(), noise)


def in_an_object():
    holder = SimpleNamespace(parts=[functools.cache(lambda: torch.rand(()).item())])
    return lambda x: x + holder.parts[0]()


def late():
    noise = functools.cache(lambda: torch.rand(()).item())
    return lambda x: x + (noise() if x >= 100 else 0)


def rare_beside_other_draws():
    noise = functools.cache(lambda label: random.random() if label else 0)
    return lambda x: torch.rand(()).item() + noise(x == 133)


def declared():
    memo = {}
    return lambda x: x + (memo.get("a") or memo.setdefault("a", random.random()))


HOLDING = {
    "lru_cache of torch": (lru_of_torch, "the lru_cache of `lru_of_torch.<locals>.noise`"),
    "lru_cache of numpy": (lru_of_numpy, "the lru_cache of `lru_of_numpy.<locals>.noise`"),
    "cache of python": (cache_of_python, "the lru_cache of `cache_of_python.<locals>.noise`"),
    "cache of a normal": (kept_normal, "the lru_cache of `kept_normal.<locals>.<lambda>`"),
    "lru_cache of a method": (Method, "the lru_cache of `Method.noise`"),
    "cached_property": (Property, "`Property.kept`"),
    "dict of a closure": (closure_dict, "`memo`"),
    "variable of a closure": (closure_variable, "`memo`"),
    "default": (lambda: default_dict, "default of default_dict"),
    "global dict": (lambda: global_dict, "`TABLE`"),
    "global variable": (lambda: global_variable, "`KEPT`"),
    "attribute of a class": (OfClass, "`OfClass.kept`"),
    "attribute of an object": (OfObject, "`OfObject.kept`"),
    "attribute of a function": (lambda: of_function, "`of_function.kept`"),
    "by exec": (by_exec, "`m`"),
    "by partial": (by_partial, "the lru_cache of"),
    "in an object": (in_an_object, "the lru_cache of"),
    "late": (late, "the lru_cache of"),
    "rare, beside other draws": (rare_beside_other_draws, "the lru_cache of"),
    "declared to be none": (declared, "`memo`"),
}
FIRST = {"late": 100, "rare, beside other draws": 133}


@pytest.fixture(autouse=True)
def _afresh():
    global KEPT
    KEPT, OfClass.kept = None, None
    TABLE.clear()
    default_dict.__defaults__[0].clear()
    vars(of_function).clear()
    process.notices.clear()


def pipeline(name):
    function = HOLDING[name][0]()
    stateful = False if name == "declared to be none" else None
    return Pipeline.range(150).map(function, stateful=stateful).batch(4).with_options(seed=3)


@pytest.mark.parametrize("workers", [0, 2, "check"])
@pytest.mark.parametrize("name", HOLDING)
@pytest.mark.filterwarnings("ignore::samebits.errors.ConflictWarning")
def test_a_memo_that_holds_a_draw_is_an_error_that_names_it(name, workers):
    """In this process, with workers and in `check`: function, element, what holds the draw, and the cure."""
    with pytest.raises(PipelineError) as caught:
        if workers == "check":
            check(pipeline(name))
        else:
            list(pipeline(name).with_options(num_parallel_calls=workers))
    message = str(caught.value)
    assert HOLDING[name][1] in message and "Draw outside of the cached code" in message
    assert message.startswith("Pipeline.map(")
    if workers != 2:  # two workers begin with a task each
        assert f"element {FIRST.get(name, 0)} drew" in message


def test_the_cache_is_named_with_its_place():
    """The lru_cache is named by its qualified name, its file and its line."""
    line = lru_of_torch.__code__.co_firstlineno + 1
    with pytest.raises(PipelineError, match=rf"\({__file__}, line {line}\)"):
        list(pipeline("lru_cache of torch"))


# What remembers, and holds no draw


def file_read(tmp_path):
    @functools.lru_cache
    def read(label):
        return (tmp_path / f"{label}").read_text()

    return lambda x: len(read(x % 3)) + torch.rand(()).item()


def computed(tmp_path):
    table = functools.cache(lambda n: np.arange(n).sum())
    return lambda x: table(x) + random.random()


def draws_by_an_own_generator(tmp_path):
    noise = functools.cache(lambda label: np.random.default_rng(label).random())
    return lambda x: noise(x) + np.random.rand()


def dict_of_a_closure(tmp_path):
    memo = {}

    def f(x):
        if x not in memo:
            memo[x] = x * x
        return memo[x] + torch.rand(()).item()

    return f


def counts(tmp_path):
    count = 0

    def f(x):
        nonlocal count
        count += 1
        return x + count + torch.rand(()).item()

    return f


def counts_labels(tmp_path):
    seen, by_label = Counter(), defaultdict(list)

    def f(x):
        seen[x % 3] += 1
        by_label[x % 3].append(x)
        return x + seen[x % 3] + len(by_label[x % 3]) + torch.rand(()).item()

    return f


def logs(tmp_path):
    log = []

    def f(x):
        log.append(x)
        return x + len(log) + np.random.rand()

    return f


def weak(tmp_path):
    memo = weakref.WeakValueDictionary()
    return lambda x: (memo.setdefault("a", torch.nn.Identity()), x + torch.rand(()).item())[1]


def opens_lazily(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(200))
    holder = SimpleNamespace(file=None)

    def f(x):
        if holder.file is None:
            holder.file = np.load(tmp_path / "a.npy", mmap_mode="r")
        return int(holder.file[x]) + torch.rand(()).item()

    return f


def ordered(tmp_path):
    memo = OrderedDict()

    def f(x):
        memo[x] = memo.pop(x, x)
        while len(memo) > 3:
            memo.popitem(last=False)
        return memo[x] + random.random()

    return f


@pytest.mark.parametrize(
    "make",
    [file_read, computed, draws_by_an_own_generator, dict_of_a_closure, counts, counts_labels, logs,
     weak, opens_lazily, ordered],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::samebits.errors.ConflictWarning")
def test_memos_of_what_was_not_drawn_are_no_error(make, tmp_path):
    """They draw besides, at every element: a plain loop's elements, with 0 and 2 workers, and nothing is called twice
    that would show.
    """
    for label in range(3):
        (tmp_path / f"{label}").write_text("x" * label)
    read = [
        list(Pipeline.range(150).map(make(tmp_path)).with_options(seed=3, num_parallel_calls=n))
        for n in (0, 2)
    ]
    assert read[0] == read[1]
    plain, elements = make(tmp_path), []
    stage = Pipeline.range(150).map(abs).with_options(seed=3)
    own = stage._stage.bind(stage._key())
    with generator_states.preserve_states():
        for x, key in enumerate(key_words(own.key, range(150)).tolist()):
            process_generators.fill(tuple(key))
            elements.append(plain(x))
    assert read[0] == elements


def taking(memo):
    """Draws as often as its element is long, and takes that apart."""

    def f(parts):
        total = 0
        while parts:
            total += parts.pop() + torch.rand(()).item() + memo(len(parts))
        return total

    return f


def test_a_function_that_takes_its_element_apart_is_repeated_with_a_copy():
    """What is left of the element draws otherwise, which is no memo; a memo beside it is found all the same."""
    lists = Pipeline.range(150).map(lambda n: [n] * (n % 5 + 1)).with_options(seed=3)
    free = taking(functools.cache(lambda n: n * n))
    read = [list(lists.map(free).with_options(num_parallel_calls=n)) for n in (0, 2)]
    assert read[0] == read[1]
    with pytest.raises(PipelineError, match="the lru_cache of"):
        list(lists.map(taking(functools.cache(lambda n: random.random()))))


def test_an_element_that_cannot_be_copied_is_no_error():
    """An iterator as element: the call is not repeated."""
    memo = functools.cache(lambda n: n)
    iterators = Pipeline.range(40).map(lambda n: iter(range(n % 4)))
    drawn = iterators.map(lambda parts: sum(memo(n) + torch.rand(()).item() for n in parts))
    assert len(list(drawn.with_options(seed=3))) == 40


def test_no_function_of_the_corpus_is_accused():
    """Of 30 functions of the corpus and 52 probes, called for 40 elements each: none holds a draw, none is said to."""
    modules = []
    for name in ("purity_corpus", "purity_probes"):  # fresh copies: some functions change them
        spec = importlib.util.spec_from_file_location(
            name, Path(__file__).parents[1] / "support" / f"{name}.py"
        )
        modules.append(importlib.util.module_from_spec(spec))
        spec.loader.exec_module(modules[-1])
    corpus, probes = modules
    functions = [*corpus.IMPURE, *corpus.PURE, *probes.IMPURE, *probes.PURE]
    with generator_states.preserve_states():
        for function in functions:
            if "rng" in getattr(getattr(function, "__code__", None), "co_varnames", ()):
                continue
            effects = list(purity.read(function).findings.values())
            memos = Memos(function, lambda: OwnGenerators(list), effects=effects, repeatable=True)
            for x in range(40):
                generator_states.fill((1, x), initial_seed=0)
                try:
                    memos.call(x, (1, x))
                except (TypeError, AttributeError, KeyError, IndexError, ValueError, RuntimeError):
                    break  # not made for numbers
    assert len(functions) == 82


# Functions made by exec


def counting():
    space = {}
    exec("n = 0\ndef f(x):\n  global n\n  n += 1\n  return x + n\n", space)
    return space["f"]


def test_a_function_made_by_exec_that_counts_is_called_in_order():
    """It is called in this process, with a warning that names the variable; `check` says that a resume differs."""
    numbers = Pipeline.range(200).batch(4).unbatch()
    alone = list(numbers.map(counting()).with_options(seed=3))
    with pytest.warns(ConflictWarning, match="changes `n` .global variable set"):
        assert list(numbers.map(counting()).with_options(seed=3, num_parallel_calls=2)) == alone
    assert alone == [2 * x + 1 for x in range(200)]
    with pytest.raises(PipelineDifferenceError, match=r"map\(function=f\)"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(Pipeline.range(200).map(counting()).with_options(seed=3))


def test_functions_of_libraries_are_not_taken_for_made_by_exec():
    """numpy and torch give functions of their own other modules' names; they stay libraries."""
    functions = [
        np.stack,
        np.pad,
        torch.einsum,
        torch.nn.functional.dropout,
        functools.wraps,
        random.Random.gauss,
    ]
    assert all(map(is_library_code, functions))
    assert not is_library_code(counting())


# The generators around each task


class DrawsAsFloat:
    """Reading does not see the draw."""

    def __float__(self):
        return torch.rand(()).item()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_late_draw_that_reading_missed_is_computed_again(workers):
    """Element 100 draws: its task is computed again with the generators set, for any number of workers; the caller's
    generators stay where they are.
    """
    hidden = DrawsAsFloat()
    late = lambda x: float(hidden) if x >= 100 else float(x)  # noqa: E731
    assert purity.read(late).may_draw is None
    read = []
    for drawn in (0, 7):
        torch.rand(drawn), np.random.rand(drawn), random.random()
        before = rng_states.of_process()
        read.append(list(Pipeline.range(150).map(late).with_options(seed=1, num_parallel_calls=workers)))
        assert rng_states.of_process() == before
    set_for_all = Pipeline.range(150).map(lambda x: torch.rand(()).item() if x >= 100 else float(x))
    assert read[0] == read[1] == list(set_for_all.with_options(seed=1))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_memo_of_a_draw_that_reading_missed_is_an_error(workers):
    """The task draws the first time and not the second."""
    hidden = DrawsAsFloat()
    memo = functools.cache(lambda: float(hidden))
    late = lambda x: memo() if x >= 100 else float(x)  # noqa: E731
    assert purity.read(late).may_draw is None
    with pytest.raises(PipelineError, match="remembers its draw"):
        list(Pipeline.range(150).map(late).with_options(seed=1, num_parallel_calls=workers))


FIRST_TASK = """
import functools, random, sys
from samebits.data import Pipeline

class Held:
    @property
    @functools.cache
    def drawn(self):
        return random.random()

held = Held()
pipeline = Pipeline.range(100)
if sys.argv[1] == "shuffled":
    pipeline = pipeline.shuffle()
random.seed(int(sys.argv[2]))
print(next(iter(pipeline.map(lambda x: x + held.drawn).with_options(seed=1))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ["in order", "shuffled"])
def test_a_memo_that_reading_missed_is_an_error_in_a_process_first_task_too(order):
    """That task imports LLVM, which says nothing of who drew: no library of the user's was imported."""
    for seed in "12":
        done = subprocess.run(
            [sys.executable, "-c", FIRST_TASK, order, seed], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, done.stdout
        assert "remembers its draw" in done.stderr


DRAWS = {
    "torch": lambda: torch.rand(()),
    "torch normal": lambda: torch.randn(3),
    "a whole turn of the twister": lambda: torch.rand(624),
    "numpy": np.random.rand,
    "numpy's turn": lambda: np.random.rand(312),
    "numpy's normal": np.random.randn,
    "python": random.random,
    "python's turn": lambda: [random.random() for _ in range(312)],
    "python's normal": lambda: random.gauss(0, 1),
    "seed": lambda: torch.manual_seed(3),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("kept", [False, True])
def test_a_mark_sees_every_draw_and_takes_it_back(name, kept):
    """Also where only a normal that was kept is taken; after `restore` the libraries say what they said before."""
    with generator_states.preserve_states():
        generator_states.fill((1, 2))
        if kept:
            np.random.randn(), random.gauss(0, 1), torch.randn(())
        before, digest = rng_states.of_process(), generator_states.digest()
        assert rng_states.of_process() == before
        DRAWS[name]()
        assert rng_states.of_process() != before
        before.restore()
        assert rng_states.of_process() == before and generator_states.digest() == digest


def test_another_bit_generator_of_numpys_is_marked_too():
    """By what it says of itself, for its memory is another."""
    own = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(1))
        before = rng_states.of_process()
        assert rng_states.of_process() == before
        first = np.random.rand()
        assert rng_states.of_process() != before
        before.restore()
        assert np.random.rand() == first
    finally:
        np.random.set_bit_generator(own)


def test_the_walk_ends():
    """Over a large graph with cycles: at most 200 keepers, and a list of a million numbers is not walked through."""
    ring = [SimpleNamespace(n=n) for n in range(10_000)]
    for one, other in zip(ring, ring[1:] + ring[:1], strict=True):
        one.next = other
    million = list(range(1_000_000))
    assert len(keepers(lambda x: (ring[x], million[x]))) == 200


def test_a_memo_that_a_worker_finds_is_told_once():
    """The error is one line that names all: no frames of ours below; a function's own error keeps its worker's lines."""
    with pytest.raises(PipelineError) as found:
        list(Pipeline.range(20).map(lru_of_numpy(), num_parallel_calls=1).with_options(seed=1))
    assert not getattr(found.value, "__notes__", [])
    with pytest.raises(PipelineError) as found:
        list(Pipeline.range(20).map(lambda x: 1 / x, num_parallel_calls=1).with_options(seed=1))
    assert "In a worker process" in found.value.__notes__[0]


@functools.lru_cache
def one_draw():
    return torch.rand(())


class Dataset:
    """Eight elements, and a memo of a draw for each half of them."""

    def __init__(self):
        self.kept, self.drawn = {}, None

    def __len__(self):
        return 8


class InADict(Dataset):
    def __getitem__(self, i):
        if i // 4 not in self.kept:
            self.kept[i // 4] = torch.rand(())
        return self.kept[i // 4] + i


class InAProperty(Dataset):
    @functools.cached_property
    def offset(self):
        return torch.rand(())

    def __getitem__(self, i):
        return self.offset + i


class InALruCache(Dataset):
    def __getitem__(self, i):
        return one_draw() + i


class OfWhatIsRead(Dataset):
    """The control: it remembers what it has computed, and draws besides."""

    def __getitem__(self, i):
        if i not in self.kept:
            self.kept[i] = torch.ones(3) * i
        return self.kept[i] + torch.rand(3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_of_a_loader_that_remembers_a_draw_is_refused(workers):
    """A dict, a cached_property and an lru_cache that hold draws are named; a memo of what was computed is none (control)."""
    for kind, where in ((InADict, "InADict.kept"), (InAProperty, "offset"), (InALruCache, "lru_cache of")):
        one_draw.cache_clear()
        with pytest.raises(PipelineError, match=f"DataLoader: {kind.__name__}: .*remembered in.*{where}"):
            list(DataLoader(kind(), batch_size=2, num_workers=workers, seed=1))
    found = [list(DataLoader(OfWhatIsRead(), batch_size=2, num_workers=n, seed=1)) for n in (0, workers)]
    assert all(map(torch.equal, *found)) and len(found[0]) == 4

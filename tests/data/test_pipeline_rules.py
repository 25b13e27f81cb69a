"""The rules of TensorFlow's determinism RFC (346) for input pipelines."""

import operator
import os
import subprocess
import sys
import threading
import time
import warnings
from itertools import islice

import cloudpickle
import numpy as np
import pytest
import torch

import samebits
from samebits import random
from samebits._context import process
from samebits._objects import rng_states
from samebits._program import effects as purity
from samebits.data import Pipeline
from samebits.data._calls.user_function import Function, key_words
from samebits.data._workers import inline_or_parallel
from samebits.errors import (
    ConflictError,
    ConflictWarning,
    InvalidArgumentError,
    PipelineError,
    UnimplementedError,
    UnseededError,
)
from samebits.random import _int_keys as int_keys

log = []
offset = [0]
main = os.getpid()


@pytest.fixture(autouse=True)
def fresh():
    process.notices.clear()
    log.clear()
    offset[0] = 0


def noting(x):
    log.append(x)
    return 2 * x


def noting_too(x):
    log.append(-x)
    return x


def plain(x):
    return x + 1


def where(x):
    return x, os.getpid()


def shifted(x):
    return x + offset[0]


def shifting(x):
    offset[0] += 1
    return x


def pid_of(x):
    return os.getpid() if x >= 0 else 0


def noisy(x):
    return x + torch.rand(()).item() + np.random.rand()


def thread_of(x):
    time.sleep(0.001)
    return threading.current_thread().name


def slow_when_early(x):
    time.sleep(0.1 if x < 2 else 0)
    return x


# Side effects

PIPELINES = {
    "map": lambda f: Pipeline.range(20).map(plain).map(f),
    "batch": lambda f: Pipeline.range(20).map(plain).map(f).batch(4),
    "shuffle": lambda f: Pipeline.range(20).map(f).shuffle().batch(4),
    "filter": lambda f: Pipeline.range(20).filter(lambda x: x % 3).map(f).filter(lambda x: x % 4),
    "flat_map": lambda f: Pipeline.range(20).flat_map(lambda x: [x, x + 1, x + 2]).map(f),
    "zip": lambda f: Pipeline.zip(Pipeline.range(20).map(f), Pipeline.range(20).map(noting_too)).map(
        lambda t: t[0]
    ),
    "map_batches": lambda f: Pipeline.range(20).map(f).batch(4).map_batches(lambda b: b + 1).unbatch(),
    "interleave": lambda f: Pipeline.range(4).interleave(lambda n: Pipeline.range(5).map(f), 2),
    "buffer over a stream": lambda f: Pipeline.range(20).filter(lambda x: x % 3).shuffle(3).map(f),
    "repeat": lambda f: Pipeline.range(5).map(f).repeat(2),
}


def loop(name):
    """How the log grows with each element in a plain loop."""
    log.clear()
    grown = []
    for _ in PIPELINES[name](noting).with_options(seed=3):
        grown.append(list(log))
    return grown


PLAIN = {
    "map": [1, 2, 3, 4, 5],
    "batch": [*range(1, 21)],
    "filter": [1, 2, 4, 5, 7, 8, 10, 11, 13],
    "flat_map": [0, 1, 2, 1, 2],
    "zip": [0, 0, 1, -1, 2, -2, 3, -3, 4, -4],
}
"""What the log says after five elements, written by hand."""


@pytest.mark.filterwarnings("ignore::samebits.errors.ConflictWarning")
@pytest.mark.parametrize("name", PIPELINES)
def test_side_effects_are_those_of_a_plain_loop(name):
    """With workers a function with side effects has been through exactly the elements that were asked for, in order."""
    expected = loop(name)
    assert name not in PLAIN or expected[4] == PLAIN[name]
    log.clear()
    pipeline = PIPELINES[name](noting).with_options(seed=3, num_parallel_calls=2).prefetch(4)
    assert [list(log) for _ in pipeline] == expected
    assert expected[-1]


@pytest.mark.parametrize("name", ["map", "batch", "filter"])
def test_without_the_rule_side_effects_are_lost(name):
    """Negative control: declared as free of effects, the function runs in workers, and its effects stay there."""
    pipeline = PIPELINES[name](noting)
    for function in pipeline._stage.all_functions():
        function.stateful = False
    list(pipeline.with_options(seed=3, num_parallel_calls=2))
    assert not log


def test_the_warning_names_function_variable_line_and_cure():
    """One warning, when workers were asked for; none without."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(Pipeline.range(3).map(noting).with_options(seed=1))
    with pytest.warns(ConflictWarning) as caught:
        list(Pipeline.range(3).map(noting, num_parallel_calls=2).with_options(seed=1))
    (text,) = [str(one.message) for one in caught]
    line = noting.__code__.co_firstlineno + 1
    for part in ("map(noting)", "`log`", f"line {line}", "stateful=False", "test_pipeline_rules.py"):
        assert part in text


@pytest.mark.filterwarnings("ignore::samebits.errors.ConflictWarning")
def test_only_what_the_effects_reach_is_serial():
    """What is below a function with side effects is still computed by workers; random maps are no side effect."""
    before = Pipeline.range(12).map(where).map(lambda t: (noting(t[0]), t[1]))
    assert main not in {pid for _, pid in before.with_options(seed=1, num_parallel_calls=2)}
    assert log == list(range(12))
    log.clear()
    batches = Pipeline.range(12).map(where).map(lambda t: (noting(t[0]), t[1])).batch(3)
    assert all(main not in pids.tolist() for _, pids in batches.with_options(seed=1, num_parallel_calls=2))
    assert log == list(range(12))
    assert main not in set(
        Pipeline.range(12).map(noisy).map(pid_of).with_options(seed=1, num_parallel_calls=2)
    )


@pytest.mark.filterwarnings("ignore::samebits.errors.ConflictWarning")
def test_what_reads_what_is_changed_is_serial_too():
    """A function that reads what another one writes sees it as in a plain loop, on either side of it."""
    for build in (
        lambda: Pipeline.range(10).map(shifted).map(shifting),
        lambda: Pipeline.range(10).map(shifting).map(shifted),
        lambda: Pipeline.range(10).map(shifted).batch(2).map(shifting).unbatch(),
    ):
        offset[0] = 0
        expected = list(build().with_options(seed=1))
        offset[0] = 0
        assert list(build().with_options(seed=1, num_parallel_calls=2)) == expected
        assert offset[0] in (5, 10)
    offset[0] = 0
    assert list(Pipeline.range(5).map(shifting).map(shifted).with_options(seed=1)) == [1, 3, 5, 7, 9]


@pytest.mark.filterwarnings("ignore::samebits.errors.ConflictWarning")
def test_declared_effects():
    """`stateful=True` makes serial what looks free of effects; `stateful=False` is believed."""
    declared = Pipeline.range(6).map(pid_of, stateful=True, num_parallel_calls=2).with_options(seed=1)
    assert set(declared) == {main}
    believed = Pipeline.range(6).map(noting, stateful=False, num_parallel_calls=2).with_options(seed=1)
    assert list(believed) == [0, 2, 4, 6, 8, 10]
    assert not log


class Hidden:
    """Its effect is not to be found in its code."""

    def __init__(self):
        self.seen = []

    def __call__(self, x):
        exec("self.seen.append(x)")
        return x


@pytest.mark.parametrize("workers", [0, 2])
def test_an_effect_that_only_shows_when_it_runs(workers):
    """Captured state that changes with the first elements is a side effect: it goes on serially, with the same elements."""
    hidden = Hidden()
    pipeline = Pipeline.range(100).map(hidden).batch(5).with_options(seed=1, num_parallel_calls=workers)
    if workers:
        with pytest.warns(ConflictWarning, match="seen"):
            result = [batch.tolist() for batch in pipeline]
    else:
        result = [batch.tolist() for batch in pipeline]
    assert result == [list(range(n, n + 5)) for n in range(0, 100, 5)]
    assert hidden.seen == list(range(100))


@pytest.mark.filterwarnings("ignore::samebits.errors.ConflictWarning")
def test_a_serial_pipeline_resumes_anywhere():
    """Cut at any k, with any number of workers, the same elements follow; only those asked for are noted again."""
    build = lambda: Pipeline.range(30).map(noisy).filter(lambda x: int(x) % 3).map(noting).batch(2)
    expected = [b.tolist() for b in build().with_options(seed=4)]
    for k in range(len(expected)):
        first = iter(build().with_options(seed=4, num_parallel_calls=2))
        begun = [b.tolist() for b in islice(first, k)]
        state = first.state_dict()
        first.close()
        second = build().with_options(seed=4)
        second.load_state_dict(state)
        log.clear()
        assert begun + [b.tolist() for b in second] == expected
        assert len(log) <= 2 * (len(expected) - k)


def test_random_numbers_do_not_depend_on_being_serial():
    """A random function gives the same bits whether it is called serially or not."""
    free = list(Pipeline.range(20).map(noisy, stateful=False).with_options(seed=2))
    assert list(Pipeline.range(20).map(noisy, stateful=True).with_options(seed=2)) == free


# deterministic=False


@pytest.mark.parametrize("executor", ["process", "thread"])
def test_completion_order(executor):
    """Off the switch, deterministic=False gives batches as they are done: the same ones, in another order."""
    pipeline = Pipeline.range(12).map(
        slow_when_early, deterministic=False, executor=executor, num_parallel_calls=2
    )
    result = [batch.tolist() for batch in pipeline.batch(2).with_options(seed=1)]
    assert result[0] != [0, 1]
    assert sorted(result) == [[n, n + 1] for n in range(0, 12, 2)]
    ordered = pipeline.batch(2).with_options(seed=1, deterministic=True)
    assert [batch.tolist() for batch in ordered] == sorted(result)


def test_completion_order_has_no_position():
    """state_dict raises in the middle, naming deterministic=False, and works at the ends of an epoch."""
    pipeline = (
        Pipeline.range(12).map(plain).batch(2).with_options(seed=1, deterministic=False, num_parallel_calls=2)
    )
    iterator = iter(pipeline)
    iterator.state_dict()
    next(iterator)
    with pytest.raises(UnimplementedError, match="deterministic=False"):
        iterator.state_dict()
    list(iterator)
    iterator.state_dict()


def test_under_the_switch_deterministic_false_is_overridden():
    """Elements come in order, with one warning for all pipelines; on_conflict="raise" refuses."""
    build = lambda: (
        Pipeline.range(12).map(slow_when_early, deterministic=False, num_parallel_calls=2).batch(2)
    )
    with samebits.enable_op_determinism():
        with pytest.warns(ConflictWarning, match="deterministic=False") as caught:
            results = [[b.tolist() for b in build().with_options(seed=1)] for _ in range(2)]
        assert len(caught) == 1
        assert results == [[[n, n + 1] for n in range(0, 12, 2)]] * 2
        with pytest.raises(ConflictError, match="deterministic=False"):
            next(iter(build().with_options(seed=1, on_conflict="raise")))
    next(iter(build().with_options(seed=1, on_conflict="raise")))
    with pytest.raises(ValueError, match="on_conflict"):
        build().with_options(on_conflict="ignore")


def test_random_without_a_seed_raises_under_the_switch():
    """As RandomDataset's; with a seed, or with the process's, it does not."""
    with samebits.enable_op_determinism():
        with pytest.raises(UnseededError, match=r"random\(seed=0\)"):
            next(iter(Pipeline.random()))
        seeded = [Pipeline.random(seed=1), Pipeline.random().with_options(seed=4)]
        first, second = (list(one.take(3)) for one in seeded)
        assert first != second == list(Pipeline.random().take(3).with_options(seed=4))
        samebits.set_random_seed(4)
        assert list(Pipeline.random().take(3)) == second


def test_prefetch_auto_computes_ahead_as_without_the_call():
    """prefetch("auto") gives the same elements, with workers and without; another word is an error that names both."""
    pipeline = Pipeline.range(12).shuffle().map(abs).batch(2).with_options(seed=1)
    expected = [batch.tolist() for batch in pipeline]
    for workers in (0, 2):
        ahead = pipeline.with_options(num_parallel_calls=workers).prefetch("auto")
        assert [batch.tolist() for batch in ahead] == expected
    with pytest.raises(InvalidArgumentError, match=r'number of batches, or "auto"'):
        pipeline.prefetch("all")


# Threads, and the choice


def test_threads_compute_in_order():
    """executor="thread": several threads of this process, the elements of a plain loop, bits as without."""
    build = lambda: Pipeline.range(64).map(lambda x, rng: x + rng.random()).batch(4)
    assert {name for batch in Pipeline.range(64).map(thread_of).batch(4, collate=list).with_options(
        seed=1, executor="thread", num_parallel_calls=2
    ) for name in batch} == {"samebits_0", "samebits_1"}  # fmt: skip
    threaded = build().with_options(seed=1, executor="thread", num_parallel_calls=3)
    for _ in range(2):
        alone = [b.tolist() for b in build().with_options(seed=1)]
        assert [b.tolist() for b in threaded.with_options(seed=1)] == alone
    assert [b.tolist() for b in build().with_options(seed=2)] != alone


def test_threads_end_with_the_iteration():
    """No thread is left behind, neither at the end nor when an iteration is abandoned."""
    pipeline = Pipeline.range(640).map(plain).with_options(seed=1, executor="thread", num_parallel_calls=2)
    list(pipeline)
    iterator = iter(pipeline)
    next(iterator)
    iterator.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("samebits_")]


def test_errors_of_threads_arrive():
    """An error in a thread names element and stage as it does elsewhere."""
    pipeline = (
        Pipeline.range(9)
        .map(lambda x: 1 // (x - 5))
        .with_options(seed=1, executor="thread", num_parallel_calls=2)
    )
    with pytest.raises(PipelineError, match="element 5"):
        list(pipeline)


def test_what_draws_from_the_process_is_never_on_a_thread():
    """It is moved to processes, with one warning naming it; the training thread's draws stay what they are."""
    build = lambda: Pipeline.range(40).map(lambda x: (noisy(x), os.getpid())).batch(4)
    threaded = build().with_options(seed=1, executor="thread", num_parallel_calls=2)
    torch.manual_seed(0)
    undisturbed = torch.rand(10)
    torch.manual_seed(0)
    drawn = []
    with pytest.warns(ConflictWarning, match="lambda.*rand") as caught:
        for values, pids in threaded:
            drawn.append(torch.rand(1))
            assert main not in pids.tolist()
    assert len(caught) == 1
    assert torch.equal(torch.cat(drawn), undisturbed)


def test_auto_stays_inline_for_cheap_maps_and_starts_workers_for_slow_ones():
    """ "auto" measures, then chooses; elements and states are the same either way."""

    def reader_of(function):
        iterator = iter(
            Pipeline.range(40).map(function).batch(4).with_options(seed=1, num_parallel_calls="auto")
        )
        made = []
        original = inline_or_parallel.reader
        choice_made = lambda *arguments: made.append(original(*arguments)) or made[-1]
        from samebits.data import _resumable as module

        module.reader = choice_made
        try:
            elements = [b.tolist() for b in iterator]
        finally:
            module.reader = original
        return made[0], elements

    def slow(x):
        time.sleep(0.002)
        return x

    cheap, elements = reader_of(lambda x: x)
    assert getattr(cheap, "parallel", None) is None
    chosen, same = reader_of(slow)
    assert same == elements == [list(range(n, n + 4)) for n in range(0, 40, 4)]
    if len(os.sched_getaffinity(0)) > 1:
        assert chosen.parallel is not None


# Random scopes


def test_collate_has_its_own_scope_per_batch():
    """What collate draws is another number for each batch, the same for any number of workers."""
    collate = lambda rows: (rows, torch.rand(()).item())
    build = lambda: Pipeline.range(12).map(noisy).batch(3, collate=collate)
    alone = list(build().with_options(seed=1))
    assert list(build().with_options(seed=1, num_parallel_calls=2)) == alone
    assert len({drawn for _, drawn in alone}) == 4
    assert [rows for rows, _ in alone] == [rows for rows, _ in Pipeline.range(12).map(noisy).batch(3, collate=lambda rows: (rows, 0)).with_options(seed=1)]  # fmt: skip


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.rand(()).item(),
        lambda x, rng: x + rng.random(),
        lambda x, key: x + random.uniform(key, 1).item(),
    ],
)
def test_two_maps_with_the_same_function_draw_differently(function):
    """The stage is part of the key."""
    once = list(Pipeline.range(10).map(function).with_options(seed=1))
    twice = list(Pipeline.range(10).map(function).map(function).with_options(seed=1))
    first = [x - n for n, x in enumerate(once)]
    second = [y - x for x, y in zip(once, twice)]
    assert not np.isclose(first, second).any()


def test_no_two_of_a_million_positions_share_a_generator_state():
    """10**6 keys are distinct, even in their first 64 bits; 32 bits of them are not, which the check sees."""
    rows = key_words(int_keys.fold(int_keys.root(3), "pipeline"), range(10**6))
    assert len(np.unique(rows[:, 0])) == 10**6
    assert len(np.unique(rows[:, 0].astype(np.uint32))) < 10**6
    for n in (0, 7, 10**6 - 1):
        assert tuple(rows[n].tolist()) == int_keys.fold(int_keys.fold(int_keys.root(3), "pipeline"), n)


def _seeded(a: int, b: int) -> np.random.Generator:
    """NumPy's own SFC64, twelve rounds after the seed words a, b, 0."""
    bits = np.random.SFC64(0)
    seeded = {"state": np.array([a, b, 0, 1], np.uint64)}
    bits.state = {"bit_generator": "SFC64", "state": seeded, "has_uint32": 0, "uinteger": 0}
    bits.random_raw(12)
    return np.random.Generator(bits)


def test_a_generator_that_is_kept_stays_the_users():
    """`rng` is set anew for each call; one that the function keeps, or a part of it, is not touched again."""
    expected = [_seeded(*row).random() for row in key_words((1, 2), range(8)).tolist()]
    for keep, draw in (
        (lambda x, rng: rng, lambda kept: kept.random()),
        (lambda x, rng: rng.bit_generator, lambda kept: np.random.Generator(kept).random()),
        (lambda x, rng: rng.random, lambda kept: kept()),
        (lambda x, rng: rng.random(), lambda kept: kept),
        (lambda x, rng: (rng.integers(9, dtype=np.int32), rng)[1], None),
    ):
        kept = Function(keep, "map").call_each((1, 2), range(8), range(8))
        if draw is not None:
            assert [draw(one) for one in kept] == expected
        else:
            assert len({id(one) for one in kept}) == 8


def test_half_used_words_do_not_reach_the_next_element():
    """A 32-bit draw leaves half a word in the generator; the next element begins without it."""
    draw = lambda x, rng: int(rng.integers(2**32, dtype=np.uint32))
    together = Function(draw, "map").call_each((1, 2), range(4), range(4))
    assert together == [Function(draw, "map").call_each((1, 2), [n], [n])[0] for n in range(4)]


def test_an_effect_that_only_shows_on_a_thread():
    """It is noticed after the first task: the rest is read serially, and the elements are the same."""
    hidden = Hidden()
    quiet = Pipeline.range(400).map(hidden, stateful=None).batch(5).with_options(seed=1)
    thread = {"executor": "thread", "num_parallel_calls": 2}
    with pytest.warns(ConflictWarning, match="rand|draw"):  # exec may draw: moved to processes
        assert len(list(quiet.with_options(**thread))) == 80
    seen = []
    touching = Touching(seen)
    pipeline = Pipeline.range(400).map(touching).batch(5).with_options(seed=1, **thread)
    with pytest.warns(ConflictWarning, match="seen"):
        assert [batch.tolist() for batch in pipeline] == [list(range(n, n + 5)) for n in range(0, 400, 5)]
    assert sorted(set(seen)) == list(range(400))
    assert seen[-300:] == list(range(100, 400))


class Touching:
    """Reading takes it for harmless: the library's function changes what it is given."""

    def __init__(self, seen):
        self.seen = seen

    def __call__(self, x):
        operator.methodcaller("append", x)(self.seen)
        return x


class Remembering:
    """A dataset with a memo."""

    def __init__(self):
        self.memo = {}

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index not in self.memo:
            self.memo[index] = index * index
        return self.memo[index], os.getpid()


def test_a_source_with_side_effects():
    """It is read in this process, unless it is declared that its effects do not matter."""
    with pytest.warns(ConflictWarning, match="memo"):
        here = list(Pipeline.from_source(Remembering()).with_options(seed=1, num_parallel_calls=2))
    assert {pid for _, pid in here} == {main}
    there = list(
        Pipeline.from_source(Remembering(), stateful=False).with_options(seed=1, num_parallel_calls=2)
    )
    assert main not in {pid for _, pid in there}
    assert [x for x, _ in here] == [x for x, _ in there]


@pytest.mark.filterwarnings("ignore::samebits.errors.ConflictWarning")
def test_workers_of_a_server_follow_the_same_rules(request):
    """What is sent to a server by value leaves what was read of it behind, and is watched there, too."""
    cloudpickle.register_pickle_by_value(sys.modules[noisy.__module__])  # a server cannot import a test
    request.addfinalizer(lambda: cloudpickle.unregister_pickle_by_value(sys.modules[noisy.__module__]))
    options = {"seed": 1, "num_parallel_calls": 2, "start_method": "server"}
    alone = Pipeline.range(40).map(noisy).map(Hidden()).batch(4).with_options(seed=1)
    served = Pipeline.range(40).map(noisy).map(Hidden()).batch(4).with_options(**options)
    assert [batch.tolist() for batch in served] == [batch.tolist() for batch in alone]
    log.clear()
    noted = Pipeline.range(40).map(noisy).map(noting).batch(4)
    expected = [batch.tolist() for batch in noted.with_options(seed=1)]
    once = list(log)
    assert [batch.tolist() for batch in noted.with_options(**options)] == expected
    assert log == 2 * once


@pytest.mark.slow
def test_a_pipeline_with_a_seed_of_its_own_needs_no_other():
    """Under the switch, in a process that nobody seeded, its functions draw; the program's own draws still raise."""
    program = """
import random, numpy as np, torch, samebits
from samebits.data import Pipeline
from samebits._program import effects as purity; from samebits.data._calls import process_generators as scope
samebits.enable_op_determinism()
drawn = Pipeline.range(40).map(lambda x: x + np.random.rand() + torch.rand(1).item() + random.random()).batch(10)
first = [batch.tolist() for batch in drawn.with_options(seed=1)]
assert first == [batch.tolist() for batch in drawn.with_options(seed=1, num_parallel_calls=1)]
for draw in (lambda: torch.rand(1), np.random.rand, random.random):
    try:
        draw()
    except samebits.errors.UnseededError:
        print("raised")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert run.stdout.split() == ["raised"] * 3, run.stderr


UNSEEDED = """
import random, numpy as np, torch, samebits
from numpy.random import rand
from samebits.data import DataLoader, Pipeline
from samebits._program import effects as purity
class Hidden:
    def __float__(self): return HOW()
hidden = Hidden()
class Data:
    def __len__(self): return 8
    def __getitem__(self, index): return READ
samebits.enable_op_determinism()
assert (purity.read(Data().__getitem__).may_draw is not None) == SEEN
loaded = [torch.cat(list(DataLoader(Data(), batch_size=4, seed=1, num_workers=n))).tolist() for n in (0, 2, 0)]
mapped = Pipeline.range(8).map(Data().__getitem__).batch(4)
read = [torch.cat(list(mapped.with_options(seed=1, num_parallel_calls=n))).tolist() for n in (0, 1, 0)]
assert loaded[0] == loaded[1] == loaded[2] and read[0] == read[1] == read[2], (loaded, read)
assert len(set(loaded[0])) == len(set(read[0])) == 8
print(loaded, read)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "read", "seen"),
    [
        ("torch.rand(1).item() + np.random.rand() + random.random()", "float(hidden)", False),
        ("None", "rand()", True),
    ],
)
def test_a_draw_that_reading_missed_needs_no_seed_of_the_process(how, read, seen):
    """Loader and pipeline: a draw that reading missed is set as any other, two processes agree; so is rand, imported by name before the switch."""
    program = UNSEEDED.replace("HOW()", how).replace("READ", read).replace("SEEN", str(seen))
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    (first, error), (second, _) = (run.communicate(timeout=120) for run in runs)
    assert first and first == second, error


class DrawsAsFloat:
    def __float__(self):
        return np.random.rand() + torch.rand(1).item()


@pytest.mark.parametrize("kind", ["stream", "effect", "numbered"])
def test_a_draw_that_reading_missed_does_not_follow_the_callers_generators(kind):
    """Where an element cannot be made twice, a missed draw is set too: what the caller drew before does not matter."""
    hidden, calls = DrawsAsFloat(), []
    assert purity.read(lambda x: float(hidden)).may_draw is None
    source = Pipeline.from_iterable(range(6)) if kind == "stream" else Pipeline.range(6)
    if kind == "effect":
        drawn = source.map(lambda x: (calls.append(x), float(hidden))[1])
    else:
        drawn = source.map(lambda x: float(hidden))
    read = []
    for moved, workers in ((0, 0), (5, 0), (7, 1)):
        samebits.set_random_seed(1)
        torch.rand(moved), np.random.rand(moved)
        before = rng_states.of_process()
        read.append(list(drawn.with_options(seed=1, num_parallel_calls=workers)))
        assert rng_states.of_process() == before
    assert read[0] == read[1] == read[2] and len(set(read[0])) == 6
    assert calls == [*range(6)] * 3 * (kind == "effect")


@pytest.mark.parametrize("behind", ["map", "map_batches", "take", "repeat", "enumerate", "unbatch", "plain"])
def test_no_more_than_one_batch_is_made_for_the_first_element(behind):
    """Whatever comes behind `batch`, its batches are made one by one; without batches 64 elements are read at once."""
    read = []

    def noted(number):
        read.append(number)
        return number

    numbers = Pipeline.range(200).map(noted, stateful=False).with_options(seed=1)
    arguments = {"map": [list], "map_batches": [list], "take": [20]}.get(behind, [])
    pipeline = numbers if behind == "plain" else getattr(numbers.batch(4), behind)(*arguments)
    next(iter(pipeline))
    assert len(read) == (64 if behind == "plain" else 4)


class Table:
    def __init__(self):
        self.rows = [{"x": torch.zeros(2)} for _ in range(3000)]

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return self.rows[index]


HELD = {
    "dicts": lambda: [{"x": float(i)} for i in range(100)],
    "tensors in dicts": lambda: [{"x": torch.full((2,), float(i))} for i in range(100)],
    "a dataset's": Table,
}


@pytest.mark.first_case_quick
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("kind", HELD)
def test_an_element_changed_in_place_where_the_source_holds_it_is_a_side_effect(kind, batched, monkeypatch):
    """The second epoch finds it changed: in this process, with a warning, for any number of workers."""

    def augment(row):
        row["x"] += np.random.rand()
        return torch.as_tensor(row["x"])

    read = {}
    for workers in (0, 2):
        pipeline = Pipeline.from_source(HELD[kind]()).map(augment)
        pipeline = (pipeline.batch(4) if batched else pipeline).with_options(
            seed=1, num_parallel_calls=workers
        )
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            monkeypatch.setattr(process, "notices", {})
            read[workers] = [torch.stack([one.clone() for one in pipeline]) for _ in range(2)]
        assert any("in place" in str(one.message) for one in told) == bool(workers)
    assert all(map(torch.equal, read[0], read[2]))


def test_an_element_that_is_made_for_its_reader_may_be_changed():
    """Rows of an array, of a dataset that copies, and one that draws: nothing is said, and both workers are started."""
    data = [HELD["tensors in dicts"]()[i]["x"] for i in range(100)]

    class Fresh(Table):
        def __getitem__(self, index):
            return {"x": self.rows[index]["x"].clone()}

    class Drawing(Table):
        def __getitem__(self, index):
            return {"x": torch.rand(2)}

    def change(row):
        row = row["x"] if isinstance(row, dict) else row
        row += 1
        return row, os.getpid()

    with warnings.catch_warnings():
        warnings.simplefilter("error", ConflictWarning)
        for source in (torch.stack(data), Fresh(), Drawing()):
            pipeline = Pipeline.from_source(source).map(change).with_options(seed=1, num_parallel_calls=2)
            processes = {process for _, process in pipeline}
            assert len(processes) == 2 and os.getpid() not in processes

"""71 functions for the detection of side effects: 37 leave something changed, 34 only look as if they did.

Of both, 15 do so from the first element on, and 15 late: from element 100 on, or in a rare branch. Seven more change what
lies deep, is large, or is decided by the first element; four more draw and leave the generators where they were. A late
effect shows in the elements: another order of calls, or another process, gives others.
"""

import functools
import itertools
import operator
from collections import Counter, defaultdict, deque
from dataclasses import dataclass

import numpy as np
import torch

# What the functions have at hand

seen = []
total = 0
names = {}
by_class = defaultdict(list)
labels = ["cat", "dog", "cow"]
mean = np.array([1.0, 2.0, 3.0])
table = np.arange(12.0).reshape(4, 3)
weights = torch.ones(3)
numbers = itertools.count()
own_generator = np.random.default_rng(7)
recent = deque(maxlen=4)
lengths = Counter()


@dataclass
class Statistics:
    count: int = 0
    shape: tuple = ()


statistics = Statistics()


# Impure


def appends_to_a_global(x):
    seen.append(x)
    return x


def counts_in_a_global(x):
    global total
    total += 1
    return x + total


def sets_an_item(x):
    names[x] = str(x)
    return x


def closure():
    count = 0

    def numbered(x):
        nonlocal count
        count += 1
        return x, count

    return numbered


def sets_an_attribute(x):
    statistics.count += 1
    return x


class Counting:
    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x


def remembers_in_a_default(x, cache=[]):
    cache.append(x)
    return x - cache[0]


def changes_a_table_by_an_alias(x):
    row = table[x % 4]
    row += 1.0
    return row.sum()


def updates_a_tensor(x):
    weights.mul_(0.9)
    return x * weights


def takes_the_next(x):
    return x, next(numbers)


def draws_from_an_own_generator(x):
    return x + own_generator.normal()


def _note(where, what):
    where.append(what)


def by_a_helper(x):
    _note(recent, x)
    return x


def writes_out(x):
    np.add(mean, x, out=mean)
    return mean.copy()


def groups(x):
    by_class[labels[x % 3]].append(x)
    return x


def hidden(x):
    operator.methodcaller("update", [x])(lengths)
    return x


IMPURE = {
    appends_to_a_global: "seen",
    counts_in_a_global: "total",
    sets_an_item: "names",
    closure(): "count",
    sets_an_attribute: "statistics",
    Counting(): "calls",
    remembers_in_a_default: "cache",
    changes_a_table_by_an_alias: "table",
    updates_a_tensor: "weights",
    takes_the_next: "numbers",
    by_a_helper: "recent",
    writes_out: "mean",
    groups: "by_class",
    hidden: "lengths",
}
"""With what the finding has to name."""

# Pure


def rebinds_locals(x):
    total = x
    total += 1
    return total


def appends_to_a_local_list(x):
    parts = []
    for number in range(3):
        parts.append(x + number)
    return parts


@functools.lru_cache(maxsize=None)
def remembered(x):
    return x * x


def uses_a_cached_function(x):
    return remembered(x) + 1


def comprehends(x):
    return {label: [x + n for n in range(2)] for label in labels}


def changes_its_own_copy(x):
    row = table[x % 4].copy()
    row += 1.0
    row[0] = 0
    return row


def reads_globals(x):
    return (x - mean) / len(labels)


def out_into_a_local(x):
    result = np.empty(3)
    np.multiply(mean, x, out=result)
    return result


class Scaling:
    def __init__(self, factor):
        self.factor = factor
        self.offsets = [1, 2, 3]

    def __call__(self, x):
        offset = self.offsets[x % 3]
        offset += 1
        return x * self.factor + offset


def inner_function(x):
    count = 0

    def step(by):
        nonlocal count
        count += by
        return count

    step(x)
    return step(2)


def makes_an_object(x):
    own = Statistics()
    own.count += x
    own.shape = (x,)
    return own.count


def draws(x, rng):
    values = rng.normal(size=3)
    rng.shuffle(values)
    return values + x


def draws_from_the_process(x):
    return x + torch.rand(()).item() + np.random.rand()


def local_counter(x):
    found = Counter(labels)
    found.update([labels[x % 3]])
    return found.most_common(1)


def sorts_a_copy(x):
    order = sorted(labels)
    order.reverse()
    return order[x % 3]


def in_place_on_a_new_tensor(x):
    y = weights + x
    y.mul_(2).add_(weights)
    y[0] = 0
    return y


PURE = [
    draws_from_an_own_generator,
    rebinds_locals,
    appends_to_a_local_list,
    uses_a_cached_function,
    comprehends,
    changes_its_own_copy,
    reads_globals,
    out_into_a_local,
    Scaling(2),
    inner_function,
    makes_an_object,
    draws,
    draws_from_the_process,
    local_counter,
    sorts_a_copy,
    in_place_on_a_new_tensor,
]


# Late: from element 100 on, or in a rare branch

late_seen = []
late_total = 0
late_table = np.zeros(8)
late_weights = torch.zeros(3)
late_numbers = itertools.count()
late_lines = itertools.cycle("abc")
late_generator = np.random.default_rng(3)
late_lengths = Counter({n: 0 for n in range(40)})
late_recent = deque([0] * 4, maxlen=4)
late_statistics = Statistics()


def late_append(x):
    if x >= 100:
        late_seen.append(x)
    return x, len(late_seen)


def rare_count(x):
    global late_total
    if x % 97 == 96:
        late_total += 1
    return x, late_total


def late_closure():
    count = 0

    def late_numbered(x):
        nonlocal count
        if x >= 100:
            count += 1
        return x, count

    return late_numbered


def late_attribute(x):
    if x >= 100:
        late_statistics.count += x
    return x, late_statistics.count


class Renewing:
    """Takes a new factor now and then."""

    def __init__(self):
        self.factor = 1

    def __call__(self, x):
        if x % 101 == 100:
            self.factor = self.factor + x
        return x * self.factor


def late_default(x, cache={}):
    if x >= 100:
        cache.setdefault("first", x)
    return x, cache.get("first")


def late_alias(x):
    row = late_table[x % 8 :]
    if x >= 100:
        row += 1.0
    return x, late_table.sum()


def late_tensor(x):
    if x >= 100:
        late_weights.add_(1)
    return x, late_weights.sum().item()


def late_next(x):
    return (x, next(late_numbers)) if x >= 100 else (x, 0)


def late_next_of_a_loop(x):
    if x % 103 == 102:
        for letter in late_lines:
            return x, letter
    return x, ""


def late_draw_from_an_own_generator(x):
    return x, (late_generator.normal() if x >= 100 else 0.0)


def late_helper(x):
    if x >= 100:
        _note(late_recent, x)
    return x, list(late_recent)


def late_in_an_exception(x):
    try:
        return x, 1 // (x - 110), len(late_recent)
    except ZeroDivisionError:
        late_recent.append(x)
        return x, 0, len(late_recent)


def late_hidden(x):
    if x >= 100:
        operator.methodcaller("append", x)(late_seen)
    return x, len(late_seen)


def late_hidden_value(x):
    if x >= 100:
        operator.methodcaller("update", [7])(late_lengths)
    return x, late_lengths[7]


LATE_IMPURE = {
    late_append: "late_seen",
    rare_count: "late_total",
    late_closure(): "count",
    late_attribute: "count",
    Renewing(): "factor",
    late_default: "cache",
    late_alias: "late_table",
    late_tensor: "late_weights",
    late_next: "late_numbers",
    late_next_of_a_loop: "late_lines",
    late_helper: "late_recent",
    late_in_an_exception: "late_recent",
    late_hidden: "late_seen",
    late_hidden_value: "late_lengths",
}
"""With what the finding has to name."""


def late_local(x):
    parts = []
    if x >= 100:
        parts.append(x)
    return x, len(parts)


def late_copy(x):
    row = late_table_kept.copy()
    if x >= 100:
        row += x
    return x, row.sum()


late_table_kept = np.arange(8.0)


@functools.cache
def late_squared(x):
    return x * x


def late_memo(x):
    return x, (late_squared(x // 10) if x >= 100 else 0)


class LazyTable:
    """Makes its table at the first need, which is late: it is the same in every process."""

    def __init__(self):
        self.table = None

    def __call__(self, x):
        if x < 100:
            return x, 0.0
        if self.table is None:
            self.table = np.arange(400.0)
        return x, self.table[x]


class EagerTable(LazyTable):
    """Makes its table at the first element."""

    def __call__(self, x):
        if self.table is None:
            self.table = {n: 2 * n for n in range(400)}
        return x, self.table[x]


class LateProperty:
    @functools.cached_property
    def weights(self):
        return np.arange(400.0)

    def __call__(self, x):
        return x, (self.weights[x] if x >= 100 else 0.0)


lazy_names = None


def lazy_global(x):
    global lazy_names
    if lazy_names is None:
        lazy_names = [f"class {n}" for n in range(400)]
    return x, lazy_names[x]


def late_draw_by_rng(x, rng):
    return x, (rng.normal() if x >= 100 else 0.0)


def late_draw_from_the_process(x):
    return x, (np.random.rand() if x >= 100 else 0.0)


def rare_draw_from_the_process(x):
    return x, (torch.rand(()).item() if x % 97 == 96 else 0.0)


def late_generator_of_its_own(x):
    return x, (np.random.default_rng(x).normal() if x >= 100 else 0.0)


def late_sort(x):
    order = sorted(labels)
    if x >= 100:
        order.reverse()
    return x, order[0]


def late_out(x):
    result = np.zeros(8)
    if x >= 100:
        np.add(late_table_kept, x, out=result)
    return x, result.sum()


def late_inner(x):
    count = 0

    def step():
        nonlocal count
        count += 1

    if x >= 100:
        step()
    return x, count


def late_object(x):
    own = Statistics()
    if x >= 100:
        own.count += x
    return x, own.count


LATE_PURE = [
    late_local,
    late_copy,
    late_memo,
    LazyTable(),
    EagerTable(),
    LateProperty(),
    lazy_global,
    late_draw_by_rng,
    late_draw_from_the_process,
    rare_draw_from_the_process,
    late_generator_of_its_own,
    late_draw_from_an_own_generator,
    late_sort,
    late_out,
    late_inner,
    late_object,
]


# Deep: what changes lies far down, or is large, or is decided by an element that came first


class KeepsTheFirst:
    """Its scale is that of the first element."""

    def __init__(self, begin):
        self.begin, self.scale = begin, None

    def __call__(self, x):
        if x < self.begin:
            return x, 0
        if self.scale is None:
            self.scale = [x + 1]
        return x, x * self.scale[0]


shelves = [[] for _ in range(400)]
large_table = np.zeros((400, 64))
by_name = {f"name {n}": 0 for n in range(400)}


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0

    def __call__(self, x):
        self.count += x >= 100
        return x, self.count


def late_in_a_nested_list(x):
    if x >= 100:
        shelves[x % 3 + 300].append(x)
    return x, len(shelves[300])


def late_in_a_large_table(x):
    if x >= 100:
        large_table[200] += 1
    return x, large_table[200, 0]


def once_in_a_large_table(x):
    if x == 133:
        large_table[200] = 7
    return x, large_table[200, 0]


def late_value_of_many(x):
    if x >= 100:
        by_name["name 300"] += 1
    return x, by_name["name 300"]


DEEP_IMPURE = {
    KeepsTheFirst(0): "scale",
    KeepsTheFirst(100): "scale",
    Slotted(): "count",
    late_in_a_nested_list: "shelves",
    late_in_a_large_table: "large_table",
    once_in_a_large_table: "large_table",
    late_value_of_many: "by_name",
}
"""With what the finding has to name."""


# Draws from the process's generators that leave these where they were


def late_draw_in_a_fork(x):
    if x < 100:
        return x, 0.0
    with torch.random.fork_rng():
        return x, torch.rand(()).item()


def draw_that_is_taken_back(x):
    state = np.random.get_state()
    drawn = np.random.rand()
    np.random.set_state(state)
    return x, drawn


def seeded_by_the_seed(x):
    return x, np.random.default_rng(torch.initial_seed()).random()


def late_seeded_by_the_seed(x):
    return x, (np.random.default_rng(torch.initial_seed()).random() if x >= 100 else 0.0)


UNMOVED = [late_draw_in_a_fork, draw_that_is_taken_back, seeded_by_the_seed, late_seeded_by_the_seed]
"""Pure: each element has random numbers of its own, the same for any number of workers."""

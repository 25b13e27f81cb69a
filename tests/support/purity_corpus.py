"""30 functions for the detection of side effects: 15 that leave something changed, 15 that only look as if they did."""

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
    draws_from_an_own_generator: "own_generator",
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

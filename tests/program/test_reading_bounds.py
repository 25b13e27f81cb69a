"""Reading a user's functions has a bound: code made to explode a reader is given up, and counts as the worst."""

import pickle
import sys
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

import call_counts
from samebits._objects.budget import Budget, BudgetSpentError
from samebits._program import effects as purity
from samebits.data import DataLoader, Pipeline
from samebits.errors import ConflictWarning

MOST = 600_000
"""Python calls of one reading, at most: about 0.3 s under the count. Without a bound there are billions."""
counted = partial(call_counts.counted, most=MOST)


def function_of(source, name="f"):
    """A function of the user's, from its text."""
    space = {"__name__": "user_program", "np": np, "torch": torch}
    exec(source, space)
    return space[name]


def nested_callables(levels=6, width=8):
    """A library's call with containers of methods, each level inside the next: it may call any with any."""
    lines, inside = [], ["x"] * levels
    for level in range(levels):
        for place in range(levels):
            methods = " if x else ".join(f"x.m{level}_{place}_{n}" for n in range(width))
            lines.append(f"    v{level}_{place} = {methods} if x else [{inside[place]}]")
            inside[place] = f"v{level}_{place}"
    return "\n".join(["def f(x):", *lines, f"    return sorted({', '.join(inside)})"])


def wide_calls(levels=14, width=4):
    """Each function calls `width` functions of the next level, each with an argument of its own."""
    lines = []
    for level in range(levels):
        names = [f"g{level + 1}(lambda y: x(y) + {n})" for n in range(width)]
        lines.append(f"def g{level}(x):\n    return {' + '.join(names)}")
    lines.append(f"def g{levels}(x):\n    return x(1)\ndef f(x):\n    return g0(lambda y: y)")
    return "\n".join(lines)


def many_methods(count=1000):
    """A class of many methods that all call each other by an unknown name."""
    body = "\n".join(
        f"    def m{n}(self, x):\n        self.m{(n * 7 + 1) % count}(x); return self.m{(n * 3 + 2) % count}([x])"
        for n in range(count)
    )
    return f"class C:\n    def __call__(self, x):\n        return self.m0(x)\n{body}\nf = C()"


def long_function(lines=20_000):
    """One function of very many lines."""
    body = "\n".join(f"    x = np.add(x, {n}) if x is not None else [x]" for n in range(lines))
    return f"def f(x):\n{body}\n    return x"


def mutual_recursion(count=300):
    """Functions that call each other with an argument that grows."""
    return "\n".join(
        f"def {'f' if not n else f'g{n}'}(x, *more):\n"
        f"    return [g{n % (count - 1) + 1}([x, lambda: x], x, *more), g{(n * 5) % (count - 1) + 1}({{1: x}}, *more)]"
        for n in range(count)
    )


EXPLODING = {
    "nested": nested_callables(),
    "wide": wide_calls(),
    "methods": many_methods(),
    "long": long_function(),
    "mutual": mutual_recursion(),
}


@pytest.mark.parametrize("name", EXPLODING)
def test_code_that_explodes_a_reader_is_given_up_and_counts_as_drawing(name):
    """The reading ends within a fixed number of calls; what was not read may draw."""
    function = function_of(EXPLODING[name])
    reading = counted(lambda: purity.read(function))
    assert not reading.complete and reading.may_draw is not None


def test_code_of_ordinary_size_is_read_to_its_end():
    """The control: torch's collate function, and a tenth of each exploding text that can end, are read whole."""
    small = [wide_calls(2, 2), many_methods(5), long_function(40)]
    for function in [torch.utils.data.default_collate, *map(function_of, small)]:
        reading = purity.read(function)
        assert reading.complete, (function, reading.may_draw)


def test_the_functions_of_a_pipeline_share_one_bound():
    """100 functions cost no more reading than five or so; all that are not read may draw."""
    functions = [function_of(long_function(40)) for _ in range(100)]
    pipeline = Pipeline.range(8)
    for function in functions:
        pipeline = pipeline.map(function)
    found = pipeline._stage.all_functions()
    readings = counted(lambda: [one.reading for one in found], most=2 * MOST)
    assert readings[0].complete and not readings[-1].complete
    assert sum(one.complete for one in readings) < 50


def test_a_budget_ends_by_steps_and_stays_ended():
    """Steps decide before the clock does; a copy in another process begins anew."""
    budget = Budget(steps=10, seconds=1e9)
    with budget:
        budget.spend(10)
        for _ in range(3):
            with pytest.raises(BudgetSpentError):
                budget.spend()
    with pickle.loads(pickle.dumps(budget)) as fresh:
        fresh.spend(10)
    with Budget(steps=1 << 40, seconds=-1.0) as late, pytest.raises(BudgetSpentError):
        late.spend(1000)


SEEN = []
COUNT = 0
TABLE = np.zeros(4)


def far_effect(effect):
    """A function whose effect lies deeper than is read."""
    deep = "\n".join(f"def g{n}(x):\n    return g{n + 1}(x)" for n in range(60))
    text = f"{deep}\ndef g60(x):\n    {effect}\ndef f(x):\n    return g0(x)"
    space = vars(sys.modules[__name__])
    exec(text, space)
    return space["f"]


@pytest.mark.parametrize(
    "effect",
    [
        "SEEN.append(x); return 100 * x + len(SEEN)",
        "global COUNT; COUNT += 1; return 100 * x + COUNT",
        "TABLE[0] += 1; return 100 * x + int(TABLE[0])",
    ],
)
def test_an_effect_in_code_that_is_not_read_is_noticed_as_it_runs(effect):
    """2 workers give the batches of 0, and a warning says what changed."""
    global COUNT
    function, found = far_effect(effect), []
    for workers in (0, 2):
        SEEN.clear()
        COUNT = TABLE[:] = 0
        numbers = Pipeline.range(8).map(function).batch(4)
        warned = pytest.warns(ConflictWarning, match="changes `.*(SEEN|COUNT|TABLE)")
        with warned if workers else nullcontext():
            found.append(torch.cat(list(numbers.with_options(seed=1, num_parallel_calls=workers))).tolist())
    assert found[0] == found[1] == [100 * x + x + 1 for x in range(8)]


def test_a_loader_with_an_exploding_collate_function_gives_its_batches():
    """The first batch comes within a fixed number of calls, and equals that of the function itself."""
    explode = function_of(
        many_methods() + "\ndef g(rows):\n    return torch.tensor(rows) if rows else f(rows)", "g"
    )
    loader = DataLoader(list(range(8)), batch_size=4, collate_fn=explode, seed=1)
    assert counted(lambda: next(iter(loader)), most=2 * MOST).tolist() == [0, 1, 2, 3]

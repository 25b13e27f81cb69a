"""Side effects and draws that begin late, or lie deep: elements and warnings with workers are compared with a plain loop's."""

import functools
import importlib.util
import logging
import operator
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from samebits._context import process
from samebits.data import Pipeline
from samebits.errors import ConflictWarning

CORPUS = Path(__file__).parents[1] / "support" / "purity_corpus.py"
COUNT = 300
LOG = logging.getLogger("samebits.tests.late")
KINDS = {"LATE_IMPURE": 14, "DEEP_IMPURE": 7, "LATE_PURE": 16, "UNMOVED": 4}
UNSEEN = {"late_hidden", "late_hidden_value"}
"""No code shows these, and a worker compares captured state at its first task only: they are missed."""


def function_of(kind, number):
    """A function of a fresh copy of the corpus: its impure functions change it."""
    spec = importlib.util.spec_from_file_location("purity_corpus", CORPUS)
    corpus = importlib.util.module_from_spec(spec)
    sys.modules["purity_corpus"] = corpus  # where its dataclass looks itself up
    spec.loader.exec_module(corpus)
    assert len(getattr(corpus, kind)) == KINDS[kind]
    return list(getattr(corpus, kind))[number]


def cases(*kinds):
    """One case for each function, by its name."""
    return [
        pytest.param(
            kind,
            number,
            id=f"{kind}-{getattr(one := function_of(kind, number), '__name__', type(one).__name__)}",
        )
        for kind in kinds
        for number in range(KINDS[kind])
    ]


def read(function, workers):
    """The elements, and what the warnings say."""
    process.notices.clear()
    pipeline = Pipeline.range(COUNT).map(function).batch(4, collate=list)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        batches = list(pipeline.with_options(seed=1, num_parallel_calls=workers))
    said = [str(one.message) for one in caught if isinstance(one.message, ConflictWarning)]
    return [str(element) for batch in batches for element in batch], said


@pytest.mark.parametrize(("kind", "number"), cases("LATE_IMPURE", "DEEP_IMPURE"))
def test_a_late_or_deep_side_effect_is_told_and_its_elements_are_a_plain_loops(kind, number):
    """From element 100 on, in a rare branch, in large or nested state: two workers give a plain loop's elements, and a warning."""
    function = function_of(kind, number)
    plain = [str(function(x)) for x in range(COUNT)]
    elements, said = read(function_of(kind, number), 2)
    name = getattr(function, "__name__", type(function).__name__)
    assert (elements == plain, bool(said)) == ((False, False) if name in UNSEEN else (True, True))


@pytest.mark.parametrize(("kind", "number"), cases("LATE_PURE", "UNMOVED"))
def test_what_begins_late_and_leaves_nothing_changed_is_not_blamed(kind, number):
    """Memos, tables made at the first need, late draws, draws that leave the generators where they were: no warning, and the
    same elements whatever the caller drew before, with 0 and 2 workers.
    """
    elements, said = read(function_of(kind, number), 0)
    torch.rand(5), np.random.rand(5), random.random()
    assert read(function_of(kind, number), 2) == (elements, said) and not said


class Keeping:
    """Keeps a table, as a cached property or as an attribute, and logs each element."""

    def __init__(self, *, cached):
        self.cached = cached

    @functools.cached_property
    def table(self):
        return list(range(COUNT))

    def __call__(self, x):
        LOG.debug("%s", x)
        if not self.cached:
            operator.methodcaller("__setitem__", "kept", x)(vars(self))
        return x, self.table[x]


@pytest.mark.parametrize("cached", [True, False])
def test_what_a_logger_and_a_cached_property_keep_is_no_side_effect(cached):
    """Both are the same in every process; an attribute that is set beside them is one, however it is hidden."""
    elements, said = read(Keeping(cached=cached), 2)
    assert elements == [str((x, x)) for x in range(COUNT)]
    assert bool(said) == (not cached)

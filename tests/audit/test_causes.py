"""The verdict on an op that was called alone under several conditions."""

import pytest

from samebits.audit._trace.causes import Replay, _verdict

FLAGS = {"threads": 2, "mkldnn": True}
SAME = ("a",) * 20
MANY = tuple("abcdefghij") * 2
CONDITIONS = {
    "base": "as it was",
    "alone": "with 1 thread",
    "filled": "memory filled with other bytes",
    "vectors": "without AVX-512 and the libraries' own choice",
    "shifted": "inputs at another address",
    "elsewhere": "as in the other run",
}
TABLE = [
    ({"base": MANY}, "a sum in no order", True),
    ({"base": MANY, "alone": MANY}, "unwritten memory: 10 different results", True),
    ({"base": MANY, "alone": MANY, "filled": MANY}, "unwritten memory, or a race", False),
    ({"filled": MANY}, "unwritten memory, or a race", False),
    ({"filled": ("b",) * 20}, "unwritten memory: its result changes", True),
    ({"vectors": ("b",) * 20}, "the instruction set", True),
    ({"shifted": ("b",) * 20}, "the address of its inputs", True),
    (
        {"elsewhere": ("b",) * 20},
        "the number of threads: threads 2 -> 1; called alone it gives each run's bits",
        True,
    ),
    ({}, "not known: seen 0 of 20", False),
    ({"base": ()}, "it could not be called alone", False),
]


@pytest.mark.parametrize(("results", "text", "seen"), TABLE)
def test_a_cause_is_said_as_seen_only_where_its_condition_alone_changes_the_result(results, text, seen):
    """One row for each cause; results that several causes explain are told as a guess."""
    found = {name: Replay(name, results.get(key, SAME)) for key, name in CONDITIONS.items()}
    other = {**FLAGS, "threads": 1} if "elsewhere" in results else FLAGS
    cause = _verdict({"n": "aten::sum"}, FLAGS, other, found, "a", "b")
    assert cause.text.startswith(text) and cause.seen is seen

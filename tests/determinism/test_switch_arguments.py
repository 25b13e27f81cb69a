"""Rule: a call of the switch with an argument that it does not have raises an error with the line to type."""

import inspect

import pytest

import samebits
from samebits.errors import InvalidArgumentError

WRONG = [
    (
        {"threads": True},
        r"no argument threads. For the same bits on any number of threads type\n .*\(thread_invariant=True\)",
    ),
    ({"across": "threads"}, r"across='threads'\): .*\(thread_invariant=True\)"),
    ({"across": ["cpus"]}, r"\(machine_invariant=True\)"),
    ({"warn_only": True}, r'on_unimplemented="warn"'),
    ({"seed": 3}, r"samebits.set_random_seed\(seed\)"),
    (
        {"strict": True},
        "no argument strict. Its arguments are enabled, thread_invariant, machine_invariant and on_unimplemented",
    ),
]


@pytest.mark.parametrize(("named", "words"), WRONG, ids=[str(named) for named, _ in WRONG])
def test_an_unknown_argument_is_answered_with_the_line_to_type(named, words):
    """The error is InvalidArgumentError and TypeError, names the argument, and the switch stays off."""
    with pytest.raises(InvalidArgumentError, match=f"(?s){words}") as caught:
        samebits.enable_op_determinism(**named)
    assert isinstance(caught.value, TypeError) and not samebits.op_determinism_enabled()


def test_a_second_argument_needs_its_name():
    """enable_op_determinism(True, True) says so; by its name (control) it is accepted."""
    with pytest.raises(InvalidArgumentError, match="each argument after the first needs its name"):
        samebits.enable_op_determinism(True, True)
    with samebits.enable_op_determinism(True, thread_invariant=True):
        assert samebits.op_determinism_enabled()


def test_editors_see_the_switchs_own_signature():
    """inspect.signature shows the arguments, and each line to type fits it."""
    assert [*inspect.signature(samebits.enable_op_determinism).parameters] == [
        "enabled", "thread_invariant", "machine_invariant", "on_unimplemented"
    ]  # fmt: skip

"""Rule: a call of the switch with an argument that it does not have raises an error with the line to type."""

import inspect

import pytest

import samebits
from samebits.errors import InvalidArgumentError

WRONG = [
    (
        {"threads": True},
        r"no argument threads. For the same bits on any number of threads type\n .*\(across=\"threads\"\)",
    ),
    ({"thread_invariant": True}, r"type\n .*\(across=\"threads\"\)"),
    ({"machine_invariant": True}, r"type\n .*\(across=\"machines\"\)"),
    ({"thread_invariant": True, "machine_invariant": True}, r"type\n .*\(across=\"machines\"\)"),
    ({"thread_invariant": True, "machine_invariant": False}, r"type\n .*\(across=\"threads\"\)"),
    ({"thread_invariant": False}, "Its arguments are enabled, across and on_unimplemented"),
    ({"scope": ["cpus"]}, r"\(across=\"machines\"\)"),
    ({"warn_only": True}, r'on_unimplemented="warn"'),
    ({"seed": 3}, r"samebits.set_random_seed\(seed\)"),
    ({"strict": True}, "no argument strict. Its arguments are enabled, across and on_unimplemented"),
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
    with samebits.enable_op_determinism(True, across="threads"):
        assert samebits.op_determinism_enabled()


def test_editors_see_the_switchs_own_signature():
    """inspect.signature shows the arguments, and each line to type fits it."""
    assert [*inspect.signature(samebits.enable_op_determinism).parameters] == [
        "enabled", "across", "on_unimplemented"
    ]  # fmt: skip


@pytest.mark.parametrize("across", ["thread", "", None, True, ["threads"]])
def test_another_step_of_the_ladder_names_the_three(across):
    """`across` of another value is an InvalidArgumentError that names the three, and the switch stays off;
    they (control) are taken.
    """
    with pytest.raises(InvalidArgumentError, match="'runs', 'threads' or 'machines'"):
        samebits.enable_op_determinism(across=across)
    assert not samebits.op_determinism_enabled()
    for step in ("runs", "threads", "machines"):
        with samebits.enable_op_determinism(across=step):
            assert samebits.determinism.environment_fingerprint()["op_determinism"]["across"] == step

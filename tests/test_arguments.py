"""samebits._arguments: the checks of arguments, and the one text of their errors."""

import math

import pytest

from samebits._arguments import is_fraction, is_int, is_number, require, require_int
from samebits.errors import InvalidArgumentError


def test_an_argument_that_does_not_fit_is_named_with_its_call_and_the_valid_values():
    """The message is `call(name=value): wanted.`; an argument that fits raises nothing."""
    with pytest.raises(InvalidArgumentError) as caught:
        require(False, "Run", "seconds, a number above 0", grace="x" * 100)
    assert str(caught.value) == f"Run(grace='{'x' * 59}): seconds, a number above 0."
    with pytest.raises(InvalidArgumentError, match=r"^fit\(epochs=0\): must be an int of at least 1\.$"):
        require_int("fit", epochs=0)
    require_int("fit", epochs=1)
    require_int("fit", 0, initial_epoch=0)


def test_kinds_of_numbers():
    """A bool is no number, nor is NaN; bounds are as the names say."""
    numbers = [True, 1.5, 3, 0, -1, 0.5, math.nan, math.inf, "1", None]
    assert [value for value in numbers if is_int(value, 0)] == [3, 0]
    assert [value for value in numbers if is_number(value, 0)] == [1.5, 3, 0, 0.5, math.inf]
    assert [value for value in numbers if is_fraction(value)] == [0.5]

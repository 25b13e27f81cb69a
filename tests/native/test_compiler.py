"""The language of kernels: each construct gives what Python gives, by the types' rules; what is not of it is refused."""

import math
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits._native import inlined, kernel
from samebits._native.operations import LanguageError

signed, unsigned = st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1)
small = st.integers(-100, 100)


def wrapped(x):
    """An integer modulo 2**64, as a signed one."""
    return (x + 2**63) % 2**64 - 2**63


@kernel("UniTuple(int64, 8)(int64, int64)")
def integers(a, b):
    return a + b, a - b, a * b, a // b, a % b, a & b, a | b, a ^ b


@given(signed, signed)
def test_integers_of_64_bits_are_computed_as_in_python(a, b):
    """+ - * & | ^ modulo 2**64, // and % rounded down; divided by zero both are 0."""
    quotient, rest = (a // b, a % b) if b else (0, 0)
    expected = a + b, a - b, a * b, quotient, rest, a & b, a | b, a ^ b
    if (a, b) != (-(2**63), -1):  # no CPU divides these
        assert integers(a, b) == tuple(map(wrapped, expected))


@kernel("UniTuple(uint64, 5)(uint64, uint64)")
def unsigned_integers(a, b):
    return a + b, a // b, a % b, a >> np.uint64(3), a << np.uint64(3)


@given(unsigned, unsigned)
def test_unsigned_integers_are_computed_as_in_python(a, b):
    """Modulo 2**64; a shift to the right brings zeros in."""
    expected = a + b, a // b if b else 0, a % b if b else 0, a >> 3, a << 3
    assert unsigned_integers(a, b) == tuple(x % 2**64 for x in expected)


@kernel("UniTuple(bool, 6)(int64, uint64)")
def compared(a, b):
    return a < b, a <= b, a > b, a >= b, a == b, a != b


SIGNS = operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne


@given(st.one_of(signed, small), st.one_of(unsigned, st.integers(0, 100)))
def test_a_signed_and_an_unsigned_integer_are_compared_by_their_values(a, b):
    """-1 is less than 2**63, which C would deny."""
    assert compared(a, b) == tuple(sign(a, b) for sign in SIGNS)


@kernel("UniTuple(bool, 6)(float64, float64)")
def floats_compared(a, b):
    return a < b, a <= b, a > b, a >= b, a == b, a != b


@given(st.floats(), st.floats())
def test_floats_are_compared_as_in_python(a, b):
    """A NaN is unequal to all, and nothing else."""
    assert floats_compared(a, b) == tuple(sign(a, b) for sign in SIGNS)


@kernel("UniTuple(float64, 6)(float32, float64, int64, uint64)")
def mixed(single, double, integer, word):
    return (
        single * double,
        single + integer,
        integer / word,
        np.float64(single * single),
        min(single, double),
        max(2, 3.5),
    )


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6), small, st.integers(1, 100))
def test_mixed_types_are_computed_in_the_type_that_has_both(single, double, integer, word):
    """float32 with float64 or an integer: float64; integers divided: float64; float32 with itself: float32."""
    square = float(np.float32(single) * np.float32(single))
    expected = single * double, single + integer, integer / word, square, min(single, double), 3.5
    assert mixed(single, double, integer, word) == expected


@kernel("UniTuple(int64, 4)(uint32, int64)")
def narrow(word, x):
    return np.uint32(word + word), word + word, np.int32(x), np.uint8(x)


def test_integers_are_64_bits_wide_until_they_are_converted():
    """Two uint32 add up to 33 bits; a conversion drops the upper ones."""
    assert narrow(2**32 - 1, 2**31 + 257) == (2**32 - 2, 2**33 - 2, -(2**31) + 257, 1)


@inlined
def first_even(numbers, most):
    for i in range(most):
        if numbers[i] % 2:
            continue
        return numbers[i]
    return np.int64(-1)


TABLE, REALS = (3, 1, 4, 1, 5), (0.5, 2.0)


@kernel("UniTuple(int64, 5)(int64[::1], int64)")
def branches(numbers, most):
    total, count = 0, 0
    while True:
        if count == most or total > 100:
            break
        total += numbers[count] if numbers[count] > 0 and count >= 0 else -numbers[count]
        count += 1
    last = 0
    for i in range(most - 1, -1, -2):
        last = last * 10 + i
    looked = TABLE[most % 5]
    unrolled = 0
    for factor in TABLE:
        unrolled = unrolled * 10 + factor
    return total, first_even(numbers, most), last, looked, unrolled


@given(st.lists(small, min_size=1, max_size=9))
def test_loops_and_branches_are_those_of_python(numbers):
    """while, for with a step, break, continue, early returns, conditional expressions, tables."""
    array = np.array(numbers, np.int64)
    assert branches(array, len(numbers)) == branches.function.__wrapped__(array, len(numbers))


def _in_python(numbers, most):
    numbers, total, count = numbers.tolist(), 0, 0
    while count < most and total <= 100:
        total, count = total + abs(numbers[count]), count + 1
    even = next((x for x in numbers if x % 2 == 0), -1)
    last = int("0" + "".join(map(str, range(most - 1, -1, -2))))
    return total, even, last, TABLE[most % 5], 31415


branches.function.__wrapped__ = _in_python


@kernel("int64(int64, int64, int64)")
def counted(start, stop, step):
    total = 0
    for i in range(start, stop, step):
        total = total * 3 + i
    return total


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-4, 4).filter(bool))
def test_a_range_goes_up_or_down_by_a_step_that_is_known_late(start, stop, step):
    """The sign of the step decides where it ends."""
    assert counted(start, stop, step) == counted.function(start, stop, step)


@kernel("void(float64[:, ::1], float64[:])")
def of_rows(rows, out):
    room = np.empty(rows.shape[1], np.float64)
    fixed = np.zeros(2, np.float64)
    for i in range(rows.shape[0]):
        row = rows[i]
        room[:] = row
        fixed[0] += room[1 : row.size : 2][0]
        out[i] = room[row.size - 1] + fixed[0] + fixed[1] + len(row)


def test_arrays_have_rows_slices_and_room_of_their_own():
    """A row, a slice with a step, memory of a size that is known late, memory that begins with zeros; a target with steps."""
    rows, out = np.arange(12.0).reshape(3, 4), np.full(6, np.nan)
    of_rows(rows, out[::2])
    assert out[::2].tolist() == [3 + 1 + 4, 7 + 6 + 4, 11 + 15 + 4] and np.isnan(out[1::2]).all()


@kernel("UniTuple(int64, 3)(int64, int64)")
def given_in_a_branch(x, y):
    kept = 7
    if x > 0:
        y = 5
        kept = 9
    pair = x, y
    if y == 5:
        pair = y, x
    return y, kept, pair[0] * 10 + pair[1]


def test_a_branch_that_is_not_taken_changes_no_variable():
    """A parameter, a constant and a tuple that only one branch gives another value."""
    for x, y in ((1, 2), (-1, 2), (0, 5)):
        assert given_in_a_branch(x, y) == given_in_a_branch.function(x, y)


def test_what_is_not_of_the_language_is_refused_with_its_place():
    """Unknown statements, names, types that meet, a variable read behind a block that gave it another type."""

    @kernel("int64(int64)")
    def statement(x):
        with x:
            return x

    @kernel("int64(int64)")
    def name(x):
        return x + nothing  # noqa: F821

    @kernel("int64(int64)")
    def meet(x):
        return np.uint64(x) if x > 0 else x

    @kernel("int64(int64)")
    def ended(x):
        y = x
        if x > 0:
            y = 0.5
        return y

    @kernel("int64(int64)")
    def carried(x):
        y = x
        for _ in range(3):
            x = x + y
            y = 0.5
        return x

    @kernel("float64(float64)")
    def called(x):
        return math.log(x)

    @kernel("int64(int64)")
    def named(x):
        return first_even(numbers=x, most=x)

    @kernel("int64(int64)")
    def otherwise(x):
        for _ in range(x):
            break
        else:
            x = 0
        return x

    @kernel("int64(int64)")
    def found(x):
        return x in (1, 2)

    @kernel("int64(int64)")
    def other_array(x):
        room = np.zeros(2, np.int64)
        if x > 0:
            room = np.zeros(3, np.int64)
        return room[0]

    for wrong, text in (
        (statement, "with x:"), (name, "nothing has no value"), (meet, "uint64 and int64 meet"), (ended, "y has two types"),
        (carried, "y is of int64 and is given float64"), (called, "a call of <built-in function log>"),
        (named, "arguments by name"), (otherwise, "for _ in range"), (found, "x in"), (other_array, "room has two types"),
    ):  # fmt: skip
        with pytest.raises(LanguageError, match=text) as raised:
            wrong(1)
        assert f"{__name__}." in str(raised.value) and wrong.function.__name__ in str(raised.value)

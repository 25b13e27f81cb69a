"""Bytecode is read in one place: the instructions, the names in them, and the `for` statement around a frame."""

import sys

from samebits._inspect import code_names
from samebits._program import bytecode
from samebits._program.control_flow import is_outside_of_body

TOTAL = 0


def counts(number):
    global TOTAL
    TOTAL = sum(len(str(one)) for one in range(number))

    def inner():
        return [TOTAL for _ in range(3)], number.real

    return inner


def test_the_names_of_a_function_and_of_those_inside_it():
    """Globals that are read, and written; the functions inside, at any depth; attributes are names, but no globals."""
    code = counts.__code__
    assert "TOTAL" not in code_names.globals_read(code) and code_names.globals_written(code) == {"TOTAL"}
    assert {one.co_name for one in code_names.inner(code)} >= {"<genexpr>", "inner"}
    assert code_names.globals_read(next(c for c in code_names.inner(code) if c.co_name == "<genexpr>")) == {
        "len",
        "str",
    }
    assert [one for one in code_names.whole(code)][0] is code
    read = frozenset().union(*map(code_names.globals_read, code_names.whole(code)))
    assert {"TOTAL", "len", "str", "sum", "range"} == read
    assert "real" in set(code_names.names(code)) - read


class Asks:
    """An iterable, and its own iterator, that notes from where it was asked."""

    def __init__(self):
        self.direct, self.places = [], []

    def __iter__(self):
        self.direct.append(bytecode.begins_for(sys._getframe(1)))
        return self

    def __next__(self):
        frame = sys._getframe(1)
        self.places.append((id(frame), frame.f_code, frame.f_lasti))
        if len(self.places) > 2:
            raise StopIteration
        return self


def test_a_for_statement_is_told_from_other_ways_to_iterate():
    """`begins_for` and `end_of_for` know a `for` statement; not `iter`, `next`, or a function between."""
    asks = Asks()
    for _ in asks:
        pass
    iter(asks), enumerate(Asks())
    assert asks.direct == [True, False]
    _, code, offset = asks.places[0]
    assert bytecode.end_of_for(code, offset) > offset
    asks = Asks()
    next(asks)
    assert bytecode.end_of_for(*asks.places[0][1:]) is None


def test_a_loop_that_was_left_is_outside_of_its_body():
    """Inside the body, also in a function that it calls, the program is not outside; after `break` it is."""
    for asks in Asks():
        place = asks.places[-1]
        assert not is_outside_of_body(*place)
        assert not (lambda: is_outside_of_body(*place))()
        break
    assert is_outside_of_body(*place)


def test_a_loop_of_a_function_that_has_returned_is_outside():
    """Its frame is gone."""

    def left():
        for asks in Asks():
            return asks.places[-1]

    assert is_outside_of_body(*left())

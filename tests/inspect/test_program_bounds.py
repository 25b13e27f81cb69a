"""Reading a program has a bound: what many functions share is read once, whatever calls it."""

import sys
import types

import pytest

from samebits._inspect._program.bytecode import globals_read, globals_written, instructions
from samebits._inspect._program.data_dependence import DataDependence
from samebits._inspect._program.output_flow import OutputFlow
from samebits._inspect._program.user_functions import NameUse, UserFunctions
from samebits._inspect.generators_in import generators_in

MOST = 3_000_000
"""Python calls of one question, at most."""


class TooManyCallsError(BaseException):
    pass


def counted(function, most=MOST):
    """The result of a call that makes at most so many Python calls: no clock, so no chance."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"
        if calls > most:
            raise TooManyCallsError

    sys.setprofile(count)
    try:
        return function()
    finally:
        sys.setprofile(None)


def program(tmp_path, text):
    """The code of a file's functions, and the functions by name."""
    path = tmp_path / "program.py"
    path.write_text(text)
    code = compile(text, str(path), "exec")
    space = {"__name__": "user_program", "__file__": str(path)}
    exec(code, space)
    known = object.__new__(UserFunctions)
    known.functions, known.constructors, known._codes = {}, {}, set()
    known.add(code)
    return space, known, code


def tree(levels, width):
    """Functions of `levels`; each returns the sum of all of the next level, the last ones an attribute."""
    lines = []
    for level in range(levels):
        total = " + ".join(f"g{level + 1}_{n}(m)" for n in range(width))
        lines += [f"def g{level}_{n}(m):\n    return {total}" for n in range(width)]
    lines += [f"def g{levels}_{n}(m):\n    return m.total" for n in range(width)]
    return "\n".join([*lines, "def work(m):", *(f"    print(g0_{n}(m))" for n in range(width))])


def test_a_value_that_a_wide_tree_of_functions_returns_is_followed_once(tmp_path):
    """6 ** 12 ways lead from the attribute to its print; each function's callers are asked for once."""
    _, known, _ = program(tmp_path, tree(levels=12, width=6))
    assert counted(lambda: OutputFlow(known.codes, set()).attribute("total"))


def test_a_value_that_a_wide_tree_returns_to_training_is_no_output(tmp_path):
    """The control: the same tree, whose root gives the value to an unknown function."""
    text = tree(levels=12, width=6) + "\ndef more(m, model):\n    model.scale(g0_1(m))"
    _, known, _ = program(tmp_path, text)
    assert not counted(lambda: OutputFlow(known.codes, set()).attribute("total"))


def calling_all(count, last):
    """So many functions, each of which calls all."""
    names = " + ".join(f"h{n}(x)" for n in range(count))
    lines = [f"def h{n}(x):\n    return {names}" for n in range(count)]
    return "\n".join([*lines, f"def leaf(x):\n    return {last}", "def work(x):\n    return h0(x) + leaf(x)"])


@pytest.mark.parametrize(("last", "draws"), [("x", False), ("random.random()", True)])
def test_functions_that_all_call_each_other_are_asked_once_whether_they_draw(tmp_path, last, draws):
    """80 functions, each with 80 calls: 80 ** 3 ways within the depth that is read."""
    space, known, _ = program(tmp_path, calling_all(80, last))
    uses = NameUse(known, space["work"].__code__)
    assert counted(lambda: uses.draws("work"), most=5 * MOST) is draws


def test_a_value_made_by_functions_that_call_each_other_is_followed_once(tmp_path):
    """The dependence on data of an attribute: each variable of each function once."""
    text = calling_all(60, "x.mean()") + "\ndef fit(self, x):\n    self.mean = h0(len(x.shape))"
    _, known, _ = program(tmp_path, text)
    assert counted(lambda: DataDependence(known.codes).attribute("mean"), most=5 * MOST) in (True, False)


def test_the_global_names_of_a_function_of_20000_lines_are_read_from_its_bytes():
    """They are those that the instructions name; `dis` would take a minute, for all its jumps."""
    text = "def f(x):\n" + "\n".join(f"    x = a{n} if x else b" for n in range(20_000))
    space = {}
    exec(text, space)
    code = space["f"].__code__
    assert counted(lambda: globals_read(code), most=60_000) == {"b", *(f"a{n}" for n in range(20_000))}
    assert globals_written(code) == frozenset()


def written(x):
    global MOST_WRITTEN
    MOST_WRITTEN = len(x)
    return types


def test_names_from_bytes_are_those_of_the_instructions():
    """The control, on functions of every kind in this file and of the library that reads them."""
    for module in (sys.modules[__name__], sys.modules[OutputFlow.__module__], types, pytest):
        for one in vars(module).values():
            if isinstance(one, types.FunctionType):
                items = instructions(one.__code__)
                read = {i.argval for i in items if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
                assert globals_read(one.__code__) == read
    assert globals_written(written.__code__) == {"MOST_WRITTEN"}


def test_a_search_for_generators_in_lists_of_lists_ends():
    """A million small lists: the search ends at its number of objects."""
    inside = [[[0.5] for _ in range(100)] for _ in range(100)]
    assert counted(lambda: generators_in([("data", [list(inside) for _ in range(100)])])) == []

"""Reading a program has a bound: what many functions share is read once, whatever calls it."""

import dis
import linecache
import sys
import types
from functools import partial

import pytest
import torch

import call_counts
import samebits
from samebits._inspect.code_names import globals_read, globals_written
from samebits._objects import budget
from samebits._objects.budget import BudgetSpentError
from samebits._objects.generators import generators_in
from samebits._program import assigned_attributes
from samebits._program.bytecode import instructions
from samebits._program.carried_locals import Liveness
from samebits._program.functions import NameUse, UserFunctions
from samebits._program.made_once import DataDependence
from samebits._program.output_only import OutputFlow
from samebits._program.sources import syntax_tree
from samebits._program.written_first import ReadBeforeWrite, StoredPlace
from samebits.errors import IncompleteStateError

MOST = 3_000_000
"""Python calls of one question, at most."""
counted = partial(call_counts.counted, most=MOST)


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


def opcodes(function):
    """The number of Python's instructions that a call runs: no clock, so no chance."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(None)
    return count


LINES = {
    "conditions": "        x = x + {n} if x else y",
    "variables": "        v{n} = x if x else y",
    "whiles": "        while x > {n}: x = x - 1",
    "fors": "        for i in range(x): x = x + {n}",
    "comprehensions": "        x = [i for i in x]",
    "handlers": "        try: x = x + {n}\n        except ValueError: x = y",
    "attributes": "        x.a{n} = x.b{n}",
}


def long_loop(line, count):
    """The code of a function with a loop whose body has so many such lines."""
    body = "\n".join(line.format(n=n) for n in range(count))
    space = {}
    exec(f"def f(x, y, rows):\n    for row in rows:\n{body}\n    return x", space)
    return space["f"].__code__


def read_loop(code):
    found = Liveness(code, next(item.offset for item in instructions(code) if item.opname == "FOR_ITER"))
    found.carried(found.inner_loops)
    assigned_attributes._targets(code)


@pytest.mark.parametrize("kind", LINES)
def test_the_work_of_reading_a_loop_grows_with_its_lines_alone(kind):
    """Twice the lines take twice the instructions of the reader, not four times."""
    small, large = (opcodes(lambda n=n: read_loop(long_loop(LINES[kind], n))) for n in (60, 120))
    assert large < 2.3 * small


def test_instructions_are_those_of_dis_without_its_search_for_jumps():
    """`dis.findlabels` takes minutes for a function of 20,000 conditions; its answers are the same."""
    for name in ("dis", "inspect", "argparse", "tarfile"):
        for one in vars(__import__(name)).values():
            for function in vars(one).values() if isinstance(one, type) else [one]:
                if isinstance(function, types.FunctionType):
                    items = [
                        i for i in dis.get_instructions(function) if i.opname not in ("CACHE", "KW_NAMES")
                    ]
                    ours = [i for i in instructions(function.__code__) if i.opname != "KW_NAMES"]
                    assert [(*i[:4], i.offset, i.positions, i.is_jump_target) for i in items] == [
                        (*i[:4], i.offset, i.positions, bool(i.is_jump_target)) for i in ours
                    ]
    called = set()
    sys.setprofile(lambda frame, event, argument: called.add(frame.f_code))
    try:
        instructions(long_loop(LINES["conditions"], 7))
    finally:
        sys.setprofile(None)
    assert dis.get_instructions.__code__.co_name in {code.co_name for code in called}
    assert dis.findlabels.__code__ not in called


@pytest.mark.slow
def test_a_run_whose_loop_has_20000_conditional_lines_comes_back(tmp_path):
    """The whole run, its checks included, makes a fixed number of calls; it never ended before."""
    body = "\n".join(f"        x = x + {n} if x else n" for n in range(20_000))
    text = f"""
def train(run, model, loader):
    for step, batch in run.steps(loader, epochs=2):
        x = n = step.number
{body}
        model(batch).mean().backward()
"""
    space, _, _ = program(tmp_path, text)
    model = torch.nn.Linear(4, 1)
    loader = samebits.data.DataLoader(torch.ones(8, 4), batch_size=4, seed=1)
    with samebits.Run(tmp_path / "run", model=model, check_loss=False) as run:
        counted(lambda: space["train"](run, model, loader), most=20 * MOST)


def containers(count):
    """Containers of callables, each with the next inside."""
    lines = [
        f"    v{n} = [v{n - 1}, lambda: v{n - 1}, m.total] if m else {{1: v{n - 1}}}" for n in range(1, count)
    ]
    return "\n".join(["def helper(m):", "    v0 = m.total", *lines, f"    return v{count - 1}"])


def methods(count):
    """A class of many methods that all call each other by an unknown name."""
    lines = [
        f"    def m{n}(self, x):\n"
        f"        self.total = self.m{(n * 7 + 1) % count}(x); return self.m{(n * 3 + 2) % count}([x])"
        for n in range(count)
    ]
    return "\n".join(["class C:", *lines, "def helper(m):\n    return m.m0(m.total)"])


def recursion(count):
    """Functions that call each other with an argument that grows."""
    lines = [
        f"def h{n}(m, *x):\n    return [h{(n + 1) % count}(m, x, m.total), h{n * 5 % count}(m, lambda: x)]"
        for n in range(count)
    ]
    return "\n".join([*lines, "def helper(m):\n    return h0(m)"])


def callers(count):
    """Functions that set the attribute, each called by five others."""
    lines = [
        f"def h{n}(m, x):\n    m.total = 1\n"
        + "".join(f"    h{(n * 5 + k) % count}(m, x)\n" for k in range(5))
        for n in range(count)
    ]
    return "\n".join([*lines, "def helper(m):\n    return h0(m, 1)"])


def generated(count):
    """A function of very many lines, each with attributes of its own."""
    lines = [f"    x = m.total + {n} if x else m.a{n}" for n in range(count)]
    return "\n".join(["def helper(m):\n    x = 0", *lines, "    return x"])


EXPLODING = containers, methods, recursion, callers, generated
LOOP = """
def work(m, rows):
    for row in rows:
        m.total = helper(m)
        print(m.total)
"""


def place_reads(known, code, head):
    order = ReadBeforeWrite(known, [(code, head)], [], {"m"}, [], ())
    for kind in ("attr", "item", "whole"):
        order.recomputed(StoredPlace(kind, "total"))
        order.reads(StoredPlace(kind, "total"))
    order.settled(StoredPlace("set", "total"))


def name_uses(known, code, head):
    uses = NameUse(known, code)
    uses.draws("helper"), uses.timed("total"), uses.memo("total", [])


READERS = {
    "output": lambda known, code, head: OutputFlow(known.codes, {"model"}).attribute("total"),
    "steering": lambda known, code, head: OutputFlow(known.codes, {"model"}).steering("m"),
    "data": lambda known, code, head: DataDependence(known.codes).attribute("total"),
    "places": place_reads,
    "names": name_uses,
}


def asked(tmp_path, explode, reader, count):
    """The call that asks a reader about a program of so many lines."""
    space, known, _ = program(tmp_path, explode(count) + LOOP)
    code = space["work"].__code__
    head = next(item.offset for item in instructions(code) if item.opname == "FOR_ITER")
    return partial(READERS[reader], known, code, head)


@pytest.mark.parametrize("explode", EXPLODING)
@pytest.mark.parametrize("reader", READERS)
def test_the_work_of_each_reader_grows_with_the_lines_alone(reader, explode, tmp_path):
    """Twice the lines take about twice the instructions, in code made to explode it."""
    small, large = (opcodes(asked(tmp_path, explode, reader, count)) for count in (40, 80))
    assert large < 2.5 * small


@pytest.mark.parametrize("explode", EXPLODING)
@pytest.mark.parametrize("reader", READERS)
def test_each_reader_ends_with_the_budget_of_its_check(reader, explode, tmp_path):
    """Few steps end it within few calls. The control: the same program is read whole within those of a check."""
    ask = asked(tmp_path, explode, reader, 100)
    with budget.one_check():
        ask()
    linecache.clearcache(), syntax_tree.cache_clear()
    with budget.one_check(steps=5), pytest.raises(BudgetSpentError):
        counted(asked(tmp_path, explode, reader, 100), most=10_000)


TRAINING = """
def train(run, model, loader):
    count = 0
    for step, batch in run.steps(loader, epochs=2):
        count += 1
        (model(batch).mean() * count).backward()
"""


@pytest.mark.parametrize("steps", [50, budget.CHECK_STEPS])
def test_a_check_whose_budget_is_spent_ends_with_a_warning(steps, tmp_path, monkeypatch):
    """The run goes on, unchecked. The control: with all of the steps its counter is an error."""
    space, _, _ = program(tmp_path, generated(100) + TRAINING)
    model = torch.nn.Linear(4, 1)
    loader = samebits.data.DataLoader(torch.ones(16, 4), batch_size=4, seed=1)
    if steps == 50:
        ends = pytest.warns(UserWarning, match="check for forgotten state is off .* more code than is read")
    else:
        ends = pytest.raises(IncompleteStateError, match="count")
    with ends, samebits.Run(tmp_path / "run", model=model) as run:
        monkeypatch.setattr(budget, "one_check", partial(budget.one_check, steps=steps))
        space["train"](run, model, loader)


class Counting(torch.utils.data.Dataset):
    served = 0

    def __len__(self):
        return 32

    def __getitem__(self, index):
        self.served += 1
        return torch.full((4,), float(self.served)), torch.ones(1)


def test_a_check_of_the_trainer_reads_the_code_that_calls_the_users_alone(tmp_path):
    """Not the 40 files of the check itself, which took a second and four times the calls (930,000 without)."""
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = samebits.Trainer(model, torch.nn.functional.mse_loss, optimizer)
    with pytest.raises(IncompleteStateError, match="served"):
        loader = samebits.data.DataLoader(Counting(), batch_size=4, seed=1)
        fit = partial(trainer.fit, loader, epochs=3, run_dir=tmp_path / "run", verbose=False)
        counted(fit, most=1_800_000)

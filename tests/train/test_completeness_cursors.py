"""Iterators written in C that show no position (a cursor, a file read by lines, `itertools`): named where a loop advances them."""

import importlib.util
import sqlite3
import sys

import pytest
import torch

import samebits
from samebits.errors import IncompleteStateError

PROGRAM = """
import csv, itertools, torch
def main(run, model, opt, con, path):
    {before}
    for step, _ in run.steps(range(12), epochs=1):
        {inside}
        loss = model(torch.tensor([[float(n)]])).sum()
        opt.zero_grad(); loss.backward(); opt.step()
"""
ADVANCED = {
    "fetchone": (
        "cur = con.execute('select a from s')",
        "n = cur.fetchone()[0]",
    ),
    "next cursor": (
        "cur = con.execute('select a from s')",
        "n = next(cur)[0]",
    ),
    "zip cursor": (
        "it = zip(con.execute('select a from s'), itertools.count())",
        "n = next(it)[0][0]",
    ),
    "map cursor": (
        "it = map(float, open(path))",
        "n = next(it)",
    ),
    "file next": (
        "f = open(path)",
        "n = next(f)",
    ),
    "file readline": (
        "f = open(path)",
        "n = f.readline()",
    ),
    "csv reader": (
        "it = csv.reader(open(path))",
        "n = next(it)[0]",
    ),
    "csv dictreader": (
        "it = csv.DictReader(open(path), ['a'])",
        "n = next(it)['a']",
    ),
    "islice": (
        "it = itertools.islice(range(1000), 0, None)",
        "n = next(it)",
    ),
    "chain": (
        "it = itertools.chain([1,2,3]*10)",
        "n = next(it)",
    ),
    "filter": (
        "it = filter(None, range(100))",
        "n = next(it)",
    ),
    "generator over cursor": (
        "def rows(c):\n        for row in c: yield row\n    g = rows(con.execute('select a from s'))",
        "n = next(g)[0]",
    ),
    "generator over file": (
        "def rows(c):\n        for row in c: yield float(row)\n    g = rows(open(path))",
        "n = next(g)",
    ),
    "cursor in attribute": (
        "class S: pass\n    s = S(); s.cur = con.execute('select a from s')",
        "n = s.cur.fetchone()[0]",
    ),
    "fetchmany": (
        "cur = con.cursor(); cur.execute('select a from s')",
        "n = cur.fetchmany(2)[0][0]",
    ),
}
READ_ANEW = {
    "executed each time": (
        "cur = con.cursor()",
        "cur.execute('select a from s where rowid = ?', (step.number + 1,)); n = cur.fetchone()[0]",
    ),
    "executed chained": (
        "cur = con.cursor()",
        "n = cur.execute('select a from s where rowid = ?', (step.number + 1,)).fetchone()[0]",
    ),
    "new each time": (
        "pass",
        "cur = con.execute('select a from s'); n = cur.fetchone()[0]",
    ),
    "log": (
        "log = con.cursor(); con.execute('create table l(x real)')",
        "n = 1\n        if step.number % 2: log.execute('insert into l values(?)', (n,))",
    ),
    "all before": (
        "cur = con.execute('select a from s'); rows = cur.fetchall()",
        "n = rows[step.number][0]",
    ),
    "attribute, all before": (
        "class S: pass\n    s = S(); s.cur = con.execute('select a from s'); s.rows = s.cur.fetchall()",
        "n = s.rows[step.number][0]",
    ),
    "repeat": (
        "it = itertools.repeat(3)",
        "n = next(it)",
    ),
    "lines in each step": (
        "pass",
        "n = float(next(open(path)))",
    ),
    "read whole file": (
        "f = open(path); text = f.read()",
        "n = len(text)",
    ),
}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    return lambda before, inside: _trained(before, inside, tmp_path, monkeypatch)


def _trained(before, inside, folder, monkeypatch):
    """Trains twelve steps with a database and a file of numbers."""
    (file := folder / "program.py").write_text(PROGRAM.format(before=before, inside=inside))
    (path := folder / "numbers.csv").write_text("\n".join(str(i / 7) for i in range(1000)))
    spec = importlib.util.spec_from_file_location("program", file)
    monkeypatch.setitem(sys.modules, "program", module := importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    con = sqlite3.connect(":memory:")
    con.execute("create table s (a real)")
    con.executemany("insert into s values (?)", [(i / 7,) for i in range(400)])
    samebits.set_random_seed(1)
    model = torch.nn.Linear(1, 1)
    opt = torch.optim.SGD(model.parameters(), 1e-4)
    with samebits.Run(folder / "run", model=model, opt=opt) as run:
        module.main(run, model, opt, con, path)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", ADVANCED)
def test_an_iterator_that_a_loop_advances_is_named(name, trained):
    """A resumed run would read from its first row: cursors, files, csv, zip, map, itertools, generators over them."""
    with pytest.raises(IncompleteStateError, match=r"(?m)^  - (cur|it|f|g|s)\b"):
        trained(*ADVANCED[name])


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", READ_ANEW)
def test_a_cursor_that_each_step_executes_is_let_be(name, trained):
    """What each step executes or opens anew, a cursor that only writes, and one that was read before the loop."""
    trained(*READ_ANEW[name])

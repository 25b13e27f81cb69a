"""`samebits replica`: its table, explanations, exit codes, JSON and page."""

import json
import linecache
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from samebits.cli import main
from samebits.replica import Equal, analyze, capture, dot_graph, write_html

EXAMPLE = Path(__file__).parents[2] / "examples/replica/broken.py"

STEPS = """
import torch, torch.distributed as dist, torch.distributed._functional_collectives as fc
from samebits.replica import Equal, Partition

def reduced():
    def step(params, x):
        params["w"].sub_(fc.all_reduce(x, "avg", dist.group.WORLD))
    return step, ({"w": torch.ones(3)}, torch.ones(3))

def shards():
    def step(params, x, mesh):
        params["w"].sub_(fc.all_reduce(x, "avg", (mesh, 1)))
    return step, ({"w": torch.ones(3)}, torch.ones(3)), {"params.w": Partition([[0, 1], [2, 3]])}

def hangs():
    def step(x, go):
        return torch.cond(go, lambda x: fc.all_reduce(x, "sum", dist.group.WORLD) + 0, lambda x: x * 2, (x,))
    return step, (torch.ones(3), torch.tensor(True))

def nothing():
    return 3

def pair():
    return 1, 2

def declares():
    return (lambda x: x + 1), (torch.ones(3),), {"x": Equal}

def reads():
    def step(x):
        return x * 2 if x.sum() > 0 else x
    return step, (torch.ones(3),)

def leaves():
    raise SystemExit(0)

def raises():
    return (lambda x: x.view(7, 7)), (torch.ones(3),)

def stateless():
    return (lambda x: x + 1), (torch.ones(3),)
"""


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs `samebits replica ...` in a folder with a module; gives exit code, standard output and standard error."""
    (tmp_path / "own_steps.py").write_text(STEPS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("own_steps", EXAMPLE.stem):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["samebits", "replica", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return call


def test_a_step_that_keeps_its_state_equal_ends_with_0(command):
    """The table has every input and output; what is reduced is ok; the last line is the verdict."""
    code, out, err = command("own_steps:reduced", "--world-size", 4)
    assert (code, err) == (0, "")
    assert re.search(r"^params\.w +state +equal +equal +ok$", out, re.M)
    assert re.search(r"^x +batch +all differ +all differ$", out, re.M)
    assert out.splitlines()[-1] == "all 1 parameters, buffers and optimizer states stay as equal as declared"


REDUCED = "average its gradient with all_reduce"
EXAMPLES = {
    "forgotten": ("reduced", {"model.fc.weight", "head.bias"}, set(), REDUCED),
    "outside": ("inside", {"head.weight", "head.bias"}, {"model.module.fc.weight"}, REDUCED),
    "unsynchronised": (
        "synchronised",
        {"model.module.norm.running_mean", "model.module.norm.running_var"},
        {"model.module.fc.weight", "head.module.weight"},
        "has the statistics of each rank's own batch: use SyncBatchNorm (on GPUs), or broadcast it",
    ),
}


@pytest.mark.parametrize(
    "name",
    [next(iter(EXAMPLES)), *(pytest.param(name, marks=pytest.mark.slow) for name in list(EXAMPLES)[1:])],
)
def test_each_broken_example_ends_with_1_and_its_cure_and_its_twin_with_0(command, name):
    """A forgotten all-reduce, a parameter outside of DDP, a BatchNorm buffer: named with line and cure; the repaired step is clean."""
    twin, wrong, right, cure = EXAMPLES[name]
    code, out, _ = command(f"{EXAMPLE}:{name}", "--world-size", 8, "--json", "r.json", "--html", "r.html")
    assert code == 1 and cure in out and "broken.py:" in out
    found = json.loads(Path("r.json").read_text())
    assert found["schema"] == "samebits.replica/1" and found["world_size"] == 8
    drifting = {one["name"] for one in found["values"] if one.get("as_declared") is False}
    assert wrong <= drifting == set(found["explanations"]) and not right & drifting
    assert Page.read("r.html")
    code, out, _ = command(f"{EXAMPLE}:{twin}", "--world-size", 8)
    assert code == 0 and "stay as equal as declared" in out.splitlines()[-1]


def test_standard_output_may_be_json_alone(command):
    """`--json -`: what the user's function prints is on standard error; without it, on standard output (control)."""
    Path("prints.py").write_text(STEPS.replace("def reduced():", "def reduced():\n    print('loading')"))
    code, out, err = command("prints:reduced", "--world-size", 2, "--json", "-")
    assert (code, json.loads(out)["schema"]) == (0, "samebits.replica/1") and "loading" in err
    code, out, _ = command("prints:reduced", "--world-size", 2)
    assert code == 0 and "loading" in out and "stay as equal as declared" in out


CALLED_TWICE = """
import torch
from torch._higher_order_ops import invoke_subgraph
from samebits.replica import Equal
body = torch.fx.experimental.proxy_tensor.make_fx(lambda x: (x * 2,), tracing_mode="fake")(torch.ones(2))
def step():
    call = lambda x: invoke_subgraph(body, "region", x)[0]
    return lambda x, y: (call(x), call(y)), (torch.ones(2), torch.ones(2)), {"x": Equal()}
def agreeing():
    return *step()[:2], {"*": Equal()}
"""


def test_calls_of_one_body_that_disagree_are_told_on_standard_error(command):
    """A body called with an equal and an unequal value: a line on standard error, and a finding in the JSON; else (control) neither."""
    Path("called_twice.py").write_text(CALLED_TWICE)
    code, out, err = command("called_twice:step", "--world-size", 2, "--json", "-")
    (found,) = json.loads(out)["findings"]
    assert (code, found["kind"]) == (0, "call sites") and found["text"] in err
    assert err.startswith("samebits: replica: call sites: the calls of region disagree on")
    code, out, err = command("called_twice:agreeing", "--world-size", 2, "--json", "-")
    assert (code, json.loads(out)["findings"], err) == (0, [], "")


def test_state_is_held_to_what_was_declared(command):
    """A shard that is equal in its own group only is as declared; declared equal on all ranks it would drift."""
    assert command("own_steps:shards", "--mesh", "dp=2,tp=2")[0] == 0
    text = Path("own_steps.py").read_text().replace("Partition([[0, 1], [2, 3]])", "Equal()")
    Path("own_steps_equal.py").write_text(text)
    code, out, _ = command("own_steps_equal:shards", "--mesh", "dp=2,tp=2")
    assert code == 1 and "params.w varies: 0-1 | 2-3" in out


def test_a_hang_ends_with_1(command):
    """A collective that not all members reach is an error, whatever stays equal."""
    code, out, _ = command("own_steps:hangs", "--world-size", 2)
    assert code == 1 and "hang: " in out and out.splitlines()[-1] == "the step hangs"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["own_steps:reduced"], "--world-size 8, or --mesh"),
        (["own_steps", "--world-size", "2"], "Give MODULE:FUNCTION"),
        (["no_such_module:f", "--world-size", "2"], "no module 'no_such_module'"),
        (["no/such/file.py:f", "--world-size", "2"], "no file "),
        (["own_steps:f", "--world-size", "2"], "no function 'f'"),
        (["own_steps:nothing", "--world-size", "2"], "must return (step, args)"),
        (["own_steps:pair", "--world-size", "2"], "declarations), not (int, int)"),
        (["own_steps:declares", "--world-size", "2"], "Equal(), PerReplica() or Partition"),
        (
            ["own_steps:reads", "--world-size", "2"],
            "reads the value of a tensor, and a capture computes none [own_steps.py:",
        ),
        (["own_steps:reduced", "--mesh", "dp"], "dp=2,tp=4"),
        (["own_steps:reduced", "--mesh", "dp=2,dp=2"], "dp=2,tp=4"),
        (["own_steps:reduced", "--world-size", "2", "--html", "no/such/f.html"], "there is no folder"),
    ],
)
def test_wrong_calls_end_with_2(command, args, said):
    """Each wrong call is one line on standard error."""
    code, out, err = command(*args)
    assert (code, out) == (2, "") and said in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("function", "said"), [("raises", "RuntimeError: shape '[7, 7]' is invalid"), ("leaves", "SystemExit: 0")]
)
def test_code_of_the_user_that_ends_early_ends_with_2_and_its_own_lines(command, function, said):
    """Neither a proof (0) nor a drift (1) comes from a step that did not run; the frames shown are the user's."""
    code, out, err = command(f"own_steps:{function}", "--world-size", 2)
    assert (code, out) == (2, "") and said in err.splitlines()[-1]
    files = re.findall(r'^  File "(.*)", line', err, re.M)
    assert files and {Path(file).name for file in files} == {"own_steps.py"}


def test_a_file_that_does_not_parse_ends_with_2_and_its_line(command):
    """The line is shown, and no frame of ours."""
    Path("unfinished.py").write_text("def f(:")
    code, out, err = command("unfinished.py:f", "--world-size", 2)
    assert (code, out) == (2, "") and "SyntaxError" in err and err.count('  File "') == 0


def test_a_file_may_have_the_name_of_a_module_of_python(command):
    """What is imported already under its name is not taken for it."""
    Path("pickle.py").write_text(STEPS)
    code, out, _ = command("pickle.py:reduced", "--world-size", 2)
    assert code == 0 and "stay as equal" in out


def test_a_step_without_state_is_no_proof_of_anything(command):
    """The verdict says that there was nothing to hold equal."""
    code, out, _ = command("own_steps:stateless", "--world-size", 2)
    assert code == 0 and out.splitlines()[-1].startswith("nothing to hold equal")


class Page(HTMLParser):
    """The folds, rows and links of a page, and what it loads from elsewhere."""

    def __init__(self):
        super().__init__()
        self.folds, self.rows, self.links, self.ids, self.loads = [], [], [], set(), []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        classes = (attributes.get("class") or "").split()
        if tag == "details":
            self.folds.append({"classes": classes, "open": "open" in attributes, "text": ""})
        if tag == "tr":
            self.rows.append({"id": attributes.get("id"), "classes": classes, "links": [], "text": ""})
            self.ids.add(attributes.get("id"))
        if tag == "a":
            self.links.append({"classes": classes, "to": attributes.get("href", "")})
            self.rows[-1]["links"].append(attributes.get("href", "").removeprefix("#"))
        if tag in {"script", "link", "img"} or "src" in attributes or attributes.get("href", "#")[0] != "#":
            self.loads.append(tag)

    def handle_data(self, data):
        for one in (self.folds[-1:], self.rows[-1:]):
            for last in one:
                last["text"] += data + " "

    def row(self, text):
        return next(one for one in self.rows if one["text"].startswith(text))

    @classmethod
    def read(cls, file):
        page = cls()
        page.feed(Path(file).read_text())
        return page


def test_the_page_colours_what_varies_and_needs_nothing_else(command):
    """Varying rows and operands are marked, the way to what drifts is bold, the clean twin has none; nothing is loaded."""
    command(f"{EXAMPLE}:forgotten", "--world-size", 2, "--html", "bad.html")
    command("own_steps:reduced", "--world-size", 2, "--html", "good.html")
    bad, good = Page.read("bad.html"), Page.read("good.html")
    assert bad.loads == good.loads == []
    for marked in (bad.folds, bad.rows, bad.links):
        assert any({"varying", "way"} <= set(one["classes"]) for one in marked)
    assert not any("way" in one["classes"] for one in good.folds + good.rows + good.links)
    varying = [one for one in good.links if "varying" in one["classes"]]
    batch = good.row("x ")["id"]
    # the operand, its start and its end
    assert [one["to"] for one in varying] == [
        f"#{batch}",
        "",
        f"#{batch}",
    ]
    assert not any("varying" in one["classes"] for one in good.folds + good.rows)


def test_the_page_leads_from_a_value_to_what_made_it(tmp_path):
    """An operand leads to its input or to the op that last wrote to its memory, and so does the end of a variable and an output."""

    def step(w, x):
        view = w[:1]
        first = w * 2
        view.add_(x.sum())
        return w + first

    write_html(analyze(capture(step, torch.ones(2), torch.ones(3), world_size=2)), tmp_path / "page.html")
    page = Page.read(tmp_path / "page.html")
    w, x, first, add_, add = (page.row(f"{name} ") for name in ("w", "x", "mul", "add_", "add"))
    assert first["links"] == [w["id"]]  # read before it was written to
    assert add["links"] == [add_["id"], first["id"]]
    assert w["links"] == ["", add_["id"]] and page.row("output ")["links"] == [add["id"]]
    assert x["links"] == ["", x["id"]]  # nothing writes to it
    assert {link["to"].removeprefix("#") for link in page.links} - {""} <= page.ids


def test_the_ops_of_a_branch_are_under_the_line_of_its_call(tmp_path):
    """Each branch has its name and its ops, with the ranks on which they are equal."""

    def step(x, go):
        return torch.cond(go, lambda x: x.sin(), lambda x: x * 2, (x,))

    args = torch.ones(3), torch.tensor(True)
    write_html(analyze(capture(step, *args, world_size=2), {"go": Equal()}), tmp_path / "page.html")
    page = Page.read(tmp_path / "page.html")
    (fold,) = page.folds
    assert "torch.cond(go" in fold["text"] and "4 op(s): all differ" in fold["text"]
    rows = [one["text"].split()[0] for one in page.rows[: page.rows.index(page.row("value "))]]
    assert rows == ["cond", "true_graph_0:", "sin", "false_graph_0:", "mul", "getitem"]


def chain(length):
    def step(w, x):
        for _ in range(length):
            x = (x + 1.0) * 2.0
        w.add_(x)

    return analyze(capture(step, torch.ones(2), torch.ones(2), world_size=2), {"w": Equal()})


def test_the_ops_of_a_line_are_one_fold(tmp_path):
    """A fold has its source line, its ops and their ranks; each of the ops is a row."""
    for length in (5, 300):
        write_html(chain(length), tmp_path / "page.html")
        page = Page.read(tmp_path / "page.html")
        loop, last = page.folds
        assert "x = (x + 1.0) * 2.0" in loop["text"] and f"{2 * length} op(s): all differ" in loop["text"]
        assert "w.add_(x)" in last["text"] and "1 op(s): all differ" in last["text"]
        assert all(one["open"] and "way" in one["classes"] for one in page.folds)
        assert sum((one["id"] or "").startswith("op") for one in page.rows) == 2 * length + 1


def test_a_step_of_many_lines_is_shown_whole_and_open_where_something_drifts(tmp_path):
    """Of a large step only the lines on the way to what drifts are unfolded; of a small one all; no line is left out."""
    for length in (20, 600):
        lines = "\n".join(f"    x = x + {number}.0" for number in range(length))
        source = f"def step(w, v, x):\n{lines}\n    w.add_(v)\n    return x\n"
        scope = {}
        name = f"many_lines_{length}.py"
        exec(compile(source, name, "exec"), scope)
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        step = capture(scope["step"], *(torch.ones(2) for _ in range(3)), world_size=2)
        write_html(analyze(step, {"w": Equal()}), tmp_path / "page.html")
        page = Page.read(tmp_path / "page.html")
        assert len(page.folds) == length + 1
        assert "way" in page.folds[-1]["classes"] and "way" in page.row("v ")["classes"]
        assert [one["open"] for one in page.folds] == [length == 20] * length + [True]


def test_the_ways_to_what_drifts_are_a_graph(command):
    """Its edges are the steps of the explanations, each once, whatever the names are; a clean step has none."""
    command(f"{EXAMPLE}:unsynchronised", "--world-size", 2, "--dot", "bad.dot")
    command("own_steps:reduced", "--world-size", 2, "--dot", "good.dot")
    edges = re.findall(r'^"(.*)" -> "(.*)"$', Path("bad.dot").read_text(), re.M)
    titles = [(one.split(":")[0], other.split(":")[0]) for one, other in edges]
    norm, of = "native_batch_norm = aten.native_batch_norm.default", "model.module.norm"
    assert titles == [
        ("x (batch) at the start of the step", "addmm = aten.addmm.default"),
        ("addmm = aten.addmm.default", norm),
        (norm, f"{of}.running_mean varies"),
        (norm, f"{of}.running_var varies"),
    ]
    assert "->" not in Path("good.dot").read_text()
    held = {'a"b\\': torch.ones(2)}
    report = analyze(capture(lambda held, x: held['a"b\\'].add_(x), held, torch.ones(2), world_size=2))
    assert r'"held.a\"b\\ varies: all differ"' in dot_graph(report)

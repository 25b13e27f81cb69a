"""The first difference of two traces: the line that it comes from, and the cause in words."""

import subprocess
import sys

import pytest

from samebits.audit._trace.first_op import first_op, read_trace
from samebits.audit._trace.source_hints import hint_of, lines_that_assign, nearest_source

DRIVER = """
import builtins, json, os, sys
from pathlib import Path
import torch, samebits
from samebits.audit._child.launch_spec import TraceSpec
from samebits.audit._record.torch_hooks import torch_hooks
from samebits.audit._trace.tracer import Tracer

def both(path, name):
    for builtins.RUN in (0, 1):
        tracer = Tracer(TraceSpec(f"{name}.{RUN}"))
        builtins.resumed = lambda: tracer.before_step("", -1)
        samebits.set_random_seed(0)
        if "resumed()" not in (text := Path(path).read_text()):
            tracer.before_step("", -1)
        with torch_hooks(tracer):
            exec(compile(text, path, "exec"), {"__name__": "__main__"})
        tracer.close()

for name in sys.argv[1:]:
    both(os.path.abspath(f"{name}.py"), name)
"""
HEAD = "import functools, os, random, threading, time\nimport numpy as np\nimport torch\n"
CASES = {
    "a loop's variable": (
        "kept = [torch.full((2,), float(RUN))]\nresumed()\nfor one in kept:\n    one += torch.ones(2)  # HERE\n",
        "kill",
        "state that the resume did not restore",
        ["kept"],
    ),
    "an attribute of an object in another": (
        """class Data:
    calls = 0
    def read(self):
        self.calls += 1
        return torch.ones(2) * self.calls
class Loader:
    def __init__(self):
        self.data = Data()
loader = Loader()
loader.data.calls = RUN
resumed()
x = loader.data.read() + 1
""",
        "kill",
        "state that the resume did not restore",
        ["calls"],
    ),
    "a generator object": (
        "rng = np.random.default_rng(RUN)\nresumed()\nx = torch.ones(2) * rng.normal()\n",
        "kill",
        "state that the resume did not restore",
        ["rng"],
    ),
    "a network": (
        "net = torch.nn.Linear(2, 1)\ntorch.nn.init.constant_(net.weight, RUN)\nresumed()\nx = net(torch.ones(2))\n",
        "kill",
        "state that the resume did not restore",
        ["net"],
    ),
    "a number that a function puts into the optimizer": (
        """def put(optimizer, value):
    for group in optimizer.param_groups:
        group["lr"] = value
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters())
lr = 0.1 + RUN
resumed()
put(optimizer, lr)
net(torch.ones(2)).sum().backward()
optimizer.step()
""",
        "kill",
        "state that the resume did not restore",
        ["lr"],
    ),
    "a seed before the draw": (
        "def shift():\n    return float(np.random.normal())\nnp.random.seed(RUN)  # HERE\nx = torch.ones(2) + shift()\n",
        "run-again",
        "not known: this statement gave another value",
        None,
    ),
    "a gradient through a square view, with equal losses": (
        """net = torch.nn.Linear(3, 3, bias=False)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.eye(3) + 1
weight = torch.arange(3.0) + RUN  # HERE
loss = (net(x) - net(x).detach()).mul(weight).sum()
loss.backward()
optimizer.step()
""",
        "run-again",
        "not known: this statement gave another value",
        None,
    ),
    "a set in the expression": (
        "order = {w: n for n, w in enumerate(set([0, 8][:: 1 - 2 * RUN]))}  # HERE\nx = torch.ones(2) * order[8]\n",
        "run-again",
        "the order of a set",
        None,
    ),
    "threads": (
        """total = torch.zeros(2)
def add():
    total.add_(1 + RUN)
thread = threading.Thread(target=add)
thread.start()
thread.join()  # HERE
x = total * 2
""",
        "run-again",
        "work in threads, as far as one can see",
        None,
    ),
    "names of files": (
        """import shutil, uuid
shutil.rmtree("files", ignore_errors=True)
os.makedirs("files")
for number in (1, 2):
    torch.save(torch.ones(2) * number, f"files/{number if RUN else 3 - number}{uuid.uuid4()}")  # HERE
x = torch.stack([torch.load(f"files/{name}") for name in sorted(os.listdir("files"))])
""",
        "run-again",
        "entropy of the system: what the statement reads besides had equal values; it is only the nearest one",
        None,
    ),
    "a function of the user's that is called as one of Python's": (
        """def time(): return 3.0
x = torch.ones(2) * time() * RUN  # HERE
""",
        "run-again",
        "not known: this statement gave another value",
        None,
    ),
    "a draw beside a clock": (
        """source = np.random.default_rng()  # HERE
scale, now = source.normal(), time.perf_counter()
x = torch.ones(2) * scale
""",
        "run-again",
        "entropy of the system",
        None,
    ),
    "a branch": (
        """import random
random.seed(RUN)
def flipped(image):
    if random.SystemRandom().random() < RUN:  # HERE
        image = image.flip(-1)
    return image
resumed()
x = flipped(torch.arange(3.0)) + 1
""",
        "run-again",
        "entropy of the system",
        None,
    ),
    "calls that another run counts otherwise": (
        """class Scale:
    mean = 0.0
    def again(self):
        return 1
    def factor(self):
        self.mean = 0.5 * self.mean + 1.0
        return self.mean
scale = Scale()
scale.mean = float(RUN)
resumed()
if RUN:
    for _ in range(3):
        scale.again()
x = torch.ones(2) * scale.factor()
""",
        "kill",
        "state that the resume did not restore",
        ["mean"],
    ),
    "no thread": (
        'name = os.path.join("a", str(RUN))  # HERE\nx = torch.ones(2) * len(name) + int({"a": name}.get("a")[-1])\n',
        "run-again",
        "not known: this statement gave another value",
        None,
    ),
}
BACKWARD = """table = torch.ones(4, requires_grad=True)
rows = table[torch.tensor([1, 2, 1])]  # HERE
(rows * torch.linspace(0, 1, 3)).sum().backward()
"""
MEMORY = """memory = torch.empty(4)
memory[:2] = 1.0
known = memory[:2] + 1
partly = memory + 2
memory[2:] = 0.0
whole = memory + 3
weight = torch.ones(2, requires_grad=True)
weight.register_hook(lambda gradient: gradient + 4)
(weight * 2).sum().backward()
"""
KINDS = """def f(v): return (v * v).sin().sum()
def step():
    y = torch.func.vmap(torch.func.grad(f))(torch.ones(3))
    _, tangent = torch.func.jvp(f, (y,), (y,))
    rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged) * 2
    return rows.values().sum() + tangent
x = step() + 5
"""
FAKE = """from torch._subclasses.fake_tensor import FakeTensorMode
def step():
    with FakeTensorMode():
        return torch.ones(3) * 2
step()
x = torch.ones(2) + 6
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A folder with two traces of each script, NAME.0 and NAME.1."""
    folder = tmp_path_factory.mktemp("traces")
    (folder / "driver.py").write_text(DRIVER)
    for name, (text, *_) in CASES.items():
        (folder / f"{name}.py").write_text(HEAD + text)
    (folder / "backward.py").write_text(HEAD + BACKWARD)
    (folder / "memory.py").write_text(HEAD + MEMORY)
    (folder / "kinds.py").write_text(HEAD + KINDS)
    (folder / "fake.py").write_text(HEAD + FAKE)
    command = [sys.executable, "driver.py", *CASES, "backward", "memory", "kinds", "fake"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", CASES)
def test_the_line_or_the_lost_value_is_named_with_its_cause(traced, name):
    """The statement that gave another value, or, of state that a resume lost, its name and where it is assigned."""
    text, group, cause, lost = CASES[name]
    found = nearest_source(first_op(*(read_trace(traced / f"{name}.{run}") for run in (0, 1))), group)
    assert hint_of(found, group).text.startswith(cause)
    lines = (HEAD + text).splitlines()
    if lost is not None:
        assert found.came_in and list(found.names) == lost
        assigned = {int(line.rpartition(":")[2]) for line in lines_that_assign(found)}
        assert assigned and all(lost[0] in lines[number - 1] for number in assigned)
    else:
        assert found.place is not None and "HERE" in lines[found.place.first - 1]
        assert found.guessed is (name == "names of files")


def test_an_op_of_the_backward_pass_has_the_line_of_its_forward(traced):
    """The gradient of an index is of the line that indexes, not of what follows it."""
    (op,) = [one for one in read_trace(traced / "backward.0").ops if one["n"] == "aten::index_put"]
    assert op["p"] == "backward"
    assert "HERE" in (HEAD + BACKWARD).splitlines()[int(op["fw"].rpartition(":")[2]) - 1]


def test_memory_counts_as_unwritten_until_all_of_the_part_that_an_op_reads_is_written(traced):
    """Of three sums of one buffer the second alone reads elements that nobody has written."""
    trace = read_trace(traced / "memory.0")
    added = {op["s"][0]: op for op in trace.ops if op["n"] == "aten::add.Tensor"}
    assert [trace.unwritten(added[number]) for number in ("1", "2", "3")] == [set(), {0}, set()]
    assert trace.ops[added["2"]["i"][0][4]]["n"].startswith("aten::empty")


def test_an_op_of_a_hook_has_the_line_of_the_hook(traced):
    """It runs in the backward, and no line of a forward is said."""
    trace = read_trace(traced / "memory.0")
    (op,) = [op for op in trace.ops if (op["n"], op["s"]) == ("aten::add.Tensor", ["4"])]
    place = trace.place(op)
    assert op["p"] == "backward" and "fw" not in op and place is not None
    assert "register_hook" in (HEAD + MEMORY).splitlines()[place.first - 1]


def test_a_trace_ends_no_program_whatever_its_tensors_are(traced):
    """Transforms of torch.func and a nested tensor: the trace has the statement after them, and its end."""
    trace = read_trace(traced / "kinds.0")
    last = [op for op in trace.ops if (op["n"], op["s"]) == ("aten::add.Tensor", ["5"])]
    assert trace.whole and len(last) == 1


def test_statements_that_could_not_be_traced_are_told(traced):
    """A mode that takes no other tensors ends the trace of statements; ops go on; the finding has the error."""
    trace = read_trace(traced / "fake.0")
    assert "FakeTensor" in trace.failed and trace.whole
    assert [op["n"] for op in trace.ops if op["s"] == ["6"]] == ["aten::add.Tensor"]
    assert first_op(trace, read_trace(traced / "fake.1")).failed == trace.failed
    assert read_trace(traced / "kinds.0").failed == ""

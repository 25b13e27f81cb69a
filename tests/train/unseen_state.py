"""What `Run`'s completeness check does not see: ways to carry state from step to step, each in a script of ten lines.

`python tests/train/unseen_state.py [NAME ...]` trains each script whole, kills it with SIGKILL in step 10, starts it again, and prints
whether Run named the state, or the resumed run ended with other weights and without a word. docs/training.md has the outcome.
"""

import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

import torch

import samebits

SCRIPT = """
import os, signal, sys, functools, torch, numpy as np, samebits
from torch import nn
from torch.utils.data import TensorDataset
samebits.set_random_seed(1)
x = torch.randn(64, 4)
loader = samebits.data.DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
opt = torch.optim.SGD(model.parameters(), 0.1)
criterion = nn.CrossEntropyLoss()
{before}
with samebits.Run(sys.argv[1], model=model, optimizer=opt, save=1) as run:
    for step, (a, b) in run.steps(loader, epochs=1):
        n = 0
        {inside}
        loss = criterion(model(a), b) * (1 + n / 50)
        opt.zero_grad(); loss.backward(); opt.step()
        if len(sys.argv) > 2 and step.number == 10: os.kill(os.getpid(), signal.SIGKILL)
print("END", [p.tolist() for p in model.parameters()])
"""
COUNTED = {
    "nothing": ("", ""),
    "a local variable": ("k = 0", "k += 1; n = k"),
    "a list": ("h = []", "h.append(1); n = len(h)"),
    "an object's attribute": ("class H: pass\nh = H()\nh.k = 0", "h.k += 1; n = h.k"),
    "an own torch.Generator": (
        "h = torch.Generator().manual_seed(3)",
        "n = torch.rand((), generator=h).item()",
    ),
    "a generator function": ("def g():\n    yield from range(99)\nh = g()", "n = next(h)"),
    "itertools.count": ("import itertools\nh = itertools.count()", "n = next(h)"),
    "a closure variable": (
        "def make():\n    k = 0\n    def h():\n        nonlocal k\n        k += 1\n        return k\n    return h\nh = make()",
        "n = h()",
    ),
    "a function's global": ("k = 0\ndef h():\n    global k\n    k += 1\n    return k", "n = h()"),
    "functools.partial": ("h = functools.partial(list.append, [])", "h(1); n = len(h.args[0])"),
    "array.array": ("import array\nh = array.array('d', [0])", "h[0] += 1; n = h[0]"),
    "bytearray": ("h = bytearray(1)", "h[0] += 1; n = h[0]"),
    "queue.Queue": ("import queue\nh = queue.Queue()", "h.put(1); n = h.qsize()"),
    "ctypes": ("import ctypes\nh = ctypes.c_int(0)", "h.value += 1; n = h.value"),
    "an object with __next__": (
        "class H:\n    k = 0\n    def __next__(self):\n        self.k += 1\n        return self.k\nh = H()",
        "n = next(h)",
    ),
    "multiprocessing.Value": (
        "import multiprocessing\nh = multiprocessing.Value('i', 0)",
        "h.value += 1; n = h.value",
    ),
    "a database (sqlite3)": (
        "import sqlite3\nh = sqlite3.connect(':memory:')\nh.execute('create table t (k)')",
        "h.execute('insert into t values (1)'); n = h.execute('select count(*) from t').fetchone()[0]",
    ),
    "a cursor": (
        "import sqlite3\nh = sqlite3.connect(':memory:').cursor()\n"
        "h.execute('with recursive c(k) as (select 1 union all select k+1 from c limit 99) select k from c')",
        "n = h.fetchone()[0]",
    ),
    "an open file's position": (
        "open('lines', 'w').write('\\n'.join(map(str, range(99))))\nh = open('lines')",
        "n = int(h.readline())",
    ),
    "lru_cache": ("@functools.lru_cache\ndef h():\n    return torch.rand(()).item()", "n = 50 * h()"),
    "a function's attribute": ("def h(): pass\nh.k = 0", "h.k += 1; n = h.k"),
    "a default argument": ("def h(k=[0]):\n    k[0] += 1\n    return k[0]", "n = h()"),
    "a class attribute": ("class H: k = 0", "H.k += 1; n = H.k"),
    "a metaclass's dict": (
        "class M(type):\n    table = {}\nclass H(metaclass=M): pass",
        "H.table[len(H.table)] = 1; n = len(H.table)",
    ),
    "a context variable": (
        "import contextvars\nh = contextvars.ContextVar('h', default=0)",
        "h.set(h.get() + 1); n = h.get()",
    ),
    "threading.local": ("import threading\nh = threading.local()\nh.k = 0", "h.k += 1; n = h.k"),
    "a weak map": (
        "import weakref\nh = weakref.WeakKeyDictionary({model: 0})",
        "h[model] += 1; n = h[model]",
    ),
    "the decimal context": (
        "import decimal\nh = decimal.getcontext()\nh.prec = 5",
        "h.prec += 1; n = h.prec",
    ),
    "os.environ": ("os.environ['K'] = '0'", "n = int(os.environ['K']) + 1; os.environ['K'] = str(n)"),
    "a module's attribute": ("import string\nstring.k = 0", "string.k += 1; n = string.k"),
    "__slots__": ("class H: __slots__ = ('k',)\nh = H()\nh.k = 0", "h.k += 1; n = h.k"),
    "a module's number": ("model.k = 0", "model.k += 1; n = model.k"),
    "a scheduler that is not named": ("h = torch.optim.lr_scheduler.StepLR(opt, 3)", "h.step()"),
    "TorchScript's attribute": (
        "class H(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.k = 0\n"
        "    def forward(self):\n        self.k += 1\n        return self.k\nh = torch.jit.script(H())",
        "n = h()",
    ),
}
LATE = {
    "late: another submodule": ("", "model[1] = nn.Tanh()"),
    "late: a hook": ("", "model[0].register_forward_hook(lambda module, given, out: out * 2)"),
    "late: a patched method": ("", "model[1].forward = torch.tanh"),
    "late: a patched function": ("", "nn.functional.relu = lambda given, inplace=False: torch.tanh(given)"),
    "late: the default dtype": (
        "",
        "torch.set_default_dtype(torch.float64)\n        n = (torch.tensor(1 / 3).double() * 1e8 % 1).item()",
    ),
    "late: another criterion": ("", "criterion = nn.CrossEntropyLoss(label_smoothing=0.3)"),
    "late: another p of a dropout": ("", "model[2].p = 0.7"),
}


def run(script, *args):
    """What a script prints: as a process of its own, without the seconds of its imports."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        os.chdir(script.parent)
        sys.argv = [str(script), *map(str, args)]
        try:
            runpy.run_path(str(script), run_name="__main__")
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    return text, os.waitpid(pid, 0)[1]


def end(text):
    return next((line for line in text.splitlines() if line.startswith("END")), None)


def verdict(before, inside, folder):
    """What becomes of a script that is killed and started again."""
    script = folder / "train.py"
    script.write_text(SCRIPT.format(before=before, inside=inside))
    text, _ = run(script, folder / "whole")
    if end(text) is None:
        named = "IncompleteStateError" in text
        return "named by Run" if named else text.splitlines()[-1]
    killed, code = run(script, folder / "killed", "kill")
    if code == 0:
        return f"not killed: {killed}"
    resumed, _ = run(script, folder / "killed")
    if end(resumed) is None:
        return f"refused at the resume: {resumed.splitlines()[-1]}"
    return "equal" if end(resumed) == end(text) else "NOT SEEN: other weights"


def main():
    torch.set_num_threads(1)
    assert samebits.data
    cases = COUNTED | {name: (a, f"if step.number == 5: {b}") for name, (a, b) in LATE.items()}
    for name in sys.argv[1:] or cases:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name:32} {verdict(*cases[name], Path(folder))}", flush=True)


if __name__ == "__main__":
    main()

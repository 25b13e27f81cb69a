"""50 ways to carry state from step to step, each in a script of ten lines, and ordinary scripts that carry none.

`python tests/support/carried_state.py [NAME ...]` trains each script whole, kills it with SIGKILL in step 10, starts it again, and prints
whether Run named the state, or the resumed run ended with other weights and without a word. docs/explanation/limits.md has the outcome.
"""

import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch._dynamo  # what the first optimizer imports, once for all scripts

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
with samebits.Run(sys.argv[1], model=model, optimizer=opt, save=1 if 'kill' in sys.argv else 'explicit') as run:
    for step, (a, b) in run.steps(loader, epochs=1):
        n = 0
        {inside}
        loss = criterion(model(a), b) * (1 + n / 50)
        opt.zero_grad(); loss.backward(); opt.step()
        if len(sys.argv) > 2 and step.number == 10: os.kill(os.getpid(), signal.SIGKILL)
print("END", [p.tolist() for p in model.parameters()])
"""
COUNTED = {
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
    "itertools.cycle": ("import itertools\nh = itertools.cycle([0, 1, 2])", "n = next(h)"),
    "io.BytesIO": ("import io\nh = io.BytesIO(bytes(range(99)))", "n = h.read(1)[0]"),
    "a mapped memory": ("import mmap\nh = mmap.mmap(-1, 8)", "h[0] += 1; n = h[0]"),
    "a coroutine": (
        "import types\n@types.coroutine\ndef pause(k):\n    yield k\nasync def go():\n    for k in range(99):\n        await pause(k)\nh = go()",
        "n = h.send(None)",
    ),
    "a global of another module": (
        "open('helper.py', 'w').write('k = 0\\ndef h():\\n    global k\\n    k += 1\\n    return k\\n')\n"
        "sys.path.insert(0, '.'); import helper",
        "n = helper.h()",
    ),
    "a file that is written anew": (
        "import pathlib\nh = pathlib.Path(sys.argv[1] + '.count')\nh.write_text('0')",
        "h.write_text(str(int(h.read_text()) + 1)); n = int(h.read_text())",
    ),
    "a generator of the C library": (
        "import ctypes\nh = ctypes.CDLL(None)\nh.srand(1)",
        "n = h.rand() % 99",
    ),
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
    "late: an attribute of the criterion": ("", "criterion.label_smoothing = 0.3"),
    "late: a hook on a parameter": ("", "model[0].weight.register_hook(lambda gradient: gradient * 2)"),
    "late: a method of torch's class": ("", "nn.ReLU.forward = lambda self, given: torch.tanh(given)"),
}
NOT_SEEN = {"a file that is written anew", "a generator of the C library"}
"""What no look finds; docs/explanation/limits.md says so."""
WAYS = COUNTED | {name: (before, f"if step.number == 5: {inside}") for name, (before, inside) in LATE.items()}

METERS = (  # those of PyTorch's imagenet example
    "class AverageMeter:\n    def __init__(self, name, fmt=':f'): self.name, self.fmt = name, fmt; self.reset()\n"
    "    def reset(self): self.val = self.avg = self.sum = self.count = 0\n"
    "    def update(self, val, n=1):\n"
    "        self.val = val; self.sum += val * n; self.count += n; self.avg = self.sum / self.count\n"
    "    def __str__(self): return ('{name} {val' + self.fmt + '} ({avg' + self.fmt + '})').format(**self.__dict__)\n"
    "class ProgressMeter:\n    def __init__(self, meters): self.meters = meters\n"
    "    def display(self, batch):\n        entries = [str(batch)]; entries += [str(meter) for meter in self.meters]\n"
    "        print('\\t'.join(entries), file=open(os.devnull, 'w'))\n"
    "losses = AverageMeter('loss'); progress = ProgressMeter([losses])"
)
FORMATTED = METERS[: METERS.index("    def __str__")] + (
    "    def __str__(self): return f'{self.name} {self.val:.3f} ({self.avg:.3f})'\n"
) + METERS[METERS.index("class ProgressMeter") :]  # fmt: skip
ORDINARY = {
    "the same meters, with a formatted string": (
        FORMATTED,
        "losses.update(criterion(model(a), b).item(), len(a)); progress.display(step.number)",
    ),
    "the meters of PyTorch's imagenet example": (
        METERS,
        "losses.update(criterion(model(a), b).item(), len(a)); progress.display(step.number)",
    ),
    "nothing": ("", ""),
    "gradients of four steps": ("", "opt.param_groups[0]['lr'] = 0.1 if step.number % 4 == 3 else 0.0"),
    "an average that Run has": (
        "ema = torch.optim.swa_utils.AveragedModel(model)\nmodel.ema = [ema]",
        "ema.update_parameters(model) if step.number < 0 else None",
    ),
    "a scheduler from the step": ("", "opt.param_groups[0]['lr'] = 0.1 * 0.9 ** step.number"),
    "a dropout from the step": ("", "model[2].p = 0.1 + 0.01 * step.number"),
    "a dropout of all layers from the step": (
        "",
        "for layer in model.modules():\n            if isinstance(layer, nn.Dropout): layer.p = 0.1 + 0.01 * step.number",
    ),
    "a counter for the screen": (
        "import time\nbegan = time.time()",
        "print(f'{step.number} {time.time() - began:.1f} s', file=open(os.devnull, 'w'))",
    ),
    "lambdas": ("scale = lambda given, k=2: given * k", "b = (lambda given: given)(b); n = scale(0)"),
    "a dataclass of settings": (
        "import dataclasses\n@dataclasses.dataclass\nclass Settings:\n    rate: float = 0.1\n    names: list = "
        "dataclasses.field(default_factory=list)\nsettings = Settings()",
        "n = settings.rate + len(settings.names)",
    ),
    "logging": (
        "import logging\nlogging.basicConfig(stream=open(os.devnull, 'w'), level=20)\nlog = logging.getLogger('train')",
        "log.info('step %d', step.number)",
    ),
    "a log file": ("h = open('log.csv', 'w')", "h.write(f'{step.number}\\n'); h.flush()"),
    "a log in a database": (
        "import sqlite3\nh = sqlite3.connect('log.db')\nh.execute('create table if not exists t (k)')",
        "h.execute('insert into t values (?)', (step.number,)); h.commit()",
    ),
    "a log in memory": ("import io\nh = io.StringIO()", "h.write(f'{step.number}\\n')"),
    "a cache of constants": (
        "@functools.lru_cache\ndef h(k):\n    return torch.arange(k).sum().item()",
        "n = h(step.number % 7)",
    ),
    "a cache in a default argument": (
        "def h(k, known={}):\n    if k not in known: known[k] = k * k\n    return known[k]",
        "n = h(step.number % 5)",
    ),
    "timers": (
        "import time\nclass Timer:\n    def __enter__(self): self.begin = time.perf_counter(); return self\n"
        "    def __exit__(self, *_): self.took = time.perf_counter() - self.begin\ntimer = Timer()",
        "\n        with timer: n = 0",
    ),
    "a timer in a class and one in a module": (
        "import time, string\nclass T: spent = 0.0\nstring.spent = 0.0",
        "began = time.perf_counter(); model(a)\n        T.spent += time.perf_counter() - began\n"
        "        string.spent += time.perf_counter() - began",
    ),
    "a best in a class and in run.state": (
        "class Best: value = 9.0",
        "Best.value = min(run.state.get('value', 9.0), 5.0 - step.number); run.state.value = Best.value; n = run.state.value / 99",
    ),
    "a learning rate in a module": (
        "import string\nstring.rate = 0.1",
        "string.rate = 0.1 * 0.9 ** step.number; n = string.rate",
    ),
    "a constant of a class": (
        "class H:\n    k = 3\n    table = {1: 2}\n    def go(self): return self.k + self.table[1]\nh = H()",
        "n = h.go()",
    ),
    "buffers that each step fills": (
        "import array\nh = bytearray(2)\ng = array.array('d', [0.0])\nkept = np.zeros(3)",
        "h[0] = step.number % 9; g[0] = step.number; n = h[0] + g[0] / 99",
    ),
    "modes and autocast": (
        "",
        "model.eval(); model(a); model.train()\n        with torch.autocast('cpu', torch.bfloat16): model(a)",
    ),
    "a hook for one step": (
        "",
        "handle = model[0].register_forward_hook(lambda m, given, out: None); model(a); handle.remove()",
    ),
    "early stopping in run.state": (
        "",
        "run.state.best = max(run.state.get('best', 0), step.number); n = run.state.best / 99",
    ),
    "settings put back in each step": (
        "import decimal, contextvars\nh = contextvars.ContextVar('h', default=0)",
        "torch.set_default_dtype(torch.float64); t = h.set(step.number); h.reset(t); torch.set_default_dtype(torch.float32)\n"
        "        with decimal.localcontext() as c: c.prec = 5",
    ),
    "a partial and a queue that each step empties": (
        "import queue\nh = functools.partial(nn.functional.relu, inplace=False)\nq = queue.Queue()",
        "q.put(1); n = q.get() + h(torch.ones(())).item()",
    ),
}


def run(script, *args):
    """What a script prints: as a process of its own, without the seconds of its imports."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        os.dup2(writer, 2)
        sys.stdout = sys.stderr = open(1, "w", closefd=False)  # not what pytest has put there
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


def whole(before, inside, folder, script=SCRIPT):
    """The script, and what it prints when nobody kills it."""
    text, script = script, folder / "train.py"
    script.write_text(text.format(before=before, inside=inside))
    return script, run(script, folder / "whole")[0]


def verdict(before, inside, folder, script=SCRIPT):
    """What becomes of a script that is killed and started again."""
    script, text = whole(before, inside, folder, script)
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
    cases = WAYS | ORDINARY
    for name in sys.argv[1:] or cases:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name:32} {verdict(*cases[name], Path(folder))}", flush=True)


if __name__ == "__main__":
    main()

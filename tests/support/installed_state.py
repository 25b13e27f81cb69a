"""Small libraries that keep state, or do no harm, each used by a script of ten lines: installed, and beside the script.

`python tests/support/installed_state.py` trains each, kills it with SIGKILL in step 10, starts it again, and prints what became of it.
"""

import tempfile
from pathlib import Path

import torch

import carried_state

LIBRARY = """
import collections, random, time
import numpy as np, torch
class Counter:
    def __init__(self): self.n = 0
    def __call__(self): self.n += 1; return self.n
class Noise:
    def __init__(self, bits=None): self.r = np.random.default_rng(3) if bits is None else bits
    def __call__(self): return float(self.r.random())
class TorchNoise:
    def __init__(self): self.g = torch.Generator().manual_seed(3)
    def __call__(self): return float(torch.rand((), generator=self.g))
class Shared:
    R = np.random.RandomState(4)
    def __call__(self): return float(self.R.rand())
class Slots:
    __slots__ = ("n",)
    def __init__(self): self.n = 0
    def __call__(self): self.n += 1; return self.n
class Borg:
    _shared = {}
    def __init__(self): self.__dict__ = self._shared; self.step = 0
    def accumulate(self, every): self.step += 1; self.sync = self.step % every == 0; return self.sync
class Deep:
    def __init__(self): self.inner = Outer(Outer(Outer(Outer(Outer(Outer(Counter()))))))
    def __call__(self): return self.inner()
class Outer:
    def __init__(self, env): self.env = env
    def __call__(self): return self.env()
class Buffer:
    def __init__(self): self.rows, self.at = np.zeros(64), 0
    def add(self, value): self.rows[self.at % 64] = value; self.at += 1
    def mean(self): return float(self.rows[: max(1, self.at)].mean())
class Held:
    def __init__(self): self.last = collections.deque(maxlen=3); self.by_key = {"n": 0}; self.several = [0, 0]
class Welford:
    def __init__(self): self.count, self.mean = 0, 0.0
    def update(self, x): self.count += 1; self.mean += (x - self.mean) / self.count; return self.mean
class Layer(torch.nn.Module):
    def __init__(self): super().__init__(); self.calls = 0
    def forward(self, x): self.calls += 1; return x * (1 + self.calls / 100)
class Ema:
    def __init__(self, model): self.model, self.shadow = model, [p.detach().clone() for p in model.parameters()]
    def update(self):
        for mine, theirs in zip(self.shadow, self.model.parameters()): mine.lerp_(theirs.detach(), 0.1)
    def pull(self):
        with torch.no_grad():
            for mine, theirs in zip(self.shadow, self.model.parameters()): theirs.lerp_(mine, 0.1)
class Meter:
    def __init__(self): self.sum, self.count = 0.0, 0
    def update(self, value): self.sum += value; self.count += 1
    @property
    def avg(self): return self.sum / max(1, self.count)
class Progress:
    def __init__(self, total): self.total, self.n, self.began = total, 0, time.time()
    def update(self, by=1): self.n += by
    def __str__(self): return f"{self.n}/{self.total}"
class Writer:
    def __init__(self, path): self.file, self.lines = open(path, "a"), 0
    def add_scalar(self, name, value, step): self.lines += 1; self.file.write(f"{name} {value} {step}\\n")
class Cache:
    def __init__(self): self.known, self.table = {}, None
    def __call__(self, k):
        if self.table is None: self.table = [i * i for i in range(99)]
        if k not in self.known: self.known[k] = self.table[k] / 1000
        return self.known[k]
class Scratch:
    def __init__(self): self.last = None
    def __call__(self, x): self.last = x * 2; return self.last
class Timer:
    def __init__(self): self.began = time.perf_counter(); self.laps = 0
    def lap(self): self.laps += 1; return time.perf_counter() - self.began
class Rounded:
    def __init__(self): self.value = 0.0
    def set(self, value): self.value = round(value, 2); return self.value
"""
STATE = {
    "a counter": ("h = lib.Counter()", "n = h()"),
    "a counter of a function": ("h = lib.Counter()\ndef f(): return h()", "n = f()"),
    "a NumPy generator": ("h = lib.Noise()", "n = h()"),
    "a NumPy RandomState": ("h = lib.Noise(np.random.RandomState(3))", "n = h()"),
    "a Python generator": ("import random\nh = lib.Noise(random.Random(3))", "n = h()"),
    "a torch generator": ("h = lib.TorchNoise()", "n = h()"),
    "a generator of the class": ("h = lib.Shared()", "n = h()"),
    "slots": ("h = lib.Slots()", "n = h()"),
    "state that all instances share": ("h = lib.Borg()", "n = 50 * h.accumulate(3)"),
    "seven objects deep": ("h = lib.Deep()", "n = h()"),
    "a replay buffer": ("h = lib.Buffer()", "h.add(a.sum().item()); n = h.mean()"),
    "a deque": ("h = lib.Held()", "h.last.append(step.number); n = sum(h.last)"),
    "a dict's value": ("h = lib.Held()", "h.by_key['n'] += 1; n = h.by_key['n']"),
    "a list's item": ("h = lib.Held()", "h.several[1] += 1; n = h.several[1]"),
    "running statistics": ("h = lib.Welford()", "n = h.update(a.sum().item())"),
    "in a list of the user's": ("h = [lib.Counter()]", "n = h[0]()"),
    "in a dict of the user's": ("h = {'a': lib.Noise()}", "n = h['a']()"),
    "in an object of the user's": (
        "class Mine:\n    def __init__(self): self.inner = lib.Noise()\n    def __call__(self): return self.inner()\nh = Mine()",
        "n = h()",
    ),
    "of a subclass of the user's": ("class Mine(lib.Counter): pass\nh = Mine()", "n = h()"),
    "in a closure": ("def make(c): return lambda: c()\nh = make(lib.Counter())", "n = h()"),
    "on a layer of torch's": ("model[0].h = lib.Counter()", "n = model[0].h()"),
    "in a layer of the model": ("model.append(lib.Layer())", "pass"),
    "averaged weights": ("h = lib.Ema(model)", "h.update(); h.pull()"),
    "a meter that decides": ("h = lib.Meter()", "h.update(a.sum().item()); n = h.avg"),
}
HARMLESS = {
    "a meter that prints a mean": ("h = lib.Meter()", "h.update(a.sum().item()); print(f'{h.avg:.3f}')"),
    "a meter, now and then": (
        "h = lib.Meter()",
        "h.update(a.sum().item())\n        if step.number % 5 == 4:\n            print('mean', round(h.avg, 3)); h = lib.Meter()",
    ),
    "a progress counter": ("h = lib.Progress(16)", "h.update(); print(h)"),
    "a writer that counts its lines": (
        "h = lib.Writer('log')",
        "h.add_scalar('x', a.sum().item(), step.number)",
    ),
    "a cache": ("h = lib.Cache()", "n = h(step.number % 3)"),
    "what each call overwrites": ("h = lib.Scratch()", "n = h(step.number)"),
    "a timer": ("h = lib.Timer()", "print(h.lap())"),
    "a value that each step sets": ("h = lib.Rounded()", "n = h.set(step.number / 7)"),
}


def script(before, inside, folder, *, installed):
    """The lines of a script of `carried_state` that uses the library, which lies in a site-packages or beside the script."""
    place = folder / "site-packages" if installed else folder
    place.mkdir(exist_ok=True)
    (place / "counterlib.py").write_text(LIBRARY)
    return f"sys.path.insert(0, {str(place)!r}); import counterlib as lib\n{before}", inside


def main():
    torch.set_num_threads(1)
    for name, lines in (STATE | HARMLESS).items():
        for installed in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                found = carried_state.verdict(
                    *script(*lines, Path(folder), installed=installed), Path(folder)
                )
            print(f"{name:32} {'installed' if installed else 'beside':9} {found}", flush=True)


if __name__ == "__main__":
    main()

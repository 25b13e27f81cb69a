"""Which values of a loop flow only into output: read from the source, so each case is a loop."""

import ast
import types

import pytest

from samebits._program.output_only import OutputFlow

LOOP = """
import json, math, random, time
import numpy as np, torch
from sklearn.metrics import f1_score
class Meter:
    def __init__(self): self.sum, self.n = 0.0, 0
    def update(self, v): self.sum += v; self.n += 1
    @property
    def avg(self): return self.sum / max(1, self.n)
class Seeder:
    def __init__(self): self.n = 0
    def update(self, v):
        self.n += 1
        torch.manual_seed(self.n)
class Levels:
    def __init__(self): self.level = 1
    def __getitem__(self, at): return at * self.level
class Watch:
    def __init__(self, held): self.held, self.values = held, []
    def look(self, v):
        self.values.append(v)
        if len(self.values) > 3: self.held.level += 1
    def rate(self, v):
        self.values.append(v)
        if len(self.values) > 3: self.held.param_groups[0]["lr"] *= 0.5
    def count(self, v):
        self.held.sum += v
        print(self.held.sum)
class Recorder:
    def __init__(self): self.history = {{"a": []}}
    def log(self, **figures):
        for k, n in figures.items(): self.history[k].append(n)
    def dump(self): json.dump(self.history, open("log", "w"))
class Thrower:
    def __init__(self): self.n = 0
    def tick(self):
        self.n += 1
        if self.n > 5: raise StopIteration
def show(name, value): print(f"{{name}}: {{value:.3f}}")
def set_rate(opt, rate):
    for group in opt.param_groups: group["lr"] = rate
def tune(optimizer, *rates, **rate):
    set_rate(optimizer, rates[0] if rates else rate["of"])
def train(model, optimizer, scheduler, run, loader, writer, pbar, logger, aug):
    v = 0.0
    {before}
    for step, (x, y) in run.steps(loader):
        loss = model(x).mean()
        {inside}
        loss.backward()
        optimizer.step()
    {after}
train(*range(9))
"""
OUTPUT = {
    "a rate, given to a meter": (
        "v = Meter()",
        "v.update(optimizer.param_groups[0]['lr']); v.update(scheduler.get_last_lr()[0]); print(v.avg)",
    ),
    "an item by an attribute": ("h = {}", "v += loss.item(); h[step.number] = v; print(h)"),
    "an object that counts in a meter": ("v = Watch(Meter())", "v.count(loss.item())"),
    "a keyword of any name, into a list by its name": (
        "r = Recorder()",
        "v += loss.item(); r.log(a=v); r.dump()",
    ),
    "a print": ("", "v += loss.item(); print(v)"),
    "attributes of the program's own objects": (
        "ns = types.SimpleNamespace(v=0); m = {'a': Meter()}",
        "v += loss.item(); m['a'].sum = v; ns.v = v; print(m['a'].sum, ns.v)",
    ),
    "never read": ("", "v += loss.item()"),
    "an f-string, rounded": ("", "v += loss.item(); print(f'{v:.2f}', round(v, 3))"),
    "a user's function that prints": ("", "v += loss.item(); show('loss', v / 3)"),
    "run.log and a writer": (
        "",
        "v += loss.item(); run.log(total=v); writer.add_scalar('v', v, step.number)",
    ),
    "a list of which the mean is printed": ("h = []", "v += 1; h.append(v); print(np.mean(h), len(h))"),
    "a dict of lists": ("h = {'a': []}", "v += 1; h['a'].append(v); logger.info('%s', h)"),
    "the best for the screen": ("", "if loss.item() > v: v = loss.item()\n        pbar.set_postfix(best=v)"),
    "a period of printing": (
        "",
        "v += 1\n        if v % 5 == 0:\n            print('now', v)\n            v = 0",
    ),
    "nanoGPT's mfu": (
        "mfu = -1.0",
        "v += 1\n        if v >= 5:\n            new = 3.0 * v\n            mfu = new if mfu == -1.0 else 0.9 * mfu + 0.1 * new\n        print(mfu)",
    ),
    "norms of the gradient": (
        "v = []",
        "v.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))\n        if step.ends_epoch: print(sum(v)); v.clear()",
    ),
    "a JSON file": ("v = []", "v.append({'loss': loss.item()}); json.dump(v, open('log', 'w'))"),
    "a meter that gets a number of the model": (
        "v = Meter()",
        "v.update(model.weight.norm().item()); print(v.avg)",
    ),
    "a dict that a hook fills": (
        "v = dict(); model.register_forward_hook(lambda m, i, o: v.update(mean=float(o.detach().mean())))",
        "print(v)",
    ),
    "a best value in a dict of an outer scope": (
        "v = {'best': 9.0}\n    def check(n):\n        if n < v['best']: v['best'] = n\n        print(v['best'])",
        "check(loss.item())",
    ),
    "a set of rates": ("v = set()", "v.add(optimizer.param_groups[0]['lr']); print(sorted(v))"),
    "a timer with a step": ("v = Timer()", "v.step(); print(v.value())"),
    "a score": ("v = []", "v.extend(y.tolist()); print(f1_score(v, v))"),
    "a meter": ("v = Meter()", "v.update(loss.item()); print(v.avg)"),
    "a meter that is made anew": (
        "v = Meter()",
        "v.update(loss.item())\n        if step.ends_epoch: print(v.avg); v = Meter()",
    ),
    "a comprehension": ("h = []", "v += 1; h.append(v); print(sum(i for i in h if i > 2))"),
    "returned by a function whose result is not used": ("", "v += loss.item()", "return v"),
}
TRAINING = {
    "a rate in a dict of an outer scope": (
        "v = {'best': 9.0}\n    def check(n):\n        if n < v['best']: v['best'] = n",
        "check(loss.item()); set_rate(optimizer, v['best'])",
    ),
    "the loss": ("", "v += 1; loss = loss * (1 + v)"),
    "a condition around a step": ("", "v += 1\n        if v % 2: optimizer.zero_grad()"),
    "a condition around break": ("", "v += 1\n        if v > 99: break"),
    "a rate": ("", "v += 1\n        for group in optimizer.param_groups: group['lr'] = 1 / v"),
    "a rate by an alias": ("groups = optimizer.param_groups", "v += 1; groups[0]['lr'] = 1 / v"),
    "a rate by a function": ("", "v += 1; set_rate(optimizer, 1 / v)"),
    "a rate as a keyword of any name": ("", "v += 1; tune(optimizer, of=1 / v)"),
    "a rate as one of many": ("", "v += 1; tune(optimizer, 1 / v)"),
    "a rate by a variable": (
        "rate = 1.0",
        "v += 1\n        if v > 3: rate *= 0.5\n        set_rate(optimizer, rate)",
    ),
    "run.state": ("", "v += 1; run.state.v = v"),
    "run.stop": ("", "v += 1\n        if v > 5: run.stop()"),
    "a scheduler": ("", "v += 1; scheduler.step(v)"),
    "an item by an attribute, of a weight": (
        "w = model.weight",
        "v += loss.item(); w[step.number % 2] = v",
    ),
    "an item by an attribute, of an augmentation": (
        "h = {0: 1.0}",
        "v += loss.item(); h[step.number] = v; loss = loss * h[0]",
    ),
    "a scheduler under a condition": ("", "v += 1\n        if v > 3: scheduler.step()"),
    "a saved model": ("", "if loss.item() > v: v = loss.item(); torch.save(model.state_dict(), 'best.pt')"),
    "a seed": ("", "v += 1; torch.manual_seed(int(v))"),
    "a NumPy seed": ("", "v += 1; np.random.seed(int(v))"),
    "a draw under a condition": ("", "v += 1\n        if v % 2: noise = torch.rand(2)"),
    "clipping": ("", "v += 1; torch.nn.utils.clip_grad_norm_(model.parameters(), v)"),
    "in place, by an alias": ("w = model.weight", "v += 1; w += v"),
    "in place, by a method": ("w = model.weight", "v += 1; w.add_(v)"),
    "into a part": ("w = model.weight", "v += 1; w[0] = v"),
    "out=": ("w = model.weight", "v += 1; torch.add(w, v, out=w)"),
    "an augmentation": ("", "v += 1; x = x * v; loss = model(x).mean()"),
    "an augmentation that is switched on": (
        "aug = dict()",
        "v += 1\n        if v > 3: aug['on'] = 1\n        loss = model(x, aug).mean()",
    ),
    "a closure": ("def scale(z): return z * v", "v = v + 1; loss = scale(loss)"),
    "a lambda": ("f = lambda z: z * v", "v = v + 1; loss = f(loss)"),
    "a generator": ("def g():\n        while True: yield v\n    g = g()", "v = v + 1; loss = loss * next(g)"),
    "an object that seeds": ("v = Seeder()", "v.update(1)"),
    "an object that sets another's attribute": ("v = Watch(Levels())", "v.look(loss.item())"),
    "an object that sets a rate": ("v = Watch(optimizer)", "v.rate(loss.item())"),
    "an object that raises": ("v = Thrower()", "v.tick()"),
    "an object that gets the parameters": ("v = Meter()", "v.update(model.parameters())"),
    "a list of what is trained": ("v = []", "v.append(model.weight); v[0].data.fill_(1)"),
    "an object that gets the model": ("v = Meter()", "v.update(model)"),
    "a loop over it": ("v = []", "v.append(1)\n        for one in v: optimizer.step()"),
    "while": ("", "v += 1\n        while v > 3: optimizer.step(); v -= 1"),
    "an unknown function": ("", "v += 1; unknown(v)"),
    "a file name": ("", "v += 1; model.load_state_dict(torch.load(f'{v}.pt'))"),
    "used after the loop": ("", "v += 1", "model.bias.data.fill_(v)"),
    "setattr": ("", "v += 1; setattr(model, 'scale', v)"),
    "an attribute of a sampler": (
        "v = np.ones(9); s = torch.utils.data.WeightedRandomSampler(torch.ones(9), 9)",
        "v[step.number] = loss.item(); s.weights = torch.from_numpy(v + 1e-3)",
    ),
    "an item of an attribute": (
        "v = np.ones(9); s = torch.utils.data.WeightedRandomSampler(torch.ones(9), 9)",
        "v[step.number] = loss.item(); s.weights[:] = torch.from_numpy(np.sqrt(v)); print(s.weights)",
    ),
}


def flow_of(before, inside, after, tmp_path):
    """The flow of a loop, and the code of its function."""
    file = tmp_path / "train.py"
    file.write_text(LOOP.format(before=before or "pass", inside=inside, after=after))
    module = compile(file.read_text(), str(file), "exec")
    code = next(c for c in module.co_consts if isinstance(c, types.CodeType) and c.co_name == "train")
    return OutputFlow([module, code], {"model", "optimizer", "run", "loader"}), code


@pytest.mark.parametrize("name", OUTPUT)
def test_what_flows_only_into_output_is_known(name, tmp_path):
    """A print, a log, a writer, a meter, a list of figures, a period of printing: the value reaches no weight."""
    before, inside, *after = OUTPUT[name]
    flow, code = flow_of(before, inside, after[0] if after else "pass", tmp_path)
    assert flow.variable(code, "v")


@pytest.mark.parametrize("name", TRAINING)
def test_what_may_reach_a_weight_is_not_called_output(name, tmp_path):
    """A condition, a rate, a seed, an alias, a closure, a file, an unknown function: each may change what is trained."""
    before, inside, *after = TRAINING[name]
    flow, code = flow_of(before, inside, after[0] if after else "pass", tmp_path)
    assert not flow.variable(code, "v")


@pytest.mark.parametrize("held, trains", [("self.meters", False), ("self.model.parts", True)])
def test_a_comprehensions_variable_may_have_the_name_of_the_model(held, trains, tmp_path):
    """`for model in self.meters` in a logger's text is no mention of the model; of its parts it is."""
    file = tmp_path / "train.py"
    file.write_text(
        f"class Log:\n    def __str__(self): return ' '.join(f'{{model.n}}' for model in {held})\n"
    )
    flow = OutputFlow([compile(file.read_text(), str(file), "exec")], {"model"})
    assert flow.methods_train("Log") == trains


def test_one_question_does_not_change_the_answer_to_the_next(tmp_path):
    """Two variables that are made of each other, of which one trains: each trains, whichever is asked for first."""
    lines = "b = 1.0", "loss = loss * (1 + v); b = v * 2; v = b + 1"
    for names in (("v", "b"), ("b", "v")):
        flow, code = flow_of(*lines, "pass", tmp_path)
        assert [flow.variable(code, name) for name in names] == [False, False]


def test_a_question_does_not_walk_the_file(tmp_path, monkeypatch):
    """20 questions about variables that are printed visit fewer nodes than one walk of their file, and again none."""
    prints = "; ".join(f"w{n} = loss.item(); print(w{n})" for n in range(20))
    flow, code = flow_of("", f"v = 0; print(v); {prints}", "", tmp_path)
    inner, visited = ast.iter_child_nodes, []
    monkeypatch.setattr(ast, "iter_child_nodes", lambda node: (visited.append(node), *inner(node))[1:])
    names = ["v", *(f"w{n}" for n in range(20))]
    assert all(flow.variable(code, name) for name in names)
    assert len(visited) < len(list(ast.walk(ast.parse((tmp_path / "train.py").read_text()))))
    visited.clear()
    assert all(flow.variable(code, name) for name in names) and not visited


def test_an_attribute_that_is_read_by_reflection_may_train(tmp_path):
    """`v.__dict__` may read any attribute, so none is called output then; without it the attribute is."""
    for inside, expected in (("print(v)", True), ("print(v.__dict__)", False)):
        folder = tmp_path / str(expected)
        folder.mkdir()
        assert flow_of("", inside, "pass", folder)[0].attribute("avg") is expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("def forward(self, x): return super().forward(x) / self.tau", False),
        ("def forward(self, x): return nn.Linear.forward(self, x) / self.tau", False),
        ("def forward(self, x):\n        y = super().forward(x)\n        return y / self.tau", False),
        ("def __getitem__(self, x): return super().__getitem__(x) / self.tau", False),
        (
            "def scale(self, y): return y / self.tau\n    def forward(self, x): return self.scale(super().forward(x))",
            False,
        ),
        ("def extra_repr(self): return super().extra_repr() + f'{self.tau}'", False),
        ("def __repr__(self): return super().__repr__() + f'{self.tau}'", True),
        ("def told(self): return f'{self.tau}'\n    def tell(self): print(self.told())", True),
    ],
)
def test_what_overrides_a_method_of_a_library_may_train(method, expected, tmp_path):
    """An attribute in what `forward` returns reaches a weight, whoever calls `super().forward`. Control: a text, a print."""
    (tmp_path / "net.py").write_text(f"from torch import nn\nclass Net(nn.Linear):\n    {method}\n")
    code = compile((tmp_path / "net.py").read_text(), str(tmp_path / "net.py"), "exec")
    assert OutputFlow([code], {"model"}).attribute("tau") is expected


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ("import cfg as c\nprint(c.n)", True),
        ("import cfg as c\ntrain(x[: c.n])", False),
        ("import cfg as c\ntrain(getattr(c, 'n'))", False),
        ("from cfg import n as m\ntrain(m['k'])", False),
        ("import cfg\nprint(cfg.n)\ntrain(run.n)", True),
    ],
)
def test_a_variable_of_a_module_is_followed_into_the_files_that_import_it(reads, expected, tmp_path):
    """A global that only a print reads as `cfg.n` is output; a slice, a getattr, or another imported name may train."""
    codes = []
    for name, text in (("cfg", "n = 0\ndef more():\n    global n\n    n += 1"), ("train", reads)):
        (tmp_path / f"{name}.py").write_text(text)
        codes.append(compile(text, str(tmp_path / f"{name}.py"), "exec"))
    assert OutputFlow(codes, {"run"}).variable(None, "n") is expected


def test_without_source_nothing_is_called_output():
    """The code of a string has no source that could be read: its values count as training."""
    code = compile("v = 0\nfor i in range(3):\n    v += i\n    print(v)", "<string>", "exec")
    assert not OutputFlow([code], set()).variable(code, "v")


MEMOS = {
    "a function of the key": (
        "v = dict()",
        "k = step.number % 7\n        if k not in v: v[k] = 1 + k / 10\n        loss = loss * v[k]",
        True,
    ),
    "a function of a constant, too": (
        "v = dict()",
        "k = step.number % 7\n        if k not in v: v[k] = math.sqrt(3 * k)\n        loss = loss * v[k]",
        True,
    ),
    "when it was first seen": (
        "v = dict()",
        "k = step.number % 7\n        if k not in v: v[k] = step.number\n        loss = loss * v[k]",
        False,
    ),
    "a draw": (
        "v = dict()",
        "k = step.number % 7\n        if k not in v: v[k] = torch.rand(1) + k\n        loss = loss * v[k]",
        False,
    ),
    "changed later": (
        "v = dict()",
        "k = step.number % 7\n        if k not in v: v[k] = k\n        v[k] += 1; loss = loss * v[k]",
        False,
    ),
    "emptied now and then": (
        "v = dict()",
        "k = step.number % 7\n        if k not in v: v[k] = k\n        if k == 5: v.clear()",
        False,
    ),
}


@pytest.mark.parametrize("name", MEMOS)
def test_a_memo_of_the_loop_is_known(name, tmp_path):
    """A dict that the loop fills by its keys alone is a memo; one that remembers a draw, a step or a change is none."""
    before, inside, memo = MEMOS[name]
    flow, code = flow_of(before, inside, "pass", tmp_path)
    assert flow.is_memo(code, "v") == memo

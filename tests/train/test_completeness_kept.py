"""What a library keeps and calls reads state, too; and what each step sets, the run has, or only a print reads is no state."""

import pytest

import carried_state

pytestmark = pytest.mark.usefixtures("one_thread")

LR = "torch.optim.lr_scheduler.LambdaLR(opt, {})\nrun_has = lambda run: run.add('lr', lr)"
READ_BY_A_LIBRARY = {
    "a flag in a scheduler's lambda": (
        "h = {'n': 0}\nlr = " + LR.format("lambda k: 0.5 ** h['n']"),
        "run_has(run) if step.number == 0 else lr.step()\n        if step.number == 2: h['n'] = 1",
        "h",
    ),
    "a variable in a scheduler's function": (
        "h = 0\ndef rate(k): return 0.5 ** h\nlr = " + LR.format("rate"),
        "run_has(run) if step.number == 0 else lr.step()\n        if step.number == 2: h = 1",
        "h",
    ),
    "an attribute in a method that a library calls": (
        "class H:\n    n = 1.0\n    def __call__(self, k): return self.n\nh = H()\nlr = " + LR.format("h"),
        "run_has(run) if step.number == 0 else lr.step()\n        if step.number == 2: h.n = 0.5",
        "h.n",
    ),
}
WHEN = "class H: v = None\nh = H()\ndef warm(): h.v = 3"
SET_AT_A_STEP = {
    "at a step": (WHEN, "if step.number == 2: h.v = 3\n        n = h.v or 0", "h.v"),
    "at a loss": (WHEN, "n = h.v or 0\n        if a.mean().item() < 9 and step.number > 1: h.v = 3", "h.v"),
    "by a function that a step calls": (WHEN, "if step.number == 2: warm()\n        n = h.v or 0", "h.v"),
    "a function, at a step": (
        "class H:\n    def __init__(s): s.v = torch.sum\nh = H()\ndef half(a): return a.sum() / 2\ndef all(a): return a.sum()\nh.v = all",
        "if step.number == 2: h.v = half\n        n = h.v(a)",
        "h.v",
    ),
    "a generator beside a dataclass in run.state": (
        "import dataclasses\n@dataclasses.dataclass\nclass D: n: int = 0\ndef h():\n    yield from range(99)\nh = h()",
        "run.state.setdefault('d', D()); n = next(h)",
        "h",
    ),
    "where there was none": (
        "class H: pass\nh = H()",
        "if step.number == 2: h.v = 3\n        n = getattr(h, 'v', 0)",
        "h.v",
    ),
}
SET_ONCE = "n = h\n        if step.number {} 2: h = 3"
NOT_EACH_STEP = {
    "a variable that is read first": ("h = 0", SET_ONCE.format(">="), "h"),
    "a variable that one step sets": ("h = 0", "if step.number == 2: h = 3\n        n = h", "h"),
    "a count that reaches the batch": (
        "class H:\n    n = 0\n    def __call__(s, items):\n        s.n += 1; a, b = zip(*items)\n"
        "        return torch.stack(a) * s.n, torch.stack(b)\n"
        "loader = samebits.data.DataLoader(loader.dataset, 4, collate_fn=H())",
        "pass",
        "loader.collate_fn.n",
    ),
}
LATER = "if step.number >= 2: {} = 3\n        n = {}"
HARMLESS = {
    "a variable that each later step sets": ("h = 0", LATER.format("h", "h")),
    "an attribute that each later step sets": ("class H: v = 0\nh = H()", LATER.format("h.v", "h.v")),
    "containers of run.state under other names": (
        "from collections import deque\nclass H: pass\nh = H()",
        "q = h.q = run.state.setdefault('q', deque(maxlen=3)); s = run.state.setdefault('s', [set(), np.zeros(2)])\n"
        "        h.s = s[0]; h.r = s[1]; n = len(q) + len(h.s) + h.r[0]\n"
        "        q.append(step.number); h.s.add(step.number); h.r += 1",
    ),
    "a count of a collate object for a print": (
        "class H:\n    n = 0\n    def __init__(s): s.n = 0\n    def __call__(s, items):\n        s.n += 1\n"
        "        if s.n % 7 == 0: print(s.n)\n        a, b = zip(*items)\n        return torch.stack(a), torch.stack(b)\n"
        "loader = samebits.data.DataLoader(loader.dataset, 4, collate_fn=H())",
        "pass",
    ),
    "a count of a function for a print": (
        "def h():\n    h.n = getattr(h, 'n', 0) + 1\n    if h.n % 7 == 0: print(h.n)",
        "h()",
    ),
    "a tensor that each forward sets before it reads it, by a name of tensors' methods": (
        "class H(nn.Module):\n    def forward(s, a):\n        s.mean = a.mean(0)\n        return s.mean.sum()\n"
        "h = H()",
        "n = float(h(a))",
    ),
    "a value that whoever lacks it makes": (
        "class H:\n    v = None\n    def get(s):\n        if s.v is None: s.v = 3\n        return s.v\nh = H()",
        "n = h.get() if step.number > 2 else 0",
    ),
}


@pytest.mark.parametrize("name", [*READ_BY_A_LIBRARY, *SET_AT_A_STEP, *NOT_EACH_STEP])
def test_what_is_set_once_and_read_later_is_named(name, tmp_path):
    """By a function that a library keeps, or by the loop after another step has set it: the error has its path."""
    before, inside, path = {**READ_BY_A_LIBRARY, **SET_AT_A_STEP, **NOT_EACH_STEP}[name]
    _, text = carried_state.whole(before, inside, tmp_path)
    assert "IncompleteStateError" in text and f"  - {path}" in text, text


SLOW = [name for name in HARMLESS if name.startswith("a tensor")]


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in HARMLESS]
)
def test_what_a_resume_does_not_lose_stops_no_run(name, tmp_path):
    """No error, and equal weights after a kill."""
    assert carried_state.verdict(*HARMLESS[name], tmp_path) == "equal"

"""Variables that a loop inside the body assigns: carried only if that loop runs no time, or carried indeed."""

import sys
import types

import pytest
import torch

from samebits._program import LoopFrames

SEEN = []


class Steps:
    def __init__(self):
        self.count = 3

    def __iter__(self):
        return self

    def __next__(self):
        frames = LoopFrames(sys._getframe(1))
        SEEN.append((set(frames.carried[0]), frames.carried_if_an_inner_loop_is_empty))
        self.count -= 1
        if self.count < 0:
            raise StopIteration
        return self.count, (1, 2)


MODEL = torch.nn.Module()
MODEL.layers = torch.nn.ModuleList([torch.nn.Linear(1, 1)])
GIVEN = {
    "Steps": Steps, "Args": types.SimpleNamespace(n=4), "MODEL": MODEL, "LOADER": torch.utils.data.DataLoader([1, 2, 3]),
}  # fmt: skip

RUNS = [
    "for t in range(3): v = t",
    "for t in range(1, 10000):\n    v = t\n    if t > 5: break",
    "for t in range(n): v = t",
    "for t in range(Args.n * 2 - 1): v = t",
    "for t in items: v = t",
    "for i, (t, _) in enumerate(zip(items, reversed(items)), start=1): v = t",
    "for _, t in table.items(): v = t",
    "for p in MODEL.parameters(): v = p",
    "for layer in MODEL.layers: v = layer",
    "for batch in LOADER: v = batch",
    "for i in range(2):\n    for j in range(n): v = j",
    "for i in range(2):\n    with open('/dev/null'): v = i",
    "for i in range(2):\n    try: v = i\n    finally: pass",
    "done = False\nwhile not done: v, done = 1, True",
    "a = b = False\nwhile not (a or b): v, a = 1, True",
    "a, b = False, False\nwhile not (a or b): v, a = 1, True",
    "while True:\n    v = 1\n    break",
]
"""An inner loop that surely runs: `v`, read after it, is no state."""
MAY_BE_EMPTY = [
    "a, b = False, 0\nwhile not (a or b > 3): v, a, b = 1, b, b + 1",
    "for t in range(no): v = t",
    "k = step\nfor t in range(k): v = t",
    "for t in y: v = t",
    "for t in nothing: v = t",
    "for t, _ in zip(items, nothing): v = t",
    "for t in items: v = t\nsome = [1]\nsome.pop()",
    "k = step\nwhile k < 2: v = k = k + 1",
    "k = step\nwhile k < 2 and k > -3: v = k = k + 1",
]
"""The loop may run no time: `v` is state then, and then only."""
CARRIED = [
    "for i in range(3):\n    if i > step: v = i",
    "for i in range(3):\n    if i > step: continue\n    v = i",
    "for i in range(3): v = v + i",
    "print(v, end='')\nfor i in range(3): v = i",
    "for i in range(3):\n    try: v = i\n    except ValueError: pass",
    "for i in range(2):\n    if i > v: v = i",
    "v = 0.9 * v + step",
]
"""Negative control: state, however often the loop runs."""
FORMS = {
    "for statement in a function": "def train():\n{before}\n    for step, y in Steps():\n{body}\ntrain()",
    "for statement in a script": "if True:\n{before}\n    for step, y in Steps():\n{body}",
    "while statement with an assignment": (
        "def train():\n{before}\n    it = Steps()\n    while (item := next(it, None)) is not None:\n        step, y = item\n"
        "{long}\n{body}\ntrain()"
    ),
}
BEFORE = "n, no, v, items, nothing, table = 4, 0, 7, [1, 2], [], {1: 2}"
LONG = "\n".join(f"        w{number} = [step + {number}, str(step)]" for number in range(60))
"""Jumps over it need an EXTENDED_ARG."""


def seen(body, form):
    SEEN.clear()
    text = "\n".join(f"        {line}" for line in [*body.splitlines(), "print(v, end='')"])
    exec(
        compile(FORMS[form].format(before=f"    {BEFORE}", body=text, long=LONG), "script", "exec"),
        dict(GIVEN),
    )
    assert SEEN
    return [("v" in names, "v" in conditional) for names, conditional in SEEN]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("bodies", "carried", "conditional"),
    [(RUNS, False, False), (MAY_BE_EMPTY, True, True), (CARRIED, True, False)],
)
def test_a_variable_of_an_inner_loop_is_carried_only_where_the_loop_may_be_empty(
    bodies, carried, conditional, form
):
    """A loop that surely runs assigns its variables; where it may not, they are carried, and reported as such."""
    wrong = {body for body in bodies if set(seen(body, form)) != {(carried, conditional)}}
    assert wrong == set()


def test_users_own_length_and_iterator_are_not_asked():
    """A user's class may have any length next time: the loop over it may be empty. No code of it runs for the question."""

    class Items:
        def __len__(self):
            raise RuntimeError

        def __iter__(self):
            return iter([1])

    GIVEN["OWN"] = Items()
    assert set(seen("for t in OWN: v = t", "for statement in a function")) == {(True, True)}

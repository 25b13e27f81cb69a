"""The text of the user's call, read from the file: what an error shows beside the op that torch made of it."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from samebits._inspect import user_call


def of_torch(source):
    """A function that stands, for whoever looks at the stack, in a module of torch's."""
    scope = {"source_text": user_call, "__name__": "torch.autograd"}
    exec(source, scope)
    return scope["ask"]


op = of_torch("def ask(*a, **k): return source_text.calling_op('aten::op')")
function = of_torch("def ask(*a, **k): return source_text.calling_function()")
x = torch.ones(2)


@pytest.fixture
def names(monkeypatch):
    """The two questions under names of torch's: a function, one of a module in it, and a method."""
    monkeypatch.setattr(torch, "asked", function, raising=False)
    monkeypatch.setattr(F, "asked", function, raising=False)
    monkeypatch.setattr(torch.Tensor, "asked", function, raising=False)


def test_the_call_and_not_its_line_is_shown():
    """Of two calls in a line the one that runs; a call over several lines is put on one, without comments; 72 characters."""
    (first, second) = op(1), op(two := 2)
    assert first.startswith(f"`op(1)` at {__file__}:") and first.endswith(" calls aten::op, which")
    assert second.startswith("`op(two := 2)` at ")
    assert op(
        1,  # a comment
        word="é",
    ).startswith("`op(1, word='é')` at ")
    long = op("a very long argument", "a very long argument", "a very long argument", "the end")
    assert len(long.split("`")[1]) == 72 and long.split("`")[1].endswith("...")


def test_without_a_source_the_op_is_named_as_before():
    """What is passed to exec has no text: op and line alone."""
    scope = {"op": op, "__name__": "__main__"}
    exec("found = op(1)", scope)
    assert scope["found"] == "aten::op at <string>:1"


def test_the_function_is_torchs_name_for_it(names):
    """`F.asked(x)` is torch.nn.functional.asked, `x.asked()` is Tensor.asked, whatever the variables are called."""
    y = x
    assert torch.asked(3) == "torch.asked"
    assert F.asked(x) == "torch.nn.functional.asked"
    assert y.asked() == x.asked() == "Tensor.asked"


def test_a_function_that_is_not_clear_has_no_name(names):
    """Negative control: a chain of calls, a call of the user's own, and exec give None, not a wrong name."""
    assert x.abs().asked() is None

    def mine():
        return [function][0]()

    assert mine() is None
    scope = {"torch": torch, "__name__": "__main__"}
    exec("found = torch.asked()", scope)
    assert scope["found"] is None


@pytest.mark.parametrize("option", [[], ["-X", "no_debug_ranges"]], ids=["columns", "lines"])
def test_an_unseeded_draw_shows_what_was_typed(tmp_path, option):
    """In a script `y = 2 * torch.randn(3)` is named with its file and line; without columns in the code, the whole line."""
    (tmp_path / "train.py").write_text(
        "import torch, samebits\nsamebits.enable_op_determinism()\ny = 2 * torch.randn(3)\n"
    )
    done = subprocess.run(
        [sys.executable, *option, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280
    )
    typed = "y = 2 * torch.randn(3)" if option else "torch.randn(3)"
    assert (
        f"UnseededError: `{typed}` at {tmp_path}/train.py:3 calls aten::normal_, which draws" in done.stderr
    )

"""A value that a program makes once: from a batch, random numbers or the weights it is named, from shapes and constants let be."""

import pytest

import carried_state

pytestmark = pytest.mark.usefixtures("one_thread")

MODULE = "class Net(nn.Module):\n    def __init__(s):\n        super().__init__(); s.f = nn.Linear(4, 2); s.c = None\n"
MADE_OF_DATA = {
    "the first batch's mean": ("if s.c is None: s.c = x.mean(0)", "s.f(x - s.c)"),
    "an attribute that was not there": ("if not hasattr(s, 'mu'): s.mu = x.mean(0)", "s.f(x - s.mu)"),
    "a mask that is drawn": ("if s.c is None: s.c = (torch.rand(4) > .3).float()", "s.f(x * s.c)"),
    "a number of the first batch": ("if s.c is None: s.c = x.abs().max().item()", "s.f(x / s.c)"),
    "in a method": ("if s.c is None: s.make(x)", "s.f(x - s.c)"),
    "a list": ("if s.c is None: s.c = [x.mean(0), 1]", "s.f(x - s.c[0])"),
    "a copy of the weights": ("if s.c is None: s.c = s.f.weight.detach().clone()", "s.f(x) + x @ s.c.t()"),
}
MADE_OF_SHAPES = {
    "a table of positions": (
        "if s.c is None: s.c = s.table(x.shape[0], x.size(1))",
        "s.f(x + s.c[: len(x)])",
    ),
    "a mask of ones": (
        "if s.c is None: s.c = torch.ones_like(x[0]).triu(0) if x.dim() > 9 else torch.ones_like(x[0])",
        "s.f(x * s.c)",
    ),
    "a device": ("if s.c is None: s.c = x.device", "s.f(x.to(s.c))"),
    "what each call overwrites": ("s.h = x.mean(0)", "s.f(x - s.h)"),
    "an attribute made of a shape": ("if not hasattr(s, 'n'): s.n = x.shape[1]", "s.f(x / s.n)"),
}
MAKE = "    def make(s, y): s.c = y.mean(0)\n"
TABLE = "    def table(s, n, width): return torch.arange(n * width).view(n, width) / 100\n"


def lines_of(first, result):
    forward = f"    def forward(s, x):\n        {first}\n        return {result}\n"
    return (
        MODULE
        + (MAKE if "make" in first else TABLE)
        + forward
        + "model = Net()\nopt = torch.optim.SGD(model.parameters(), 0.1)",
        "pass",
    )


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", MADE_OF_DATA)
def test_what_is_made_once_from_data_is_named(name, tmp_path):
    """A resumed program would make it from another batch: the attribute is in the error, and the weights do differ (control)."""
    before, inside = lines_of(*MADE_OF_DATA[name])
    _, text = carried_state.whole(before, inside, tmp_path)
    assert "IncompleteStateError" in text and "register_buffer" in text, text
    unchecked = carried_state.SCRIPT.replace("model=model", "check_complete=False, model=model")
    (folder := tmp_path / "unchecked").mkdir()
    assert carried_state.verdict(before, inside, folder, script=unchecked) != "equal"


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", MADE_OF_SHAPES)
def test_what_is_made_once_from_shapes_stops_no_run(name, tmp_path):
    """A resumed program makes the same: no error, and equal weights after a kill."""
    assert carried_state.verdict(*lines_of(*MADE_OF_SHAPES[name]), tmp_path) == "equal"


@pytest.mark.parametrize(
    ("before", "inside", "wanted"),
    [
        (
            "h = [torch.ones(1)]",
            "n = h[0].item(); h = [h[0] + 1]",
            'run.state.setdefault("h", h)  # and run.state.h instead of h in line 15',
        ),
        (
            "class Box: pass\nh = Box(); h.v = 1",
            "n = h.v; old = h; h = Box(); h.v = n + 1",
            'run.add("h", samebits.state.attributes(h, "v"))\nIn train.py, after line 16:\n    run.add("h",',
        ),
        (
            "k = 0\ndef f():\n    global k\n    k += 1\n    return k",
            "n = f()",
            'run.add("k", samebits.state.attributes(sys.modules["__main__"], "k"))',
        ),
    ],
)
def test_the_line_fits_what_the_program_does(before, inside, wanted, tmp_path):
    """A list that the loop makes anew is kept in run.state; an object is given again, and a global variable with its module."""
    _, text = carried_state.whole(before, inside, tmp_path)
    assert wanted in text, text


def test_a_sum_inside_a_loop_over_epochs_has_its_cure(tmp_path):
    """A variable that each epoch sets is not there before the loop, so there is no line to paste there; one that is (control) has it."""
    script = carried_state.SCRIPT.replace(
        "    for step,", "    for epoch in run.epochs(2):\n        total = 0.0\n        for step,"
    )
    script = script.replace("run.steps(loader, epochs=1)", "epoch.steps(loader)").replace(
        "\n        n = 0", "\n            n = 0"
    )
    head, _, body = script.partition("            n = 0\n")
    body, _, tail = body.partition("print(")
    script = (
        head
        + "            n = 0\n"
        + body.replace("        ", "            ").replace("{{", "{{")
        + "print("
        + tail
    )
    inside = "total += 1; count += 1; n = total + count"
    _, text = carried_state.whole("count = 0", inside, tmp_path, script=script)
    assert "    run.state.total instead of total in lines 14, 17" in text, text
    assert 'run.state.setdefault("count", count)' in text and 'setdefault("total"' not in text


def test_an_object_that_replaces_none_is_named(tmp_path):
    """A copy of the model as an attribute, and a list in a variable that was None."""
    before = "import copy\nclass T: pass\nt = T()\nt.teacher, anchor = None, None"
    inside = (
        "if step.number == 1: t.teacher = copy.deepcopy(model)\n"
        "        if step.number == 1: anchor = [p.detach().clone() for p in model.parameters()]\n"
        "        if anchor is not None: n = anchor[0].sum() + t.teacher(a).sum()"
    )
    _, text = carried_state.whole(before, inside, tmp_path)
    assert "- anchor (" in text and "t.teacher" in text, text

"""Another torch than the reviewed ones: ops that are gone, that have another schema, that nobody has seen."""

import json

import pytest

HEAD = """
import json, sys, warnings
from pathlib import Path
import torch
if sys.argv[1:2] == ["untested"]:
    torch.__version__ = "2.99.1+cpu"
warnings.simplefilter("ignore")
import samebits
from samebits.determinism import _all_replacements as catalogue
from samebits.determinism import _reviewed_schemas as reviewed
from samebits.determinism._replacement import Replacement
samebits.set_random_seed(0)
calls = []

def counting(name):
    def make(kernel):
        def counted(*args, **kwargs):
            calls.append(name)
            return kernel(*args, **kwargs)
        return counted
    return Replacement(f"aten::{name}", make, "counts its calls")

def with_another_schema(*names):
    # as if these had been reviewed with other arguments
    lines = reviewed.FILES[0].read_text().splitlines()
    changed = [f"{name},{'0' * 12},{rest}" if name in names else line
               for line in lines for name, _, rest in [(*line.split(",", 2), "", "")[:3]]]
    Path("snapshot.csv").write_text("\\n".join(changed) + "\\n")
    reviewed.FILES = (Path("snapshot.csv"), *reviewed.FILES[1:])

def told(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [[w.category.__name__, w.filename == __file__, str(w.message)] for w in caught]

def new_op(name, key="CPU"):
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, lambda x: x * 2, key)
    return getattr(torch.ops.aten, name)

library = torch.library.Library("aten", "FRAGMENT")
X = torch.ones(2, 2)
"""


@pytest.fixture
def tell(python):
    def run(source, *args):
        return json.loads(python(HEAD + source, *args).stdout.splitlines()[-1])

    return run


ROWS = """
rows = sys.argv[2].split()
if sys.argv[3:]: with_another_schema(*sys.argv[3:])
catalogue.REPLACEMENTS = (*map(counting, rows), counting("relu"))
def twice():
    for _ in range(2):
        samebits.enable_op_determinism()
        samebits.enable_op_determinism(False)
found = told(twice)
samebits.enable_op_determinism()
x = X.clone().requires_grad_()
(torch.matmul(x, x).relu() + torch.sin(x)).sum().backward()
print(json.dumps([found, sorted(set(calls)), x.grad.tolist()]))
"""


@pytest.mark.slow
def test_a_row_whose_op_is_gone_is_skipped_and_told_once(tell):
    """The switch goes on without it, one warning at the user's line names it, and the other rows are installed."""
    found, calls, _ = tell(ROWS, "tested", "no_such_op sin.no_such_overload")
    ((kind, here, text),) = found
    assert (kind, here) == ("UntestedVersionWarning", True)
    assert "aten::no_such_op (gone), aten::sin.no_such_overload (gone)" in text and "relu" not in text
    assert calls == ["relu"]


@pytest.mark.slow
def test_rows_that_fit_are_installed_and_nothing_is_told(tell):
    """Negative control: rows of ops that there are."""
    assert tell(ROWS, "tested", "sin mm")[:2] == [[], ["mm", "relu", "sin"]]


@pytest.mark.slow
def test_a_row_whose_schema_changed_is_skipped_and_told_once(tell):
    """A kernel written for other arguments does not stand in front of an op; the op runs as torch has it."""
    found, calls, gradient = tell(ROWS, "untested", "sin mm", "mm")
    ((kind, _, text),) = found
    assert (
        kind == "UntestedVersionWarning" and "aten::mm (another schema)" in text and "aten::sin" not in text
    )
    assert calls == ["relu", "sin"]
    assert gradient == tell(ROWS, "tested", "sin mm")[2]


@pytest.mark.slow
def test_a_row_whose_op_has_become_a_composite_is_skipped(tell):
    """In front of matmul, which torch makes of other ops, a kernel would take away the gradient."""
    found, calls, gradient = tell(ROWS, "tested", "matmul")
    assert "aten::matmul (no kernel of its own)" in found[0][2] and calls == ["relu"]
    assert gradient == tell(ROWS, "tested", "mm")[2]


@pytest.mark.slow
def test_what_a_reviewed_torch_no_longer_has_is_skipped_in_silence(tell):
    """The table knows that a reviewed version lacks an op of another one: nobody can call it there."""
    source = """
    reviewed.schemas()["gone_since"] = {"0" * 12}
    catalogue.REPLACEMENTS = (counting("gone_since"), counting("relu"))
    print(json.dumps(told(samebits.enable_op_determinism)))
    """.replace("\n    ", "\n")
    assert tell(source, "tested") == []
    assert "aten::gone_since (gone)" in tell(source, "untested")[0][2]


UNSEEN = """
before = [new_op("unseen_kernel"), new_op("unseen_composite", "CompositeImplicitAutograd")]
off = told(lambda: [op(X) for op in before])
samebits.enable_op_determinism()
ops = [*before, new_op("unseen_later")]
x = X.clone().requires_grad_()
def run():
    for op in ops:
        for _ in range(3): assert op(X).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    torch.mm(x, x).sum().backward()
found = told(run)
samebits.enable_op_determinism(False)
samebits.enable_op_determinism()
from samebits.determinism import _warn_once as notices
print(json.dumps([off, found, told(run), len(notices.notices())]))
"""


@pytest.mark.slow
def test_a_program_that_calls_what_nobody_has_reviewed_is_told_once(tell):
    """Registered before the switch or under it, with a kernel or as a composite: one warning each, kept for the record.

    Negative controls: nothing without the switch, nothing of mm, nothing a second time.
    """
    off, found, again, kept = tell(UNSEEN)
    assert off == again == [] and kept == 3
    for (kind, here, text), name in zip(found, ("kernel", "composite", "later"), strict=True):
        assert (kind, here) == ("UnreviewedOpWarning", True)
        assert text.startswith(f"aten::unseen_{name}, called at ") and "not reviewed" in text


@pytest.mark.slow
def test_an_overload_whose_schema_changed_is_not_reviewed_on_an_untested_torch(tell):
    """`sin` reviewed with other arguments: its call is told once, with its gradient; cos, as reviewed, is silent."""
    source = """
with_another_schema("sin")
samebits.enable_op_determinism()
x = X.clone().requires_grad_()
def run():
    for _ in range(2): (x.sin() + x.cos()).sum().backward()
found = told(run)
from samebits.determinism import table
entry, other = table.lookup("aten::sin", "cpu"), table.lookup("aten::cos", "cpu")
want = 2 * (X.cos() - X.sin())
print(json.dumps([[text for _, _, text in found], torch.equal(x.grad, want), entry.verdict, entry.reason, other.verdict]))
"""
    texts, right, verdict, reason, other = tell(source, "untested")
    assert right and len(texts) == 1 and texts[0].startswith("aten::sin, called at ") and "2.99.1" in texts[0]
    assert verdict == "not reviewed" and "another schema" in reason and other != verdict


@pytest.mark.slow
def test_other_ops_do_not_pay_for_the_watch(tell):
    """With an op that nobody has reviewed, the switch changes the dispatch tables of no other aten op."""
    source = """
def tables():
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    return {name: torch._C._dispatch_dump_table(name) for name in names}
def changed():
    before = tables()
    samebits.enable_op_determinism(across="threads")
    after = tables()
    samebits.enable_op_determinism(False)
    return {name for name in before if before[name] != after[name]}
without = changed()
new_op("unseen")
print(json.dumps([len(without) > 100, sorted(changed() ^ without)]))
"""
    assert tell(source) == [True, ["aten::unseen"]]


@pytest.mark.slow
def test_samebits_ops_lists_what_is_not_reviewed(tell):
    """By a filter, and by name; negative control: without such an op the filter leaves nothing."""
    source = """
import contextlib, io
from samebits.cli._commands.ops_command import ops
if sys.argv[2] == "new": new_op("unseen")
def shown(**filters):
    with contextlib.redirect_stdout(io.StringIO()) as out: ops(**filters)
    return out.getvalue().splitlines()
print(json.dumps([shown(verdict=["not reviewed"]), shown(name="unseen") if sys.argv[2] == "new" else []]))
"""
    filtered, one = tell(source, "tested", "new")
    listed = [line for line in filtered if line.startswith(("cpu ", "cuda "))]
    assert [line.split()[:4] for line in listed] == [
        [device, "not", "reviewed", "unseen"] for device in ("cpu", "cuda")
    ]
    assert one[0] == "unseen: aten::unseen" and any("not reviewed" in line for line in one)
    filtered, _ = tell(source, "tested", "none")
    assert filtered[-1].startswith("0 entries") and not any("not reviewed" in line for line in filtered)

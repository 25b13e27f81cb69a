import math

import pytest
import torch

from lab.catalogue.battery import BATTERY
from lab.catalogue.case import ReviewCase, backward, cancelling, forward, normal
from lab.review.measure import measure
from lab.review.outcome import OpCall, at_fault
from lab.review.report import Review
from lab.review.rows import ReviewRow, disagreements, evidence


@torch.library.custom_op("samebits_review::threads", mutates_args=())
def threads(x: torch.Tensor) -> torch.Tensor:
    """Differs over thread counts."""
    return x + 1e-6 * torch.get_num_threads()


@torch.library.custom_op("samebits_review::calls", mutates_args=())
def calls(x: torch.Tensor) -> torch.Tensor:
    """Differs from call to call."""
    calls.number = getattr(calls, "number", 0) + 1
    return x + 1e-6 * calls.number


def case(run, **options):
    return ReviewCase("test", "case", lambda: iter([run]), **options)


X = torch.linspace(0, 1, 100)


def test_equal_bytes_are_equal():
    """A case without differences has a row that says so and names its overloads."""
    row = measure(case(lambda: X.exp().sum()))
    assert row.equal and row.result() == "equal"
    assert {"aten::exp", "aten::sum"} <= set(row.overloads)


def test_a_difference_from_run_to_run_is_found_and_its_op_named():
    """An op that gives other bytes at each call varies, and alone is at fault; the op after it is not."""
    row = measure(case(lambda: threads(X) * 0 + calls(X).neg()))
    assert row.runs is False and row.threads is None
    assert row.at_fault == {"runs": ["samebits_review::calls"]}
    assert row.largest > 0


def test_a_difference_over_threads_is_found_and_its_op_named():
    """An op that follows the thread count differs over threads; which counts agree is said."""
    row = measure(case(lambda: threads(X).neg()))
    assert row.runs is True and row.threads is False
    assert row.classes == "1 | 2 | 3 | 4 | 8"
    assert row.at_fault == {"threads": ["samebits_review::threads"]}


def test_a_difference_that_rounding_hides_is_found():
    """The outputs are equal, but an op inside is not: the row differs over threads."""
    row = measure(case(lambda: threads(X).round()))
    assert row.threads is False and row.at_fault == {"threads": ["samebits_review::threads"]}


@pytest.mark.parametrize("pair", [(0x7FC00000, 0x7FC00001), (0x7FC00000, 0xFFC00000), (0, 0x80000000)])
def test_nan_payloads_and_signed_zeros_count(pair):
    """Two NaNs, or two zeros, of other bits are a difference (of size 0)."""
    words = [
        torch.tensor([word - (word >> 31 << 32)], dtype=torch.int32).view(torch.float32) for word in pair
    ]
    numbers = iter(range(10**6))
    row = measure(case(lambda: words[next(numbers) % 2], traced=False))
    assert row.runs is False and row.largest == 0


def test_an_exception_is_a_row_and_the_thread_count_is_restored():
    """A refusal is told from another error, and neither leaves the thread count changed."""

    def refuse():
        torch.set_num_threads(7)
        raise RuntimeError("x does not have a deterministic implementation")

    before = torch.get_num_threads()
    assert "deterministic" in measure(case(refuse)).refused
    row = measure(case(lambda: 1 / 0))
    assert row.failed.startswith("ZeroDivisionError") and not row.refused and not row.equal
    assert torch.get_num_threads() == before


def test_samples_that_are_left_out_are_counted():
    """Of a case with many samples some are run, and the row says how many were not."""
    many = ReviewCase(
        "test", "many", lambda: [lambda i=i: X * i for i in range(100)], source="opinfo", repeats=2
    )
    row = measure(many)
    assert row.samples + row.left_out == 100 and row.samples >= 10


def test_only_equal_inputs_accuse():
    """An op whose inputs differ already is not at fault; a stream that went another way is not compared."""
    one = [OpCall("a", "1", "1"), OpCall("b", "2", "3"), OpCall("c", "4", "4")]
    other = [OpCall("a", "1", "2"), OpCall("b", "9", "8"), OpCall("d", "4", "5")]
    assert at_fault(one, other) == {"a"}
    assert at_fault(one, one) == set()


def test_layouts_and_dtypes_are_cases_of_their_own():
    """`strided` has the same values at stride 2, and the gradients are compared, too."""
    made = list(backward("g", "mul", torch.mul, normal(40), normal(40), strided=True))
    assert [one.name for one in made] == ["mul [float32]", "mul [float32 strided]"]
    (plain, grads), (strided, strided_grads) = [next(iter(one.build()))() for one in made]
    assert torch.equal(plain, strided) and len(grads) == 2 and torch.equal(grads[0], strided_grads[0])
    seen = []
    next(iter(list(forward("g", "see", seen.append, normal(40), strided=True))[1].build()))()
    assert seen[0].stride() == (2,)


def test_cancelling_numbers_have_the_sum_zero():
    """Their exact sum is 0, so that a float sum of them is rounding alone; the dtype's rounding keeps that."""
    for dtype in (torch.float32, torch.bfloat16):
        assert math.fsum(cancelling(1001)(dtype).double().tolist()) == 0


def test_names_are_unique():
    """A case is found by its name, so no two have the same."""
    names = [one.full_name for one in BATTERY]
    assert len(set(names)) == len(names) > 600


def row(**facts):
    return ReviewRow("g", "n", **{"runs": True, "threads": True, "samples": 1, **facts})


def review(*rows, switch=True, across="threads"):
    return Review(rows, {"switch": switch, "across": across}, 1.0, {})


def test_evidence_is_what_the_op_table_reads():
    """Large tensors count before OpInfo's small ones; a difference counts most; OpInfo says nothing of threads.

    Of an elementwise op only its own case of `tails` says something of threads (exp), no other case (cos, clone).
    """
    rows = [
        row(overloads=["aten::exp", "aten::sum"]),
        ReviewRow("tails", "exp", "tails", runs=True, threads=True, overloads=["aten::exp_", "aten::clone"]),
        row(overloads=["aten::exp", "aten::cos"], source="opinfo"),
        row(overloads=["aten::sum", "aten::neg"], threads=False, at_fault={"threads": ["aten::sum"]}),
    ]
    assert evidence(rows)["overloads"] == {
        "aten::cos": {"source": "opinfo", "runs": "equal"},
        "aten::clone": {"source": "battery", "runs": "equal"},
        "aten::exp": {"source": "battery", "runs": "equal"},
        "aten::exp_": {"source": "battery", "runs": "equal", "threads": "equal", "cases": ["tails: exp"]},
        "aten::sum": {"source": "battery", "runs": "equal", "threads": "varies", "cases": ["g: n"]},
    }


def test_the_bits_of_a_nan_are_no_disagreement():
    """NaN of other bits: the row says so, and neither evidence nor promise counts it; negative control: other numbers."""
    nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    for values, only_nan in (
        (nan, True),
        (torch.tensor([1.0, 2.0]), False),
        (torch.tensor([0.0, -0.0]), False),
    ):
        run = lambda values=values: values[torch.get_num_threads() % 2].clone()  # noqa: E731
        found = measure(ReviewCase("g", "n", lambda run=run: iter([run]), source="sweep"))
        assert (found.threads, found.only_nan) == (False, only_nan)
        assert ("NaN" in found.result()) is only_nan
        assert bool(disagreements([found])) is not only_nan


def test_the_exit_status_follows_the_promise():
    """0 when all is as promised; 1 for a difference, a refusal, or a disagreement with the table; 2 when not known."""
    assert review(row()).exit == 0
    assert review(row(runs=False, threads=None)).exit == 1
    assert review(row(runs=None, threads=None, refused="no")).exit == 1
    assert review(row(runs=None, threads=None, failed="crashed")).exit == 2
    unpromised = row(threads=False, classes="1 | 2")
    assert review(unpromised).exit == 1
    assert review(unpromised, across="runs").exit == 0
    assert review(unpromised, switch=False).exit == 0


def test_the_table_is_contradicted_only_by_ops_that_promise():
    """A view that varies contradicts the table; memory that nobody wrote promises nothing."""
    assert disagreements([row(threads=False, at_fault={"threads": ["aten::view"]})])
    assert disagreements([row(runs=False, at_fault={"runs": ["aten::view"]})])
    assert not disagreements([row(threads=False, at_fault={"threads": ["aten::empty.memory_format"]})])

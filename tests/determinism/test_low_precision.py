"""bfloat16 and float16 products: the same bits at any thread count, over shapes, layouts and forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_testing import THREADS, replaced
from samebits.determinism._kernels import matmul
from samebits.determinism._kernels.matmul import low_precision
from samebits.determinism._replacement import Replacement

with_onednn = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN does not multiply bfloat16 on this machine",
)


def over_threads(call):
    found = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        result = call()
        if not any(torch.equal(result, other) for other in found):
            found.append(result)
    return len(found)


def matrix(rows, columns, transposed, dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(rows + columns)
    if transposed:
        return torch.randn(columns, rows, generator=g).to(dtype).t()
    return torch.randn(rows, columns, generator=g).to(dtype)


KNOWN = [  # rows, inner dimension, columns, first factor by columns: what varies on AVX-512 with and without AMX
    (64, 4096, 129, True),
    (129, 4096, 10, True),
    (512, 4096, 129, True),
    (129, 65536, 33, True),
    (180, 3221, 223, False),
    (16, 22470, 511, False),
    (426, 627, 136, False),
    (12, 1656, 346, False),
]


def varies(a, b):
    return over_threads(lambda: a @ b) > 1


@with_onednn
def test_no_known_product_varies():
    """None of the products that vary on one CPU or another does with the replacements; the check sees such a one."""
    pairs = [(matrix(m, k, by_columns), matrix(k, n, False)) for m, k, n, by_columns in KNOWN]
    with replaced(matmul):
        assert not any(varies(a, b) for a, b in pairs)
    ours = torch.get_num_threads
    with replaced([Replacement("aten::mm", lambda kernel: lambda a, b: kernel(a, b) * (1 + ours() / 8), "")]):
        assert all(varies(a, b) for a, b in pairs)


FORMS = ("mm", "addmm", "addmm_", "bmm", "baddbmm")
LAYOUTS = ((False, False), (False, True), (True, False), (True, True))
SIZES = ((700, 640, 700), (1100, 3000, 130), (900, 2000, 500))
CUT = [(size, layout, "mm") for size in SIZES for layout in LAYOUTS]
CUT += [(SIZES[0], (False, True), form) for form in FORMS[1:]]


@with_onednn
@pytest.mark.parametrize(("size", "layouts", "form"), CUT, ids=str)
def test_products_that_are_cut(size, layouts, form):
    """A product large enough to be cut, into columns, rows or items of a batch, has one result, torch's."""
    m, k, n = size
    assert low_precision.is_cut(matrix(m, k, False), matrix(k, n, True))
    a, b, c = matrix(m, k, layouts[0]), matrix(k, n, layouts[1]), matrix(1, n, False)
    calls = {
        "mm": lambda: a @ b,
        "addmm": lambda: torch.addmm(c, a, b, alpha=0.5),
        "addmm_": lambda: c.repeat(m, 1).addmm_(a, b, beta=3),
        "bmm": lambda: torch.bmm(a.expand(3, m, k), torch.stack((b, b / 2, b))),
        "baddbmm": lambda: torch.baddbmm(c, a.expand(2, m, k), b.expand(2, k, n), beta=2),
    }
    torch.set_num_threads(1)
    theirs = calls[form]()
    with replaced(matmul):
        assert over_threads(calls[form]) == 1
        ours = calls[form]()
    assert ours.shape == theirs.shape and ours.stride() == theirs.stride()
    assert (ours.double() - theirs.double()).norm() <= 0.01 * theirs.double().norm()


@with_onednn
def test_factors_with_gaps_are_cut_too():
    """Every second row or column of a larger matrix, and one row repeated, multiply as their copies do."""
    a, b = matrix(1400, 1280, False), matrix(1280, 1400, False)
    for x, y in (
        (a[::2, ::2], b[::2, ::2]),
        (a[:700, :640], b[:640, :700]),
        (a[:1, :640].expand(700, 640), b[:640, 700:]),
    ):
        with replaced(matmul):
            assert low_precision.is_cut(x, y) and over_threads(lambda x=x, y=y: x @ y) == 1
            assert (x @ y - x.contiguous() @ y.contiguous()).norm() <= 0.01 * (x @ y).norm()


@settings(max_examples=40)
@given(
    m=st.sampled_from((1, 2, 10, 33, 64, 129, 512)),
    k=st.sampled_from((64, 1024, 1025, 2048, 4096, 20_000)),
    n=st.sampled_from((1, 3, 10, 16, 64, 129)),
    layouts=st.tuples(st.booleans(), st.booleans()),
    form=st.sampled_from(("mm", "mm.out", "addmm", "addmm_", "linear", "bmm", "baddbmm", "mv", "addmv")),
    dtype=st.sampled_from((torch.bfloat16, torch.bfloat16, torch.float16)),
)
def test_the_bits_do_not_depend_on_the_thread_count(m, k, n, layouts, form, dtype):
    """Every form of a product has one result over thread counts, and it is the product."""
    if dtype == torch.float16 and m * k * n > 1 << 21:
        return  # torch's own loops, slow
    a, b = matrix(m, k, layouts[0], dtype), matrix(k, n, layouts[1], dtype)
    c = matrix(m, n, False, dtype)
    calls = {
        "mm": lambda: a @ b,
        "mm.out": lambda: torch.mm(a, b, out=torch.empty(m, n, dtype=dtype)),
        "addmm": lambda: torch.addmm(c, a, b),
        "addmm_": lambda: c.clone().addmm_(a, b, beta=0.5),
        "linear": lambda: torch.nn.functional.linear(a, b.t(), c[0]),
        "bmm": lambda: torch.bmm(a.expand(2, m, k), b.expand(2, k, n)),
        "baddbmm": lambda: torch.baddbmm(c.expand(2, m, n), a.expand(2, m, k), b.expand(2, k, n)),
        "mv": lambda: a @ b[:, 0],
        "addmv": lambda: torch.addmv(c[:, 0], a, b[:, 0], beta=0.5),
    }
    torch.set_num_threads(1)
    theirs = calls[form]()
    with replaced(matmul):
        assert over_threads(calls[form]) == 1
        ours = calls[form]()
    assert ours.shape == theirs.shape and ours.stride() == theirs.stride()
    assert (ours.double() - theirs.double()).norm() <= 4 * torch.finfo(dtype).eps * theirs.double().norm()


@settings(max_examples=15)
@given(m=st.integers(1, 200), n=st.integers(1, 200), k=st.integers(1025, 9000))
def test_ours_is_as_exact_as_torch_s(m, n, k):
    """Against float64 the error of a weight gradient is that of torch's, one rounding to bfloat16."""
    a, b = matrix(m, k, True), matrix(k, n, False)
    exact = a.double() @ b.double()
    theirs = (a @ b - exact).norm()
    with replaced(matmul):
        assert (a @ b - exact).norm() <= 1.05 * theirs


@with_onednn
def test_an_autocast_step_of_a_classifier():
    """The gradients of linear layers trained under bfloat16 autocast on 4,096 rows have one result."""
    with replaced(matmul):
        found = []
        for threads in THREADS:
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
            x = torch.randn(4096, 64)
            with torch.autocast("cpu", torch.bfloat16):
                loss = net(x).float().square()
            loss.backward(torch.ones_like(loss))
            found.append([p.grad.clone() for p in (net[0].weight, net[2].weight)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_without_onednn():
    """Torch's own loops, which it uses where oneDNN is off or not there, have one result, and nothing is cut."""
    a, b = matrix(200, 2000, True), matrix(2000, 50, False)
    with torch.backends.mkldnn.flags(enabled=False):
        expected = a @ b
        with replaced(matmul):
            assert not low_precision.by_onednn(a.dtype)
            assert over_threads(lambda: a @ b) == 1 and torch.equal(a @ b, expected)


def test_a_torch_without_the_function_runs_on_one_thread(monkeypatch):
    """Where torch's library lacks oneDNN's product nothing is cut, and the result is torch's at one thread."""
    monkeypatch.setattr(low_precision, "_matmul", lambda: None)
    a, b = matrix(700, 640, False), matrix(640, 700, False)
    torch.set_num_threads(1)
    expected = a @ b
    with replaced(matmul):
        assert over_threads(lambda: a @ b) == 1 and torch.equal(a @ b, expected)

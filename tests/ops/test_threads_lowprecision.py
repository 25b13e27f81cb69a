"""bfloat16 and float16 products: the same bits at any thread count, over shapes, layouts and forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support import THREADS, replaced

from samebits.determinism import lowprecision

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


KNOWN = [
    (64, 4096, 129),
    (129, 4096, 10),
    (512, 4096, 64),
    (512, 4096, 129),
    (2000, 4096, 10),
    (129, 65536, 33),
]


@with_onednn
def test_torch_s_own_products_differ_and_ours_do_not():
    """Of the products that were found to vary some do on this machine without the replacement, none with it."""
    pairs = [(matrix(m, k, True), matrix(k, n, False)) for m, k, n in KNOWN]
    assert any(over_threads(lambda: a @ b) > 1 for a, b in pairs)
    with replaced(lowprecision):
        assert [over_threads(lambda: a @ b) for a, b in pairs] == [1] * len(pairs)


@settings(max_examples=40)
@given(
    m=st.sampled_from((1, 2, 10, 33, 64, 129, 512)),
    k=st.sampled_from((64, 1024, 1025, 2048, 4096, 20_000)),
    n=st.sampled_from((1, 3, 10, 16, 64, 129)),
    layouts=st.tuples(st.booleans(), st.booleans()),
    form=st.sampled_from(("mm", "mm.out", "addmm", "addmm_", "linear", "bmm", "baddbmm")),
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
    }
    torch.set_num_threads(1)
    theirs = calls[form]()
    with replaced(lowprecision):
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
    with replaced(lowprecision):
        assert (a @ b - exact).norm() <= 1.05 * theirs


@with_onednn
def test_an_autocast_step_of_a_classifier():
    """The gradients of linear layers trained under bfloat16 autocast on 4,096 rows have one result."""
    with replaced(lowprecision):
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


def test_products_of_other_types_are_not_touched():
    """A float32 product is torch's own, bit for bit."""
    a, b = matrix(33, 4096, True, torch.float32), matrix(4096, 10, False, torch.float32)
    before = a @ b
    with replaced(lowprecision):
        assert torch.equal(a @ b, before)

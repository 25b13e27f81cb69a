"""Index writes with duplicates, put_, max-unpooling and histograms: one result, at any thread count and in every run."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits
from op_testing import over_threads, replaced
from samebits.determinism._kernels import indexed_writes

THREADS = (1, 2, 2, 3, 4, 8)
MANY, PLACES = 200_000, 500


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(1)


def results(call, threads=THREADS):
    """How many different results there are over the thread counts and runs."""
    return len(over_threads(call, threads)[0])


def gradient(function, *leaves):
    leaves = [x.clone().requires_grad_() for x in leaves]
    result = function(*leaves)
    upstream = torch.arange(result.numel()).sin().view(result.shape)
    return torch.autograd.grad(result, leaves, upstream)


def data():
    torch.manual_seed(2)
    index, rows = torch.randint(0, PLACES, (MANY,)), torch.randint(0, PLACES, (MANY // 16,))
    return {
        "index": index,
        "values": torch.randn(MANY),
        "line": torch.randn(PLACES),
        "rows": rows,
        "table": torch.randn(PLACES, 16),
        "updates": torch.randn(MANY // 16, 16),
        "cells": torch.randint(0, PLACES, (MANY // 16, 16)),
    }


WRITES = {
    "index_put": lambda d: d["line"].index_put((d["index"],), d["values"]),
    "index_put accumulate": lambda d: d["line"].index_put((d["index"],), d["values"], accumulate=True),
    "index_put rows accumulate": lambda d: d["table"].index_put((d["rows"],), d["updates"], accumulate=True),
    "index_copy": lambda d: d["table"].index_copy(0, d["rows"], d["updates"]),
    "index_add": lambda d: d["table"].index_add(0, d["rows"], d["updates"]),
    "index_fill": lambda d: d["table"].index_fill(0, d["rows"], 2.0),
    "scatter": lambda d: d["table"].scatter(0, d["cells"], d["updates"]),
    "scatter one row": lambda d: d["line"].scatter(0, d["index"], d["values"]),
    "scatter_add": lambda d: d["table"].scatter_add(0, d["cells"], d["updates"]),
    "scatter multiply": lambda d: d["line"].scatter(0, d["index"], 1 + d["values"] / 1000, reduce="multiply"),
    "masked_scatter": lambda d: d["values"].masked_scatter(d["values"] > 0, d["values"].neg()),
    "put": lambda d: d["line"].put(d["index"], d["values"]),
    "put accumulate": lambda d: d["line"].put(d["index"], d["values"], accumulate=True),
    "indexing backward": lambda d: gradient(lambda x: x[d["index"]], d["line"]),
    "take backward": lambda d: gradient(lambda x: x.take(d["index"]), d["line"]),
    "gather backward": lambda d: gradient(lambda x: x.gather(0, d["cells"]), d["table"]),
    "embedding backward": lambda d: gradient(lambda w: F.embedding(d["rows"], w), d["table"]),
    "embedding_bag": lambda d: gradient(
        lambda w: F.embedding_bag(d["rows"].view(-1, 50), w, mode="mean"), d["table"]
    ),
    "segment_reduce": lambda d: gradient(
        lambda x: torch.segment_reduce(x, "mean", lengths=torch.full((MANY // 16 // 25,), 25)), d["updates"]
    ),
    "bincount": lambda d: torch.bincount(d["index"], d["values"]),
    "histc": lambda d: torch.histc(d["values"], 50),
    "histc of halves": lambda d: [
        torch.histc(d["values"].to(kind), 50) for kind in (torch.bfloat16, torch.float16)
    ],
    "unique": lambda d: torch.unique(d["index"], return_inverse=True, return_counts=True),
    "coalesce": lambda d: (
        torch.sparse_coo_tensor(d["index"][None], d["values"], (PLACES,)).coalesce().values()
    ),
    "histogram": lambda d: torch.histogram(d["values"], 30, weight=d["values"].abs()),
    "histogram with edges": lambda d: torch.histogram(
        d["values"], torch.linspace(-2, 2, 31), weight=d["values"].abs()
    ),
    "histogramdd": lambda d: torch.histogramdd(
        d["values"].view(-1, 2), [9, 8], weight=d["values"][::2].abs()
    )[0],
    **{
        f"scatter_reduce {how}": lambda d, how=how: gradient(
            lambda x, y: x.scatter_reduce(0, d["cells"], y, how), d["table"], 1 + d["updates"] / 1000
        )
        for how in ("sum", "prod", "mean", "amax", "amin")
    },
    **{
        f"index_reduce {how}": lambda d, how=how: gradient(
            lambda x, y: x.index_reduce(0, d["rows"], y, how), d["table"], 1 + d["updates"] / 1000
        )
        for how in ("prod", "mean", "amax", "amin")
    },
}


@pytest.mark.filterwarnings("ignore:index_reduce", "ignore:The reduce argument")
@pytest.mark.parametrize("name", WRITES)
def test_one_result_under_the_switch(name):
    """200,000 writes to 500 places have one result at 1, 2, 3, 4 and 8 threads and in each run."""
    d = data()
    with samebits.enable_op_determinism(across="threads"):
        assert results(lambda: WRITES[name](d)) == 1


def test_torchs_own_vary():
    """Negative control: without the switch index writes and weighted histograms have several results."""
    d = data()
    for name in (
        "index_put accumulate",
        "put",
        "put accumulate",
        "histogram",
        "histogramdd",
        "histc of halves",
    ):
        assert results(lambda name=name: WRITES[name](d), THREADS * 3) > 1, name


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_max_unpool_is_not_refused(dims):
    """max_unpool1d, 2d and 3d run under the switch, forward and backward, with torch's values."""
    x = torch.randn(3, 4, *(64, 16, 8)[dims - 1 : dims] * dims)
    pool, unpool = getattr(F, f"max_pool{dims}d"), getattr(F, f"max_unpool{dims}d")
    y, places = pool(x, 2, return_indices=True)
    expected = unpool(y, places, 2)
    with samebits.enable_op_determinism(across="threads"):
        assert torch.equal(unpool(y, places, 2), expected)
        assert results(lambda: gradient(lambda t: unpool(t, places, 2), y)) == 1


def test_the_last_write_wins():
    """put_ and max_unpool with equal places keep the last value in index order, also from non-contiguous tensors."""
    d = data()
    last = d["line"].clone()
    last[d["index"].unique()] = torch.stack(
        [d["values"][(d["index"] == i).nonzero()[-1, 0]] for i in d["index"].unique()]
    )
    with samebits.enable_op_determinism(across="threads"):
        assert torch.equal(d["line"].clone().put_(d["index"], d["values"]), last)
        wide = torch.stack([d["line"], d["line"]], 1)[:, 0]
        assert torch.equal(wide.put_(d["index"] - PLACES, d["values"]), last)  # places counted from the end
        y, places = torch.arange(8.0).view(1, 1, 8), torch.tensor([[[0, 3, 3, 0, 5, 5, 5, 1]]])
        expected = torch.tensor([[[3.0, 7, 0, 2, 0, 6, 0, 0]]])
        assert torch.equal(F.max_unpool1d(y, places, 1, output_size=[8]), expected)


edges = st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=12, unique=True).map(sorted)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.floats(-4, 4, width=32), st.just(float("nan"))), max_size=60),
    st.one_of(edges, st.integers(1, 9)),
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_weighted_histogram_is_torchs(values, bins, density, dtype):
    """Over edges and values (on edges, outside, NaN, none): the counts and edges are torch's, or its error."""
    x = torch.tensor(values, dtype=dtype)
    weight = torch.rand(len(values), generator=torch.Generator().manual_seed(1), dtype=dtype)
    bins = torch.tensor(bins, dtype=dtype) if isinstance(bins, list) else bins

    def call():
        with contextlib.suppress(RuntimeError):
            return torch.histogram(x, bins, weight=weight, density=density)

    expected = call()
    with replaced(indexed_writes):
        ours = call()
    assert (ours is None) == (expected is None)
    if ours is not None:
        assert torch.equal(ours.bin_edges, expected.bin_edges)
        torch.testing.assert_close(ours.hist, expected.hist, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_histc_counts_every_element(dtype):
    """Counts are those of float32, rounded once, also into `out=`, and beyond 2^24 in one bin at any thread count."""
    values, many = torch.randn(60_000).to(dtype), torch.full((17_000_000,), 0.5, dtype=dtype)
    with samebits.enable_op_determinism():
        expected = torch.histc(values.float(), 9).to(dtype)
        assert torch.equal(torch.histc(values, 9), expected)
        assert torch.equal(torch.histc(values, 9, out=torch.empty(0, dtype=dtype)), expected)
        assert results(lambda: torch.histc(many, 2, 0, 1), (1, 2)) == 1
        assert torch.histc(many, 2, 0, 1)[1] == torch.tensor(1.7e7).to(dtype)


def test_histogram_of_several_dimensions_is_torchs():
    """histogramdd by counts, by edges, with a range and as density gives torch's values; out is resized."""
    x, weight = torch.randn(300, 4, 2), torch.rand(300, 4)
    ways = (
        {"bins": [5, 7]},
        {"bins": [5, 7], "range": [-1.0, 1.0, -2.0, 2.0], "density": True},
        {"bins": [torch.linspace(-1, 1, 5), torch.linspace(-2, 3, 8)]},
    )
    expected = [torch.histogramdd(x, weight=weight, **way).hist for way in ways]
    with samebits.enable_op_determinism(across="threads"):
        for way, hist in zip(ways, expected):
            torch.testing.assert_close(torch.histogramdd(x, weight=weight, **way).hist, hist)
        outs = torch.empty(0), torch.empty(0)
        torch.histogram(x, 6, weight=torch.rand(300, 4, 2), out=outs)
        assert outs[0].shape == (6,) and outs[1].shape == (7,)
        with pytest.raises(RuntimeError, match="weight"):
            torch.histogram(x, 6, weight=weight)


def test_weighted_sums_are_at_least_as_accurate():
    """A weighted histogram of a million values is closer to float64 than torch's."""
    x, weight = torch.rand(1_000_000), torch.rand(1_000_000)
    exact = torch.histogram(x.double(), 8, range=(0.0, 1.0), weight=weight.double()).hist
    torchs = (torch.histogram(x, 8, range=(0.0, 1.0), weight=weight).hist - exact).abs().max()
    with samebits.enable_op_determinism(across="threads"):
        ours = (torch.histogram(x, 8, range=(0.0, 1.0), weight=weight).hist - exact).abs().max()
    assert ours <= torchs

"""The hunt: every elementwise op, on elements that its vector code and its scalar code round differently."""

import math
import os
import subprocess
import sys
import warnings
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.nn import functional as F

import samebits
from lab.catalogue import elementwise
from lab.catalogue.elementwise import names, samples
from lab.review.rows import promises_threads
from samebits._digest import of_value
from samebits.determinism import table
from samebits.determinism._ops.replacements import ELEMENTWISE

THREADS = (1, 2, 3, 4, 7)
OURS = {one.op.removeprefix("aten::") for one in ELEMENTWISE}
FAST = (torch.float32, torch.bfloat16)
VECTORS = torch.backends.cpu.get_cpu_capability()
needs_vectors = pytest.mark.skipif(
    VECTORS not in {"AVX2", "AVX512"}, reason="vector and scalar code are nearly the same code without FMA"
)


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def switched_on():
    samebits.set_random_seed(1)
    with samebits.enable_op_determinism(across="threads"):
        yield


def chosen(name, dtypes, every):
    """Dense operands with all scalar arguments, and one in `every` of the other layouts."""
    found = samples(name, dtypes)
    dense = {s for s in found if set(s.layout) == {"d"}}
    return [s for i, s in enumerate(found) if s in dense or i % every == 0]


def varies(sample, operands):
    """Whether the sample has other bits, that of no NaN, at some thread count."""
    results = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        results.append(sample.call(operands))
    return any(
        elementwise.differing_elements(a, b).any()
        for other in results[1:]
        for a, b in zip(results[0], other, strict=True)
    )


def hunt(dtypes, every, places=elementwise.PLACES, only=None, mode=switched_on):
    """The samples that could differ with torch's kernels, and of these the ones that differ in a mode."""
    telling, found = [], []
    for name in only or names():
        torch.set_num_threads(1)
        could = [(s, s.large()) for s in chosen(name, dtypes, every) if s.telling(places)[1].any()]
        telling += [sample for sample, _ in could]
        with mode():
            found += [sample for sample, operands in could if varies(sample, operands)]
    return telling, found


def promised(found):
    return [str(s) for s in found if promises_threads(table.lookup(f"aten::{s.name}", "cpu"))]


@pytest.mark.slow
def test_no_elementwise_op_differs_over_threads_that_the_table_promises():
    """Of every elementwise overload, on elements that could differ: one result at 1 to 7 threads, or the table says so."""
    telling, found = hunt(FAST, every=9)
    assert len(names()) > 200 and len(telling) > (120 if VECTORS.startswith("AVX") else 20)
    assert promised(found) == []


@pytest.mark.slow
@needs_vectors
def test_without_ours_the_hunt_finds_each_gap():
    """Negative control: with torch's kernels the same samples differ, for every op that tells and is on the list."""
    ours = {*OURS, "smooth_l1_loss_backward", "huber_loss_backward", "addr"}
    with_nothing = {s.name for s in hunt(FAST, every=9, only=sorted(ours & {*names()}), mode=nullcontext)[1]}
    known = {
        "smooth_l1_loss_backward",
        "huber_loss_backward",
        "addr",
        "gelu",
        "gelu_backward",
        "sigmoid",
        "atan2",
    }
    assert known <= with_nothing and len(with_nothing) > 20, known - with_nothing


X, Y = (torch.randn(257 * 513, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))


def telling(name, count):
    """A tensor of one value that the vector code and the scalar code round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    operands, mask = samples(name, FAST[:1])[0].telling()
    torch.set_num_threads(before)
    return operands[-1][mask][:1].repeat(count)


def gradients(loss, dtype=torch.float32, **options):
    a, b = (one[:100_003].to(dtype).requires_grad_() for one in (X.clone(), Y.clone()))
    result = loss(a, b, **options)
    result.backward(torch.full_like(result, 1.7))
    return a.grad, b.grad


def gelu_gradient(x, grad):
    leaf = x.detach().requires_grad_()
    F.gelu(leaf).backward(grad)
    return leaf.grad


M, G = X.view(257, 513), Y.view(257, 513)
WIDE = torch.cat([M, M[:, :3]], 1)
IMAGES = X[: 4 * 32 * 32 * 32].view(4, 32, 32, 32).to(memory_format=torch.channels_last)
GELU, LOGIT = telling("gelu", 131_841), telling("logit", 257 * 520)
SEEN = {
    "smooth_l1_loss, beta": lambda: [gradients(F.smooth_l1_loss, beta=0.7, reduction=r) for r in ("none", "mean")],
    "huber_loss, delta": lambda: [gradients(F.huber_loss, torch.bfloat16, delta=0.7, reduction=r) for r in ("none", "mean", "sum")],
    "addr": lambda: torch.addr(M, Y[:257], Y[:513], beta=0.7, alpha=0.3),
    "addr, in place": lambda: M.clone().addr_(Y[:257], Y[:513]),
    "rsub of columns": lambda: torch.rsub(M[:, :1].expand(257, 513), G, alpha=0.7),
    "gelu, one element left": lambda: F.gelu(GELU),
    "gelu's gradient, one element left": lambda: gelu_gradient(M, G),
    "gelu, transposed": lambda: F.gelu(M.t()),
    "gelu, channels last": lambda: F.gelu(IMAGES),
    "gelu's gradient, transposed": lambda: gelu_gradient(M.t(), G.t()),
    "gelu, columns of a wider one": lambda: F.gelu(WIDE[:, :513]),
    "logit, columns of a wider one": lambda: torch.logit(LOGIT.view(257, 520)[:, :513], eps=0.1),
    "pow of a number, transposed": lambda: torch.pow(0.7, M.t()),
    "arange of a fraction": lambda: torch.arange(0.1, 4000, 0.037),
    "a window in 16 bits": lambda: torch.hann_window(131_841, dtype=torch.bfloat16),
}  # fmt: skip


@pytest.mark.parametrize("name", SEEN)
def test_gaps_that_were_found(name):
    """Each has several results over 1 to 8 threads in torch or where ours once cut it, and one with ours."""
    samebits.set_random_seed(1)
    with samebits.enable_op_determinism(across="threads"):
        results = set()
        for threads in (*range(1, 9),):
            torch.set_num_threads(threads)
            results.add(of_value(SEEN[name]()))
    assert len(results) == 1


@pytest.mark.slow
def test_layouts_and_types_are_torchs():
    """With every kernel of ours, at one thread and at three, the result has torch's type, shape and strides."""
    kept = {(s.name, s.layout): s for name in names() if name in OURS for s in samples(name, FAST[:1])}
    torch.set_num_threads(1)
    large = {key: sample.large() for key, sample in kept.items()}

    def shapes():
        results = {key: sample.call(large[key]) for key, sample in kept.items()}
        return {key: [(r.dtype, r.shape, r.stride()) for r in found] for key, found in results.items()}

    expected = shapes()
    samebits.set_random_seed(1)
    with samebits.enable_op_determinism(across="threads"):
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert shapes() == expected


@pytest.mark.soak
@pytest.mark.timeout(7200)  # some 7 minutes of one core each
@pytest.mark.parametrize("dtype", elementwise.DTYPES, ids=str)
def test_every_length_and_offset(dtype):
    """All samples, on pieces of 1 to 100 elements that begin at 0 to 16: as the first test."""
    places = tuple((length % 17, length) for length in range(1, 101))
    telling, found = hunt((dtype,), every=1, places=places)
    print(f"{dtype}: {len(telling)} samples could differ, {len(found)} did", file=sys.stderr)
    assert promised(found) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("vectors", ["avx2", "default"])
def test_other_vector_widths(vectors):
    """The fast part with the vectors of another CPU."""
    command = [sys.executable, "-m", "pytest", "-q", __file__, "-m", "not soak"]
    done = subprocess.run(command, env={**os.environ, "ATEN_CPU_CAPABILITY": vectors}, timeout=3000)
    assert done.returncode == 0


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64, torch.int64]
)
def test_elements_differ_where_their_bits_do(dtype):
    """A mask of the shape: signed zeros differ, two NaN do not, whatever the strides; equal tensors have no element in it."""
    one = torch.arange(6.0).to(dtype).reshape(2, 3)
    other = one.t().contiguous().t()
    assert not elementwise.differing_elements(one, other).any()
    other[1, 2] += 1
    expected = [[False] * 3, [False, False, True]]
    if dtype.is_floating_point:
        one[0, 1] = math.nan
        other[0, 1] = -one[0, 1]
        other[0, 0] = -0.0
        expected[0][0] = True
    assert elementwise.differing_elements(one, other).tolist() == expected

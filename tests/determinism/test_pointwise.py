"""Elementwise ops: the same bits at any thread count, in every form, with torch's values, layouts and errors."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_testing import THREADS, replaced
from samebits.determinism._dispatcher import overload
from samebits.determinism._kernels import glu, pointwise
from samebits.determinism._kernels.vector_tails import head_of

FUNCTIONAL = [f for _, f, _ in pointwise._FORMS]


def bits(tensor):
    tensor = tensor.new_empty(tensor.numel()).copy_(
        tensor.reshape(-1)
    )  # of one element contiguous() keeps the stride
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).view(torch.uint8)


def over_threads(call):
    """How many different results there are over the thread counts."""
    results = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        results.append(bits(call()))
    return 1 + sum(not torch.equal(results[0], r) for r in results[1:])


def base(dtype, n=1 << 16):
    g = torch.Generator().manual_seed(3)
    rows = [torch.randn(n, generator=g, dtype=torch.float64) * s for s in (2, 1, 0.7, 3)]
    for row in rows:
        for value in (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 4e-41, 20.0, -20.0, 100.0):
            row[torch.randperm(n, generator=g)[:200]] = value
    if dtype.is_complex:
        return [torch.complex(r, rows[3].flip(0)).to(dtype) for r in rows]
    return [r.to(dtype) for r in rows]


def arguments(op, tensors, number):
    taken, args = iter(tensors), []
    for a in op._schema.arguments:
        kind = str(a.type)
        if kind == "Tensor":
            args.append(next(taken))
        elif a.kwarg_only or a.has_default_value():
            break
        else:
            args.append(False if kind == "bool" else number if kind == "number" else None)
    return args


def stride_two(tensor):
    wide = tensor.new_zeros(2 * len(tensor))
    wide[::2] = tensor
    return wide[::2]


@functools.cache
def sensitive(name, dtype, n):
    """Arguments of n elements for which the op's vector code and scalar code differ, all of them; None if none do."""
    op = overload(f"aten::{name}")
    torch.set_num_threads(1)
    for change in (lambda t: t, torch.abs, lambda t: t % 1 if not t.is_complex() else t):
        tensors = [change(t).to(dtype) for t in base(dtype)]
        for number in (-1.5, 0.5, 2):
            try:
                vector = op(*arguments(op, tensors, number))
                scalar = op(*arguments(op, [stride_two(t) for t in tensors], number))
            except RuntimeError:
                continue
            differs = bits(vector) != bits(scalar)
            found = differs.view(len(vector), -1).any(1).nonzero()[:, 0]
            if len(found):
                places = found[torch.arange(n) % len(found)]
                return arguments(op, [t[places] for t in tensors], number)
    return None


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str
)
@pytest.mark.parametrize("name", FUNCTIONAL)
def test_every_replaced_op_has_one_result_where_vector_and_scalar_code_differ(name, dtype):
    """On input made of elements that vector and scalar code treat differently, ours has one result at 1 to 8 threads."""
    args = sensitive(name, dtype, 70_003)
    if args is None:
        return  # vector and scalar code agree: the next test shows that they do not for every dtype
    op = overload(f"aten::{name}")
    with replaced(pointwise, glu):
        assert over_threads(lambda: op(*args)) == 1


def test_every_replaced_op_varies_without_ours():
    """Negative control: of each op on the list, torch's kernel has several results for some dtype."""
    for name in sorted(
        {*FUNCTIONAL} - {"logit"}
    ):  # of contiguous tensors logit is MKL's, which does not vary
        op, results = overload(f"aten::{name}"), []
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64):
            args = sensitive(name, dtype, 70_003)
            if args is not None:
                results.append(over_threads(lambda op=op, args=args: op(*args)))
                if results[-1] > 1:
                    break
        assert max(results, default=1) > 1, name


LAYOUTS = {
    "row": lambda t: t,
    "transposed": lambda t: t.t().contiguous().t(),
    "columns of a wider one": lambda t: torch.cat([t, t[:, :3]], 1)[:, : t.shape[1]],
    "every second": lambda t: t.repeat_interleave(2, 1)[:, ::2],
    "one row for all": lambda t: t[:1].expand_as(t),
    "one column": lambda t: t[:, :1],
    "one element": lambda t: t[:1, :1],
    "no dimension": lambda t: t[0, 0],
    "one element for all": lambda t: t[:1, :1].expand_as(t),
}
shapes = st.tuples(st.integers(1, 400), st.integers(1, 1200)).filter(lambda s: s[0] * s[1] < 200_000)


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    shapes,
    st.sampled_from(list(LAYOUTS)),
    st.sampled_from(list(LAYOUTS)),
    st.sampled_from(["atan2", "fmod", "pow", "logaddexp"]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_two_operands_of_any_layout(shape, left, right, name, dtype):
    """Any two layouts: one result at 1 to 8 threads, with the values, dtype and strides that torch gives."""
    g = torch.Generator().manual_seed(shape[0] * shape[1])
    x, y = (torch.rand(shape, generator=g, dtype=torch.float64).add(0.1).to(dtype) for _ in range(2))
    x, y, op = LAYOUTS[left](x), LAYOUTS[right](y), getattr(torch, name)
    torch.set_num_threads(2)
    expected = op(x, y)
    with replaced(pointwise, glu):
        assert over_threads(lambda: op(x, y)) == 1
        ours = op(x, y)
    assert (ours.dtype, ours.shape, ours.stride()) == (expected.dtype, expected.shape, expected.stride())
    exact = op(x.double(), y.double())
    error, torchs = (ours.double() - exact).abs().max(), (expected.double() - exact).abs().max()
    assert name == "fmod" or error <= 2 * torchs + torch.finfo(dtype).tiny


@settings(derandomize=True, deadline=None, max_examples=30)
@given(shapes, st.sampled_from(list(LAYOUTS)[:4]), st.sampled_from(list(LAYOUTS)), st.booleans())
def test_in_place_and_out_of_any_layout(shape, mine, other, in_place):
    """In place and with `out`, of any layout: one result at 1 to 8 threads, torch's values, and the storage is kept."""
    g = torch.Generator().manual_seed(shape[0])
    x, y = (torch.rand(shape, generator=g).add(0.1) for _ in range(2))
    y = LAYOUTS[other](y)
    torch.set_num_threads(1)
    expected = torch.atan2(x, y)

    def call():
        target = LAYOUTS[mine](x.clone())
        place = target.data_ptr()
        result = target.atan2_(y) if in_place else torch.atan2(x, y, out=target)
        assert result is target and target.data_ptr() == place
        return target

    with replaced(pointwise, glu):
        assert over_threads(call) == 1
        torch.testing.assert_close(call(), expected)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.integers(1, 1_000_000),
    st.integers(1, 64),
    st.sampled_from([1, 256, 1000]),
    st.sampled_from([1, 32768]),
)
def test_each_thread_of_the_head_has_whole_blocks(elements, threads, block, grain):
    """Torch's rule for the threads of a loop gives each of them whole blocks of the head."""
    torch.set_num_threads(threads)
    head = head_of(elements, block, grain)
    active = min(threads, -(-head // grain))
    assert 0 <= head <= elements
    assert active <= 1 or -(-head // active) % block == 0


def outcome(call):
    try:
        return call()
    except (RuntimeError, TypeError) as error:
        return type(error), str(error)


X = torch.linspace(0.1, 3, 70_000)
ODD = {
    "out of another dtype": lambda: torch.sigmoid(X, out=torch.empty(70_000, dtype=torch.float64)),
    "out of integers": lambda: torch.sigmoid(X, out=torch.empty(70_000, dtype=torch.int64)),
    "out that is empty": lambda: torch.sigmoid(X, out=torch.empty(0)),
    "out of another shape": lambda: torch.sigmoid(X, out=torch.empty(3)),
    "out with memory in common": lambda: (lambda t: torch.sigmoid(t[:-1], out=t[1:]))(X.clone()),
    "out that is the input": lambda: (lambda t: torch.sigmoid(t, out=t))(X.clone()),
    "out beside the input": lambda: (lambda t: torch.sigmoid(t[0], out=t[1]))(X.repeat(2, 1)),
    "in place on integers": lambda: torch.arange(70_000).sigmoid_(),
    "in place on an expanded tensor": lambda: torch.ones(1).expand(70_000).sigmoid_(),
    "in place with an operand that is larger": lambda: X.clone().fmod_(torch.ones(2, 70_000)),
    "integers": lambda: torch.sigmoid(torch.arange(70_000) % 9),
    "integers and a number": lambda: torch.arange(70_000).fmod(2.5),
    "a number": lambda: X.double().fmod(0.1),
    "a number of another kind": lambda: torch.pow(X, 2j),
    "a number as base": lambda: torch.pow(0.3, X),
    "the operator": lambda: X.bfloat16() % 0.3,
    "shapes that do not fit": lambda: torch.atan2(X, torch.ones(3)),
    "a dtype that has no kernel": lambda: torch.sigmoid(
        torch.ones(70_000, dtype=torch.complex64).to(torch.complex32)
    ),
    "channels last": lambda: torch.sigmoid(
        X[:64_000].view(2, 8, 50, 80).to(memory_format=torch.channels_last)
    ),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements", "ignore:ComplexHalf")
@pytest.mark.parametrize("name", ODD)
def test_dtypes_layouts_and_errors_are_torchs(name):
    """Promotion, resizing, memory in common, wrong dtypes and shapes: the result or the error is that of torch."""
    torch.set_num_threads(2)
    expected = outcome(ODD[name])
    with replaced(pointwise, glu):
        ours = outcome(ODD[name])
    if isinstance(expected, tuple):
        assert ours == expected
    else:
        assert (ours.dtype, ours.shape, ours.stride()) == (expected.dtype, expected.shape, expected.stride())
        torch.testing.assert_close(ours, expected)


def test_backward_of_an_activation_goes_through_ours():
    """Gradients of silu, gelu and softplus have one result at 1 to 8 threads where torch has several."""
    for name in ("silu", "gelu", "softplus"):
        grad, x, *_ = sensitive(f"{name}_backward", torch.float64, 70_003)

        def call(name=name, x=x, grad=grad):
            leaf = x.clone().requires_grad_()
            getattr(torch.nn.functional, name)(leaf).backward(grad)
            return leaf.grad

        with replaced(pointwise, glu):
            assert over_threads(call) == 1, name


GATED = {
    "last dimension": (lambda x: x[: 101 * 990].view(101, 990), -1),
    "first dimension": (lambda x: x.view(1, -1), 0),
    "one in the middle": (lambda x: x[: 20 * 7 * 700].view(20, 7, 700), 1),
    "few rows": (lambda x: x[:99_999].view(3, -1), 1),
    "columns of a wider one": (lambda x: torch.cat([x[: 101 * 990].view(101, 990)] * 2, 1)[:, :983], 1),
    "channels last": (
        lambda x: x[: 20 * 7 * 700].view(20, 7, 70, 10).to(memory_format=torch.channels_last),
        1,
    ),
}


@pytest.mark.parametrize("name", GATED)
def test_glu(name):
    """glu and its gradient have one result at 1 to 8 threads over layouts, and torch's values; torch has several."""
    cut, dim = GATED[name]
    half = cut(sensitive("sigmoid", torch.float32, 100_003)[0])
    x = torch.cat([torch.randn(half.shape, generator=torch.Generator().manual_seed(1)), half], dim)
    if name == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)

    def forward():
        return torch.nn.functional.glu(x, dim)

    def into():
        return torch.ops.aten.glu.out(x, dim, out=torch.empty(0))

    def backward():
        leaf = x.clone().requires_grad_()
        torch.nn.functional.glu(leaf, dim).backward(torch.full(half.shape, 1.7))
        return leaf.grad

    for call in (forward, into, backward):
        assert (
            over_threads(call) > 1 or "of" in name or "last" in name
        )  # rows of whole vectors, or of less than one
        expected = call()
        with replaced(pointwise, glu):
            assert over_threads(call) == 1
            ours = call()
        assert call is into or ours.stride() == expected.stride()
        torch.testing.assert_close(ours, expected)


def test_arithmetic_when_it_is_installed():
    """add and sub with an alpha in bfloat16, and complex products, vary in torch and not with ours."""
    g = torch.Generator().manual_seed(1)
    x, y = (torch.randn(100_003, generator=g).bfloat16() for _ in range(2))
    u, v = (torch.randn(100_003, generator=g, dtype=torch.complex64) for _ in range(2))
    calls = (
        lambda: x.add(y, alpha=-0.1),
        lambda: x.clone().add_(y, alpha=-0.1),
        lambda: x.sub(y, alpha=0.3),
        lambda: u * v,
        lambda: torch.addcmul(u, u, v),
    )
    assert all(over_threads(call) > 1 for call in calls)
    with replaced(pointwise, glu, pointwise.ARITHMETIC):
        assert all(over_threads(call) == 1 for call in calls)
        assert (
            torch.equal(2 - torch.ones(3), torch.ones(3)) and (torch.arange(3) * 0.5).dtype == torch.float32
        )

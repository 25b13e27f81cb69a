"""Elementwise ops: an element's bits do not depend on its place, and all else is as torch does it."""

import math

import pytest
import torch
from torch import nn

from samebits.determinism._ops.replacements import ELEMENTWISE
from samebits.errors import UnimplementedError

pytestmark = pytest.mark.slow

aten = torch.ops.aten
UNARY = (
    "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt erf erfc erfinv sin cos tan sinc asin acos atan sinh cosh tanh asinh "
    "acosh atanh sigmoid silu mish special_entr gelu softplus elu logit glu log_sigmoid softshrink celu selu square"
).split()
BINARY = (
    "pow atan2 hypot logaddexp logaddexp2 xlogy special_xlog1py sigmoid_backward tanh_backward silu_backward "
    "mish_backward gelu_backward logit_backward fmod remainder hardswish_backward"
).split()
OTHER = {
    "gelu_tanh": lambda x, y: aten.gelu(x, approximate="tanh"),
    "gelu_tanh_backward": lambda x, y: aten.gelu_backward(x, y, approximate="tanh"),
    "softplus_backward": lambda x, y: aten.softplus_backward(x, y, 1.5, 20),
    "elu_backward": lambda x, y: aten.elu_backward(x, 1.5, 1.1, 0.9, False, y),
    "elu_backward_of_result": lambda x, y: aten.elu_backward(x, 1.5, 1.1, 0.9, True, y),
    "log_sigmoid_backward": lambda x, y: aten.log_sigmoid_backward(x, y, torch.exp(-y.abs())),
    "add": lambda x, y: torch.add(x, y, alpha=0.3),
    "sub": lambda x, y: torch.sub(x, y, alpha=0.3),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.3),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "lerp_tensor": lambda x, y: torch.lerp(x, y, x),
    "cube": lambda x, y: x**3,
    "number_pow": lambda x, y: 1.7**x,
    "pow_number": lambda x, y: x**2.3,
    "bce": lambda x, y: aten.binary_cross_entropy(x.sigmoid(), y.sigmoid(), None, 0),
    "smooth_l1": lambda x, y: aten.smooth_l1_loss_backward(x, x, y, 0, 0.7),
    "huber": lambda x, y: aten.huber_loss_backward(x, x, y, 0, 0.7),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def call(name):
    """The op of that name as a function of two tensors."""
    if name in OTHER:
        return OTHER[name]
    if name == "glu":
        return lambda x, y: aten.glu(torch.cat((x, y)), 0)
    if name == "log_sigmoid":
        return lambda x, y: nn.functional.logsigmoid(x)
    op = getattr(aten, name)
    return op if name in BINARY else lambda x, y: op(x)


EVERY = (*UNARY, *BINARY, *OTHER)


def operands(dtype=torch.float32, count=128):
    """Two tensors with numbers in the range of most functions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, count, generator=generator).to(dtype)
    return x[0] * 0.98 + 0.01, x[1] * 3 - 1.5


def same(a, b):
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def alone(op, x, y):
    """Each element computed by itself."""
    return torch.cat([op(x[i : i + 1], y[i : i + 1]) for i in range(len(x))])


def moved(op, dtype):
    """The lengths from 1 to 100, and offsets and steps, at which some element differs from itself alone."""
    x, y = operands(dtype)
    each = alone(op, x, y)
    wrong = [n for n in range(1, 101) if not same(op(x[:n], y[:n]), each[:n])]
    wrong += [f"offset {i}" for i in range(1, 20) if not same(op(x[i:], y[i:]), each[i:])]
    wrong += [f"step {i}" for i in (2, 3, 7) if not same(op(x[::i], y[::i]), each[::i])]
    return wrong


@pytest.mark.parametrize("name", EVERY)
def test_an_element_has_the_same_bits_at_every_place(name, machine_invariant_kernels):
    """At lengths 1 to 100, offsets and steps, each element is what it is alone, in every type."""
    with machine_invariant_kernels(ELEMENTWISE):
        assert {dtype: moved(call(name), dtype) for dtype in DTYPES} == dict.fromkeys(DTYPES, [])


def test_torchs_own_kernels_depend_on_the_place():
    """Negative control: with torch's kernels many ops have elements that differ from themselves alone."""
    moving = {
        name
        for name in ("sigmoid", "silu", "softplus", "elu", "sinh", "exp2", "pow", "atan2", "mish")
        if moved(call(name), torch.float32)
    }
    assert len(moving) >= 6, moving


@pytest.mark.parametrize("name", EVERY)
def test_results_are_near_torchs(name, machine_invariant_kernels):
    """Ours is as near to torch's result in float64 as torch's in float32 is, or one unit of the last place."""
    x, y = operands(count=400)
    op = call(name)
    torchs, exact = op(x, y), op(x.double(), y.double())
    with machine_invariant_kernels(ELEMENTWISE):
        ours = op(x, y)
    unit = torch.nextafter(exact.float().abs(), torch.tensor(math.inf)) - exact.float().abs()
    error, theirs = (
        ((found.double() - exact).abs() / unit).nan_to_num(0.0).max().item() for found in (ours, torchs)
    )
    assert torch.equal(ours.isnan(), exact.isnan())
    assert error <= max(1.0, 2 * theirs), (error, theirs)
    assert ours.dtype == torchs.dtype and ours.stride() == torchs.stride()


def promoted(name):
    """Operands of several types and shapes for an op of two tensors."""
    op = call(name)
    x, y = operands(count=6)
    column = y[:3].reshape(3, 1)
    yield lambda: op(x, column)
    yield lambda: op(x.bfloat16(), column)
    yield lambda: op(x.expand(3, 6).t(), column.t())
    yield lambda: op(x, torch.tensor(0.5))
    yield lambda: op(torch.tensor(0.5), y)
    yield lambda: op(x.half(), torch.tensor(0.5, dtype=torch.float64))
    yield lambda: op(x, torch.tensor([1, 2, 0, 3, 1, 1]))
    yield lambda: op(torch.tensor([1, 2, 0, 3, 1, 1]), y)
    yield lambda: op(x[:0], y[:0])
    yield lambda: op(x.reshape(2, 3).t(), y.reshape(2, 3).t())
    yield lambda: op(x, y[:5])


def outcome(call):
    try:
        result = call()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return result.dtype, result.shape, result.stride(), result


@pytest.mark.parametrize(
    "name", ["pow", "atan2", "hypot", "logaddexp", "xlogy", "add", "addcmul", "lerp", "rsub"]
)
def test_types_shapes_layouts_and_errors_are_torchs(name, machine_invariant_kernels):
    """Type promotion, broadcasting, strides of results and messages of errors are those of torch's kernels."""
    for number, one in enumerate(promoted(name)):
        expected = outcome(one)
        with machine_invariant_kernels(ELEMENTWISE):
            found = outcome(one)
        if isinstance(expected, str):
            assert found == expected, number
        else:
            assert found[:3] == expected[:3], number
            assert torch.allclose(found[3].float(), expected[3].float(), rtol=1e-2, equal_nan=True), number


def test_remainders_are_exact_for_every_exponent(machine_invariant_kernels):
    """fmod has the bits of C's fmod, which is exact, also where torch's vector code gives NaN."""
    words = torch.randint(-(2**31), 2**31, (2, 5000), generator=torch.Generator().manual_seed(1)).to(
        torch.int32
    )
    x, y = words.view(torch.float32)
    with machine_invariant_kernels(ELEMENTWISE):
        found = torch.fmod(x, y)
    pairs = zip(x.tolist(), y.tolist(), strict=True)
    exact = [math.fmod(a, b) if math.isfinite(a) and b else math.nan for a, b in pairs]
    assert found.nan_to_num(7.0).tolist() == torch.tensor(exact).nan_to_num(7.0).tolist()


def written(case):
    """One way to write to a tensor that exists."""
    x, y = operands(count=12)
    if case == "in place":
        return x.exp_()
    if case == "in place of a transposed one":
        return x.reshape(3, 4).t().exp_()
    if case == "in place with a step":
        return x[::2].pow_(y[::2].abs())
    if case == "in place, broadcast":
        return x.reshape(3, 4).atan2_(y[:4])
    if case == "in place, another type":
        return x.pow_(torch.ones(12, dtype=torch.float64) * 1.5)
    if case == "out":
        return torch.exp(x, out=torch.empty(12))
    if case == "out of another type":
        return torch.exp(x, out=torch.empty(12, dtype=torch.float64))
    if case == "out is an operand":
        return torch.atan2(x, y, out=y)
    if case == "out is empty":
        return torch.exp(x.reshape(3, 4).t(), out=torch.empty(0))
    if case == "out with a step":
        return torch.exp(x, out=torch.empty(24)[::2])
    if case == "out of integers":
        return torch.exp(x, out=torch.empty(12, dtype=torch.int64))
    if case == "out overlaps":
        return torch.exp(x[:-1], out=x[1:])
    if case == "in place of an expanded one":
        return x[:1].expand(12).exp_()
    if case == "in place of integers":
        return torch.arange(4).exp_()
    if case == "in place of a smaller one":
        return x[:4].atan2_(y.reshape(3, 4))
    return x.add_(y.reshape(3, 4)[0].repeat(3), alpha=0.5)


CASES = (
    "in place", "in place of a transposed one", "in place with a step", "in place, broadcast", "in place, another type",
    "out", "out of another type", "out is an operand", "out is empty", "out with a step", "out of integers",
    "out overlaps", "in place of an expanded one", "in place of integers", "in place of a smaller one", "alpha",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_existing_tensors_are_written_as_torch_does(case, machine_invariant_kernels):
    """In-place and out forms give torch's result, layout or error, for every kind of result."""
    expected = outcome(lambda: written(case))
    with machine_invariant_kernels(ELEMENTWISE):
        found = outcome(lambda: written(case))
    assert isinstance(found, str) == isinstance(expected, str)
    if isinstance(expected, str):
        assert found == expected
    else:
        assert found[:3] == expected[:3]
        assert torch.allclose(found[3], expected[3], rtol=1e-5)


def test_an_out_of_another_shape_is_resized_with_a_warning(machine_invariant_kernels):
    """torch's warning comes, and the result has the new shape."""
    with machine_invariant_kernels(ELEMENTWISE), pytest.warns(UserWarning, match="was resized"):
        assert torch.exp(torch.ones(5), out=torch.empty(3)).shape == (5,)


def test_integers_become_the_default_type(machine_invariant_kernels):
    """Functions of integers and bools are computed as torch does, and powers of integers stay integers."""
    with machine_invariant_kernels(ELEMENTWISE):
        assert torch.exp(torch.tensor([0, 1])).tolist() == torch.tensor([0.0, 1.0]).exp().tolist()
        assert torch.sqrt(torch.tensor([True])).tolist() == [1.0]
        assert (torch.tensor([3]) ** 2).dtype == torch.int64
        assert (torch.tensor([3]) ** 2.0).dtype == torch.float32
        assert torch.add(torch.tensor([3]), torch.tensor([4]), alpha=2).tolist() == [11]
        assert (2 - torch.arange(3)).tolist() == [2, 1, 0]


def test_complex_numbers_are_refused_by_name(machine_invariant_kernels):
    """The error names the op, the type and a way out."""
    with (
        machine_invariant_kernels(ELEMENTWISE),
        pytest.raises(UnimplementedError, match=r"aten::log of complex64.*Compute with"),
    ):
        torch.log(torch.ones(2, dtype=torch.complex64))


def test_numbers_where_the_schema_has_tensors(machine_invariant_kernels):
    """foreach hands Python numbers to kernels that take tensors: they promote as numbers do."""
    x = torch.ones(3)
    with machine_invariant_kernels(ELEMENTWISE):
        assert torch._foreach_add([x, x.bfloat16()], 0.5)[1].dtype == torch.bfloat16
        assert torch._foreach_pow([x * 2], 1.5)[0].tolist() == [2.8284270763397217] * 3
        assert torch._foreach_pow(2.0, [x])[0].tolist() == [2.0] * 3
        assert (x % 0.3).dtype == torch.float32


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_sums_with_numbers_and_factors_have_torchs_bits(dtype, machine_invariant_kernels):
    """A sum with a number is one IEEE operation, so that ours is torch's: in every type, also of complex numbers."""
    x, y = operands(dtype)

    def sums():
        yield from (x + 0.3, 0.3 - x, x - 1, 1 + x, x + True, x.add(y), x.sub(y, alpha=1), torch.rsub(x, 0.7))
        yield from (
            x.clone().add_(0.3),
            torch.add(x, 2, out=torch.empty_like(x)),
            x.add(7, alpha=0),
            x.long() + 0.5,
        )
        yield from (torch.complex(x.float(), y.float()) + 0.5, torch.complex(x.float(), y.float()) - y)

    torchs = list(sums())
    with machine_invariant_kernels(ELEMENTWISE):
        for expected, found in zip(torchs, sums(), strict=True):
            assert found.dtype == expected.dtype
            assert same(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_are_rounded_where_torch_rounds_them(dtype, machine_invariant_kernels):
    """In short types, results of ops with numbers are torch's but for a few that its intermediate rounding moves."""
    x, y = operands(dtype, 4000)

    def results():
        yield from (
            x**0.7,
            0.7**y,
            torch.add(x, y, alpha=0.7),
            torch.addcmul(x, y, y, value=0.7),
            torch.lerp(x, y, 0.7),
        )
        yield from (
            aten.elu(y, 0.7, 1.1, 0.9),
            aten.softplus(y, 0.7, 20),
            aten.softshrink(y, 0.7),
            torch.rsub(x, y, alpha=0.7),
        )

    torchs = list(results())
    with machine_invariant_kernels(ELEMENTWISE):
        for number, (expected, found) in enumerate(zip(torchs, results(), strict=True)):
            assert (found != expected).sum() <= 40, number  # of 4000; another number would change hundreds


def trained(optimizer, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 13), nn.GELU(), nn.Linear(13, 3))
    used = optimizer(model.parameters(), lr=1e-2, **options)
    for _ in range(3):
        used.zero_grad()
        model(torch.randn(5, 7)).square().mean().backward()
        used.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(
    "optimizer", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.NAdam]
)
def test_foreach_and_single_tensor_optimizers_are_near_torchs(optimizer, machine_invariant_kernels):
    """Steps of both implementations run through our kernels, and stay near torch's result."""
    for foreach in (False, True):
        expected = trained(optimizer, foreach=foreach)
        with machine_invariant_kernels(ELEMENTWISE):
            found = trained(optimizer, foreach=foreach)
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6)


def test_gradients_pass_through_our_kernels(machine_invariant_kernels):
    """Gradients of every activation are near torch's."""
    x, _ = operands(count=50)
    layers = (
        nn.GELU(),
        nn.GELU("tanh"),
        nn.SiLU(),
        nn.Mish(),
        nn.Softplus(),
        nn.ELU(),
        nn.SELU(),
        nn.CELU(),
        nn.Tanh(),
    )
    for layer in (*layers, nn.Sigmoid(), nn.LogSigmoid(), nn.GLU()):
        grads = []
        for replacements in ((), ELEMENTWISE):
            leaf = (x * 4 - 2).requires_grad_()
            with machine_invariant_kernels(replacements):
                layer(leaf).square().sum().backward()
            grads.append(leaf.grad)
        assert torch.allclose(*grads, rtol=1e-4, atol=1e-6), layer


@pytest.mark.parametrize(
    "name", [name for name in EVERY if name not in ("fmod", "remainder", "elu_backward_of_result")]
)
def test_gradients_of_float64_pass_gradcheck(name, machine_invariant_kernels):
    """The derivative that torch composes of our kernels is that of our function, by finite differences."""
    op = call(name)
    x, y = (each[:8].double().requires_grad_() for each in operands())
    with machine_invariant_kernels(ELEMENTWISE):
        if name == "acosh":
            assert torch.autograd.gradcheck(lambda x: op(x + 1.5, y), x)
        elif name.endswith("backward") or name in ("bce", "smooth_l1", "huber"):
            assert op(x.detach(), y.detach()).dtype == torch.float64
        elif name in ("xlogy", "pow", "special_xlog1py"):
            assert torch.autograd.gradcheck(op, (x, y.detach().abs().requires_grad_()))
        else:
            assert torch.autograd.gradcheck(op, (x, y))

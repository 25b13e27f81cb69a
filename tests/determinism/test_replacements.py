"""Kernels of ours under `across="threads"`: the same bits at any thread count, and those of `across="machines"`."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits
from op_testing import close, laid_out, layouts, numbers, over_threads
from samebits.determinism._ops import one_thread, refusal

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def seeded():
    samebits.set_random_seed(1)


def threads():
    return samebits.enable_op_determinism(across="threads")


def with_gradients(function, *tensors):
    """The result, and its gradients with respect to the tensors."""
    leaves = [one.detach().requires_grad_() for one in tensors]
    y = function(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, numbers(y.shape, y.dtype, 9))


REDUCTIONS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "nansum": torch.nansum,
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1),
    "norm 2": lambda x: torch.linalg.vector_norm(x, 2),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3),
    "norm 0": lambda x: torch.linalg.vector_norm(x, 0),
    "var": torch.var,
    "std_mean": lambda x: torch.stack(torch.std_mean(x, correction=0)),
    "dot": lambda x: torch.dot(x.flatten(), x.flatten()),
    "prod": lambda x: (1 + x / 1024).prod(),
    "mse_loss": lambda x: F.mse_loss(x, x / 2),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
    "rows": lambda x: x.sum(1),
    "columns": lambda x: x.mean(0),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=4, derandomize=True, deadline=None)
@given(
    rows=st.integers(1, 700),
    columns=st.integers(60, 900),
    dtype=st.sampled_from((*FLOATS, torch.complex64)),
    layout=layouts,
    seed=st.integers(0, 99),
)
def test_reductions_have_the_same_bits_at_any_thread_count(name, rows, columns, dtype, layout, seed):
    """A reduction, of complex numbers too, has one result over 1, 2, 3, 4 and 8 threads, and torch's value and type."""
    if dtype.is_complex and name in {"norm 3", "nansum", "mse_loss", "logsumexp"}:
        return
    x = laid_out((rows, columns), dtype, seed, layout)
    with threads():
        seen, value = over_threads(lambda: REDUCTIONS[name](x))
    assert len(seen) == 1
    if dtype.is_complex:
        torch.testing.assert_close(value, REDUCTIONS[name](x), rtol=1e-3, atol=1e-3)
        return
    wide = REDUCTIONS[name](x.double())
    # A sum of numbers of both signs is as exact as the sum of their magnitudes allows.
    scale = max(1.0, x.double().abs().sum().item()) if name in ("sum", "nansum") else 8.0
    if (wide.abs() < torch.finfo(dtype).max).all():
        close(value, wide, dtype, scale=scale, torchs=REDUCTIONS[name](x))


@pytest.mark.slow
@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    shape=st.lists(st.sampled_from((1, 2, 3, 7, 16, 33, 100, 500)), min_size=2, max_size=4),
    order=st.randoms(use_true_random=False),
    step=st.booleans(),
    keepdim=st.booleans(),
)
def test_several_sums_have_the_same_bits_at_any_thread_count(shape, order, step, keepdim):
    """Sums over some dimensions of a transposed or strided tensor: one result over thread counts, torch's value and shape."""
    dims = order.sample(range(len(shape)), order.randint(1, len(shape) - 1))
    x = numbers((*shape[:-1], shape[-1] * (2 if step else 1)), torch.float32, 0)
    x = x[..., ::2] if step else x.permute(order.sample(range(len(shape)), len(shape)))
    if not 30000 < x.numel() < 2_000_000:
        return
    for run in (torch.sum, torch.mean, torch.nansum):
        with threads():
            seen, value = over_threads(lambda: run(x, dims, keepdim))  # noqa: B023
        assert len(seen) == 1
        expected = run(x, dims, keepdim)
        assert value.stride() == expected.stride() and value.shape == expected.shape
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-3)


FORMS = {
    "rows": lambda: numbers((3000, 32), torch.float32, 0),
    "one value": lambda: numbers((500, 16, 1), torch.float32, 0),
    "channels last": lambda: numbers((8, 16, 30, 30), torch.float32, 0).to(memory_format=torch.channels_last),
    "contiguous": lambda: numbers((8, 16, 30, 30), torch.float32, 0),
    "volume, channels last": lambda: numbers((2, 8, 8, 20, 20), torch.float32, 0).to(
        memory_format=torch.channels_last_3d
    ),
    "transposed": lambda: numbers((20, 300, 16), torch.float32, 0).transpose(1, 2),
}


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ("batch", "batch, evaluation", "group", "group, called directly", "layer"))
def test_normalizations_have_the_same_bits_at_any_thread_count(kind, form, dtype):
    """Batch, group and layer normalization, with running statistics and gradients: one result in every memory layout."""
    x = FORMS[form]().to(dtype)
    channels = x.shape[1]
    mean, var = torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)

    def normalized(x, weight, bias):
        if kind == "layer":
            return F.layer_norm(x.transpose(1, -1), (channels,), weight, bias)
        if kind == "group":
            return F.group_norm(x, 4, weight, bias)
        if kind == "group, called directly":
            sizes = (len(x), channels, x[0, 0].numel(), 4)
            return torch.native_group_norm(x, weight, bias, *sizes, 1e-5)[0]
        return F.batch_norm(x, mean, var, weight, bias, kind == "batch")

    def compute():
        mean.zero_()
        var.fill_(1)
        parameters = numbers((channels,), dtype, 1), numbers((channels,), dtype, 2)
        return *with_gradients(normalized, x, *parameters), mean.clone(), var.clone()

    with threads():
        seen, value = over_threads(compute)
    assert len(seen) == 1
    if kind == "group, called directly":
        return  # torch's kernel takes no other layout than contiguous
    for mine, torchs in zip(value, compute(), strict=True):
        assert mine.dtype == torchs.dtype and (kind == "layer" or mine.stride() == torchs.stride())
        tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(
            mine, torchs, rtol=tolerance, atol=tolerance * (1 + torchs.abs().max().item())
        )


def test_layer_norm_in_bfloat16_is_more_exact_than_torchs():
    """The bfloat16 weight gradient of 1500 rows is at least five times nearer to the exact one than torch's at two threads."""

    def weight_gradient(dtype):
        given = (
            numbers((1500, 768), torch.bfloat16, 0),
            *(numbers((768,), torch.bfloat16, n) for n in (1, 2)),
        )
        x, weight, bias = (one.to(dtype).requires_grad_() for one in given)
        out = F.layer_norm(x, (768,), weight, bias)
        return torch.autograd.grad(out, weight, numbers(out.shape, torch.bfloat16, 3).to(dtype))[0]

    exact = weight_gradient(torch.float64)
    torch.set_num_threads(2)
    with threads():
        mine = (weight_gradient(torch.bfloat16) - exact).abs().max()
    assert 5 * mine < (weight_gradient(torch.bfloat16) - exact).abs().max()


@settings(max_examples=20, derandomize=True, deadline=None)
@given(
    shape=st.sampled_from(
        ((130, 300), (4, 8, 70, 70), (3, 9, 2000), (20000, 3), (3, 20000), (50, 7), (600, 128))
    ),
    dim=st.integers(0, 3),
    dtype=st.sampled_from(FLOATS[:3]),
    transposed=st.booleans(),
)
def test_softmax_has_the_same_bits_at_any_thread_count(shape, dim, dtype, transposed):
    """Softmax and its gradient along any dimension: one result over thread counts, and torch's value and layout."""
    x, dim = numbers(shape, dtype, 0), dim % len(shape)
    x = x.transpose(0, 1) if transposed else x

    def compute():
        return with_gradients(lambda x: x.softmax(dim), x)

    with threads():
        seen, value = over_threads(compute)
    assert len(seen) == 1
    tolerance = {torch.bfloat16: 2e-2}.get(dtype, 1e-6)
    for mine, torchs in zip(value, compute(), strict=True):
        assert mine.stride() == torchs.stride()
        torch.testing.assert_close(mine, torchs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize(("queries", "width"), ((1, 32), (3, 32), (65, 32), (130, 32), (31, 4), (9, 80)))
@pytest.mark.parametrize("masked", (False, True))
def test_attention_has_the_same_bits_at_any_thread_count(queries, width, masked, dtype):
    """Attention and its gradients, few queries, short heads and odd lengths included: one result over thread counts."""
    keys = 700 if width == 32 else queries
    q, k, v = (numbers((2, 4, n, width), dtype, n) for n in (queries, keys, keys))
    mask = numbers((2, 1, queries, keys), dtype, 5) if masked else None

    def compute():
        return with_gradients(
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), q, k, v
        )

    with threads():
        seen, value = over_threads(compute)
    assert len(seen) == 1
    exact = with_gradients(
        lambda q, k, v: (
            torch.softmax(q @ k.mT / math.sqrt(width) + (0 if mask is None else mask.double()), -1) @ v
        ),
        *(one.double() for one in (q, k, v)),
    )
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    for mine, right in zip(value[:1], exact[:1], strict=True):
        torch.testing.assert_close(mine.double(), right, rtol=tolerance, atol=tolerance)


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    "options",
    [
        {"input_size": 64, "hidden_size": 128, "num_layers": 2, "batch_first": True},
        {"input_size": 32, "hidden_size": 48, "bidirectional": True},
        {"input_size": 32, "hidden_size": 48, "proj_size": 16},
    ],
)
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_an_lstm_has_the_same_bits_at_any_thread_count(options, dtype):
    """Outputs, states and the gradients of the weights of an LSTM layer have one result over thread counts."""
    layer = torch.nn.LSTM(**options).to(dtype)
    x = numbers((50, 32, options["input_size"]), dtype, 0)

    def compute():
        y, (h, c) = layer(x)
        gradients = torch.autograd.grad((y.sin() + h.sum() * c.sum() * 1e-3).sum(), list(layer.parameters()))
        return y.detach(), h.detach(), c.detach(), *gradients

    with threads():
        assert len(over_threads(compute)[0]) == 1


SMALL = {
    "glu": lambda x: with_gradients(lambda x: F.glu(x, -1), x),
    "glu, columns": lambda x: with_gradients(lambda x: F.glu(x, 0), x),
    "gelu": lambda x: with_gradients(F.gelu, x),
    "silu": lambda x: with_gradients(F.silu, x),
    "softplus": lambda x: with_gradients(F.softplus, x),
    "add, alpha": lambda x: x.add(x.flip(0), alpha=-0.1),
    "add, alpha, one row": lambda x: x.add(x[:1], alpha=-0.1),
    "sub_, alpha": lambda x: x.clone().sub_(x.flip(0), alpha=0.3),
    "rsub, alpha": lambda x: torch.rsub(x, x.flip(0), alpha=0.3),
    "addcmul": lambda x: torch.addcmul(x, x.flip(0), x, value=0.3),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "huber": lambda x: with_gradients(lambda x: F.huber_loss(x, x.detach().flip(0)), x),
    "smooth l1": lambda x: with_gradients(lambda x: F.smooth_l1_loss(x, x.detach().flip(0)), x),
    "arange": lambda x: torch.arange(0, 1, 1 / 70_003, dtype=x.dtype),
    "autocast": lambda x: torch.autocast("cpu")(lambda: x.float() @ x.float().t())(),
    "a classifier's head": lambda x: x.reshape(10, -1) @ x.reshape(-1, 10),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", SMALL)
def test_other_ops_have_the_same_bits_at_any_thread_count(name, dtype):
    """Activations, sums with a factor, losses and counting have one result over thread counts, of lengths that are odd."""
    x = numbers((330, 310), dtype, 0)
    with threads():
        assert len(over_threads(lambda: SMALL[name](x))[0]) == 1


def test_torchs_own_vary():
    """Negative control: without the mode the same checks find several results; of which ops, depends on the CPU."""
    x, y = numbers((3_000_001,), torch.float32, 0), numbers((1111, 1777), torch.float32, 0)
    rows = numbers((3000, 32), torch.float32, 0)
    head = numbers((10, 100000), torch.float32, 1), numbers((100000, 64), torch.float32, 3)
    kernel = numbers((64, 64, 3, 3), torch.float32, 1)
    image = numbers((8, 64, 28, 28), torch.float32, 2)
    short = numbers((330, 310), torch.bfloat16, 0)
    calls = {
        "sum": x.sum,
        "columns": lambda: y[:, ::2].sum(0),
        "product": lambda: head[0] @ head[1],
        "softmax": lambda: y.softmax(0),
        "batch norm": lambda: F.batch_norm(rows, None, None, training=True),
        "convolution": lambda: with_gradients(lambda x, w: F.conv2d(x, w, padding=1), image, kernel),
        "add, alpha": lambda: SMALL["add, alpha"](short),
    }
    assert {"sum", "columns", "add, alpha"} <= {
        name for name, call in calls.items() if len(over_threads(call)[0]) > 1
    }


def test_threads_install_what_machines_do():
    """Each kernel of ours that machines get, threads get: what is tested over threads in one mode holds in the other."""
    policies = refusal.policy(warn=False), one_thread.POLICY
    machines, both = ([(it.op, it.device, it.make) for it in one.kernels_to_install()] for one in policies)
    assert len(machines) > 300 and all(one in both for one in machines)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_threads_and_machines_have_the_same_bits(dtype):
    """What both modes compute has one set of bits: a product, a sum, a normalization, an activation and a convolution."""

    def compute():
        x, w, bias = (
            numbers(shape, dtype, n) for n, shape in enumerate(((4, 16, 33, 31), (8, 16, 3, 3), (8,)))
        )
        image, *gradients = with_gradients(F.conv2d, x, w, bias)
        y = F.gelu(F.layer_norm(image, (29,)))
        return image, *gradients, y, y.flatten(1) @ y.flatten(1).t(), y.sum(), y.softmax(1)

    with threads():
        ours = over_threads(compute)[0]
    assert len(ours) == 1
    with samebits.enable_op_determinism(across="machines"):
        assert ours == over_threads(compute)[0]

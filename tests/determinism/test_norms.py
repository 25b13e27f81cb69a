"""Softmax, normalisation and attention: the same bits at any thread count."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from op_testing import numbers, over_threads, replaced
from samebits.determinism._kernels import attention_cpu, softmax
from samebits.determinism._kernels.norms import batchnorm, groupnorm, layernorm


def layer_norm_gradients(x, parameter_dtype):
    x = x.detach().requires_grad_()
    columns = x.shape[-1]
    weight = numbers((columns,), parameter_dtype, 1).requires_grad_()
    bias = numbers((columns,), parameter_dtype, 2).requires_grad_()
    out = torch.nn.functional.layer_norm(x, (columns,), weight, bias)
    return torch.autograd.grad(out, (x, weight, bias), numbers(x.shape, out.dtype, 3))


@settings(max_examples=12, derandomize=True, deadline=None)
@given(
    rows=st.integers(1, 900),
    columns=st.integers(1, 300),
    dtype=st.sampled_from((torch.float32, torch.float64, torch.bfloat16)),
    mixed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_layer_norm_gradients_have_the_same_bits_at_any_thread_count(rows, columns, dtype, mixed, seed):
    """Layer normalisation's three gradients have one result over thread counts, and the value of the formula in double."""
    parameter = torch.float32 if mixed and dtype == torch.bfloat16 else dtype
    x = numbers((rows, columns), dtype, seed)
    with replaced(layernorm):
        seen, value = over_threads(lambda: layer_norm_gradients(x, parameter))
    assert len(seen) == 1
    x, columns = x.double(), x.shape[-1]
    normal = torch.nn.functional.layer_norm(x, (columns,))
    grad = numbers(x.shape, dtype, 3).double()
    scale = 1 + grad.abs().sum(0).max().item()
    assert (value[1].double() - (grad * normal).sum(0)).abs().max() <= scale * {torch.float64: 1e-12}.get(
        dtype, 1e-2
    )
    assert (value[2].double() - grad.sum(0)).abs().max() <= scale * {torch.float64: 1e-12}.get(dtype, 1e-2)


def test_layer_norm_in_bfloat16_is_more_exact_than_torchs():
    """The bfloat16 weight gradient of 1500 rows is at least five times nearer to the exact one than torch's at two threads."""
    x = numbers((1500, 768), torch.bfloat16, 0)
    exact = layer_norm_gradients(x.double(), torch.float64)[1]
    torch.set_num_threads(2)
    with replaced(layernorm):
        mine = (layer_norm_gradients(x, torch.bfloat16)[1] - exact).abs().max()
    assert 5 * mine < (layer_norm_gradients(x, torch.bfloat16)[1] - exact).abs().max()


@settings(max_examples=20, derandomize=True, deadline=None)
@given(
    shape=st.sampled_from(
        ((130, 300), (4, 8, 70, 70), (3, 9, 2000), (20000, 3), (3, 20000), (50, 7), (600, 128))
    ),
    dim=st.integers(0, 3),
    dtype=st.sampled_from((torch.float32, torch.bfloat16, torch.float64)),
    transposed=st.booleans(),
)
def test_softmax_has_the_same_bits_at_any_thread_count(shape, dim, dtype, transposed):
    """Softmax and its gradient along any dimension: one result over thread counts, and torch's value and layout."""
    x = numbers(shape, dtype, 0)
    x, dim = x.transpose(0, 1) if transposed else x, dim % len(shape)

    def compute():
        leaf = x.detach().requires_grad_()
        y = leaf.softmax(dim)
        return y, torch.autograd.grad(y, leaf, x.sin())[0]

    with replaced(softmax):
        seen, value = over_threads(compute)
    assert len(seen) == 1
    tolerance = {torch.bfloat16: 2e-2}.get(dtype, 1e-6)
    for mine, torchs in zip(value, compute(), strict=True):
        assert mine.stride() == torchs.stride()
        torch.testing.assert_close(mine, torchs, rtol=tolerance, atol=tolerance)


NORMALISED = {
    "rows": lambda: numbers((3000, 32), torch.float32, 0),
    "one value": lambda: numbers((500, 16, 1), torch.float32, 0),
    "channels last": lambda: numbers((8, 16, 30, 30), torch.float32, 0).to(memory_format=torch.channels_last),
    "contiguous": lambda: numbers((8, 16, 30, 30), torch.float32, 0),
    "volume, channels last": lambda: numbers((2, 8, 8, 20, 20), torch.float32, 0).to(
        memory_format=torch.channels_last_3d
    ),
    "transposed": lambda: numbers((20, 300, 16), torch.float32, 0).transpose(1, 2),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
@pytest.mark.parametrize("form", NORMALISED)
@pytest.mark.parametrize("kind", ("batch", "batch, evaluation", "group"))
def test_batch_and_group_norm_have_the_same_bits_at_any_thread_count(kind, form, dtype):
    """Batch and group normalisation, running statistics and gradients included: one result in every memory layout."""
    x = NORMALISED[form]().to(dtype)
    channels = x.shape[1]

    def compute():
        leaf = x.detach().requires_grad_()
        weight = numbers((channels,), dtype, 1).requires_grad_()
        bias = numbers((channels,), dtype, 2).requires_grad_()
        mean, var = torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)
        if kind == "group":
            y = F.group_norm(leaf, 4, weight, bias)
        else:
            y = F.batch_norm(leaf, mean, var, weight, bias, kind == "batch")
        return y.detach(), mean, var, *torch.autograd.grad(y, (leaf, weight, bias), x.sin())

    with replaced(batchnorm, groupnorm):
        seen, value = over_threads(compute)
    assert len(seen) == 1
    for mine, torchs in zip(value, compute(), strict=True):
        assert mine.stride() == torchs.stride() and mine.dtype == torchs.dtype
        tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(
            mine, torchs, rtol=tolerance, atol=tolerance * (1 + torchs.abs().max().item())
        )


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("queries", (1, 3, 65, 130))
@pytest.mark.parametrize("masked", (False, True))
def test_attention_has_the_same_bits_at_any_thread_count(queries, masked, dtype):
    """Attention and its gradients, few queries and odd lengths included: one result over thread counts."""
    q, k, v = (numbers((2, 4, n, 32), dtype, n).requires_grad_() for n in (queries, 700, 700))
    mask = numbers((2, 1, queries, 700), dtype, 5) if masked else None

    def compute():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.detach(), *torch.autograd.grad(out, (q, k, v), out.detach().sin())

    try:
        compute()
    except RuntimeError as error:
        if "pack_vnni2" not in str(error):
            raise
        pytest.skip("torch chooses a kernel for AMX and then has none: an emulation of another CPU")
    with replaced(attention_cpu):
        seen, value = over_threads(compute)
    assert len(seen) == 1
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    for mine, torchs in zip(value, compute(), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=tolerance, atol=tolerance)


def test_torchs_own_vary():
    """Negative control: without the replacements some of these have several results; which, depends on the CPU."""
    x, grads = numbers((1111, 1777), torch.float32, 0), numbers((1500, 768), torch.bfloat16, 2)
    rows = numbers((3000, 32), torch.float32, 0)
    q, k = numbers((2, 8, 1, 64), torch.float32, 0), numbers((2, 8, 4096, 64), torch.float32, 1)
    calls = {
        "layer norm": lambda: layer_norm_gradients(grads, torch.bfloat16),
        "softmax": lambda: x.softmax(0),
        "batch norm": lambda: F.batch_norm(rows, None, None, training=True),
        "attention": lambda: F.scaled_dot_product_attention(q, k, k),
    }
    assert [name for name, call in calls.items() if len(over_threads(call)[0]) > 1]

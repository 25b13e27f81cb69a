"""Layer, group and batch normalization, and bags of embeddings, under `across="machines"`."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from exact_cases import with_gradients
from exact_sums import fma, reduced, square
from op_testing import numbers, replaced
from samebits.determinism._ops import batch_norm, embedding_bag, grid_sample, group_norm, layer_norm, sums

pytestmark = pytest.mark.slow

CALLS = {
    "layer": lambda x, w, b: F.layer_norm(x, w.shape, w, b),
    "group": lambda x, w, b: F.group_norm(x, 2, w, b),
    "batch": lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
}


def bits(x):
    return x.contiguous().view(torch.int32).tolist()


@pytest.fixture(scope="module", autouse=True)
def ours():
    with replaced(layer_norm, group_norm, batch_norm, embedding_bag, grid_sample, sums):
        yield


@pytest.mark.parametrize("length", (1, 2, 15, 16, 17, 33, 100, 256, 257, 1000))
def test_a_layer_norm_follows_its_definition(length):
    """mean, 1 / sqrt(variance + eps) and fma((x - mean) rstd, w, b) of S, in exact order."""
    x, w, b = (numbers((length,), torch.float32, seed) for seed in range(3))
    v, real = x.numpy(), np.float32
    mean = reduced(v) / real(length)
    rstd = real(1) / np.sqrt(reduced(v - mean, square) / real(length) + real(1e-5))
    made, means, rstds = torch.native_layer_norm(x[None], (length,), w, b, 1e-5)
    assert (means.item(), rstds.item()) == (mean.item(), rstd.item())
    assert bits(made[0]) == bits(torch.tensor(fma((v - mean) * rstd, w.numpy(), b.numpy())))


@pytest.mark.parametrize("shape", ((4, 6, 5, 7), (9, 34), (2, 6, 300)))
@pytest.mark.parametrize("last", (False, True))
def test_a_batch_norm_follows_its_definition(shape, last):
    """Statistics of S in float64, then one fma on each element, in contiguous and channels-last form alike."""
    x, w, b = (
        numbers(shape, torch.float32, 0),
        numbers((shape[1],), torch.float32, 1),
        numbers((shape[1],), torch.float32, 2),
    )
    x = x.to(memory_format=torch.channels_last) if last and len(shape) == 4 else x
    made = F.batch_norm(x, None, None, w, b, training=True)
    for channel in range(0, shape[1], 3):
        v = x[:, channel].flatten().double().numpy()
        mean = reduced(v) / len(v)
        istd = np.float32(1 / np.sqrt(reduced(v - mean, square) / len(v) + 1e-5))
        a = np.full(len(v), istd * w[channel].item(), np.float32)
        centered = v.astype(np.float32) - np.float32(mean)
        expected = fma(centered, a, np.full_like(a, b[channel].item()))
        assert bits(made[:, channel].flatten()) == bits(torch.tensor(expected))


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16))
def test_normalizations_are_as_near_to_float64_as_torchs(name, dtype):
    """The error of results and gradients against float64 is at most twice torch's, or two roundings of the type."""
    for shape in ((40, 6), (3, 6, 11, 13), (300, 70)):
        channels = shape[-1] if name == "layer" else shape[1]
        inputs = [
            numbers(s, dtype, seed) + (seed == 0) for seed, s in enumerate((shape, (channels,), (channels,)))
        ]
        made = with_gradients(CALLS[name], *inputs)
        g = numbers(shape, torch.float64, 9).to(dtype)
        exact = [x.double().requires_grad_() for x in inputs]
        reference(name, *exact).backward(g.double())
        made = [CALLS[name](*inputs), *gradients(name, inputs, g)]
        wanted = [reference(name, *exact).detach(), *(x.grad for x in exact)]
        for a, b in zip(made, wanted, strict=True):
            scale = b.abs().max() * (1 if a.shape == shape else 4)
            assert (a - b).abs().max() <= 4 * torch.finfo(dtype).eps * scale + 1e-6 * (dtype == torch.float32)


def gradients(name, inputs, g):
    inputs = [x.detach().requires_grad_() for x in inputs]
    CALLS[name](*inputs).backward(g)
    return [x.grad for x in inputs]


def reference(name, x, w, b):
    """The normalization in float64, by its formula."""
    if name == "layer":
        centered = x - x.mean(-1, keepdim=True)
        return centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w + b
    rows = x.unflatten(1, (2, -1)).flatten(2) if name == "group" else x.transpose(0, 1).flatten(1)
    centered = rows - rows.mean(-1, keepdim=True)
    made = centered / (centered.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    if name == "group":
        made = made.view(x.shape)
    else:
        made = made.view(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1)
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    return made * w.view(shape) + b.view(shape)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_normalizations(name):
    """gradcheck of the input, weight and bias."""
    shape = (3, 4, 2)
    channels = 2 if name == "layer" else 4
    inputs = [
        numbers(s, torch.float64, seed).requires_grad_()
        for seed, s in enumerate((shape, (channels,), (channels,)))
    ]
    assert torch.autograd.gradcheck(CALLS[name], inputs)


def test_batch_norm_updates_running_statistics():
    """Training moves them by the momentum, with the unbiased variance; evaluation uses them."""
    x = numbers((50, 3, 4), torch.float32, 0) * 2 + 1
    mean, var = torch.zeros(3), torch.ones(3)
    F.batch_norm(x, mean, var, training=True, momentum=0.3)
    wide = x.double()
    torch.testing.assert_close(mean.double(), 0.3 * wide.mean((0, 2)), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(var.double(), 0.7 + 0.3 * wide.var((0, 2)), rtol=1e-6, atol=1e-7)
    made = F.batch_norm(x, mean, var)
    expected = (wide - mean[:, None]) / (var.double()[:, None] + 1e-5).sqrt()
    torch.testing.assert_close(made.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_row_does_not_depend_on_the_batch():
    """Layer norm, group norm and batch norm in evaluation of one item have the same bits at every place of batches."""
    item, w = numbers((6, 33), torch.float32, 0), numbers((6,), torch.float32, 1)
    calls = (
        lambda x: F.layer_norm(x, (33,)),
        lambda x: F.group_norm(x, 3, w, w),
        lambda x: F.batch_norm(x, w, w.abs(), w, w),
    )
    for call in calls:
        alone = bits(call(item[None])[0])
        for batch, place in ((2, 1), (17, 4), (130, 129)):
            x = numbers((batch, 6, 33), torch.float32, batch)
            x[place] = item
            assert bits(call(x)[place]) == alone


def test_bags_of_embeddings_add_in_the_order_of_indices():
    """Sum and mean of a bag, with weights and padding: products, then one row after the other."""
    w, index, offsets = (
        numbers((6, 5), torch.float32, 0),
        torch.tensor([1, 2, 3, 4, 5, 1, 1]),
        torch.tensor([0, 3, 3, 5]),
    )
    weights = numbers((7,), torch.float32, 1)
    made = F.embedding_bag(index, w, offsets, mode="sum", per_sample_weights=weights)
    total = torch.zeros(5)
    for place in range(3):
        total = total + w[index[place]] * weights[place]
    assert bits(made[0]) == bits(total)
    assert not made[1].any()
    mean = F.embedding_bag(index, w, offsets, mode="mean", padding_idx=1)
    assert bits(mean[0]) == bits((torch.zeros(5) + w[2] + w[3]) / 2)
    inputs = w.double().requires_grad_(), weights.double().requires_grad_()
    call = lambda w, s: F.embedding_bag(index, w, offsets, mode="sum", per_sample_weights=s)
    assert torch.autograd.gradcheck(call, inputs)


def test_grid_sample_of_half_types_is_that_of_float32():
    """grid_sample of float16 is computed in float32: torch's addresses places beyond 65,504 in float16."""
    x = numbers((1, 64, 40, 47), torch.float16, 0).to(memory_format=torch.channels_last)
    grid = numbers((1, 30, 30, 2), torch.float16, 1)
    made = F.grid_sample(x, grid, align_corners=False)
    assert torch.equal(made, F.grid_sample(x.float(), grid.float(), align_corners=False).half())

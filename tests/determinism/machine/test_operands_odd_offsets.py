"""Tensors that begin anywhere in their memory, as views of flat buffers do: the bits are those of their copies."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import samebits
from op_testing import numbers
from samebits._digest import of_value
from samebits.arithmetic.product.packing import two_by_two
from samebits.rounding import optim

HALVES = (torch.bfloat16, torch.float16)


def moved(x, offset):
    """The same tensor, with as many elements before it in its memory; its single rows are an odd number of elements apart."""
    strides = [stride if size > 1 else 7 for size, stride in zip(x.shape, x.stride(), strict=True)]
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return torch.zeros(offset + span, dtype=x.dtype).as_strided(x.shape, strides, offset).copy_(x)


def conv(function, x, w, *places, **kwargs):
    """A convolution of tensors of these shapes, in the memory format that is given."""
    form = kwargs.pop("form", torch.contiguous_format)

    def call(x, w, *bias):
        return function(x.contiguous(memory_format=form), w, *bias, **kwargs)

    return call, (x, w, *places)


def convolutions():
    """By name: a convolution and the shapes of its operands, of kernels of one tap and of more, in each number of dimensions."""
    found = {}
    for dims, tap, groups in itertools.product((1, 2, 3), (1, 2, 3), (1, 2)):
        space, kernel = (5, 4, 6)[:dims], (tap,) * dims
        for kind, weight in (("conv", (6, 4 // groups)), ("conv_transpose", (4, 6 // groups))):
            function = getattr(F, f"{kind}{dims}d")
            found[f"{kind}{dims}d {tap} taps {groups} groups"] = conv(
                function, (3, 4, *space), (*weight, *kernel), (6,), groups=groups, padding=tap - 1, stride=tap
            )
    found["odd channels"] = conv(F.conv1d, (2, 3, 9), (5, 3, 1))
    found["channels last"] = conv(F.conv2d, (2, 4, 5, 5), (8, 4, 1, 1), (8,), form=torch.channels_last)
    found["depthwise"] = conv(F.conv2d, (2, 4, 5, 5), (4, 1, 3, 3), (4,), groups=4)
    found["one pixel"] = conv(F.conv2d, (1, 4, 1, 1), (8, 4, 1, 1), (8,))
    return found


OPS = {
    **convolutions(),
    "mm": (torch.mm, ((5, 7), (7, 3))),
    "mm of one row": (torch.mm, ((1, 8), (8, 3))),
    "bmm": (torch.bmm, ((2, 5, 8), (2, 8, 3))),
    "mv": (torch.mv, ((5, 8), (8,))),
    "dot": (torch.dot, ((301,), (301,))),
    "baddbmm": (torch.baddbmm, ((2, 5, 3), (2, 5, 8), (2, 8, 3))),
    "linear": (F.linear, ((5, 8), (6, 8), (6,))),
    "linear of odd features": (F.linear, ((5, 7), (6, 7), (6,))),
    "einsum": (lambda a, b: torch.einsum("bik,bjk->bij", a, b), ((2, 5, 8), (2, 4, 8))),
    "attention": (F.scaled_dot_product_attention, ((2, 2, 6, 8), (2, 2, 6, 8), (2, 2, 6, 8))),
    **{f"{name}": (getattr(torch, name), ((7, 301),)) for name in ("sum", "mean", "var", "norm", "exp", "tanh")},
    "sum of columns": (lambda x: x.sum(0), ((7, 301),)),
    "prod": (lambda x: x.prod(1), ((5, 9),)),
    "cumsum": (lambda x: x.cumsum(1), ((5, 300),)),
    "logsumexp": (lambda x: x.logsumexp(1), ((5, 300),)),
    "softmax": (lambda x: x.softmax(1), ((5, 301),)),
    "softmax of columns": (lambda x: x.softmax(0), ((5, 301),)),
    "log_softmax": (lambda x: x.log_softmax(1), ((5, 301),)),
    "gelu": (F.gelu, ((7, 301),)),
    "mul": (torch.mul, ((7, 301), (7, 301))),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), ((7, 301), (7, 301))),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (33,), w, b), ((5, 33), (33,), (33,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (33,), w), ((5, 33), (33,))),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((3, 4, 9), (4,), (4,))),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), ((6, 4, 9), (4,), (4,))),
    "instance_norm": (F.instance_norm, ((3, 4, 9),)),
    "mse_loss": (F.mse_loss, ((7, 31), (7, 31))),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 2), ((2, 3, 6, 6),)),
    "interpolate": (lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"), ((2, 3, 5, 5),)),
}  # fmt: skip
"""Functions with the shapes of their operands, of each family with kernels of ours."""


def with_gradients(call, tensors):
    """The bits of a call's result and of the gradients of all operands, from a slope that begins where the first operand does."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = call(*leaves)
    slope = moved(numbers(out.shape, out.dtype, 9), tensors[0].storage_offset())
    return of_value([out.detach(), *torch.autograd.grad(out, leaves, slope)])


QUICK = (
    "conv1d 1 taps 1 groups",
    "conv_transpose2d 1 taps 2 groups",
    "channels last",
    "linear of odd features",
)


@pytest.mark.parametrize("across", ["threads", "machines"])
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in OPS]
)
def test_an_op_reads_its_operands_at_any_place_of_memory(name, across):
    """From an odd element of its memory on, each operand gives the result and the gradients that its copy gives, in 16 bits and in 32."""
    call, shapes = OPS[name]
    with samebits.enable_op_determinism(across=across):
        for dtype in (*HALVES, torch.float32):
            plain = [numbers(shape, dtype, seed) for seed, shape in enumerate(shapes)]
            expected = with_gradients(call, plain)
            for offset in (1, 2, 3):
                found = with_gradients(call, [moved(x, offset) for x in plain])
                assert found == expected, (dtype, offset)
            if name != "instance_norm":  # negative control: other numbers are other bits
                assert with_gradients(call, [x + 1 for x in plain]) != expected


class Recurrent(nn.Module):
    """A layer, a cell, an attention and a normalisation: what has many parameters, and states."""

    def __init__(self, kind):
        super().__init__()
        self.layer, self.cell = getattr(nn, kind)(6, 4), getattr(nn, f"{kind}Cell")(4, 4)
        self.attention, self.norm = nn.MultiheadAttention(4, 2), nn.LayerNorm(4)

    def forward(self, x):
        made, _ = self.layer(x)
        state = self.cell(made[0])
        state = state[0] if isinstance(state, tuple) else state
        return self.norm(self.attention(made, made, made)[0] + state)


def in_one_buffer(model, offset):
    """The model with views of one flat tensor as parameters, as `vector_to_parameters` leaves them."""
    parameters = list(model.parameters())
    flat = torch.cat(
        [torch.zeros(offset, dtype=parameters[0].dtype), *(p.detach().flatten() for p in parameters)]
    )
    nn.utils.vector_to_parameters(flat[offset:], parameters)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("across", ["threads", "machines"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_a_model_in_one_flat_buffer_trains_to_the_same_bits(kind, across):
    """Recurrent layers and cells, attention and a norm, whose parameters begin at odd elements of a vector, end as with tensors of their own."""
    with samebits.enable_op_determinism(across=across):
        for dtype, fused in itertools.product((*HALVES, torch.float32), (False, True)):
            torch.manual_seed(1)
            model = Recurrent(kind).to(dtype)
            x, ends = numbers((5, 3, 6), dtype, 1), []
            flat = [in_one_buffer(copy.deepcopy(model), offset) for offset in (1, 2)]
            assert any(p.storage_offset() % 2 for p in flat[0].parameters())
            for one in (model, *flat):
                optimizer = torch.optim.AdamW(one.parameters(), lr=0.01, fused=fused)
                for at in (0, 1):
                    optimizer.zero_grad()
                    one(moved(x, at)).square().sum().backward()
                    optimizer.step()
                ends.append(of_value([p.detach().clone() for p in one.parameters()]))
            assert len(set(ends)) == 1, (dtype, fused)


def test_stochastic_rounding_writes_and_reads_any_place_of_memory():
    """An odd offset of source or parameter changes no bit of `stochastic_round` and of an optimizer that rounds."""
    x = numbers((3, 101), torch.float32, 1)
    key = samebits.random.key(1)
    expected = samebits.rounding.stochastic_round(x, torch.bfloat16, key=key)
    for offset in (1, 2, 3):
        assert of_value(
            samebits.rounding.stochastic_round(moved(x, offset), torch.bfloat16, key=key)
        ) == of_value(expected)
    ends = set()
    for offset in (0, 1, 3):
        parameter = moved(numbers((3, 101), torch.bfloat16, 2), offset).requires_grad_()
        samebits.set_random_seed(1)
        optimizer = optim.AdamW([parameter], lr=0.1)
        for _ in range(3):
            parameter.grad = moved(numbers((3, 101), torch.bfloat16, 3), offset)
            optimizer.step()
        ends.add(of_value(parameter.detach().clone()))
    assert len(ends) == 1


def test_pairs_are_a_view_where_torch_views_them():
    """`two_by_two` copies from an odd offset alone, where torch refuses the view."""
    x = torch.arange(9.0)
    assert two_by_two(x[2:8], torch.complex64).data_ptr() == x[2:].data_ptr()
    assert two_by_two(x[1:], torch.complex64).tolist() == [1 + 2j, 3 + 4j, 5 + 6j, 7 + 8j]
    with pytest.raises(RuntimeError, match="divisible by 2"):
        x[1:].view(torch.complex64)

"""Norms and optimizers on rows that lie on several ranks: the bits of whole tensors."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import samebits
from samebits import _digest as digest
from samebits.distributed._refusals import ELEMENTWISE

pytestmark = pytest.mark.usefixtures("one_thread")
SHAPES = (37, 48), (37,), (50, 31), (5, 7, 3, 3), (1,), (2, 900), (3, 70001)
"""Rows that 2, 3 and 4 ranks do not share evenly, and fewer rows than ranks."""
MODES = {
    **{name: (name, {}) for name in ELEMENTWISE},
    "SGD momentum": ("SGD", {"momentum": 0.9, "nesterov": True, "foreach": False}),
    "AdamW amsgrad": ("AdamW", {"amsgrad": True, "foreach": False}),
}
FUSED = {"AdamW fused": ("AdamW", {"fused": True})}


def place(tensor, *, as_rows):
    return (
        distribute_tensor(tensor, dist.init_device_mesh("cpu", (dist.get_world_size(),)), [Shard(0)])
        if as_rows
        else tensor
    )


def parameters(seed, shapes, *, as_rows):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for shape in shapes:
        value, gradient = (torch.randn(shape, generator=generator) for _ in range(2))
        made.append(nn.Parameter(place(value, as_rows=as_rows)))
        made[-1].grad = place(gradient, as_rows=as_rows)
    return made


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def norms(*, as_rows):
    """The norms, and the gradients that they have scaled."""
    found = []
    for norm_type in (2, 1, float("inf")):
        made = parameters(3, SHAPES, as_rows=as_rows)
        made[0].grad.mul_(1 if norm_type == 1 else 1e-3)
        norm = samebits.nn.utils.clip_grad_norm_(made, 1.0, norm_type)
        found.append((float(norm), digest.of_value([whole(one.grad) for one in made])))
    return found


def torch_norms(*, as_rows):
    return [
        float(
            whole(
                nn.utils.get_total_norm([one.grad for one in parameters(seed, SHAPES[:-1], as_rows=as_rows)])
            )
        )
        for seed in range(15)
    ]


def updated(modes, *, as_rows):
    """The digest of weights and state after three steps of each optimizer."""
    found = {}
    for mode, (name, options) in modes.items():
        made = parameters(5, ((5, 3), (1,), (7,), (2, 9), (31, 5)), as_rows=as_rows)
        optimizer = getattr(torch.optim, name)(made, **options)
        for _ in range(3):
            optimizer.step()
            for one in made:
                one.grad.mul_(-0.7)
        state = [{key: whole(value) for key, value in optimizer.state[one].items()} for one in made]
        found[mode] = digest.of_value([[whole(one.detach()) for one in made], state])
    return found


def of_rows():
    return (
        norms(as_rows=True),
        updated(MODES, as_rows=True),
        torch_norms(as_rows=True),
        updated(FUSED, as_rows=True),
    )


@pytest.mark.parametrize(
    "world_size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 4))]
)
def test_norms_and_updates_of_rows_have_the_bits_of_whole_tensors(world_size, ranks):
    """Norms of order 2, 1 and inf, clipped gradients, 12 modes of optimizers; control: torch's norm, fused AdamW."""
    expected, states = norms(as_rows=False), updated(MODES, as_rows=False)
    values, _ = ranks(world_size, of_rows)
    assert [value[:2] for value in values] == [(expected, states)] * world_size
    _, _, others, fused = values[0]
    assert (others != torch_norms(as_rows=False)) == (world_size > 1)
    assert (fused != updated(FUSED, as_rows=False)) == (world_size > 2)


def test_a_norm_is_that_of_float64():
    """The norm is correct to the last bit of float32, and gradients are scaled to it."""
    made = parameters(1, SHAPES, as_rows=False)
    exact = torch.cat([one.grad.double().flatten() for one in made]).norm()
    norm = samebits.nn.utils.clip_grad_norm_(iter(made), 2.0)
    assert norm == exact.float()
    assert norm.dtype is torch.float32
    after = torch.cat([one.grad.double().flatten() for one in made]).norm()
    assert abs(float(after) - 2) < 1e-5


def test_norms_of_odd_gradients():
    """None, a scalar, no rows, no columns, halves, channels_last; NaN raises on demand; other orders are refused."""
    made = [nn.Parameter(torch.zeros(shape)) for shape in ((), (0, 3), (3, 0), (2, 3, 4, 5), (4,))]
    for one in made[:4]:
        one.grad = torch.ones_like(one)
    made[3].grad = made[3].grad.contiguous(memory_format=torch.channels_last)
    half = nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    half.grad = torch.ones_like(half)
    assert float(samebits.nn.utils.clip_grad_norm_([*made, half], 1e9)) == pytest.approx(124**0.5, rel=1e-7)
    assert float(samebits.nn.utils.clip_grad_norm_([], 1.0)) == 0
    half.grad[0] = float("nan")
    assert samebits.nn.utils.clip_grad_norm_(half, 1.0).isnan()
    with pytest.raises(samebits.errors.InvalidArgumentError, match="norm is nan"):
        samebits.nn.utils.clip_grad_norm_(half, 1.0, error_if_nonfinite=True)
    with pytest.raises(samebits.errors.UnimplementedError, match="2, 1 or inf"):
        samebits.nn.utils.clip_grad_norm_(made, 1.0, 3)

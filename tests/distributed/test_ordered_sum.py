"""`OrderedSum`: the gradients of shards, added in their order on any ranks, are those of plain accumulation, bit for bit."""

import random

import pytest
import torch
import torch.distributed as dist

from samebits.distributed import _ordered_sum as module
from samebits.distributed._gloo_messages import GlooGroup
from samebits.distributed._ordered_sum import OrderedSum
from samebits.errors import InvalidArgumentError

pytestmark = pytest.mark.usefixtures("one_thread")
ODD = [0.0, -0.0, float("inf"), float("nan"), 1e-45, -1e38, 3.4e38, 1e-8]
SHAPES = [(1,), (), (2, 3), (5, 7), (40,), (3, 4, 2, 2)]


def case(seed):
    """Parameters of several types and layouts; of each shard, the gradients of each backward (None: unused)."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    parameters = []
    for shape in draw.choices(SHAPES, k=draw.randint(1, 6)):
        dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float64, torch.complex64])
        value = torch.zeros(shape, dtype=dtype)
        if value.dim() == 4:
            value = value.to(memory_format=torch.channels_last)
        elif value.dim() == 2 and draw.random() < 0.5:
            value = value.T.contiguous().T
        parameters.append(torch.nn.Parameter(value))
    shards = draw.randint(2, 7)

    def gradient(parameter):
        made = torch.randn(parameter.shape, generator=generator) * 10.0 ** draw.randint(-6, 6)
        flat = made.reshape(-1)
        # torch adds complex numbers by way of a product, which makes (nan + 0j) + 0j to (nan + nanj)
        for _ in range(0 if parameter.is_complex() else draw.randint(0, 2)):
            flat[draw.randrange(len(flat))] = draw.choice(ODD)
        return made.to(parameter.dtype)

    started = [gradient(p) if draw.random() < 0.3 else None for p in parameters]
    backwards = draw.choice([1, 1, 2])
    unused = [draw.random() < 0.2 for _ in parameters]
    of_shards = [
        [
            [
                None if unused[number] or draw.random() < 0.25 else gradient(p)
                for number, p in enumerate(parameters)
            ]
            for _ in range(draw.randint(0, backwards))
        ]
        for _ in range(shards)
    ]
    return parameters, started, of_shards


def accumulate(parameters, gradients):
    """One backward that gives each parameter its gradient."""
    used = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None]
    if used:
        torch.autograd.backward([p for p, _ in used], [g for _, g in used])


def begin(parameters, started):
    for parameter, gradient in zip(parameters, started, strict=True):
        parameter.grad = None if gradient is None else torch.empty_like(parameter).copy_(gradient)


def result(parameters):
    """The bits and strides of all gradients; a NaN is one NaN: the sign of inf - inf follows torch's vectors."""
    return [None if p.grad is None else (p.grad.stride(), bits(p.grad)) for p in parameters]


def bits(gradient):
    parts = torch.view_as_real(gradient) if gradient.is_complex() else gradient
    flat = parts.contiguous().reshape(-1).clone()
    flat[flat.isnan()] = float("nan")
    return flat.view(torch.uint8).tolist()


def plain(seed):
    parameters, started, of_shards = case(seed)
    begin(parameters, started)
    for backwards in of_shards:
        for gradients in backwards:
            accumulate(parameters, gradients)
    return result(parameters)


def summed(total, seed, passes):
    """What the ranks end with, in each of several passes over equal shards."""
    parameters, started, of_shards = case(seed)
    total._shards = len(of_shards)
    total.set_parameters([(str(number), p) for number, p in enumerate(parameters)])
    found = []
    for _ in range(passes):
        begin(parameters, started)
        total.begin_pass(0)
        for shard in range(total.rank, len(of_shards), total.world_size):
            total.begin_round()
            total.in_shard = True
            for gradients in of_shards[shard]:
                accumulate(parameters, gradients)
            total.end_round()
        total.end_pass([])
        found.append(result(parameters))
    return found


def all_cases(seeds, bucket):
    module.BUCKET = bucket
    total = OrderedSum(GlooGroup(), 1)
    return [summed(total, seed, 2) for seed in seeds]


@pytest.mark.parametrize("world_size", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bucket", [64, pytest.param(1 << 20, marks=pytest.mark.slow)])
def test_the_sum_is_plain_accumulation_bit_for_bit(world_size, bucket, ranks):
    """Unused parameters, odd numbers, existing gradients, several backwards, layouts, types; two passes each."""
    seeds = range(60)
    values, _ = ranks(world_size, all_cases, seeds, bucket)
    expected = [[plain(seed)] * 2 for seed in seeds]
    for of_rank in values:
        for seed, (found, wanted) in enumerate(zip(of_rank, expected, strict=True)):
            assert found == wanted, seed


def partial_sums(seeds):
    """Each rank adds its own shards, and the ranks add up: what most programs do."""
    found = []
    for seed in seeds:
        parameters, started, of_shards = case(seed)
        begin(parameters, started if dist.get_rank() == 0 else [None] * len(started))
        for shard in range(dist.get_rank(), len(of_shards), dist.get_world_size()):
            for gradients in of_shards[shard]:
                accumulate(parameters, gradients)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(torch.view_as_real(parameter.grad) if parameter.is_complex() else parameter.grad)
        found.append(result(parameters))
    return found


def test_control_sums_of_ranks_differ(ranks):
    """Added in another order, most cases have other bits: the test above can fail."""
    seeds = range(60)
    values, _ = ranks(2, partial_sums, seeds)
    assert sum(plain(seed) != found for seed, found in zip(seeds, values[0], strict=True)) > 20


def test_owners_of_a_round_may_change():
    """A shard's gradient has its place by its number: pieces that come from other ranks give the same bits."""
    parameter = torch.nn.Parameter(torch.zeros(8))
    buckets = [module._buckets([("p", parameter)], 2)[0] for _ in range(2)]
    parts = torch.randn(6, buckets[0].piece, generator=torch.Generator().manual_seed(1)) * 1e3
    for first in range(0, 6, 3):  # three ranks
        buckets[0].add(parts[first : first + 3])
    for first in range(0, 6, 2):  # two
        buckets[1].add(parts[first : first + 2])
    assert torch.equal(buckets[0].total, buckets[1].total)
    assert not torch.equal(buckets[0].total, parts[::2].sum(0) + parts[1::2].sum(0))


def one_backward_more():
    """Once in each shard of the first step, twice in one of the second."""
    parameter = torch.nn.Parameter(torch.ones(4))
    total = OrderedSum(GlooGroup(), 2)
    total.set_parameters([("net.weight", parameter)])
    for step in range(2):
        total.begin_pass(0)
        total.begin_round()
        total.in_shard = True
        for _ in range(1 + (step == 1 and dist.get_rank() == 1)):
            parameter.sum().backward()
        total.end_round()
        try:
            total.end_pass([])
        except InvalidArgumentError as error:
            return step, str(error)
    return None


def test_another_number_of_backwards_raises_on_all_ranks(ranks):
    """The gradients of the first backward are added already: all ranks raise, and say what to write."""
    values, _ = ranks(2, one_backward_more)
    assert [step for step, _ in values] == [1, 1]
    assert "(loss_a + loss_b).backward()" in values[0][1]

"""The numbers of a key on a GPU: those of the CPU in every bit, and those of torch's own kernels of the same streams."""

import pytest
import torch
from random_cases import DRAWS, KEYS, key_of, same_bits

import samebits.random as sr
from samebits.random._backends import kernels

if not torch.cuda.is_available():
    pytest.skip("no CUDA device: torch.cuda.is_available() is False", allow_module_level=True)

BOUNDS = [(0.0, 1.0), (1.5, 5.2), (-3.0, 7.0)]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("name", DRAWS)
def test_a_gpu_draws_the_bits_of_the_cpu(name, kind):
    """Every function gives the same bits from a key on the CPU and on the GPU, and on the GPU again."""
    batch, shape = KEYS[kind]
    expected, key = DRAWS[name](key_of(batch), shape), key_of(batch).cuda()
    drawn = DRAWS[name](key, shape)
    assert drawn.is_cuda and same_bits(drawn.cpu(), expected)
    assert same_bits(DRAWS[name](key, shape), drawn)


def test_a_key_that_differs_in_one_bit_draws_others():
    """Negative control: the comparison sees another key."""
    key, other = sr.key(3, device="cuda"), sr.key(2)
    assert not same_bits(sr.normal(key, 100).cpu(), sr.normal(other, 100))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_uniform_is_torchs(dtype):
    """Our uniform numbers on the GPU are those of aten::_philox_uniform_, for one key and for a batch."""
    for (batch, shape), (low, high) in ((given, bounds) for given in KEYS.values() for bounds in BOUNDS):
        key = key_of(batch).cuda()
        theirs, ours = torch.empty(2, *shape, dtype=dtype, device="cuda")
        torch.ops.aten._philox_uniform_(theirs, key, low, high)
        bounds = torch.tensor([low, high], dtype=torch.float64).to(dtype)
        kernels("uniform", key).uniform(
            key.view(-1, 2), bounds[0].item(), (bounds[1] - bounds[0]).item(), ours
        )
        assert same_bits(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_is_near_torchs(dtype):
    """Our normal numbers on the GPU are within 2**-20 of aten::_philox_normal_, of numbers up to 7."""
    key = sr.key(5, device="cuda")
    theirs = torch.ops.aten._philox_normal_(torch.empty(100_000, dtype=dtype, device="cuda"), key)
    assert (sr.normal(key, 100_000, dtype=dtype) - theirs).abs().max() <= 2.0**-20 * 7


def test_split_and_fold_in_are_torchs():
    """Keys made on the CPU are those of aten::_philox_key_split and aten::_philox_key_fold_in."""
    keys = key_of((33,))
    assert same_bits(torch.ops.aten._philox_key_split(keys.cuda(), 5).cpu(), sr.split(keys, 5))
    for data in (0, 1, 2**40, 2**63 - 1):
        assert same_bits(torch.ops.aten._philox_key_fold_in(keys.cuda(), data).cpu(), sr.fold_in(keys, data))


def test_more_than_two_to_the_31_numbers():
    """Element i of a tensor of more than 2**32 numbers is what a key moved on by i / 16 blocks begins with."""
    number = 2**32 + 48
    if torch.cuda.mem_get_info()[0] < number + 2**30:
        pytest.skip("less than 5 GiB of free GPU memory")
    key = sr.key(7, device="cuda")
    drawn = sr.bits(key, number, dtype=torch.uint8)
    for start in (0, 2**31 - 16, 2**31, 2**32 - 16, 2**32):
        moved = torch.tensor([7, start // 16], dtype=torch.uint64)
        assert same_bits(drawn[start : start + 48].cpu(), sr.bits(moved, 48, dtype=torch.uint8))

"""The part `rounding` of the self-check, without a GPU: its plan, its judges on what is really wrong, fake CUDA tensors."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from samebits.rounding import _stochastic_round as device_kernels
from samebits.rounding._cpu.number_formats import FORMATS
from samebits.rounding.optim import _streams
from samebits.selfcheck import parts
from samebits.selfcheck.case import Target
from samebits.selfcheck.parts.rounding import lowered, numbers, optimizers, speed

SMALL = Target("cpu", small=True)


@pytest.fixture(scope="module")
def cases():
    return {case.name: case for case in parts.part_named("rounding").cases()}


def wrong(case):
    return list(case.judge(case.measure(SMALL).results))


def test_every_dtype_has_its_cases(cases):
    """All dtypes that are rounded to are tried."""
    assert {*numbers.DTYPES.values()} == {*FORMATS}
    assert all(f"to {name}" in cases and f"the mean of {name}" in cases for name in numbers.DTYPES)


@pytest.mark.parametrize("name", [*(f"to {name}" for name in numbers.DTYPES), "the mean of bfloat16"])
def test_the_sizes_of_a_gpu_are_rounded(cases, name):
    """The sizes that a GPU is to round, of which a rehearsal takes the small ones only."""
    measured = cases[name].measure(Target("cpu"))
    assert not list(cases[name].judge(measured.results))


class ToNearest:
    """A kernel that takes no notice of its key, every second time."""

    def __init__(self, kernels):
        self.kernels, self.calls = kernels, itertools.count()

    def stochastic_round(self, key, given, out):
        if next(self.calls) % 2:
            out.copy_(given)
        else:
            self.kernels.stochastic_round(key, given, out)


@pytest.mark.parametrize("name", numbers.DTYPES)
def test_a_kernel_that_rounds_to_nearest_is_seen(cases, monkeypatch, name):
    """In the bits, and in the mean: numbers that are always rounded the same way are biased."""
    monkeypatch.setattr(device_kernels, "_CPU", ToNearest(device_kernels._CPU))
    found = wrong(cases[f"to {name}"])
    assert any(line.startswith("normal numbers: the GPU") for line in found)
    assert any("standard deviations" in line for line in wrong(cases[f"the mean of {name}"]))


@pytest.mark.parametrize("name", ["the optimizers again, and resumed", "the optimizers with other keys"])
def test_noise_that_does_not_repeat_is_seen(cases, monkeypatch, name):
    """Keys that follow a count of calls: weights differ the next time, those of float32 do not."""
    own, calls = _streams.keys, itertools.count()
    monkeypatch.setattr(_streams, "keys", lambda base, step, *place: own(base, 1000 + next(calls), *place))
    found = wrong(cases[name])
    assert found and not any("float32:" in line for line in found)


def test_shards_that_share_their_noise_are_seen(cases, monkeypatch):
    """Keys that forget the shard, as those of optimizers that know only the step and the name."""
    own = _streams.keys
    monkeypatch.setattr(
        _streams, "keys", lambda base, step, name, shard, number: own(base, step, name, (), number)
    )
    found = wrong(cases["the optimizers with other keys"])
    assert len(found) == 4 and all("another shard" in line or "another dimension" in line for line in found)


@pytest.mark.slow
def test_a_fresh_process_trains_the_same_weights(cases):
    """A process of its own gives the digests of this one, on the CPU too."""
    case = cases["the optimizers in a fresh process"]
    results = optimizers._fresh(SMALL).results
    assert not list(case.judge(results)) and set(results) == set(case.example)


def test_a_lowered_step_is_measured(cases):
    """Captured, it is the plain step; rounded, it gives the same bits again; with another seed it would not."""
    case = cases["a lowered step"]
    results = lowered._lowered(SMALL).results
    assert not list(case.judge(results)) and set(results) == set(case.example)
    plain, rounded = results["the captured step"]["plain"], results["every op rounded"]["once"]
    assert list(case.judge({**results, "every op rounded": {"once": rounded, "again": plain}}))


def test_timed_calls_stay_on_the_gpu():
    """On fake CUDA tensors both calls of a row give as many numbers of one dtype on the GPU."""
    with FakeTensorMode():
        for name, (ours, theirs) in speed._casts(1024, "cuda").items():
            one, other = ours(), theirs()
            assert one.is_cuda and (one.shape, one.dtype, one.device) == (
                other.shape,
                other.dtype,
                other.device,
            ), name


def test_the_ratio_of_a_lowered_step_is_measured(cases):
    """The case that takes a rehearsal too long is measured, small."""
    measured = cases["a lowered step, times the captured"].measure(SMALL)
    assert measured.results == {"timed": 1} and measured.figures["times"] > 0
    assert cases["ns per weight of a step, torchao"].needs == ("torchao",)
    assert torch.is_tensor(numbers.special())

"""Stochastic rounding on a GPU: the kernels' bits, the optimizers for 16-bit weights, a lowered step, and their cost."""

import copy
import itertools
import json
import math
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from agreement import agree, codes, equal, expected
from rounding_reference import DTYPES, inputs, special
from samebits import _digest as digest
from samebits import random, replica, rounding
from samebits.random._process import generator_states
from samebits.rounding import _stochastic_round as device_kernels
from samebits.rounding import optim, stochastic_round
from samebits.rounding._cpu.number_formats import FORMATS
from samebits.rounding.optim import _streams
from samebits.rounding.optim._update import ParameterUpdate, update

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
FAR = 5.0
"""Standard deviations that a share may be off: chance alone takes it further once in 1.7 million."""


def key_of(seed, offset=0):
    return torch.tensor([seed, offset], dtype=torch.uint64, device="cpu")


def rounded(target, dtype):
    x, wrapping = inputs(dtype, 2_000 if target.small else 200_000), key_of(2**64 - 1, 2**64 - 100)
    given = {
        "numbers of every size": x,
        "what is special": special(),
        "normal numbers": random.normal(key_of(4), 1000 if target.small else 1 << 20),
        "not contiguous": random.normal(key_of(5), 33, 70).t()[:, ::2],
        "of bfloat16": random.normal(key_of(6), 1001).bfloat16(),
        "of float16": random.normal(key_of(6), 1001).half(),
        **{f"{size} numbers": x[:size].clone() for size in (1, 3, 7, 1023, 4097, 65_539) if size <= len(x)},
    }
    results = {}
    for name, one in given.items():
        there, key = one.to(target.device), wrapping.to(target.device)
        apart = torch.empty(*one.shape, 2, dtype=dtype, device=target.device)[..., 0]
        results[name] = {
            "the CPU": codes(stochastic_round(one, dtype, wrapping)),
            "the GPU": codes(stochastic_round(there, dtype, key)),
            "the GPU again": codes(stochastic_round(there, dtype, key)),
            "the GPU, out=": codes(stochastic_round(there, dtype, key, out=apart)),
        }

    def gradient(device):
        x = random.normal(key_of(7), 1001).to(device).requires_grad_()
        y = stochastic_round(x, dtype, key_of(8).to(device))
        return torch.autograd.grad(y.float().square().sum(), x)[0].cpu()

    return {**results, "gradient": {"the CPU": gradient("cpu"), "the GPU": gradient(target.device)}}


def mean_of(target, dtype):
    """The distance of the share that is rounded up from its probability, in standard deviations."""
    count, key, results = 1 << (12 if target.small else 22), key_of(9).to(target.device), {}
    step = torch.finfo(dtype).eps
    for number, part in enumerate((0.001, 0.3, 0.5, 0.97)):
        x = torch.tensor(1 + part * step, dtype=F32)
        chance = (x.item() - 1) / step
        y = stochastic_round(x.to(target.device).expand(count), dtype, random.fold_in(key, number))
        far = int((y.float() > 1).sum()) - count * chance
        results[f"{part} of a step"] = far / math.sqrt(count * chance * (1 - chance))
    target.figures.update(results)
    return results


def unbiased(results):
    for name, far in results.items():
        if not abs(far) < FAR:
            yield f"{name}: the share that was rounded up is {far:.1f} standard deviations from its chance"


@pytest.mark.limit(120)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rounding_has_the_bits_of_the_cpu(target, dtype):
    """Numbers of every size, special ones, any strides, `out=` and the gradient; and the same bits again."""
    target.check(agree, rounded, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_mean_is_the_number_that_was_rounded(target, dtype):
    """The share that is rounded up is near its probability."""
    target.check(unbiased, mean_of, dtype)


# --- optimizers for 16-bit weights; a GPU's bits are not promised to be a CPU's: whether they agree is a figure ---

STEPS = 6
VARIANTS = {
    "AdamW bfloat16": (BF16, partial(optim.AdamW, lr=1e-2)),
    "AdamW float16": (F16, partial(optim.AdamW, lr=1e-2, maximize=True)),
    "AdamW, state of bfloat16": (BF16, partial(optim.AdamW, lr=1e-2, state_dtype=BF16)),
    "AdamW, amsgrad": (BF16, partial(optim.AdamW, lr=1e-2, amsgrad=True)),
    "AdamW float32": (F32, partial(optim.AdamW, lr=1e-2)),
    "SGD bfloat16": (BF16, partial(optim.SGD, lr=1e-2)),
    "SGD, momentum": (BF16, partial(optim.SGD, lr=1e-2, momentum=0.9, weight_decay=0.1)),
    "SGD, Nesterov float16": (F16, partial(optim.SGD, lr=1e-2, momentum=0.9, nesterov=True)),
    "SGD, state of bfloat16": (BF16, partial(optim.SGD, lr=1e-2, momentum=0.9, state_dtype=BF16)),
}


def _parameters(dtype, device):
    shapes, key = ((1001,), (33, 17), (3,), (2, 3, 5)), random.key(21, device="cpu")
    drawn = (random.normal(random.fold_in(key, n), shape) for n, shape in enumerate(shapes))
    return [(f"w{n}", torch.nn.Parameter(x.to(device, dtype))) for n, x in enumerate(drawn)]


def _train(named, optimizer, steps):
    """Trains with gradients that are a function of the step, made on the CPU."""
    for step in steps:
        for number, (_, weight) in enumerate(named):
            key = random.fold_in(random.key(22, device="cpu"), (step, number))
            weight.grad = random.normal(key, weight.shape, std=0.1).to(weight.device, weight.dtype)
        optimizer.step()


def _trained(name, device, resumed=False):
    """Weights and state at the end; `resumed`: in new objects that continued from a `state_dict` half-way."""
    dtype, make = VARIANTS[name]
    named = _parameters(dtype, device)
    optimizer = make(named)
    _train(named, optimizer, range(STEPS // 2))
    if resumed:
        state = copy.deepcopy(optimizer.state_dict())
        named = [(name, torch.nn.Parameter(weight.detach().clone())) for name, weight in named]
        optimizer = make(named)
        optimizer.load_state_dict(state)
    _train(named, optimizer, range(STEPS // 2, STEPS))
    states = [value for _, weight in named for _, value in sorted(optimizer.state[weight].items())]
    held = [*(weight.detach() for _, weight in named), *states]
    return [one.cpu() for one in held if isinstance(one, torch.Tensor)]


def _seeded(work):
    """Runs `work` with random numbers from the seed of the process, which stays as it was."""
    with generator_states.preserve_states():
        random.set_random_seed(5)
        return work()


def trained_again(target):
    ways = {"once": {}, "again": {}, "resumed": {"resumed": True}}
    results = _seeded(
        lambda: {
            name: {way: _trained(name, target.device, **given) for way, given in ways.items()}
            for name in VARIANTS
        }
    )
    on_cpu = _seeded(lambda: {name: _trained(name, "cpu") for name in VARIANTS})
    for name in VARIANTS:
        same = equal(results[name]["once"], on_cpu[name])
        target.figures[f"{name}: the CPU's bits"] = "yes" if same else "no"
    return results


NUMBERS = {"AdamW": (1e-2, 0.9, 0.999, 1e-8, 0.0, 0.0), "SGD": (1.0, 1e-2, 0.9, 0.0, 0.0, 0.0, 0.0)}
"""The numbers of each rule's update."""


def trained_elsewhere(target, places):
    """For each place, True if its noise is that of the first one, at the same gradient and state."""

    def stepped(rule, before, name, shard):
        weight = _parameters(BF16, target.device)[0][1].detach()
        state = [torch.zeros_like(weight, dtype=F32) for _ in range(2 if rule == "AdamW" else 1)]
        given = [weight, weight * 0.1, *state], torch.tensor(before + 1), (name, shard), NUMBERS[rule]
        update(rule, [ParameterUpdate(*given)], (7, 8))
        return weight.cpu()

    found = {}
    for rule in NUMBERS:
        first = stepped(rule, *places["itself again"])
        found |= {f"{rule}, {name}": equal(stepped(rule, *place), first) for name, place in places.items()}
    return found


def digests(device):
    """The digests of the final weights and state of each variant."""
    trained = _seeded(lambda: {name: _trained(name, device) for name in VARIANTS})
    return {name: digest.of_value(held) for name, held in trained.items()}


def trained_in_a_process(target):
    code = "import json, sys, test_rounding; print(json.dumps(test_rounding.digests(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]}; {code}", target.device],
        check=True, stdout=subprocess.PIPE, text=True, timeout=100,
    )  # fmt: skip
    there, own = json.loads(done.stdout.splitlines()[-1]), digests(target.device)
    return {name: {"this process": own[name], "another": there[name]} for name in own}


@pytest.mark.slow
@pytest.mark.limit(120)
@pytest.mark.parametrize("measure", [trained_again, trained_in_a_process])
def test_optimizers_repeat_their_weights(target, measure):
    """Weights and state are the same again, in new objects that resume, and in a fresh process."""
    both = {name: {"this process": "a", "another": "a"} for name in VARIANTS}
    target.check(agree, measure, example=both if measure is trained_in_a_process else None)


PLACES = {
    "itself again": (0, "w", (0, 0)),
    "another shard": (0, "w", (0, 1)),
    "another dimension of the mesh": (0, "w", (1, 0)),
    "another name": (0, "v", (0, 0)),
    "another step": (1, "w", (0, 0)),
}
"""(steps before, name, coordinates of the shard) of a weight that is compared with the first one."""
SAME = {f"{rule}, {name}": name == "itself again" for rule in NUMBERS for name in PLACES}


def test_optimizers_with_other_keys_round_otherwise(target):
    """Replicas round alike; another shard, name or step has other noise."""
    target.check(expected(**SAME), trained_elsewhere, PLACES)


# --- a training step in bfloat16, captured and lowered ---


def train(model, optimizer, x, y):
    loss = F.cross_entropy(model(x).float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def arguments(width, batch, device):
    """The arguments of `train`: a model in bfloat16, AdamW with state, and a batch; the same ones each time."""
    with generator_states.preserve_states():
        torch.manual_seed(3)
        layers = torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.ReLU()
        model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).to(BF16)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    key = random.key(2, device="cpu")
    x = random.normal(key, batch, width).to(device, BF16)
    y = random.randint(random.fold_in(key, 1), batch, high=10).to(device)
    train(model, optimizer, x, y)
    return model, optimizer, x, y


def lower(args, rounded):
    """The step captured with these arguments, as it is or with every op rounded."""
    captured = replica.capture(train, *args, world_size=1)
    if not rounded:
        return rounding.lower(captured, rounding=False)
    rounding.assign_methods(captured, replica.analyze(captured))
    return rounding.lower(captured, seed=1)


def lowered(target):
    size = (16, 8) if target.small else (256, 64)

    def ran(step):
        given = arguments(*size, target.device)
        losses = [step(*given).cpu() for _ in range(3)]
        return losses + [weight.detach().cpu() for weight in given[0].parameters()]

    plain, once, again = (ran(lower(arguments(*size, target.device), one)) for one in (False, True, True))
    return {
        "the captured step": {"plain": ran(train), "lowered": plain},
        "every op rounded": {"once": once, "again": again},
    }


@pytest.mark.limit(120)
def test_a_lowered_step_repeats(target):
    """Captured and lowered, it is the plain step; with every op rounded, it gives the same bits again."""
    target.check(agree, lowered)


# --- speed: against torch's cast and optimizers, torchao's way in torch's ops, and torchao, if installed ---


def _of_bits(x):
    """Rounds as torchao does, in torch's ops: 16 random bits added to those of the float32, the lower half cut off."""
    bits = x.view(torch.int32) + torch.randint(0, 1 << 16, x.shape, dtype=torch.int32, device=x.device)
    return (bits & -65536).view(F32).bfloat16()


def casts(count, device):
    x, key = torch.randn(count, device=device), random.key(1, device=device)

    def row(dtype, theirs=None):
        return lambda: stochastic_round(x, dtype, key), theirs or (lambda: x.to(dtype))

    own = {"bfloat16, torchao's way": row(BF16, lambda: _of_bits(x))}
    return own | {f"{dtype}, torch's cast": row(dtype) for dtype in DTYPES}


def _stepper(make, shapes, device):
    weights = [torch.nn.Parameter(torch.randn(size, device=device).to(BF16)) for size in shapes]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, device=device).to(BF16)
    return make(weights).step


def steps(count, device):
    def row(ours, theirs, shapes):
        return _stepper(ours, shapes, device), _stepper(theirs, shapes, device)

    whole, parts = [count], [max(1, count // 256)] * 256
    fused = partial(torch.optim.AdamW, fused=True)
    sgd = partial(torch.optim.SGD, momentum=0.9, fused=True)
    return {
        "AdamW, torch's fused": row(optim.AdamW, fused, whole),
        "AdamW, torch's foreach": row(optim.AdamW, partial(torch.optim.AdamW, foreach=True), whole),
        "AdamW with bfloat16 state, torch's fused": row(partial(optim.AdamW, state_dtype=BF16), fused, whole),
        "AdamW of 256 weights, torch's fused": row(optim.AdamW, fused, parts),
        "SGD with momentum, torch's fused": row(partial(optim.SGD, momentum=0.9), sgd, whole),
    }


def torchao_casts(count, device):
    x, key = torch.randn(count, device=device), random.key(1, device=device)
    rounds = torch.compile(import_module("torchao.optim.quant_utils")._fp32_to_bf16_sr)
    return {"bfloat16, torchao's compiled": (lambda: stochastic_round(x, BF16, key), lambda: rounds(x))}


def torchao_steps(count, device):
    theirs = partial(import_module("torchao.optim")._AdamW, bf16_stochastic_round=True)
    ours = partial(optim.AdamW, state_dtype=BF16)
    pair = _stepper(ours, [count], device), _stepper(theirs, [count], device)
    return {"AdamW with bfloat16 state, torchao's": pair}


@pytest.mark.limit(150)
@pytest.mark.parametrize("rows", [casts, steps, torchao_casts, torchao_steps])
def test_the_times_of_rounding(target, rows):
    """Nanoseconds per number, or per weight of a step, against theirs; to be as fast is a goal."""
    if "torchao" in rows.__name__:
        pytest.importorskip("torchao")
    count = 1 << (10 if target.small else 26 if "casts" in rows.__name__ else 24)
    _seeded(lambda: target.time(rows(count, target.device).items(), count))
    assert target.figures


@pytest.mark.limit(150)
def test_the_time_of_a_lowered_step(target):
    """A step with every op rounded takes its microseconds, against the captured one."""
    given = arguments(*((16, 8) if target.small else (512, 128)), target.device)
    plain, own = lower(given, False), lower(given, True)
    target.time([("lowered, us", (lambda: own(*given), lambda: plain(*given)))], 1000, goal=False)


# --- controls, on the CPU ---


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_sizes_of_a_gpu_are_rounded(small, dtype):
    """All dtypes that are rounded to are tried, in the sizes that a GPU rounds; a rehearsal takes the small ones only."""
    small.small = False
    assert {*DTYPES} == {*FORMATS} and not list(agree(rounded(small, dtype)))
    assert dtype != BF16 or not list(unbiased(mean_of(small, dtype)))


class ToNearest:
    """A kernel that takes no notice of its key, every second time."""

    def __init__(self, kernels):
        self.kernels, self.calls = kernels, itertools.count()

    def stochastic_round(self, key, given, out):
        if next(self.calls) % 2:
            out.copy_(given)
        else:
            self.kernels.stochastic_round(key, given, out)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_kernel_that_rounds_to_nearest_is_seen(small, monkeypatch, dtype):
    """In the bits, and in the mean: numbers that are always rounded the same way are biased."""
    monkeypatch.setattr(device_kernels, "_CPU", ToNearest(device_kernels._CPU))
    assert any(line.startswith("normal numbers: the GPU") for line in agree(rounded(small, dtype)))
    assert any("standard deviations" in line for line in unbiased(mean_of(small, dtype)))


def test_noise_that_does_not_repeat_is_seen(small, monkeypatch):
    """Keys that follow a count of calls: weights differ the next time, those of float32 do not."""
    own, calls = _streams.keys, itertools.count()
    monkeypatch.setattr(_streams, "keys", lambda base, step, *place: own(base, 1000 + next(calls), *place))
    found = list(agree(trained_again(small)))
    assert found and not any("float32:" in line for line in found)
    assert list(expected(**SAME)(trained_elsewhere(small, PLACES)))


def test_shards_that_share_their_noise_are_seen(small, monkeypatch):
    """Keys that forget the shard, as those of optimizers that know only the step and the name."""
    own = _streams.keys
    forget = lambda base, step, name, shard, number: own(base, step, name, (), number)
    monkeypatch.setattr(_streams, "keys", forget)
    found = list(expected(**SAME)(trained_elsewhere(small, PLACES)))
    assert len(found) == 4 and all("another shard" in line or "another dimension" in line for line in found)


@pytest.mark.slow
def test_a_fresh_process_trains_the_same_weights(small):
    """A process of its own gives the digests of this one, on the CPU too."""
    results = trained_in_a_process(small)
    assert not list(agree(results)) and set(results) == set(VARIANTS)


def test_timed_casts_stay_on_the_gpu():
    """On fake CUDA tensors both calls of a row give as many numbers of one dtype on the GPU."""
    with FakeTensorMode():
        for name, calls in casts(1024, "cuda").items():
            one, other = ((x.is_cuda, x.shape, x.dtype) for x in (call() for call in calls))
            assert one == other and one[0], name

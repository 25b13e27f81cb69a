"""Random numbers: every function of samebits.random has on the GPU the bits of the CPU, and takes as long as torch's."""

import inspect
from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import samebits
from agreement import agree, equal, expected
from random_draws import DRAWS, FLOATING, KEYS, key_of, numbers
from samebits import nn, random
from samebits._objects import rng_states
from samebits.nn import OwnsRandomness
from samebits.random import _device_kernels as device_kernels
from samebits.random._process import draw_counts, generator_states
from samebits.random._triton import launchers
from timing import capture_graph

MANY = 1 << 20
SIZES, FEW_SIZES = (3, 7, 1023, 4097, 65_539, MANY), (3, 7)
"""Numbers of one key: odd sizes end within a block, a thread's vector and a program. One number takes code of its own, so
it is drawn once for each function."""
WITHOUT_SIZE = {"split", "fold_in", "permutation", "permute_index"}
LARGE = {
    "permutation": {
        "of 2**20 numbers": random.permutation,
        "of 2**20 + 7 numbers": lambda key, n: random.permutation(key, n + 7),
        "of the rows of a tensor": lambda key, n: random.permutation(
            key, torch.arange(2 * n, device=key.device).view(n, 2)
        ),
    },
    "choice": {
        "a million of 10**12": lambda key, n: random.choice(key, 10**12, n, replace=False),
        "weighted, of 2**20": lambda key, n: random.choice(
            key, n, n, weights=torch.arange(n, dtype=torch.float64, device=key.device)
        ),
    },
}
"""By function, of (key, number): what `DRAWS` has in small sizes only, since Triton's interpreter runs it too."""
BY_FUNCTION = {}
for _name in DRAWS:
    BY_FUNCTION.setdefault(_name.split()[0], []).append(_name)


def drawn(target, function):
    results, names = {}, BY_FUNCTION[function]
    for name in names:
        for kind, (batch, shape) in KEYS.items():
            results[f"{name}, {kind}"] = compared(DRAWS[name], key_of(batch), shape, target)
        if function not in WITHOUT_SIZE:
            sizes = FEW_SIZES if target.small else SIZES
            draw_each = lambda key, sizes, draw=DRAWS[name]: [draw(key, (size,)) for size in sizes]
            sizes = (1, *sizes) if name == names[0] else sizes
            results[f"{name}, sizes"] = compared(draw_each, key_of(()), sizes, target)
    for name, draw in LARGE.get(function, {}).items():
        results[f"{function} {name}"] = compared(draw, key_of(()), 1000 if target.small else MANY, target)
    return results


def compared(draw, key, shape, target):
    there = key.to(target.device)
    return {
        "the CPU": draw(key, shape),
        "the GPU": here(draw(there, shape), target),
        "the GPU again": here(draw(there, shape), target),
    }


def here(drawn, target):
    """The numbers on the CPU; raises if they were drawn on another device than the key's."""
    if isinstance(drawn, list):
        return [here(each, target) for each in drawn]
    if drawn.device.type != torch.device(target.device).type:
        raise AssertionError(f"the key is on {target.device}, and the result on {drawn.device}")
    return drawn.cpu()


@pytest.mark.limit(200)
@pytest.mark.parametrize("function", BY_FUNCTION)
def test_a_function_draws_the_bits_of_the_cpu(target, function):
    """The GPU's numbers, and those drawn again, are the CPU's: every dtype, keys in rows, sizes that end anywhere."""
    target.check(agree, drawn, function)


def test_another_key_draws_other_numbers(target):
    """Control: keys that differ in one bit give other numbers, the same key the same."""

    def measure(target):
        key, other = random.key(3, device=target.device), random.key(2, device="cpu")
        one = random.normal(key, 100).cpu()
        same = equal(one, random.normal(key, 100).cpu())
        return {"other": equal(one, random.normal(other, 100)), "again": same}

    target.check(expected(other=False, again=True), measure)


def fusing(target):
    kernel, number, results = launchers("normal").kernels.normal_32, 4096, {}
    key = random.key(3, device="cpu")
    for name, fused in (("as launched", False), ("fused", True)):
        out = torch.empty(number, device=target.device)
        given = key.to(target.device), out, 1, number, 0.0, 1.0
        kernel[(number // 1024,)](*given, BLOCKS=256, ONE_KEY=True, enable_fp_fusion=fused)
        results[name] = equal(out.cpu(), random.normal(key, number))
    return results


def test_a_kernel_that_fuses_draws_other_numbers(target):
    """Control: without `enable_fp_fusion=False` the GPU contracts products and sums, and the comparison sees it."""
    seen = {"as launched": True, "fused": False}
    target.check(expected(**seen), fusing, example=seen)


def test_more_numbers_than_32_bits_can_count(target):
    """Element i of a stream of 2**32 + 48 bytes is the first one of a key moved on by i / 16 blocks."""
    if not target.small and torch.cuda.mem_get_info()[0] < 2**32 + 2**30 + 48:
        pytest.skip("needs 5 GiB of free GPU memory")

    def measure(target):
        end, part = 2**16 if target.small else 2**32, 48
        stream = random.bits(random.key(7, device=target.device), end + part, dtype=torch.uint8)
        results = {}
        for start in (0, end // 2 - 16, end // 2, end - 16, end):
            moved = torch.tensor([7, start // 16], dtype=torch.uint64, device="cpu")
            own = random.bits(moved, part, dtype=torch.uint8)
            results[f"from {start}"] = {"the CPU": own, "the GPU": stream[start : start + part].cpu()}
        return results

    target.check(agree, measure)


# --- objects that hold randomness ---

METHODS = {
    "bits": lambda one: one.bits(1001),
    "uniform": lambda one: one.uniform(1001),
    "uniform_": lambda one: one.uniform_(torch.empty(33, 7, device=one.device)),
    "normal": lambda one: one.normal(33, 7, dtype=torch.float64),
    "normal_": lambda one: one.normal_(torch.empty(1001, device=one.device, dtype=torch.bfloat16)),
    "bernoulli": lambda one: one.bernoulli(1001, p=0.2),
    "bernoulli_": lambda one: one.bernoulli_(torch.empty(1001, device=one.device, dtype=torch.bool)),
    "dropout": lambda one: one.dropout(torch.ones(1001, device=one.device), 0.3),
    "truncated_normal": lambda one: one.truncated_normal(1001),
    "exponential": lambda one: one.exponential(1001),
    "gumbel": lambda one: one.gumbel(1001),
    "randint": lambda one: one.randint(1001, high=77),
    "permutation": lambda one: one.permutation(1001),
    "choice": lambda one: one.choice(1001, 20, replace=False),
    "categorical": lambda one: one.categorical(1001, logits=torch.zeros(5, device=one.device)),
}


def generators(target):
    one, other = (random.Generator.from_seed(5, device="cpu") for _ in range(2))
    one.uniform(3), other.uniform(3)
    other.to(target.device)
    made = random.Generator.from_seed(5, device=target.device)
    made.uniform(3)
    all_three = {"the CPU": one, "moved": other, "made there": made}
    results = {
        name: {kind: draw(each).cpu() for kind, each in all_three.items()} for name, draw in METHODS.items()
    }
    results["state_dict"] = {kind: dict(each.state_dict()) for kind, each in all_three.items()}
    results["split"] = {
        kind: [child.key.cpu() for child in each.split(3)] for kind, each in all_three.items()
    }
    return results


LAYERS = {
    "Dropout": (lambda: nn.Dropout(0.3), (33, 37)),
    "Dropout of many": (lambda: nn.Dropout(0.3), (300, 301)),
    "Dropout1d": (lambda: nn.Dropout1d(0.3), (16, 33, 5)),
    "Dropout2d": (lambda: nn.Dropout2d(0.3), (8, 33, 5, 3)),
    "Dropout3d": (lambda: nn.Dropout3d(0.3), (8, 17, 3, 5, 2)),
    "AlphaDropout": (lambda: nn.AlphaDropout(0.3), (33, 37)),
    "FeatureAlphaDropout": (lambda: nn.FeatureAlphaDropout(0.3), (16, 33, 5)),
    "GaussianNoise": (lambda: nn.GaussianNoise(0.7), (33, 37)),
    "StochasticDepth": (lambda: nn.StochasticDepth(0.4), (65, 7)),
    "RReLU": (nn.RReLU, (33, 37)),
}
"""Layers that own their randomness, and the shape of an input; each does one elementwise op of torch's at a time."""


def layers(target):
    """The outputs of two calls, and the gradient of their input."""
    return {
        name: {
            kind: _stepped(make(), shape, at) for kind, at in (("the CPU", "cpu"), ("the GPU", target.device))
        }
        for name, (make, shape) in LAYERS.items()
    }


def _stepped(layer, shape, device):
    model = torch.nn.Sequential(layer).to(device).train()
    nn.set_step(model, 4, seed=11)
    key = random.key(6, device="cpu")
    x = random.normal(key, shape).to(device).requires_grad_()
    first = model(x)
    second = model(first)
    second.backward(random.normal(random.fold_in(key, 1), shape).to(device))
    return [one.detach().cpu() for one in (first, second, x.grad) if one is not None]


def initialised(target):
    """The weights of a key, whatever was drawn in between."""

    def made(drawn):
        torch.rand(drawn, device=target.device)
        model = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.Conv1d(3, 5, 3), torch.nn.LSTM(5, 7))
        model.to(target.device)
        nn.reset_parameters(model, random.key(8, device="cpu"))
        return {name: value.detach().cpu() for name, value in model.state_dict().items()}

    with generator_states.preserve_states():
        return {"weights": {"once": made(1), "again": made(1000)}}


def process_generators(target):
    """Numbers of torch's generators, filled from a key, seeded, and restored; states as lists of bytes."""

    def draw():
        return [torch.rand(1001, device=target.device).cpu(), torch.randn(77, device=target.device).cpu()]

    torch.zeros(1, device=target.device)  # CUDA's generators are filled once it is initialised
    with generator_states.preserve_states() as before:
        generator_states.fill((3, 4))
        filled = {"once": draw()}
        states, digest = rng_states.of_process(), generator_states.digest()
        put_back = {"once": draw()}
        states.restore()
        digests = {"once": digest, "put back": generator_states.digest()}
        put_back["put back"] = draw()
        generator_states.fill((3, 4))
        filled["again"] = draw()
        seeded = {}
        for name in ("once", "again"):
            torch.manual_seed(9)
            seeded[name] = draw()
        with generator_states.preserve_states():
            draw()
        inside = {"once": generator_states.digest()}
        with generator_states.preserve_states():
            torch.manual_seed(10)
            draw()
        inside["after a block"] = generator_states.digest()
    results = {"fill": filled, "restore": put_back, "digest": digests, "manual_seed": seeded, "block": inside}
    if before.cuda:
        ends = {"before": before, "after": rng_states.of_process()}
        results["states afterwards"] = {
            name: [torch.frombuffer(bytearray(c), dtype=torch.uint8) for c in one.cuda]
            for name, one in ends.items()
        }
    return results


def compiled(target):
    """Numbers that a compiled function draws, each from a kernel of ours, and those of a plain call."""

    def step(key, x):
        own = random.fold_in(key, 3)
        return [
            random.dropout(own, x, 0.3),
            random.uniform(random.fold_in(own, 1), x.shape),
            random.normal(random.fold_in(own, 2), (77,), dtype=torch.bfloat16),
            random.randint(random.fold_in(own, 3), (77,), high=1000),
            random.permutation(random.fold_in(own, 4), 200),
        ]

    def called(step, device):
        x = numbers((33, 37), torch.device(device), torch.float32)
        return [one.cpu() for one in step(random.key(2, device=device), x)]

    there = {"plain": called(step, target.device), "compiled": called(torch.compile(step), target.device)}
    return {"step": {"the CPU": called(step, "cpu"), **there}}


@pytest.mark.limit(150)
@pytest.mark.parametrize("measure", [generators, layers, initialised, process_generators, compiled])
def test_objects_draw_the_bits_of_the_cpu(target, measure):
    """Generators, layers, weights, the process's own generators, compiled code: the CPU's numbers, and again."""
    target.check(agree, measure)


def test_draws_of_the_process_are_counted(target):
    """`draws()` reads the offset of a CUDA generator."""

    def measure(target):
        torch.zeros(1, device=target.device)
        with generator_states.preserve_states():
            draw_counts.begin((1, 2))
            results = {"at first": draw_counts.draws()["cuda:0"]}
            torch.rand(5, device=target.device)
            counted = draw_counts.draws()["cuda:0"]
            results["after a draw"] = "more" if isinstance(counted, int) and counted > 0 else counted
            torch.cuda.manual_seed(3)
            return {**results, "after a seed": draw_counts.draws()["cuda:0"]}

    counted = {"at first": 0, "after a draw": "more", "after a seed": "reseeded"}
    target.check(expected(**counted), measure, example=counted)


# --- torch's own ops on the same streams ---

FAR = 2.0**-20 * 7
"""The largest difference of normal numbers up to 7 from torch's, which takes approximations of log, sin and cos."""


def near(results):
    for name, distance in results.items():
        if not distance <= FAR:
            yield f"{name}: a normal number differs by {distance} from torch's, more than {FAR}"


def _philox_uniform_(target):
    results = {}
    for dtype in FLOATING:
        for kind, (batch, shape) in KEYS.items():
            for low, high in ((0.0, 1.0), (1.5, 5.2), (-3.0, 7.0)):
                key = key_of(batch).to(target.device)
                theirs = torch.empty(*shape, dtype=dtype, device=target.device)
                torch.ops.aten._philox_uniform_(theirs, key, low, high)
                ours = random.uniform(key, shape, low=low, high=high, dtype=dtype)
                name = f"{dtype}, {kind}, {low} to {high}"
                results[name] = {"ours": ours.cpu(), "torch's": theirs.cpu()}
    return results


def _philox_normal_(target):
    key, number, results = random.key(5, device=target.device), 100_000, {}
    for dtype in (torch.float32, torch.float64):
        theirs = torch.empty(number, dtype=dtype, device=target.device)
        torch.ops.aten._philox_normal_(theirs, key)
        results[str(dtype)] = (random.normal(key, number, dtype=dtype) - theirs).abs().max().item()
    return results


def _philox_key_split(target):
    keys = key_of((33,))
    theirs = torch.ops.aten._philox_key_split(keys.to(target.device), 5)
    return {"split": {"ours": random.split(keys, 5), "torch's": theirs.cpu()}}


def _philox_key_fold_in(target):
    keys, results = key_of((33,)), {}
    for data in (0, 1, 2**40, 2**63 - 1):
        theirs = torch.ops.aten._philox_key_fold_in(keys.to(target.device), data)
        results[f"of {data}"] = {"ours": random.fold_in(keys, data), "torch's": theirs.cpu()}
    return results


@pytest.mark.parametrize(
    "measure", [_philox_uniform_, _philox_normal_, _philox_key_split, _philox_key_fold_in]
)
def test_torchs_stateless_ops_draw_the_same_numbers(target, measure):
    """Uniform numbers and keys are equal, normal ones near, where that torch has these ops (2.13)."""
    if not hasattr(torch.ops.aten, measure.__name__):
        pytest.skip(f"torch {torch.__version__} has no aten::{measure.__name__}")
    normal = measure is _philox_normal_
    example = {"float32": 0.0} if normal else {"x": {"ours": torch.ones(2), "torch's": torch.ones(2)}}
    target.check(near if normal else agree, measure, example=example)


# --- speed ---


def _drawn(ours, theirs):
    """Makes a row of calls: `ours(key, n)`, and `theirs(n, device=device)`."""

    def make(n, device):
        key = random.key(1, device=device)
        return lambda: ours(key, n), lambda: theirs(n, device=device)

    return make


def _of_dtype(ours, theirs, dtype):
    return _drawn(partial(ours, dtype=dtype), partial(theirs, dtype=dtype))


def _filled(ours, theirs):
    return _drawn(ours, lambda n, device: theirs(torch.empty(n, device=device)))


def _dropped(n, device, dtype=torch.float32):
    key, x = random.key(1, device=device), torch.rand(n, device=device).to(dtype)
    return lambda: random.dropout(key, x, 0.3), lambda: F.dropout(x, 0.3)


def _with_gradient(n, device):
    key, x = random.key(1, device=device), torch.rand(n, device=device, requires_grad=True)
    grad = torch.ones_like(x)
    return (
        lambda: torch.autograd.grad(random.dropout(key, x, 0.3), x, grad),
        lambda: torch.autograd.grad(F.dropout(x, 0.3), x, grad),
    )


ROWS = {
    "rand": _drawn(random.uniform, torch.rand),
    "rand bfloat16": _of_dtype(random.uniform, torch.rand, torch.bfloat16),
    "randn": _drawn(random.normal, torch.randn),
    "randn bfloat16": _of_dtype(random.normal, torch.randn, torch.bfloat16),
    "randn float64": _of_dtype(random.normal, torch.randn, torch.float64),
    "exponential_": _filled(random.exponential, lambda x: x.exponential_()),
    "bernoulli_": _filled(partial(random.bernoulli, p=0.3), lambda x: x.bernoulli_(0.3)),
    "randint": _drawn(
        partial(random.randint, high=1000), lambda n, device: torch.randint(1000, (n,), device=device)
    ),
    "randperm": _drawn(random.permutation, torch.randperm),
    "dropout": _dropped,
    "dropout bfloat16": partial(_dropped, dtype=torch.bfloat16),
    "dropout and gradient": _with_gradient,
}
"""(ours, torch's) of a number of elements and a device."""
CAPTURED = [name for name in ROWS if name not in {"randperm", "dropout and gradient"}]


@pytest.mark.limit(150)
@pytest.mark.parametrize("exponent", [10, 20, 26])
def test_the_times_of_calls(target, exponent):
    """Nanoseconds per number against torch's; from 2**20 numbers on, to be as fast is a goal: before, launches cost most."""
    number = 1 << (10 if target.small else exponent)
    rows = ((name, make(number, target.device)) for name, make in ROWS.items())
    target.time(rows, number, goal=exponent > 10)
    assert list(target.figures) == list(ROWS)


@pytest.mark.limit(150)
def test_the_times_of_kernels_alone(target):
    """As CUDA graphs, without the cost of a launch, which is most of a call of a million numbers."""
    number, replayed = 1 << (10 if target.small else 20), 10
    made = ((name, ROWS[name](number, target.device)) for name in CAPTURED)
    rows = ((name, [capture_graph(call, replayed, target.device) for call in pair]) for name, pair in made)
    target.time(rows, number * replayed)
    assert list(target.figures) == CAPTURED


# --- controls, on the CPU ---


def test_every_function_that_draws_is_tried():
    """Public functions that draw from a key, methods of Generator and layers that own their randomness are tried."""
    others = {"Generator", "draws", "key", "set_random_seed", "get_global_generator", "set_global_generator"}
    assert {name for name in dir(random) if name[0] != "_"} - others <= set(BY_FUNCTION)
    own = vars(random.Generator).items()
    methods = {name for name, value in own if inspect.isfunction(value) and hasattr(value, "__wrapped__")}
    assert len(methods) > 10 and methods == set(METHODS)
    values = {name: getattr(nn, name) for name in dir(nn)}
    owning = {
        n for n, value in values.items() if isinstance(value, type) and issubclass(value, OwnsRandomness)
    }
    of_matrices = {"OwnsRandomness", "MultiheadAttention", "LSTM", "GRU", "RNN"}
    windows = {"FractionalMaxPool2d", "FractionalMaxPool3d"}
    assert owning - of_matrices - windows == {name.split()[0] for name in LAYERS}


@pytest.mark.parametrize("function", [name for name in BY_FUNCTION if name != "truncated_normal"])
def test_the_sizes_of_a_gpu_are_drawn(small, function):
    """Each function takes the sizes that a GPU draws; a rehearsal takes the small ones only."""
    small.small = False
    assert not list(agree(drawn(small, function)))


def test_a_draw_without_a_key_is_seen(small, monkeypatch):
    """A function that draws from torch's generator instead of the key is named, with the first other element."""
    monkeypatch.setitem(DRAWS, "normal torch.float32", lambda key, shape: torch.randn(shape))
    found = list(agree(drawn(small, "normal")))
    assert found and all(line.startswith("normal torch.float32") and ", first [" in line for line in found)


@pytest.mark.parametrize("measure", [generators, layers, initialised])
def test_state_that_moved_on_is_seen(small, monkeypatch, measure):
    """A generator that counted a draw more, layers and weights by torch's own generator: each is seen."""
    to = random.Generator.to

    def moved(self, device):
        self._draws += 1
        return to(self, device)

    monkeypatch.setattr(random.Generator, "to", moved)
    monkeypatch.setattr(nn, "set_step", lambda *_, **__: None)
    monkeypatch.setattr(nn, "reset_parameters", lambda *_: None)
    assert list(agree(measure(small)))


def test_generators_that_are_not_put_back_are_seen(small, monkeypatch):
    """Where `restore` does nothing, the judge names what is not restored; the process is left as it was."""
    samebits.set_random_seed(4)
    digest, before = generator_states.digest(), rng_states.of_process()
    for measure in (process_generators, initialised, generators):
        measure(small)
    assert generator_states.digest() == digest
    with monkeypatch.context() as patched:
        patched.setattr(rng_states.ProcessStates, "restore", lambda _: None)
        patched.setattr(generator_states, "_restore", lambda _: None)
        found = list(agree(process_generators(small)))
    before.restore()
    assert {line.split(":")[0] for line in found} == {"restore", "digest", "block"}


def test_normal_numbers_may_be_near_torchs():
    """A distance that approximations explain passes, and a larger one or NaN does not."""
    assert not list(near({"a": 6e-6})) and len(list(near({"a": 7e-6, "b": float("nan")}))) == 2


@pytest.mark.parametrize("name", [name for name in ROWS if name != "dropout and gradient"])
def test_timed_calls_stay_on_the_gpu(name):
    """On fake CUDA tensors both calls of a row give as many numbers, of one dtype, on the GPU."""
    with FakeTensorMode():
        ours, theirs = (call() for call in ROWS[name](1024, "cuda"))
    kinds = [(one.shape, one.dtype, one.device.type) for one in (ours, theirs)]
    assert kinds[0] == kinds[1] and ours.is_cuda


COPYING = ("dropout", "uniform_", "normal_", "bernoulli_")
"""Autograd and copies need a real device."""


@pytest.mark.parametrize("name", [name for name in DRAWS if name.split()[0] not in COPYING])
def test_draws_from_a_key_on_cuda_are_on_cuda(name):
    """Each function gives fake CUDA tensors for a fake CUDA key, as many as on the CPU."""
    shape = KEYS["one key"][1]
    with FakeTensorMode():
        found = DRAWS[name](torch.empty(2, dtype=torch.uint64, device="cuda"), shape)
    wanted = DRAWS[name](random.key(1), shape)
    assert found.is_cuda and (found.shape, found.dtype) == (wanted.shape, wanted.dtype)


def test_the_control_of_fusion_can_be_launched(small, tmp_path, monkeypatch):
    """Its two launches compile, one as the launcher's own and one that contracts; what has not run is not equal."""
    ahead = pytest.importorskip("triton_ahead")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with ahead.launches(device_kernels, device_kernels._CPU) as found:
        assert fusing(small) == {"as launched": False, "fused": False}
    own, fused = (ahead.compiled(one, 90).asm["ptx"] for one in found)
    assert own.count("fma.rn.f32") < fused.count("fma.rn.f32")
    with ahead.launches(device_kernels, launchers("normal")) as theirs:
        random.normal(random.key(3), 4096)
    assert ahead.compiled(theirs[0], 90) is ahead.compiled(found[0], 90)


def test_a_draw_elsewhere_is_an_error(small):
    """A result on another device than its key's fails the case."""
    with pytest.raises(AssertionError, match="the result on meta"):
        here(torch.empty(3, device="meta"), small)

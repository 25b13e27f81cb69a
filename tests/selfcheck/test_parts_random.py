"""The part `random` of the self-check, without a GPU: its plan, its judges on what is really wrong, fake CUDA tensors."""

import inspect
from importlib.util import find_spec

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import samebits
from samebits import nn, random
from samebits._inspect import rng_states
from samebits.nn import OwnsRandomness
from samebits.random import _device_kernels as device_kernels
from samebits.random._process import generator_states
from samebits.random._triton import launchers
from samebits.selfcheck import parts
from samebits.selfcheck.case import Target
from samebits.selfcheck.draws import DRAWS, KEYS
from samebits.selfcheck.parts.random import functions, random_objects, speed, torch_ops

SMALL = Target("cpu", small=True)


@pytest.fixture(scope="module")
def cases():
    return {case.name: case for case in parts.part_named("random").cases()}


def wrong(case):
    return list(case.judge(case.measure(SMALL).results))


def test_every_function_that_draws_has_a_case(cases):
    """Public functions of samebits.random that draw from a key, methods of Generator, layers that own their randomness: all are tried."""
    others = {"Generator", "draws", "key", "set_random_seed", "get_global_generator", "set_global_generator"}
    tried = set(functions.by_function())
    assert {*random.__all__} - others <= tried and tried <= set(cases)
    methods = {
        name
        for name, value in vars(random.Generator).items()
        if inspect.isfunction(value) and hasattr(value, "__wrapped__")
    }
    assert len(methods) > 10 and methods == set(random_objects._METHODS)
    layers = {
        name
        for name in dir(nn)
        if isinstance(value := getattr(nn, name), type) and issubclass(value, OwnsRandomness)
    }
    of_matrices = {"OwnsRandomness", "MultiheadAttention", "LSTM", "GRU", "RNN"}
    windows = {"FractionalMaxPool2d", "FractionalMaxPool3d"}
    assert layers - of_matrices - windows == {name.split()[0] for name in random_objects._LAYERS}


@pytest.mark.parametrize("name", [name for name in functions.by_function() if name != "truncated_normal"])
def test_the_sizes_of_a_gpu_are_drawn(cases, name):
    """Each function takes the sizes that a GPU is to draw, of which a rehearsal takes the small ones only."""
    measured = cases[name].measure(Target("cpu"))
    assert not list(cases[name].judge(measured.results))
    assert len(measured.results) >= len(cases[name].measure(SMALL).results)


def test_a_draw_without_a_key_is_seen(cases, monkeypatch):
    """A function that draws from torch's generator instead of the key is named, with the first element that differs."""
    monkeypatch.setitem(
        DRAWS, "normal torch.float32", lambda key, shape: torch.randn(shape, device=key.device)
    )
    found = wrong(cases["normal"])
    assert found and all(
        line.startswith("normal torch.float32") and "elements, first [" in line for line in found
    )
    assert not wrong(cases["exponential"])


@pytest.mark.parametrize(
    "name, state",
    [("Generator", "_draws"), ("layers of samebits.nn", None), ("layers initialised again", None)],
)
def test_state_that_moved_on_is_seen(cases, monkeypatch, name, state):
    """A generator that counted a draw more, layers and weights by torch's own generator: each is seen."""
    if state:
        to = random.Generator.to

        def moved(self, device):
            self._draws += 1
            return to(self, device)

        monkeypatch.setattr(random.Generator, "to", moved)
    monkeypatch.setattr(nn, "set_step", lambda *_, **__: None)
    monkeypatch.setattr(nn, "reset_parameters", lambda *_: None)
    assert wrong(cases[name])


def test_generators_that_are_not_put_back_are_seen(cases, monkeypatch):
    """Where `restore` does nothing, the case of the process's generators says so."""
    assert not wrong(cases["the process's generators"])
    before = rng_states.of_process()
    with monkeypatch.context() as patched:
        patched.setattr(rng_states.ProcessStates, "restore", lambda _: None)
        patched.setattr(generator_states, "_restore", lambda _: None)
        found = wrong(cases["the process's generators"])
    before.restore()
    assert {line.split(":")[0] for line in found} == {"restore", "digest", "block"}


def test_compiled_code_is_compared(cases):
    """Inductor's code draws the numbers of the plain call; a function that draws others is seen."""
    case = cases["torch.compile"]
    results = random_objects._compiled(SMALL).results
    assert not list(case.judge(results))
    results["step"]["compiled"][3] = results["step"]["compiled"][3] + 1
    (line,) = case.judge(results)
    assert "compiled is not the CPU: [3] 77 of 77 elements" in line


def test_what_a_torch_lacks_is_skipped_by_its_name():
    """An op that this torch does not have makes a need that nothing fulfils; so does memory."""
    absent = torch_ops._case("a", "_no_such_op", None, None, {})
    assert absent.needs == ("aten::_no_such_op",) and not find_spec(absent.needs[0])
    assert not find_spec("5 GiB of free GPU memory")
    assert not torch_ops._case("a", "add", None, None, {}).needs


def test_normal_numbers_may_be_near_torchs():
    """A distance that approximations explain passes, and a larger one or NaN does not."""
    assert not list(torch_ops._near({"float32": 6e-6}))
    assert list(torch_ops._near({"float32": 7e-6})) and list(torch_ops._near({"float32": float("nan")}))


@pytest.mark.parametrize("name", [name for name in speed._ROWS if name != "dropout and gradient"])
def test_timed_calls_stay_on_the_gpu(name):
    """On fake CUDA tensors both calls of a row give as many numbers, of one dtype, on the GPU."""
    with FakeTensorMode():
        ours, theirs = (call() for call in speed._ROWS[name](1024, "cuda"))
    assert ours.is_cuda and (ours.shape, ours.dtype, ours.device) == (
        theirs.shape,
        theirs.dtype,
        theirs.device,
    )


@pytest.mark.parametrize(
    "name",
    [name for name in DRAWS if name.split()[0] not in ("dropout", "uniform_", "normal_", "bernoulli_")],
)
def test_draws_from_a_key_on_cuda_are_on_cuda(name):
    """Each function gives fake CUDA tensors for a fake CUDA key, as many as on the CPU. (Autograd and copies need a real device.)"""
    shape = KEYS["one key"][1]
    with FakeTensorMode():
        drawn = DRAWS[name](torch.empty(2, dtype=torch.uint64, device="cuda"), shape)
    expected = DRAWS[name](random.key(1), shape)
    assert drawn.is_cuda and (drawn.shape, drawn.dtype) == (expected.shape, expected.dtype)


def test_the_control_of_fusion_can_be_launched(tmp_path, monkeypatch):
    """Its two launches compile, one as the launcher's own and one that contracts; what has not run is not equal."""
    ahead = pytest.importorskip("triton_ahead")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    with ahead.launches(device_kernels, device_kernels._CPU) as found:
        measured = functions._fusing(SMALL)
    assert measured.results == {"as launched": False, "fused": False}
    own, fused = (ahead.compiled(one, 90).asm["ptx"] for one in found)
    assert own.count("fma.rn.f32") < fused.count("fma.rn.f32")
    with ahead.launches(device_kernels, launchers("normal")) as theirs:
        random.normal(random.key(3), 4096)
    assert ahead.compiled(theirs[0], 90) is ahead.compiled(found[0], 90)


def test_a_draw_elsewhere_is_an_error():
    """A result on another device than its key's fails the case."""
    with pytest.raises(AssertionError, match="the result on meta"):
        functions._here(torch.empty(3, device="meta"), SMALL)


def test_the_process_is_left_as_it_was(cases):
    """The cases of generators leave the process's own where they were."""
    samebits.set_random_seed(4)
    before = generator_states.digest()
    for name in ("the process's generators", "layers initialised again", "Generator"):
        cases[name].measure(SMALL)
    assert generator_states.digest() == before

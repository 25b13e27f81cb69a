"""The stateless functions under tracers, compilers, torch.func and fake tensors: the bits of the direct call."""

import pytest
import torch
import torch._dynamo
from torch._dynamo.utils import counters
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import samebits
import samebits.random as sr
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.random._draws import uniform_normal
from samebits.random._keys import is_traced
from samebits.random._torch_ops import LIBRARY

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")

KEY, OTHER = sr.key(7), sr.key(2**64 - 3)
KEYS = sr.split(sr.key(5), 6)
WEIGHTS = torch.arange(10.0)
LOGITS = torch.linspace(-1, 1, 12).view(3, 4)
FUNCTIONS = {
    "bits": lambda k: sr.bits(k, 5),
    "uniform": lambda k: sr.uniform(k, 3, 5, low=-1.0, high=2.0),
    "uniform, half": lambda k: sr.uniform(k, (3, 5), dtype=torch.bfloat16),
    "normal": lambda k: sr.normal(k, 7, mean=1, std=2),
    "bernoulli": lambda k: sr.bernoulli(k, 7, p=0.3, dtype=torch.bool),
    "bernoulli, each": lambda k: sr.bernoulli(k, 3, 7, p=torch.linspace(0, 1, 7, device=k.device)),
    "dropout": lambda k: sr.dropout(k, torch.ones(3, 7, device=k.device), 0.3),
    "truncated_normal": lambda k: sr.truncated_normal(k, 7, low=-1),
    "exponential": lambda k: sr.exponential(k, 7, rate=2),
    "gumbel": lambda k: sr.gumbel(k, ()),
    "randint": lambda k: sr.randint(k, 7, low=-3, high=10),
    "randint, uint64": lambda k: sr.randint(k, 7, low=5, high=2**64, dtype=torch.uint64),
    "permutation": lambda k: sr.permutation(k, 10),
    "permutation of a tensor": lambda k: sr.permutation(k, LOGITS.to(k.device), dim=1),
    "permute_index": lambda k: sr.permute_index(k, torch.arange(100, device=k.device), 1000),
    "choice": lambda k: sr.choice(k, 10, 3, 2),
    "choice of a tensor": lambda k: sr.choice(k, WEIGHTS.to(k.device), 3, replace=False),
    "choice by weight": lambda k: sr.choice(k, 10, 3, weights=WEIGHTS.to(k.device)),
    "race by weight": lambda k: sr.choice(k, 10, 3, weights=WEIGHTS.to(k.device), replace=False),
    "categorical": lambda k: sr.categorical(k, logits=LOGITS.to(k.device)),
    "categorical of a shape": lambda k: sr.categorical(k, 5, 3, logits=LOGITS.to(k.device)),
    "split": lambda k: sr.split(k, 3),
    "fold_in": lambda k: sr.fold_in(k, ("layer", 3, -1, 2**64 - 1, torch.arange(4, device=k.device)[3])),
    "key": lambda k: sr.uniform(sr.fold_in(sr.key(2**64 - 3), "x"), 3),
    "uniform_": lambda k: sr.uniform_(k, torch.empty(4, 3, device=k.device).t()),
    "normal_": lambda k: sr.normal_(k, torch.empty(4, device=k.device)),
    "bernoulli_": lambda k: sr.bernoulli_(k, torch.empty(4, device=k.device), p=0.2),
}
IN_PLACE = {"uniform_", "normal_", "bernoulli_"}


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, key):
        return self.function(key)


def compiled(backend, **options):
    def compile_anew(function):
        torch._dynamo.reset()
        return torch.compile(function, backend=backend, fullgraph=True, **options)

    return compile_anew


TRACERS = {
    "make_fx": lambda f: make_fx(f)(KEY),
    "make_fx, fake": lambda f: make_fx(f, tracing_mode="fake", _allow_non_fake_inputs=True)(KEY),
    "make_fx, symbolic": lambda f: make_fx(f, tracing_mode="symbolic", _allow_non_fake_inputs=True)(KEY),
    "make_fx before dispatch": lambda f: make_fx(f, pre_dispatch=True)(KEY),
    "compile": compiled("aot_eager"),
    "compile, dynamic": compiled("aot_eager", dynamic=True),
    "export": lambda f: torch.export.export(Module(f), (KEY,)).module(),
    "export, strict": lambda f: torch.export.export(Module(f), (KEY,), strict=True).module(),
    "jit.trace": lambda f: torch.jit.trace(f, KEY, check_trace=False),
    "functionalize": torch.func.functionalize,
}


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("tracer", TRACERS)
def test_a_graph_draws_what_the_call_draws(tracer):
    """Every function, recorded with one key and run with two, gives the bits of the direct call, and is no constant."""
    for name, function in FUNCTIONS.items():
        graph = TRACERS[tracer](function)
        for key in (KEY, OTHER):
            assert same(graph(key), function(key)), name


@pytest.mark.slow
def test_inductor_draws_what_the_call_draws():
    """All functions in one graph through Inductor give the bits of the direct calls."""
    names = [name for name in FUNCTIONS if name not in IN_PLACE]

    def everything(key):
        return [FUNCTIONS[name](key) for name in names]

    graph = compiled("inductor")(everything)
    for key in (KEY, OTHER):
        for name, a, b in zip(names, graph(key), everything(key), strict=True):
            assert same(a, b), name


def test_kernels_that_nobody_sees_are_no_graph():
    """Negative control: what the ops run, recorded directly, leaves a graph that does not depend on the key."""
    graph = make_fx(lambda key: uniform_normal.fill_uniform("uniform", key, torch.empty(9), 0.0, 1.0))(KEY)
    assert not any("samebits" in str(node.target) for node in graph.graph.nodes)
    assert not torch.equal(graph(OTHER), sr.uniform(OTHER, 9))


def test_sizes_may_be_symbolic():
    """One dynamic graph serves all sizes, and so does one of make_fx."""

    def noisy(x, key):
        return x + sr.normal(key, *x.shape) + sr.uniform(key, x.shape[0], 1) + sr.dropout(key, x)

    x, longer = torch.ones(4, 5), torch.ones(9, 5)
    graph = make_fx(noisy, tracing_mode="symbolic")(x, KEY)
    assert torch.equal(graph(longer, OTHER), noisy(longer, OTHER))
    counters.clear()
    graph = compiled("aot_eager", dynamic=True)(noisy)
    for rows in (4, 9, 13):
        assert torch.equal(graph(torch.ones(rows, 5), KEY), noisy(torch.ones(rows, 5), KEY))
    assert counters["stats"]["unique_graphs"] == 1


def test_a_step_is_no_constant():
    """A step in a tensor never compiles anew, also where sizes stay static; a step that is an int does once."""

    def draw(key, step):
        return sr.uniform(sr.fold_in(key, ("noise", step)), 4)

    for wrap, options, graphs in ((torch.tensor, {"dynamic": False}, 1), (int, {}, 2)):
        counters.clear()
        graph = compiled("aot_eager", **options)(draw)
        for step in range(20):
            assert torch.equal(graph(KEY, wrap(step)), draw(KEY, step))
        assert counters["stats"]["unique_graphs"] == graphs


def test_folding_in_a_tensor():
    """Each integer of a tensor, negative ones too, is folded in as the number is; it broadcasts against the keys."""
    data = torch.tensor([[0, 1, 2**40], [-1, -(2**63), 5]])
    folded = sr.fold_in(OTHER, data)
    assert folded.shape == (2, 3, 2)
    for row, numbers in zip(folded, data.tolist(), strict=True):
        for key, number in zip(row, numbers, strict=True):
            assert torch.equal(key, sr.fold_in(OTHER, number))
    assert torch.equal(sr.fold_in(KEYS, torch.tensor(3, dtype=torch.int32)), sr.fold_in(KEYS, 3))
    with pytest.raises(InvalidArgumentError, match="integers"):
        sr.fold_in(KEY, torch.tensor(1.0))


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in IN_PLACE])
def test_vmap_is_a_loop(name):
    """vmap over keys, nested and over any dimension, gives what a loop gives."""
    function = FUNCTIONS[name]
    loop = torch.stack([function(key) for key in KEYS])
    assert same(torch.vmap(function)(KEYS), loop)
    assert same(torch.vmap(function, in_dims=1)(KEYS.t()), loop)
    nested = torch.vmap(torch.vmap(function))(KEYS.view(2, 3, 2))
    assert same(nested, loop.view(2, 3, *loop.shape[1:]))


def test_vmap_over_parameters():
    """One key draws the same for every sample, whatever else is a batch; batches of both go together."""
    p = torch.linspace(0, 1, 12).view(2, 6)
    indices, table = torch.arange(12).view(2, 6), torch.rand(6, 5, 4)
    steps = torch.arange(6)
    for function, other, dim in (
        (lambda k, x: sr.bernoulli(k, 3, 2, p=x), p, 1),
        (lambda k, x: sr.categorical(k, 3, 5, logits=x), table, 0),
        (lambda k, x: sr.choice(k, 2, 7, weights=x), p + 1, 1),
        (lambda k, x: sr.choice(k, x, 3), table, 0),
        (lambda k, x: sr.permute_index(k, x, 1000), indices, 1),
        (lambda k, x: sr.dropout(k, x, 0.4), table, 0),
        (sr.fold_in, steps, 0),
    ):
        samples = other.unbind(dim)
        mapped = torch.vmap(function, in_dims=(None, dim))(KEY, other)
        assert same(mapped, torch.stack([function(KEY, x) for x in samples]))
        mapped = torch.vmap(function, in_dims=(0, dim))(KEYS, other)
        assert same(mapped, torch.stack([function(k, x) for k, x in zip(KEYS, samples, strict=True)]))
    batch = KEYS.view(2, 3, 2)  # a batch of keys in every sample
    assert same(torch.vmap(lambda k: sr.normal(k, 3))(batch), sr.normal(batch, 2, 3))
    assert same(torch.vmap(lambda k: sr.fold_in(k, steps[:3]))(batch), sr.fold_in(batch, steps[:3]))


X = torch.linspace(-2, 2, 30, dtype=torch.float64).view(6, 5)


def loss(x, key=KEY):
    return (sr.dropout(key, x, 0.3) ** 3).sum()


def gradient(x, key=KEY):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(loss(x, key), x)[0]


def test_torch_func_differentiates():
    """grad, vjp, jvp, their compositions and vmap over them agree with autograd; gradients drop what the input dropped."""
    tangent = X.sin()
    assert torch.equal(torch.func.grad(loss)(X), gradient(X))
    assert torch.equal(torch.func.vjp(loss, X)[1](torch.ones((), dtype=X.dtype))[0], gradient(X))
    assert torch.allclose(torch.func.jvp(loss, (X,), (tangent,))[1], (gradient(X) * tangent).sum())
    second = torch.autograd.functional.hvp(loss, X, tangent)[1]
    assert torch.allclose(torch.func.jvp(torch.func.grad(loss), (X,), (tangent,))[1], second)
    assert torch.allclose(torch.func.grad(lambda x: (torch.func.grad(loss)(x) * tangent).sum())(X), second)
    per_key = torch.vmap(lambda key: torch.func.grad(loss)(X, key))(KEYS)
    assert torch.equal(per_key, torch.stack([gradient(X, key) for key in KEYS]))
    module = torch.nn.Linear(5, 5).double()
    parameters = dict(module.named_parameters())
    both = [
        torch.func.grad(lambda w: loss(torch.func.functional_call(module, w, (X,))))(parameters)["weight"],
        torch.autograd.grad(loss(module(X)), module.weight)[0],
    ]
    assert torch.allclose(*both)


def test_every_function_inside_grad():
    """What torch.func.grad differentiates may draw: the numbers are those of the direct call."""
    for name, function in FUNCTIONS.items():
        drawn = torch.func.grad(lambda x, f=function: (x, f(KEY)), has_aux=True)(torch.tensor(1.0))[1]
        assert same(drawn, function(KEY)), name


def test_a_recorded_dropout_is_differentiated_in_every_mode():
    """The op in a graph has forward and reverse derivatives, once and twice, and torch.func's."""
    graph = make_fx(lambda x: sr.dropout(KEY, x, 0.3))(X)
    assert "samebits.dropout" in graph.code
    tangent = X.cos()
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(graph(forward_ad.make_dual(X, tangent)))
    assert torch.equal(dual.tangent, sr.dropout(KEY, tangent, 0.3))
    assert torch.equal(torch.func.grad(lambda x: (graph(x) ** 3).sum())(X), gradient(X))
    x = X.clone().requires_grad_()
    torch.autograd.gradcheck(graph, x, check_forward_ad=True)
    torch.autograd.gradgradcheck(lambda x: graph(x) ** 2, x)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_dropout_stores_no_mask(backend):
    """Compiled forward and backward have eager's mask, in place too, and the tensors saved are input and key, no mask."""

    def step(x, key):
        return (sr.dropout(key, x * 2, 0.3, inplace=True) * 3).sum()

    graph = compiled(backend)(step)
    saved = []
    for key in (KEY, OTHER):
        x, y = (X.float().requires_grad_() for _ in range(2))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            value = graph(x, key)
        assert torch.allclose(value, step(y, key))
        assert torch.equal(
            *(torch.autograd.grad(out, leaf)[0] for out, leaf in ((value, x), (step(y, key), y)))
        )
    assert {tuple(t.shape) for t in saved} == {(2,)}


def test_transforms_inside_compiled_code():
    """vmap, grad and jvp inside one graph give what they give outside."""

    def everything(x, keys):
        drawn = torch.vmap(lambda key: sr.uniform(key, 3))(keys)
        slope = torch.func.grad(lambda x: loss(x, keys[0]))(x)
        return drawn, slope, torch.func.jvp(lambda x: sr.dropout(keys[1], x, 0.3), (x,), (x,))[1]

    for a, b in zip(compiled("aot_eager")(everything)(X, KEYS), everything(X, KEYS), strict=True):
        assert torch.equal(a, b)


def test_without_memory_there_is_a_shape():
    """On the meta device and in fake mode every function gives dtype, shape and device, and draws nothing."""
    for name, function in FUNCTIONS.items():
        plain = function(KEY)
        if name != "key":
            there = function(KEY.to("meta"))
            assert there.is_meta and (there.shape, there.dtype) == (plain.shape, plain.dtype), name
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = function(mode.from_tensor(KEY))
        assert (fake.shape, fake.dtype, fake.stride()) == (plain.shape, plain.dtype, plain.stride()), name


def test_ops_pass_torchs_own_checks():
    """torch.library.opcheck: schema, fake kernels against real ones, autograd, AOTAutograd with dynamic shapes."""
    f32, one = torch.float32, torch.tensor(1)
    calls = {
        "bits": (KEY, [5], torch.int16),
        "uniform": (KEY, [3, 5], -1.0, 2.0, f32),
        "normal": (KEYS.view(6, 1, 2), [6, 4], 0.0, 1.0, torch.float64),
        "bernoulli": (KEY, [7], 0.3, torch.bool),
        "exponential": (KEY, [7], 2.0, f32),
        "gumbel": (KEY, [7], 0.0, 1.0, f32),
        "truncated_normal": (KEY, [7], 0.0, 1.0, -1.0, 2.0, f32),
        "randint": (KEY, [7], 0, 9, torch.int64),
        "bernoulli_each": (KEY, [3, 7], torch.linspace(0, 1, 7), f32),
        "categorical": (KEY, [3], LOGITS),
        "choice": (KEY, [3], 10, False),
        "choice_weighted": (KEY, [3], WEIGHTS, True),
        "permutation": (KEYS, 10),
        "permute_index": (KEY, torch.arange(9), 10),
        "split": (KEYS, 3),
        "fold_in": (KEYS, 3),
        "fold_in_each": (KEY, one),
        "dropout": (KEY, torch.ones(5, 3).t().requires_grad_(), 0.3),
    }
    assert set(calls) == {name.removeprefix("samebits::") for name in LIBRARY._op_defs}  # none is left out
    for name, given in calls.items():
        torch.library.opcheck(getattr(torch.ops.samebits, name).default, given)


def test_nothing_is_traced_in_plain_code():
    """The direct path is taken in plain code, with gradients off, in inference mode and under autocast; else the ops are."""
    assert not is_traced(KEY)
    with torch.no_grad(), torch.autocast("cpu"):
        assert not is_traced(KEY)
    with torch.inference_mode():
        assert not is_traced(KEY)
    seen = []
    make_fx(lambda key: seen.append(is_traced(KEY)) or key + 0)(torch.ones(2))
    torch.vmap(lambda x: seen.append(is_traced(KEY)) or x)(torch.ones(2))
    with FakeTensorMode():
        seen.append(is_traced(KEY))
    assert seen == [True] * 3 and is_traced(KEY.to("meta"))
    assert not is_traced(KEY)


def test_bad_input_is_named():
    """In graphs, too: at once where the tracer knows the argument, when it runs where only the values tell."""
    for call, match in (
        (lambda key: sr.uniform(key.float(), 3), "key"),
        (lambda key: sr.normal(key, -3), "negative sizes"),
        (lambda key: sr.bernoulli(key, 3, p=1.5), "probability"),
        (lambda key: sr.gumbel(key, 3, scale=0), "scale"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            make_fx(call, tracing_mode="fake")(KEY)
    with pytest.raises(UnimplementedError, match="int64 tensor"):
        torch.vmap(lambda key: sr.permute_index(key, 3, 10))(KEYS)
    graph = make_fx(lambda key, p: sr.bernoulli(key, 3, p=p), tracing_mode="fake")(KEY, torch.tensor(0.5))
    assert torch.equal(graph(KEY, torch.tensor(0.5)), sr.bernoulli(KEY, 3))
    with pytest.raises(InvalidArgumentError, match="probabilities"):
        graph(KEY, torch.tensor(1.5))


@pytest.mark.filterwarnings("error::samebits.errors.UndeclaredOpWarning")
def test_op_determinism_knows_the_ops():
    """Under the switch a graph with our ops warns of no undeclared op."""
    graph = make_fx(lambda key: sr.uniform(key, 3))(KEY)
    with samebits.enable_op_determinism():
        assert torch.equal(graph(KEY), sr.uniform(KEY, 3))

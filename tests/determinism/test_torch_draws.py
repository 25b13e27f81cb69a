"""Rule: an op of torch's that draws without a seed raises; a seed for the process or for the op is enough."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset, WeightedRandomSampler, random_split

import samebits
from samebits._context import at_import, process
from samebits.determinism import _switch as switch
from samebits.determinism import _warn_once as warn_once
from samebits.determinism._dispatcher import overload
from samebits.determinism._guards import torch_draws, torch_generators
from samebits.errors import UnseededError, UnseededWarning
from samebits.random._process import seeds

ONES, HALVES, OUT = torch.ones(4), torch.full((4,), 0.5), torch.empty(4)
HEADS = torch.ones(1, 1, 4, 4)


def own():
    return torch.Generator().manual_seed(1)


@pytest.fixture
def unseeded():
    """This process as it began: torch has the seed that the operating system gave it."""
    torch.default_generator.set_state(torch.Generator().manual_seed(at_import.torch_seed).get_state())
    assert not seeds.torch_was_seeded()


@pytest.fixture
def on(unseeded):
    samebits.enable_op_determinism()


DRAWING = {
    "_sample_dirichlet": (ONES,),
    "_standard_gamma": (ONES,),
    "bernoulli.out": (HALVES,),
    "bernoulli_.Tensor": (ONES, HALVES),
    "bernoulli_.float": (ONES, 0.5),
    "binomial": (ONES, HALVES),
    "cauchy_": (ONES,),
    "exponential_": (ONES,),
    "geometric_": (ONES, 0.5),
    "log_normal_": (ONES,),
    "multinomial": (HALVES, 2),
    "multinomial.out": (HALVES, 2),
    "normal.Tensor_Tensor": (ONES, HALVES),
    "normal.Tensor_Tensor_out": (ONES, HALVES),
    "normal.Tensor_float": (ONES, 0.5),
    "normal.Tensor_float_out": (ONES, 0.5),
    "normal.float_Tensor": (0.5, HALVES),
    "normal.float_Tensor_out": (0.5, HALVES),
    "normal_": (ONES,),
    "poisson": (ONES,),
    "random_": (ONES,),
    "random_.from": (ONES, 1, 7),
    "random_.to": (ONES, 7),
    "randperm.generator_out": (4,),
    "rrelu_with_noise": (-ONES, ONES, 0.1, 0.3, True),
    "rrelu_with_noise.out": (-ONES, ONES, 0.1, 0.3, True),
    "rrelu_with_noise_": (-ONES, ONES, 0.1, 0.3, True),
    "uniform_": (ONES,),
}
WITHOUT_A_GENERATOR = {"native_dropout": (ONES, 0.5, True)}
DRAWS_NOTHING = {
    "_fused_sdp_choice": (HEADS, HEADS, HEADS, None, 0.5),
    "_scaled_dot_product_flash_attention_for_cpu": (HEADS, HEADS, HEADS),
}


def call(name, arguments, **keywords):
    op = overload(f"aten::{name}")
    if "out" in {argument.name for argument in op._schema.arguments}:
        keywords["out"] = torch.empty(
            4, dtype=torch.int64 if name.startswith(("multi", "randp")) else torch.float32
        )
    if name == "randperm.generator_out":
        keywords.setdefault("generator", None)
    return op(*(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments), **keywords)


def test_the_tables_here_name_every_op_that_draws_on_the_cpu():
    """Each overload with a CPU kernel and the tag `nondeterministic_seeded` (31 in torch 2.13) is called in this file."""
    known = {*DRAWING, *WITHOUT_A_GENERATOR, *DRAWS_NOTHING}
    assert {name.removeprefix("aten::") for name in torch_draws._drawing_ops("CPU")} <= known


@pytest.mark.slow
def test_kernels_of_the_switch_are_no_drawing_ops_of_torch():
    """An unseeded program whose first mode is `across="machines"` guards the same ops as any other, and runs
    an LSTM in inference mode.
    """
    program = """
import torch, samebits
from samebits.determinism._guards import torch_draws
model, x = torch.nn.LSTM(3, 4), torch.ones(2, 1, 3)
with samebits.enable_op_determinism(across="machines"), torch.inference_mode():
    model(x)
print("aten::lstm.input" in torch_draws._drawing_ops("CPU"), len(torch_draws._drawing_ops("CPU")) > 20)
"""
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], check=True, capture_output=True, text=True
    )
    assert found.stdout.split() == ["False", "True"]


@pytest.mark.parametrize("name", [*DRAWING, *WITHOUT_A_GENERATOR])
def test_an_op_without_a_seed_raises_until_there_is_one(name, on):
    """Without a seed it raises, naming call, line, op and cure; with `generator=` it runs, and after seeding the guard is gone."""
    arguments = DRAWING.get(name) or WITHOUT_A_GENERATOR[name]
    for _ in range(2):  # a first refusal lets nothing through
        with pytest.raises(
            UnseededError, match=r"`.* at .*test_torch_draws.py:\d+ calls aten::\w+.*set_random_seed"
        ):
            call(name, arguments)
    if name in DRAWING:
        call(name, arguments, generator=own())
    torch.manual_seed(1)
    call(name, arguments)
    assert switch._switch.guard._overrides is None


@pytest.mark.parametrize("name", [*DRAWING, *WITHOUT_A_GENERATOR])
def test_without_the_switch_it_draws(name, unseeded):
    """Negative control: with the switch off, torch's generator moves and nothing is raised."""
    before = torch.default_generator.get_state()
    call(name, DRAWING.get(name) or WITHOUT_A_GENERATOR[name])
    assert not torch.equal(before, torch.default_generator.get_state())


QUIET = {
    "dropout in evaluation": lambda: F.dropout(ONES, 0.5, training=False),
    "dropout of nothing": lambda: F.dropout(ONES, 0.0),
    "rrelu in evaluation": lambda: F.rrelu(-ONES, training=False),
    "attention without dropout": lambda: F.scaled_dot_product_attention(HEADS, HEADS, HEADS),
    "native_dropout in evaluation": lambda: torch.native_dropout(ONES, 0.5, False),
    **{name: lambda name=name: call(name, DRAWS_NOTHING[name]) for name in DRAWS_NOTHING},
    "a GRU": lambda: torch._VF.gru(
        torch.ones(2, 1, 2), torch.ones(1, 1, 2), [torch.ones(6, 2)] * 2, False, 1, 0.0, True, False, False
    ),
    "samebits.random": lambda: samebits.random.normal(samebits.random.key(1), 3),
    "a permutation by a key": lambda: samebits.random.permute_index(samebits.random.key(1), 3, 10),
    "weights on the meta device": lambda: torch.nn.Linear(2, 2, device="meta"),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_draws_nothing_does_not_raise(name, on):
    """Ops that can draw and here do not, and functions of a key, need no seed."""
    before = torch.default_generator.get_state()
    QUIET[name]()
    assert torch.equal(before, torch.default_generator.get_state())


OPINFO = {
    "bernoulli": lambda: torch.bernoulli(HALVES),
    "cauchy": lambda: torch.empty(4).cauchy_(),
    "exponential": lambda: torch.empty(4).exponential_(),
    "geometric": lambda: torch.empty(4).geometric_(0.5),
    "log_normal": lambda: torch.empty(4).log_normal_(),
    "multinomial": lambda: torch.multinomial(HALVES, 2),
    "nn.functional.alpha_dropout": lambda: F.alpha_dropout(ONES, 0.5, training=True),
    "nn.functional.dropout": lambda: F.dropout(ONES, 0.5),
    "nn.functional.dropout2d": lambda: F.dropout2d(torch.ones(1, 2, 2, 2), 0.5),
    "nn.functional.dropout3d": lambda: F.dropout3d(torch.ones(1, 2, 2, 2, 2), 0.5),
    "nn.functional.feature_alpha_dropout": lambda: F.feature_alpha_dropout(
        torch.ones(1, 2, 2), 0.5, training=True
    ),
    "nn.functional.fractional_max_pool2d": lambda: F.fractional_max_pool2d(
        torch.ones(1, 1, 4, 4), 2, output_size=2
    ),
    "nn.functional.fractional_max_pool3d": lambda: F.fractional_max_pool3d(
        torch.ones(1, 1, 4, 4, 4), 2, output_size=2
    ),
    "nn.functional.multi_head_attention": lambda: F.scaled_dot_product_attention(
        HEADS, HEADS, HEADS, dropout_p=0.5
    ),
    "nn.functional.rrelu": lambda: F.rrelu(-ONES, training=True),
    "normal": lambda: torch.normal(ONES, HALVES),
    "normal.number_mean": lambda: torch.normal(0.5, HALVES),
    "pca_lowrank": lambda: torch.pca_lowrank(torch.ones(4, 4), 2),
    "rand_like": lambda: torch.rand_like(ONES),
    "randint": lambda: torch.randint(0, 9, (4,)),
    "randint_like": lambda: torch.randint_like(ONES, 9),
    "randn": lambda: torch.randn(4),
    "randn_like": lambda: torch.randn_like(ONES),
    "svd_lowrank": lambda: torch.svd_lowrank(torch.ones(4, 4), 2),
    "uniform": lambda: torch.empty(4).uniform_(),
}
DATA = TensorDataset(torch.arange(9))
PYTHON = {
    "randperm": lambda: torch.randperm(9),
    "random_split": lambda: random_split(DATA, [4, 5]),
    "a DataLoader's base seed": lambda: iter(DataLoader(DATA)),
    "a DataLoader that shuffles": lambda: list(DataLoader(DATA, shuffle=True)),
    "the default generator by name": lambda: torch.rand(3, generator=torch.default_generator),
    "RandomSampler": lambda: list(RandomSampler(DATA)),
    "WeightedRandomSampler": lambda: list(WeightedRandomSampler([0.5, 0.5], 2)),
    "nn.Linear": lambda: torch.nn.Linear(2, 2),
    "orthogonal_": lambda: torch.nn.init.orthogonal_(torch.empty(3, 3)),
    "trunc_normal_": lambda: torch.nn.init.trunc_normal_(torch.empty(3, 3)),
    "a distribution": lambda: torch.distributions.Gamma(1.0, 1.0).sample(),
    "SobolEngine(scramble=True)": lambda: torch.quasirandom.SobolEngine(2, scramble=True),
    "an LSTM with dropout": lambda: torch._VF.lstm(
        torch.ones(2, 1, 2),
        [torch.ones(2, 1, 2)] * 2,
        [torch.ones(8, 2)] * 4,
        False,
        2,
        0.5,
        True,
        False,
        False,
    ),
}


@pytest.mark.parametrize("name", [*OPINFO, *PYTHON])
def test_python_functions_that_draw_raise_until_seeded(name, on):
    """The 25 names of torch's OpInfo that draw, and what loaders, samplers and initialisers draw: unseeded, they raise."""
    draw = {**OPINFO, **PYTHON}[name]
    with pytest.raises(UnseededError, match="set_random_seed"):
        draw()
    samebits.set_random_seed(3)
    draw()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random_split(DATA, [4, 5], generator=own()),
        lambda: list(DataLoader(DATA, shuffle=True, generator=own())),
        lambda: list(RandomSampler(DATA, generator=own())),
        lambda: torch.nn.init.uniform_(torch.empty(3), generator=own()),
        lambda: torch.quasirandom.SobolEngine(2, scramble=True, seed=1),
        lambda: torch.rand(3, generator=torch.Generator().set_state(own().get_state())),
    ],
)
def test_a_seed_for_the_single_op_is_enough(draw, on):
    """A generator with a seed of its own, by manual_seed or set_state, needs no seed of the process."""
    draw()
    assert switch._switch.guard._overrides is not None  # and the rule still holds for others
    with pytest.raises(UnseededError):
        torch.rand(3)


@pytest.fixture
def shown(monkeypatch):
    """The warnings of this test, as if nothing had been warned of before."""
    monkeypatch.setattr(process, "notices", {})
    return warn_once.notices


@pytest.mark.skipif(
    torch.__version__ < "2.12",
    reason="before torch 2.12 nothing sees that a generator is made (docs/reference/versions.md)",
)
def test_a_generator_that_is_never_seeded_is_named_once(on, shown):
    """Two such generators give the same numbers in every program: a warning names the line that made them, once."""
    with pytest.warns(UnseededWarning, match="manual_seed"):
        same = [torch.rand(3, generator=torch.Generator()) for _ in range(2)]
        torch_generators.check()
    assert torch.equal(*same)
    (text,) = shown()
    assert "test_torch_draws.py" in text and "67280421310721" in text
    torch_generators.check()
    assert len(shown()) == 1


def test_seeded_or_undrawn_generators_are_not_named(on, shown):
    """Negative control: manual_seed, set_state, a generator nobody draws from, and those of torch's own samplers."""
    made = [own(), torch.Generator().set_state(own().get_state())]
    for generator in made:
        torch.rand(3, generator=generator)
    idle = torch.Generator()
    samebits.set_random_seed(1)
    list(DataLoader(DATA, shuffle=True))
    torch_generators.check()
    assert shown() == () and idle.initial_seed() == torch_generators._DEFAULT_SEED


def test_without_the_switch_no_generator_is_noted(shown):
    """Negative control: with the switch off, nothing is kept and nothing is said."""
    torch.rand(3, generator=torch.Generator())
    assert not torch_generators._made
    torch_generators.check()
    assert shown() == ()


def test_draws_before_the_switch_do_not_raise(unseeded, shown):
    """Enabling after an unseeded draw is a warning that says what it means; the next unseeded draw raises."""
    torch.rand(3)
    with pytest.warns(UnseededWarning, match="initial weights"):
        samebits.enable_op_determinism()
    with pytest.raises(UnseededError):
        torch.rand(3)


def test_seeded_draws_before_the_switch_are_not_named(shown):
    """Negative control: after a seed, enabling says nothing."""
    torch.manual_seed(1)
    torch.rand(3)
    samebits.enable_op_determinism()
    assert shown() == ()


def test_stateless_functions_have_the_same_bits_unseeded(on):
    """A function of a key does not look at any seed."""
    drawn = samebits.random.uniform(samebits.random.key(5), 8)
    samebits.set_random_seed(9)
    assert torch.equal(drawn, samebits.random.uniform(samebits.random.key(5), 8))
    assert np.unique(drawn.numpy()).size == 8

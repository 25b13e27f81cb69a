"""Objects that hold randomness: generators, layers, the process's own generators on CUDA, compiled code."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from samebits import nn, random
from samebits._inspect import rng_states
from samebits.random._process import draw_counts, generator_states
from samebits.selfcheck.agreement import agree
from samebits.selfcheck.case import Case, Measured, Results, Target, expected
from samebits.selfcheck.draws import numbers

_LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
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


def cases() -> Iterator[Case]:
    """Yields the cases; those that need the device itself have examples of correct results."""
    yield Case("Generator", _generator, agree)
    yield Case("layers of samebits.nn", _layers, agree)
    yield Case("layers initialised again", _initialised, agree)
    yield Case("the process's generators", _process, agree)
    counted = {"at first": 0, "after a draw": "more", "after a seed": "reseeded"}
    yield Case("draws are counted", _counted, expected(**counted), example=counted)
    step = {name: [torch.ones(3)] for name in ("the CPU", "a plain call", "compiled")}
    yield Case("torch.compile", _compiled, agree, limit_s=150, example={"step": step})


def _generator(target: Target) -> Measured:
    """Measures a generator that was made on the CPU and moved: it continues with the same numbers."""
    here, there = random.Generator.from_seed(5, device="cpu"), random.Generator.from_seed(5, device="cpu")
    here.uniform(3), there.uniform(3)
    there.to(target.device)
    made = random.Generator.from_seed(5, device=target.device)
    made.uniform(3)
    results: Results = {}
    for name, draw in _METHODS.items():
        results[name] = {"the CPU": draw(here), "moved": draw(there).cpu(), "made there": draw(made).cpu()}
    states = ("the CPU", here), ("moved", there), ("made there", made)
    results["state_dict"] = {name: dict(one.state_dict()) for name, one in states}
    results["split"] = {name: [child.key.cpu() for child in one.split(3)] for name, one in states}
    return Measured(results)


_METHODS: dict[str, Callable[[random.Generator], torch.Tensor]] = {
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


def _layers(target: Target) -> Measured:
    """Measures the outputs of two calls, and the gradient of their input."""
    return Measured({
        name: {
            "the CPU": _stepped(make(), shape, "cpu"),
            "the GPU": _stepped(make(), shape, target.device),
        }
        for name, (make, shape) in _LAYERS.items()
    })  # fmt: skip


def _stepped(layer: torch.nn.Module, shape: tuple[int, ...], device: str) -> list[torch.Tensor]:
    model = torch.nn.Sequential(layer).to(device).train()
    nn.set_step(model, 4, seed=11)
    key = random.key(6, device="cpu")
    x = random.normal(key, shape).to(device).requires_grad_()
    first = model(x)
    second = model(first)
    second.backward(random.normal(random.fold_in(key, 1), shape).to(device))
    found = first, second, x.grad
    return [one.detach().cpu() for one in found if one is not None]


def _initialised(target: Target) -> Measured:
    """Measures the weights of a key, on one device, whatever was drawn in between."""

    def made(drawn: int) -> dict[str, torch.Tensor]:
        torch.rand(drawn, device=target.device)
        model = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.Conv1d(3, 5, 3), torch.nn.LSTM(5, 7))
        model.to(target.device)
        nn.reset_parameters(model, random.key(8, device="cpu"))
        return {name: value.detach().cpu() for name, value in model.state_dict().items()}

    with generator_states.preserve_states():
        return Measured({"weights": {"once": made(1), "again": made(1000)}})


def _process(target: Target) -> Measured:
    """Measures that CUDA's generators, filled from a key, saved and restored, give the same numbers again."""

    def draw() -> list[torch.Tensor]:
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
    states = {"before": before, "after": rng_states.of_process()}
    after = {
        name: [torch.frombuffer(bytearray(c), dtype=torch.uint8) for c in s.cuda]
        for name, s in states.items()
    }
    return Measured({**results, "states afterwards": after} if before.cuda else results)


def _counted(target: Target) -> Measured:
    """Measures that `draws()` reads the offset of a CUDA generator."""
    torch.zeros(1, device=target.device)
    with generator_states.preserve_states():
        draw_counts.begin((1, 2))
        results: Results = {"at first": draw_counts.draws()["cuda:0"]}
        torch.rand(5, device=target.device)
        counted = draw_counts.draws()["cuda:0"]
        results["after a draw"] = "more" if isinstance(counted, int) and counted > 0 else counted
        torch.cuda.manual_seed(3)
        results["after a seed"] = draw_counts.draws()["cuda:0"]
    return Measured(results)


def _step(key: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    """Returns the numbers that a compiled function draws; each comes from a kernel of ours."""
    own = random.fold_in(key, 3)
    return [
        random.dropout(own, x, 0.3),
        random.uniform(random.fold_in(own, 1), x.shape),
        random.normal(random.fold_in(own, 2), (77,), dtype=torch.bfloat16),
        random.randint(random.fold_in(own, 3), (77,), high=1000),
        random.permutation(random.fold_in(own, 4), 200),
    ]


def _compiled(target: Target) -> Measured:
    """Measures a function compiled by Inductor for the device: the numbers of a plain call on the CPU."""
    key, x = (
        random.key(2, device=target.device),
        numbers((33, 37), torch.device(target.device), torch.float32),
    )
    drawn = torch.compile(_step)(key, x)
    results = _plain(torch.device(target.device))
    results["step"]["compiled"] = [one.cpu() for one in drawn]
    return Measured(results)


def _plain(device: torch.device) -> Results:
    def called(where: torch.device) -> list[torch.Tensor]:
        drawn = _step(random.key(2, device=where), numbers((33, 37), where, torch.float32))
        return [one.cpu() for one in drawn]

    return {"step": {"the CPU": called(torch.device("cpu")), "a plain call": called(device)}}

"""Random numbers: every draw of `samebits.random`, its generators, seeds (the same on every CPU), and the layers that draw."""

from __future__ import annotations

import random as python_random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import samebits
from samebits import nn, random

Facts = Iterator[tuple[str, Any]]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)
SHAPES = ((), (1,), (7,), (3, 5), (1023,), (65, 67))


def _filled(draw: Callable[..., torch.Tensor], **options: Any) -> Callable[..., torch.Tensor]:
    """Of an in-place form: contiguous, transposed and strided memory."""

    def into(key: torch.Tensor, *shape: int, dtype: torch.dtype) -> list[torch.Tensor]:
        results = [torch.empty(shape, dtype=dtype)]
        if shape:
            results.append(torch.empty(shape[::-1], dtype=dtype).permute(*reversed(range(len(shape)))))
            results.append(torch.empty(*shape[:-1], 2 * shape[-1], dtype=dtype)[..., ::2])
        return [draw(key, result, **options) for result in results]

    return into


DRAWS: dict[str, tuple[Callable[..., Any], tuple[torch.dtype, ...]]] = {
    "bits": (random.bits, INTEGERS),
    "uniform": (random.uniform, FLOATS),
    "uniform.bounds": (lambda *a, **o: random.uniform(*a, low=-1.5, high=3.0, **o), FLOATS),
    "uniform_": (_filled(random.uniform_, low=1.0, high=2.0), FLOATS),
    "normal": (random.normal, FLOATS),
    "normal.scaled": (lambda *a, **o: random.normal(*a, mean=2.0, std=0.5, **o), FLOATS),
    "normal_": (_filled(random.normal_, std=3.0), FLOATS),
    "bernoulli": (lambda *a, **o: random.bernoulli(*a, p=0.3, **o), (*FLOATS, *INTEGERS, torch.bool)),
    "bernoulli_": (_filled(random.bernoulli_, p=0.7), (*FLOATS, *INTEGERS, torch.bool)),
    "truncated_normal": (random.truncated_normal, FLOATS),
    "truncated_normal.tail": (lambda *a, **o: random.truncated_normal(*a, low=40.0, high=60.0, **o), FLOATS),
    "exponential": (lambda *a, **o: random.exponential(*a, rate=2.0, **o), FLOATS),
    "gumbel": (lambda *a, **o: random.gumbel(*a, loc=1.0, scale=0.5, **o), FLOATS),
    "randint": (lambda *a, **o: random.randint(*a, low=3, high=100, **o), INTEGERS),
    "dropout": (lambda key, *shape, dtype: random.dropout(key, torch.ones(shape, dtype=dtype), 0.3), FLOATS),
}
"""Those with a shape and a dtype; `_others` has the rest."""
OTHERS = {"key", "split", "fold_in", "permutation", "permute_index", "choice", "categorical"}
STATEFUL = {"Generator", "draws", "get_global_generator", "set_global_generator", "set_random_seed"}


def draws(tree: Path) -> Facts:
    """Each function by each dtype: odd shapes with one key, and with a batch of keys; 1 and 3 threads."""
    public = {name for name in dir(random) if not name.startswith("_")}
    if missing := public - {name.split(".")[0] for name in DRAWS} - OTHERS - STATEFUL:
        raise SystemExit(
            f"golden: no fact for samebits.random.{', '.join(sorted(missing))}: add one to randomness.py"
        )
    key = random.fold_in(random.key(2**63 + 5), ("golden", 3))
    keys = random.split(key, 5)
    for name, (draw, dtypes) in DRAWS.items():
        for dtype in dtypes:
            single = [
                draw(random.fold_in(key, number), *shape, dtype=dtype) for number, shape in enumerate(SHAPES)
            ]
            batch = draw(keys[:, None], 5, 37, dtype=dtype)
            threads = []
            for number in (1, 3):
                torch.set_num_threads(number)
                threads.append(draw(key, 70_001, dtype=dtype))
            yield f"{name}/{str(dtype)[6:]}", [single, batch, threads]
    yield from _others(key, keys)
    yield from _generators(key)


def _others(key: torch.Tensor, keys: torch.Tensor) -> Facts:
    yield "key", [random.key(number) for number in (0, 1, 2**64 - 1)]
    yield "split", [random.split(key), random.split(key, 7), random.split(keys, 3)]
    folded = (0, -1, 2**64 - 1, "layer", ("layer", 3, torch.tensor(5)))
    yield "fold_in", [random.fold_in(one, data) for one in (key, keys) for data in folded]
    yield "permutation", [random.permutation(key, n) for n in (0, 1, 2, 100, 4097)]
    yield "permutation.batch", random.permutation(keys, 33)
    yield "permutation.tensor", random.permutation(key, torch.arange(60).view(4, 15), dim=1)
    sizes = (1, 2, 3, 1000, 2**31 + 11, 2**48)
    yield "permute_index", [random.permute_index(key, i, n) for n in sizes for i in (0, n // 2, n - 1)]
    yield "permute_index.tensor", random.permute_index(key, torch.arange(500).view(5, 100), 10**9)
    weights = torch.arange(101).double() ** 2
    yield "choice", [random.choice(key, 101, 3, 7), random.choice(key, torch.arange(12).view(4, 3), 5, dim=1)]
    yield (
        "choice.without",
        [random.choice(key, 101, 50, replace=False), random.choice(keys[:, None], 101, 5, 9, replace=False)],
    )
    yield (
        "choice.weights",
        [random.choice(key, 101, 999, weights=weights, replace=again) for again in (True,)],
    )
    yield "choice.weights.without", random.choice(key, 101, 60, weights=weights, replace=False)
    logits = torch.tensor([[0.0, 1.0, -2.0, 0.5], [3.0, float("-inf"), 1.0, 1.0]])
    yield (
        "categorical",
        [random.categorical(key, logits=logits), random.categorical(key, 500, 2, logits=logits.double())],
    )


def _generators(key: torch.Tensor) -> Facts:
    made = {"from_seed": random.Generator.from_seed(4), "from_key": random.Generator.from_key(key)}
    for name, generator in made.items():
        drawn = [
            generator.normal(7),
            generator.randint(3, 4, high=9),
            generator.permutation(11),
            generator.bits(3),
        ]
        drawn += [child.uniform(3) for child in generator.split(2)]
        drawn += [generator.dropout(torch.ones(9)), generator.choice(9, 4), generator.bernoulli(8, p=0.2)]
        yield f"Generator.{name}", [drawn, generator.key, generator.draws, dict(generator.state_dict())]
    generator.reset_from_seed(4)
    yield "Generator.reset", [generator.exponential(3), generator.gumbel(3), generator.truncated_normal(3)]


def seeds(tree: Path) -> Facts:
    """What `set_random_seed` does to Python, NumPy, torch and the process's own generator."""
    for seed in (0, 1, 7 + 2**32, 2**63 - 1):
        samebits.set_random_seed(seed)
        yield (
            f"{seed}/python",
            [python_random.random(), python_random.getrandbits(64), python_random.sample(range(99), 5)],
        )
        yield (
            f"{seed}/numpy",
            [np.random.random(5), np.random.randint(2**62, size=5), np.random.permutation(9)],
        )
        yield f"{seed}/torch", [torch.rand(5), torch.randint(2**40, (5,)), torch.randperm(9)]
        yield f"{seed}/draws", dict(random.draws())
        yield (
            f"{seed}/global",
            [random.get_global_generator().bits(5), random.get_global_generator().normal(3)],
        )
        random.set_global_generator(random.Generator.from_seed(2))
        yield f"{seed}/set_global", random.get_global_generator().bits(5)


def _image(*shape: int) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) % 23 - 11).float().view(shape) / 8


LAYERS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "Dropout": (lambda: nn.Dropout(0.3), (5, 33)),
    "Dropout1d": (lambda: nn.Dropout1d(0.3), (3, 8, 9)),
    "Dropout2d": (lambda: nn.Dropout2d(0.3), (3, 8, 4, 5)),
    "Dropout3d": (lambda: nn.Dropout3d(0.3), (3, 8, 2, 3, 4)),
    "AlphaDropout": (lambda: nn.AlphaDropout(0.3), (5, 33)),
    "FeatureAlphaDropout": (lambda: nn.FeatureAlphaDropout(0.3), (3, 8, 4)),
    "RReLU": (lambda: nn.RReLU(), (5, 33)),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, output_ratio=0.6), (2, 3, 12, 13)),
    "FractionalMaxPool3d": (lambda: nn.FractionalMaxPool3d(2, output_ratio=0.6), (2, 3, 7, 8, 9)),
    "GaussianNoise": (lambda: nn.GaussianNoise(0.2), (5, 33)),
    "StochasticDepth": (lambda: nn.StochasticDepth(0.4, "row"), (9, 7)),
    "MultiheadAttention": (
        lambda: _Self(nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True)),
        (3, 5, 16),
    ),
    "RNN": (lambda: nn.RNN(8, 12, 2, dropout=0.3), (5, 3, 8)),
    "LSTM": (lambda: nn.LSTM(8, 12, 3, dropout=0.3, bidirectional=True), (5, 3, 8)),
    "GRU": (lambda: nn.GRU(8, 12, 2, dropout=0.3), (5, 3, 8)),
}
NO_LAYERS = {
    "OwnsRandomness",
    "compiled",
    "name_layers",
    "set_aside",
    "set_step",
    "own_randomness",
    "reset_parameters",
}


class _Self(torch.nn.Module):
    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor) -> Any:
        return self.attention(x, x, x)


def layers(tree: Path) -> Facts:
    """Each layer that draws: output and gradient in two steps of a plain loop; a model that was given such; initial weights."""
    public = {name for name in dir(nn) if isinstance(getattr(nn, name), type) and not name.startswith("_")}
    if missing := public - set(LAYERS) - NO_LAYERS:
        raise SystemExit(
            f"golden: no fact for samebits.nn.{', '.join(sorted(missing))}: add one to randomness.py"
        )
    samebits.enable_op_determinism(across="threads")
    for name, (make, shape) in LAYERS.items():
        samebits.set_random_seed(1)
        layer = make()
        random_weights(layer)
        yield name, [_trained(layer, _image(*shape), step) for step in (0, 1)]
    samebits.set_random_seed(2)
    encoder = torch.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True)
    model = nn.own_randomness(
        torch.nn.Sequential(encoder, torch.nn.Dropout(0.4), torch.nn.RReLU()), key=random.key(8)
    )
    random_weights(model)
    yield "own_randomness", [model(_image(3, 5, 16)), model(_image(3, 5, 16))]
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 5), torch.nn.LSTM(3, 4), encoder)
    nn.reset_parameters(model, random.key(8))
    yield "reset_parameters", dict(model.state_dict())


def random_weights(module: torch.nn.Module) -> None:
    """Weights that are a function of their names."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            random.uniform_(random.fold_in(random.key(6), name), parameter.detach(), low=-0.5, high=0.5)


def _trained(layer: torch.nn.Module, x: torch.Tensor, step: int) -> list[Any]:
    nn.set_step(layer, step, seed=5)
    x.requires_grad_()
    out = layer(x)
    out = out[0] if isinstance(out, tuple) else out
    out.square().sum().backward()
    return [out, x.grad, [parameter.grad for parameter in layer.parameters()]]


SECTIONS = {"draws": draws, "seeds": seeds, "layers": layers}

"""What `across="machines"` promises for every CPU: the kernels of all families, short lengths, and trained
weights.

A case that the mode refuses has the fact that it is refused. Under another CPU's instructions (an emulator, or the variables of
`verify`'s row "a CPU with AVX2") `python tools/golden/section.py machine_pointwise .` must print the same.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import elementwise
import kernels
import torch
import torch.nn.functional as F
from operands import integers, tensor, with_gradients
from torch import nn

import samebits

Facts = Iterator[tuple[str, Any]]
LENGTHS = (*range(1, 101), 4099)


def _enable() -> None:
    warnings.simplefilter("ignore")
    samebits.set_random_seed(1)
    samebits.enable_op_determinism(across="machines")


def _family(name: str, tree: Path) -> Facts:
    """Each case of a kernel family, on 1 and 3 threads by turns."""
    _enable()
    for number, (case, run) in enumerate(kernels.FAMILIES[name]()):
        torch.set_num_threads(1 + 2 * (number % 2))
        yield case, elementwise._tried(run)


def machine_lengths(tree: Path) -> Facts:
    """Each elementwise function with its gradient, softmax, sums and products at the lengths 1 to 100, where vectors end."""
    _enable()
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for name in elementwise.UNARY:
            low, high = elementwise.RANGES.get(name, (-3.0, 3.0))
            yield f"{name}/{str(dtype)[6:]}", _at_each_length(_named(name), dtype, low, high)
        for name, function in _OF_ROWS.items():
            yield f"{name}/{str(dtype)[6:]}", _at_each_length(function, dtype, -3.0, 3.0)


_OF_ROWS: dict[str, Callable[..., Any]] = {
    "pow": lambda x: (x.abs() + 0.1).pow(1.7),
    "atan2": lambda x: x.atan2(x.flip(0) + 4),
    "sum": torch.sum,
    "mean": torch.mean,
    "softmax": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(0),
    "norm": torch.linalg.vector_norm,
    "dot": lambda x: x.dot(x.flip(0)),
    "outer product": lambda x: x[:, None] @ x[None],
    "matrix and vector": lambda x: torch.outer(x, x) @ x,
    "layer norm": lambda x: F.layer_norm(x, x.shape),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "lerp": lambda x: x.lerp(x.flip(0), 0.3),
}


def _named(name: str) -> Callable[..., Any]:
    found: Any = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _at_each_length(function: Callable[..., Any], dtype: torch.dtype, low: float, high: float) -> list[Any]:
    lengths = LENGTHS[:100] if function is _OF_ROWS["matrix and vector"] else LENGTHS
    operands = (tensor(length, dtype=dtype, low=low, high=high) for length in lengths)
    return [elementwise._tried(lambda x=x: with_gradients(function, x)) for x in operands]


def machine_training(tree: Path) -> Facts:
    """The weights of small networks after some steps of each optimizer."""
    _enable()
    for name, make in _NETWORKS.items():
        for optimizer in ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad"):
            for options in ({"foreach": False}, {"foreach": True}):
                fact = f"{name}/{optimizer}/{'foreach' if options['foreach'] else 'single'}"
                yield fact, elementwise._tried(lambda make=make, o=optimizer, k=options: _trained(make, o, k))


def _trained(
    make: Callable[[], tuple[nn.Module, torch.Tensor]], optimizer: str, options: dict[str, Any]
) -> Any:
    samebits.set_random_seed(3)
    network, inputs = make()
    with torch.no_grad():
        for number, parameter in enumerate(network.parameters()):
            parameter.copy_(tensor(*parameter.shape, low=-0.2, high=0.2, seed=number))
    momentum = {"momentum": 0.9} if optimizer == "SGD" else {}
    chosen = getattr(torch.optim, optimizer)(network.parameters(), lr=1e-2, **momentum, **options)
    labels, losses = integers(len(inputs), high=10), []
    for _ in range(5):
        chosen.zero_grad()
        loss = F.cross_entropy(network(inputs), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        chosen.step()
        losses.append(loss.detach())
    return losses, network.state_dict()


def machine_others(tree: Path) -> Facts:
    """Draws by rejection and their gradients, complex numbers, sparse sums, fake quantization, gamma functions."""
    _enable()
    for dtype in (torch.float32, torch.float64):
        for number, (name, compute) in enumerate(_OTHERS.items()):
            torch.set_num_threads(1 + 2 * (number % 2))
            samebits.set_random_seed(3)
            yield f"{name}/{str(dtype)[6:]}", compute(tensor(3, 2003, dtype=dtype, low=0.01, high=9.0))


def _gradients_of_draws(x: torch.Tensor) -> Any:
    a, b = x[0].requires_grad_(), x[1].requires_grad_()
    draws = torch._standard_gamma(a), torch.distributions.Beta(a, b).rsample()
    return [*draws, *torch.autograd.grad(sum(draw.square().sum() for draw in draws), (a, b))]


def _of_complex(x: torch.Tensor) -> Any:
    y, z = torch.complex(x[0], x[1]), torch.complex(x[2], x[0])
    return [
        *(
            y * z,
            y / z,
            y.add(z, alpha=2j),
            torch.addcmul(y, y, z),
            torch.addcdiv(y, y, z),
            y.lerp(z, 0.3),
            y.exp(),
        ),
        *(
            y.abs(),
            y.angle(),
            y.sgn(),
            torch.polar(x[0], x[1]),
            y.sum(),
            y.vdot(z),
            y[:2000].view(50, 40) @ z[:40],
        ),
    ]


def _of_sparse(x: torch.Tensor) -> Any:
    stored = torch.sparse_coo_tensor(integers(1, 2003, high=50), x.t(), (50, 3))
    return [torch.add(torch.zeros(50, 3, dtype=x.dtype), stored, alpha=0.3), stored.coalesce().values()]


_OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "gamma, beta": _gradients_of_draws,
    "poisson, binomial": lambda x: [torch.poisson(3 * x), torch.binomial((9 * x).round(), x / 10)],
    "gamma functions": lambda x: [x.lgamma(), (-x).lgamma(), x.digamma(), torch.polygamma(1, x)],
    "complex": _of_complex,
    "sparse": _of_sparse,
    "fake quantization": lambda x: torch.fake_quantize_per_tensor_affine(x.float(), 0.03, 2, -128, 127),
}


class _Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def _perceptron() -> tuple[nn.Module, torch.Tensor]:
    layers = (nn.Linear(64, 48), nn.GELU(), nn.LayerNorm(48), nn.Dropout(0.1), nn.Linear(48, 10))
    return nn.Sequential(*layers), tensor(32, 64)


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True)
    return nn.Sequential(nn.TransformerEncoder(layer, 2), _Mean(), nn.Linear(32, 10)), tensor(8, 12, 32)


def _convolutional() -> tuple[nn.Module, torch.Tensor]:
    layers = (
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    return nn.Sequential(*layers), tensor(16, 1, 8, 8)


_NETWORKS = {"perceptron": _perceptron, "transformer": _transformer, "convolutional": _convolutional}
SECTIONS: dict[str, Callable[[Path], Facts]] = {
    **{f"machine_{name}": partial(_family, name) for name in kernels.FAMILIES},
    "machine_lengths": machine_lengths,
    "machine_others": machine_others,
    "machine_training": machine_training,
}

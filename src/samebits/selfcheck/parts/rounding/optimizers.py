"""`SGD` and `AdamW` for 16-bit weights on CUDA: the same weights again, in another process and after a resume.

Equal bits on a GPU and a CPU are not promised; whether they agree is shown as a figure. `python -m` of this module
prints the digests of its training, as JSON.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import torch

from samebits import random
from samebits._byte_digest import of_bytes
from samebits.random._process import generator_states
from samebits.rounding import optim
from samebits.rounding.optim._update import ParameterUpdate, update
from samebits.selfcheck.agreement import agree
from samebits.selfcheck.case import Case, Measured, Results, Target, equal, expected

_BF16, _F16, _F32 = torch.bfloat16, torch.float16, torch.float32
_STEPS = 6
_SHAPES = ((1001,), (33, 17), (3,), (2, 3, 5))
Made = Callable[[list[tuple[str, torch.nn.Parameter]]], torch.optim.Optimizer]
_VARIANTS: dict[str, tuple[torch.dtype, Made]] = {
    "AdamW bfloat16": (_BF16, lambda named: optim.AdamW(named, lr=1e-2)),
    "AdamW float16": (_F16, lambda named: optim.AdamW(named, lr=1e-2, maximize=True)),
    "AdamW, state of bfloat16": (_BF16, lambda named: optim.AdamW(named, lr=1e-2, state_dtype=_BF16)),
    "AdamW, amsgrad": (_BF16, lambda named: optim.AdamW(named, lr=1e-2, amsgrad=True)),
    "AdamW float32": (_F32, lambda named: optim.AdamW(named, lr=1e-2)),
    "SGD bfloat16": (_BF16, lambda named: optim.SGD(named, lr=1e-2)),
    "SGD, momentum": (_BF16, lambda named: optim.SGD(named, lr=1e-2, momentum=0.9, weight_decay=0.1)),
    "SGD, Nesterov float16": (_F16, lambda named: optim.SGD(named, lr=1e-2, momentum=0.9, nesterov=True)),
    "SGD, state of bfloat16": (
        _BF16,
        lambda named: optim.SGD(named, lr=1e-2, momentum=0.9, state_dtype=_BF16),
    ),
}


def cases() -> Iterator[Case]:
    """Yields the cases; a fresh process takes seconds of imports."""
    yield Case("the optimizers again, and resumed", _again, agree, limit_s=120)
    yield Case("the optimizers with other keys", _other, expected(**_differences()))
    both = {name: {"this process": "a", "another": "a"} for name in _VARIANTS}
    yield Case("the optimizers in a fresh process", _fresh, agree, limit_s=120, example=both)


def _parameters(dtype: torch.dtype, device: str) -> list[tuple[str, torch.nn.Parameter]]:
    key = random.key(21, device="cpu")
    return [
        (f"w{n}", torch.nn.Parameter(random.normal(random.fold_in(key, n), shape).to(device, dtype)))
        for n, shape in enumerate(_SHAPES)
    ]


def _train(
    named: list[tuple[str, torch.nn.Parameter]], optimizer: torch.optim.Optimizer, steps: range
) -> None:
    """Trains with gradients that are a function of the step, made on the CPU."""
    for step in steps:
        for number, (_, weight) in enumerate(named):
            key = random.fold_in(random.key(22, device="cpu"), (step, number))
            weight.grad = random.normal(key, weight.shape, std=0.1).to(weight.device, weight.dtype)
        optimizer.step()


def _trained(name: str, device: str) -> list[torch.Tensor]:
    """Returns weights and state."""
    dtype, make = _VARIANTS[name]
    named = _parameters(dtype, device)
    optimizer = make(named)
    _train(named, optimizer, range(_STEPS))
    return _held(named, optimizer)


def _resumed(name: str, device: str) -> list[torch.Tensor]:
    """Returns weights and state of a run that continued from a `state_dict` half-way, in new objects."""
    dtype, make = _VARIANTS[name]
    named = _parameters(dtype, device)
    optimizer = make(named)
    _train(named, optimizer, range(_STEPS // 2))
    weights, state = [weight.detach().clone() for _, weight in named], copy.deepcopy(optimizer.state_dict())
    named = [(name, torch.nn.Parameter(weight)) for (name, _), weight in zip(named, weights, strict=True)]
    optimizer = make(named)
    optimizer.load_state_dict(state)
    _train(named, optimizer, range(_STEPS // 2, _STEPS))
    return _held(named, optimizer)


def _held(
    named: list[tuple[str, torch.nn.Parameter]], optimizer: torch.optim.Optimizer
) -> list[torch.Tensor]:
    weights = [weight.detach().cpu() for _, weight in named]
    return weights + [
        value.cpu()
        for _, weight in named
        for _, value in sorted(optimizer.state[weight].items())
        if isinstance(value, torch.Tensor)
    ]


def _seeded(work: Callable[[], Results]) -> Results:
    """Runs `work` with random numbers from the seed of the process, which stays as it was."""
    with generator_states.preserve_states():
        random.set_random_seed(5)
        return work()


def _again(target: Target) -> Measured:
    results = _seeded(
        lambda: {
            name: {
                "once": _trained(name, target.device),
                "again": _trained(name, target.device),
                "resumed": _resumed(name, target.device),
            }
            for name in _VARIANTS
        }
    )
    on_cpu = _seeded(lambda: {name: _trained(name, "cpu") for name in _VARIANTS})
    same = {name: equal(results[name]["once"], on_cpu[name]) for name in _VARIANTS}
    return Measured(results, {f"{name}: the CPU's bits": "yes" if same[name] else "no" for name in same})


_PLACES: dict[str, tuple[int, int | str, tuple[int, ...]]] = {
    "itself again": (0, "w", (0, 0)),
    "another shard": (0, "w", (0, 1)),
    "another dimension of the mesh": (0, "w", (1, 0)),
    "another name": (0, "v", (0, 0)),
    "another step": (1, "w", (0, 0)),
}
"""(steps before, name, coordinates of the shard) of a weight that is compared with (0, "w", (0, 0))."""


def _differences() -> dict[str, bool]:
    """Returns True for equal weights: a replica has the same position, and nothing else has."""
    return {f"{rule}, {name}": name == "itself again" for rule in ("AdamW", "SGD") for name in _PLACES}


_NUMBERS = {
    "AdamW": (1e-2, 0.9, 0.999, 1e-8, 0.0, 0.0),
    "SGD": (1.0, 1e-2, 0.9, 0.0, 0.0, 0.0, 0.0),
}


def _other(target: Target) -> Measured:
    """Measures that replicas round alike; another shard, name or step has other noise, at the same gradient and state."""

    def stepped(rule: str, before: int, name: int | str, shard: tuple[int, ...]) -> torch.Tensor:
        ((_, weight), *_rest) = _parameters(_BF16, target.device)
        weight = weight.detach()
        state = [torch.zeros_like(weight, dtype=_F32) for _ in range(2 if rule == "AdamW" else 1)]
        count, numbers = torch.tensor(before + 1), _NUMBERS[rule]
        update(rule, [ParameterUpdate([weight, weight * 0.1, *state], count, (name, shard), numbers)], (7, 8))
        return weight.cpu()

    found = {}
    for rule in _NUMBERS:
        first = stepped(rule, *_PLACES["itself again"])
        for name, (before, own, shard) in _PLACES.items():
            found[f"{rule}, {name}"] = equal(stepped(rule, before, own, shard), first)
    return Measured(found)


def digests(device: str) -> dict[str, str]:
    """Returns the digests of the final weights and state of each variant."""
    trained = _seeded(lambda: {name: _trained(name, device) for name in _VARIANTS})
    return {name: of_bytes(*map(_bytes, held)) for name, held in trained.items()}


def _bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _fresh(target: Target) -> Measured:
    command = [sys.executable, "-m", "samebits.selfcheck.parts.rounding.optimizers", target.device]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {done.returncode}: {done.stderr[-300:]}")
    there, here = json.loads(done.stdout), digests(target.device)
    return Measured({name: {"this process": here[name], "another": there[name]} for name in here})


if __name__ == "__main__":
    print(json.dumps(digests(sys.argv[1])))

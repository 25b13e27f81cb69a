"""Compiled code: Inductor with the atomics refused, Triton's autotuning pinned, CUDA graphs, over fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

import torch

from samebits import _digest as digest
from samebits.determinism import enable_op_determinism
from samebits.errors import SamebitsError
from samebits.selfcheck.agreement import same
from samebits.selfcheck.case import Case, Measured, Part, Results, Target, expected
from samebits.selfcheck.programs.job import TrainingJob, run_in_fresh_processes

_LIMIT_S = 140.0
"""The limit of one process that compiles."""
_BITS = {"model": "xxh3-128:0", "optimizer": "xxh3-128:1"}


def train_in_process(target: Target, job: TrainingJob, cache: str) -> dict[str, Any]:
    """Returns the results of a process that compiles everything anew, in its own caches."""
    caches = {
        name: str(target.folder / cache / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    }
    (outcome,) = run_in_fresh_processes(job, _LIMIT_S, caches)
    return outcome


def measure_jobs(jobs: dict[str, TrainingJob], target: Target) -> Measured:
    """Measures the final weights of each job, and its milliseconds per step."""
    results: Results = {}
    figures: dict[str, float | str] = {}
    for name, job in jobs.items():
        outcome = train_in_process(target, job, name.replace(" ", "-"))
        results[name] = {part: outcome[part] for part in _BITS}
        figures[f"ms/step, {name}"] = outcome["ms"]
        if outcome["skipped graphs"]:
            figures[f"graphs not made, {name}"] = float(outcome["skipped graphs"])
    return Measured(results, figures)


def _alike(name: str, jobs: Callable[[Target], dict[str, TrainingJob]], names: Iterable[str]) -> Case:
    example = dict.fromkeys(names, _BITS)
    return Case(
        name,
        lambda target: measure_jobs(jobs(target), target),
        same,
        limit_s=290,
        needs=("triton",),
        example=example,
    )


def _again(**options: Any) -> Callable[[Target], dict[str, TrainingJob]]:
    def jobs(target: Target) -> dict[str, TrainingJob]:
        job = TrainingJob(device=target.device, timed=20, small=target.small, **options)
        return {"one process": job, "another": job}

    return jobs


def _with_graphs(dropout: float) -> Callable[[Target], dict[str, TrainingJob]]:
    def jobs(target: Target) -> dict[str, TrainingJob]:
        common: dict[str, Any] = {
            "device": target.device, "timed": 20, "small": target.small, "dropout": dropout
        }  # fmt: skip
        return {
            "without": TrainingJob(compiled="default", **common),
            "with graphs": TrainingJob(compiled="reduce-overhead", **common),
        }

    return jobs


def _scatters(device: str) -> dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]]:
    """Returns functions whose sums Inductor makes with atomics, or by waiting for other blocks, if nothing stops it."""
    own = torch.Generator().manual_seed(3)
    count = 200_000
    at = torch.randint(500, (count,), generator=own).to(device)
    values = torch.randn(count, generator=own).to(device)
    table = torch.randn(500, 16, generator=own).to(device)
    zeros = torch.zeros(500, device=device)

    def embedded(at: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        table = table.detach().requires_grad_()
        weights = torch.arange(16.0, device=table.device).sin()
        (grad,) = torch.autograd.grad(
            (torch.nn.functional.embedding(at, table) * weights).square().sum(), table
        )
        return grad

    return {
        "scatter_add": (lambda at, v, z: (z * 1.5).scatter_add(0, at, v.sin()), (at, values, zeros)),
        "index_add": (lambda at, v, z: (z * 1.5).index_add(0, at, v.sin()), (at, values, zeros)),
        "index_put": (
            lambda at, v, z: (z * 1.5).index_put((at,), v.sin(), accumulate=True),
            (at, values, zeros),
        ),
        "scatter_reduce": (
            lambda at, v, z: (z * 1.5).scatter_reduce(0, at, v.sin(), "sum"),
            (at, values, zeros),
        ),
        "embedding": (embedded, (at, table)),
        "cumsum": (lambda v: v.sin().cumsum(0).cos(), (values,)),
    }


REPEATS = 20
REFUSED, EQUAL = "refused", "equal"
SCATTERS: Results = dict.fromkeys(
    ("scatter_add", "index_add", "index_put", "scatter_reduce", "embedding", "cumsum"), EQUAL
)


def measure_scatters(target: Target) -> Measured:
    """Measures each function: refused, or with equal bits in all repeats; and without the switch for comparison."""
    results: Results = {}
    figures: dict[str, float | str] = {}
    for name, (function, inputs) in _scatters(target.device).items():
        with enable_op_determinism():
            results[name] = repeat_calls(torch.compile(function, fullgraph=False), inputs)
        torch.compiler.reset()
        figures[f"{name}, without the switch"] = repeat_calls(
            torch.compile(function, fullgraph=False), inputs
        )
        torch.compiler.reset()
    return Measured(results, figures)


def repeat_calls(function: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]) -> str:
    """Returns in a word the results of repeated calls."""
    try:
        seen = {digest.of_value(function(*inputs)) for _ in range(REPEATS)}
    except SamebitsError:
        return REFUSED
    return EQUAL if len(seen) == 1 else f"{len(seen)} results in {REPEATS} calls"


def judge_scatters(results: Results) -> Iterator[str]:
    """Yields a function that varies, or that was not measured."""
    for name in SCATTERS:
        if results.get(name) not in {REFUSED, EQUAL}:
            yield f"{name} under the switch, compiled: {results.get(name)}"


AUTOTUNED: Results = {"first call": 64, "another size": 64}


def measure_autotuning(target: Target) -> Measured:
    """Measures which of two configurations a user's kernel gets under the switch; and which one timing them chooses."""
    kernel = import_module("samebits.selfcheck.parts.compiled.kernel")

    def block(count: int) -> int:
        out = torch.zeros(count, dtype=torch.int32, device=target.device)
        kernel.which[lambda meta: (-(-count // meta["BLOCK"]),)](out, count)
        return int(out[0])

    with enable_op_determinism():
        results: Results = {"first call": block(5000), "another size": block(1_000_000)}
    return Measured(results, {"chosen by time": str(block(3_000_000))})


def _cases() -> Iterator[Case]:
    yield Case(
        "sums by atomics", measure_scatters, judge_scatters, limit_s=240, needs=("triton",), example=SCATTERS
    )
    yield Case(
        "triton.autotune", measure_autotuning, expected(**AUTOTUNED), needs=("triton",), example=AUTOTUNED
    )
    pair = ("one process", "another")
    yield _alike("transformer, compiled", _again(compiled="default"), pair)
    yield _alike("CUDA graphs, without dropout", _with_graphs(0.0), ("without", "with graphs"))
    yield _alike("convnet, compiled", _again(task="convnet", compiled="default"), pair)
    yield _alike("transformer, bfloat16, compiled", _again(dtype="bfloat16", compiled="default"), pair)
    yield _alike("CUDA graphs, with dropout", _with_graphs(0.1), ("without", "with graphs"))
    yield _alike("transformer, not compiled", _again(), pair)
    tuned = _again(compiled="max-autotune-no-cudagraphs")
    yield _alike("transformer, max-autotune", tuned, pair)


PART = Part(
    "compiled",
    "compiled training repeats in another process, without atomics and timings, with CUDA graphs too",
    7,
    _cases,
    {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
)

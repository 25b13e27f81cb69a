"""Several processes: NCCL with one rank, and two ranks of gloo on one GPU, whose run is killed and resumed."""

from __future__ import annotations

from collections.abc import Iterator

from samebits.selfcheck.agreement import same
from samebits.selfcheck.case import Case, Measured, Part, Results, Target
from samebits.selfcheck.programs.job import TrainingJob, run_killed_and_resumed

_STEPS, _KILLED = 24, 13
_LIMIT_S = 90.0
"""The limit of one job's processes."""


def measure_ranks(backend: str, ranks: int, target: Target) -> Measured:
    """Measures the bits of each rank, of an uninterrupted run and of one that is killed on all ranks and started again."""
    job = TrainingJob(device=target.device, steps=_STEPS, small=True, backend=backend)
    whole, resumed = run_killed_and_resumed(job, target.folder, _KILLED, _LIMIT_S, ranks=ranks)
    results: Results = {}
    for kind, outcome in (("uninterrupted", whole), ("killed and resumed", resumed)):
        for rank, one in enumerate(outcome):
            results[f"rank {rank}, {kind}"] = [one["model"], one["optimizer"]]
    if not all(one["resumed"] for one in resumed):
        results["resumed"] = ["it began anew", ""]
    return Measured(results)


def _case(backend: str, ranks: int) -> Case:
    bits = ["xxh3-128:0", "xxh3-128:1"]
    kinds = ("uninterrupted", "killed and resumed")
    example = {f"rank {rank}, {kind}": bits for kind in kinds for rank in range(ranks)}
    name = f"Run with DistributedDataParallel, {backend}, {ranks} rank{'s' * (ranks > 1)}"
    return Case(
        name, lambda target: measure_ranks(backend, ranks, target), same, limit_s=280, example=example
    )


def _cases() -> Iterator[Case]:
    yield _case("nccl", 1)
    yield _case("gloo", 2)


PART = Part(
    "processes", "NCCL with one rank and gloo with two on one GPU: killed, resumed, equal", 2.5, _cases
)

"""Compiled code: Inductor with the atomics refused, Triton's autotuning pinned, CUDA graphs, over fresh processes."""

import pytest
import torch

from agreement import expected, same
from samebits import _digest as digest
from samebits.determinism import enable_op_determinism
from samebits.errors import SamebitsError, VerifyError
from training_job import TrainingJob, run_in_processes

BITS = {"model": "xxh3-128:0", "optimizer": "xxh3-128:1"}
COMPILED, GRAPHS = {"compiled": "default"}, {"compiled": "reduce-overhead"}
PAIRS = {
    "transformer, compiled": (COMPILED, COMPILED),
    "CUDA graphs, without dropout": ({**COMPILED, "dropout": 0.0}, {**GRAPHS, "dropout": 0.0}),
    "convnet, compiled": ({**COMPILED, "task": "convnet"},) * 2,
    "transformer, bfloat16, compiled": ({**COMPILED, "dtype": "bfloat16"},) * 2,
    "CUDA graphs, with dropout": ({**COMPILED, "dropout": 0.1}, {**GRAPHS, "dropout": 0.1}),
    "transformer, not compiled": ({}, {}),
    "transformer, max-autotune": ({"compiled": "max-autotune-no-cudagraphs"},) * 2,
}


def trained(target, jobs):
    """The final weights of each job, in a process that compiles everything anew, and its milliseconds per step."""
    results = {}
    for number, options in enumerate(jobs):
        job = TrainingJob(device=target.device, timed=20, small=target.small, **options)
        names = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
        caches = {name: str(target.folder / f"{name}-{number}") for name in names}
        (outcome,) = run_in_processes(job, 140.0, caches)
        title = f"{number}: {options.get('compiled', 'not compiled')}"
        results[title] = {part: outcome[part] for part in BITS}
        target.figures[f"ms/step, {title}"] = outcome["ms"]
        target.figures[f"graphs not made, {title}"] = outcome["skipped graphs"]
    return results


@pytest.mark.limit(290)
@pytest.mark.parametrize("jobs", PAIRS.values(), ids=PAIRS)
def test_a_compiled_training_repeats_in_another_process(target, jobs):
    """Two processes, each with caches of its own, end with the same weights; so do one with CUDA graphs and one without."""
    pytest.importorskip("triton")
    target.check(same, trained, jobs, example={"0": BITS, "1": BITS})


REFUSED, EQUAL = "refused", "equal"


def scatters(device):
    """Functions whose sums Inductor makes with atomics, or by waiting for other blocks, if nothing stops it."""
    own = torch.Generator().manual_seed(3)
    at = torch.randint(500, (200_000,), generator=own).to(device)
    v = torch.randn(200_000, generator=own).to(device)
    table, z = torch.randn(500, 16, generator=own).to(device), torch.zeros(500, device=device)

    def embedding(at, table):
        table = table.detach().requires_grad_()
        y = torch.nn.functional.embedding(at, table) * torch.arange(16.0, device=table.device).sin()
        return torch.autograd.grad(y.square().sum(), table)[0]

    return {
        "scatter_add": (lambda at, v, z: (z * 1.5).scatter_add(0, at, v.sin()), (at, v, z)),
        "index_add": (lambda at, v, z: (z * 1.5).index_add(0, at, v.sin()), (at, v, z)),
        "index_put": (lambda at, v, z: (z * 1.5).index_put((at,), v.sin(), accumulate=True), (at, v, z)),
        "scatter_reduce": (lambda at, v, z: (z * 1.5).scatter_reduce(0, at, v.sin(), "sum"), (at, v, z)),
        "embedding": (embedding, (at, table)),
        "cumsum": (lambda v: v.sin().cumsum(0).cos(), (v,)),
    }


SCATTERS = tuple(scatters("cpu"))


def repeated(function, inputs):
    """The outcome of twenty calls, in a word."""
    try:
        seen = {digest.of_value(function(*inputs)) for _ in range(20)}
    except SamebitsError:
        return REFUSED
    return EQUAL if len(seen) == 1 else f"{len(seen)} results in 20 calls"


def compiled_scatters(target):
    results = {}
    for name, (function, inputs) in scatters(target.device).items():
        with enable_op_determinism():
            results[name] = repeated(torch.compile(function, fullgraph=False), inputs)
        torch.compiler.reset()
        target.figures[f"{name}, without the switch"] = repeated(torch.compile(function), inputs)
        torch.compiler.reset()
    return results


def judge_scatters(results):
    """Yields a function that varies, or that was not measured."""
    for name in SCATTERS:
        if results.get(name) not in {REFUSED, EQUAL}:
            yield f"{name} under the switch, compiled: {results.get(name)}"


@pytest.mark.limit(240)
def test_sums_by_atomics_repeat_or_are_refused(target):
    """Under the switch, what Inductor would add with atomics has equal bits in twenty calls, or raises."""
    pytest.importorskip("triton")
    target.check(judge_scatters, compiled_scatters, example=dict.fromkeys(SCATTERS, EQUAL))


AUTOTUNED = {"first call": 64, "another size": 64}


def autotuned(target):
    """Which of two configurations a user's kernel gets under the switch; and which one a timing chooses."""
    from autotuned_kernel import which  # Triton may be missing

    def block(count):
        out = torch.zeros(count, dtype=torch.int32, device=target.device)
        which[lambda meta: (-(-count // meta["BLOCK"]),)](out, count)
        return int(out[0])

    with enable_op_determinism():
        results = {"first call": block(5000), "another size": block(1_000_000)}
    target.figures["chosen by time"] = block(3_000_000)
    return results


def test_a_users_autotuned_kernel_takes_its_first_configuration(target):
    """Under the switch no timing chooses the configuration."""
    pytest.importorskip("triton")
    target.check(expected(**AUTOTUNED), autotuned, example=AUTOTUNED)


# --- controls, on the CPU ---


def test_an_op_that_varies_is_seen():
    """A function with other bits at each call is not equal; one that raises our error is refused; the judge wants either."""
    values = iter(range(100))
    assert repeated(lambda: torch.tensor(next(values)), ()).startswith("20 results")
    assert repeated(lambda: torch.ones(2), ()) == EQUAL

    def refused():
        raise VerifyError("x")

    assert repeated(refused, ()) == REFUSED
    good = dict.fromkeys(SCATTERS, EQUAL)
    assert not list(judge_scatters(good)) and len(list(judge_scatters({**good, "cumsum": "2 results"}))) == 1


@pytest.mark.slow
def test_the_functions_with_atomics_compile(small):
    """On the CPU each function of the list is compiled under the switch, and repeats or is refused."""
    results = compiled_scatters(small)
    assert tuple(results) == SCATTERS and not list(judge_scatters(results))


INTERPRETED = """
import os, sys
os.environ["TRITON_INTERPRET"] = "1"
sys.path[:0] = {paths}
from types import SimpleNamespace
import test_compiled
import triton.runtime.autotuner as tuner
tuner.Autotuner._bench = lambda self, *args, config, **meta: [float(config.kwargs["BLOCK"] != 1024)] * 3
target = SimpleNamespace(device="cpu", figures={{}})
print(test_compiled.autotuned(target), target.figures)
"""


@pytest.mark.slow
def test_a_timing_would_choose_the_other_configuration(python, root):
    """In Triton's interpreter: under the switch the first of two configurations runs, a timing chooses the other."""
    pytest.importorskip("triton")
    paths = [str(root / "tests/gpu"), str(root / "tests/support")]
    out = python(INTERPRETED.format(paths=paths)).stdout
    assert f"{AUTOTUNED} {{'chosen by time': 1024}}" in out, out


@pytest.mark.parametrize("capability", [80, 90])
def test_the_autotuned_kernel_compiles_for_a_gpu(capability, tmp_path, monkeypatch):
    """Each configuration of the kernel that is tuned compiles for sm_80 and sm_90, and stores its own size."""
    ahead = pytest.importorskip("triton_ahead")
    from autotuned_kernel import which

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    out = torch.zeros(5000, dtype=torch.int32)
    for config in which.configs:
        ptx = ahead.compiled((which.fn, (out, len(out)), config.all_kwargs()), capability).asm["ptx"]
        assert "st.global" in ptx and str(config.kwargs["BLOCK"]) in ptx

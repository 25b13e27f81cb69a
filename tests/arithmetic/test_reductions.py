"""Reductions of `across="machines"` on played machines and threads, and torch's own kernels that it keeps."""

import json
import subprocess
import sys

import pytest
import torch

import exact_cases
import machine_reductions
from exact_reductions import EXACT, NEEDS_OURS, REFUSED
from op_testing import replaced
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.determinism._ops import sums

pytestmark = pytest.mark.slow

PROBE = """
import sys, torch
from samebits.arithmetic.reductions.tensors import reduce
from samebits.arithmetic.softmax.tensors import softmax
if "torch" in sys.argv:
    softmax = lambda x, dim, dtype, log: torch.log_softmax(x, dim) if log else torch.softmax(x, dim)
for n in (1, 2, 9, 15, 16, 17, 31, 33, 64, 100, 257, 5000):
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(n))
    for made in (reduce("sum", x), reduce("sum", x, (1,)), reduce("sum", x, (0,)), softmax(x, 1, torch.float32, log=False)):
        print(n, made.view(torch.int32).flatten().tolist())
"""


@pytest.mark.parametrize("kernels", ("ours", "torch"))
def test_a_cpu_without_avx512_gives_the_same_bits(python, root, kernels):
    """Sums and softmax are equal where the CPU is played as Haswell; torch's softmax is the control, where AVX-512 is used here."""
    path = {"PYTHONPATH": str(root / "src")}
    here = python(PROBE, kernels, env=path).stdout
    there = python(PROBE, kernels, env={**path, **AVX2_ENVIRONMENT}).stdout
    assert len(here) > 1000
    if kernels == "ours":
        assert here == there
    elif torch.backends.cpu.get_cpu_capability() == "AVX512":
        assert here != there


def digests_elsewhere(root, *args, **env):
    """The battery in a process of its own."""
    import os

    program = root / "tests" / "support" / "machine_reductions.py"
    paths = os.pathsep.join((str(root / "src"), str(program.parent)))
    done = subprocess.run(
        [sys.executable, program, *args],
        env={**os.environ, "PYTHONPATH": paths, **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_every_reduction_has_the_same_bits_at_any_thread_count(root):
    """The battery at 1, 2, 3 and 7 threads, in all types and layouts."""
    seen = [digests_elsewhere(root, "short", str(threads)) for threads in (1, 2, 3, 7)]
    assert len(seen[0]) > 1000
    assert all(one == seen[0] for one in seen)


@pytest.mark.slow
def test_every_reduction_has_the_same_bits_without_avx512(root):
    """The battery where the CPU is played as Haswell; with torch's own kernels, cases differ (the negative control)."""
    assert digests_elsewhere(root, "long", "1") == digests_elsewhere(root, "long", "1", **AVX2_ENVIRONMENT)
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        torchs = digests_elsewhere(root, "short", "1", "torch")
        assert torchs != digests_elsewhere(root, "short", "1", "torch", **AVX2_ENVIRONMENT)


def test_a_sum_has_the_same_bits_at_any_thread_count():
    """Sums of long and of many rows, at 1, 2, 3 and 7 threads."""
    x = exact_cases.numbers(300, 1000)
    seen = set()
    with replaced(sums):
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            seen.add(exact_cases.digest([x.sum(), x.sum(0), x.sum(1), x.mean((0, 1))]))
    assert len(seen) == 1


@pytest.mark.slow
def test_torchs_kernels_that_stay_are_equal_with_avx2(root):
    """Indexed writes, windows, interpolation: torch's kernels give the same bits with AVX2 as here, and at 3 threads.

    But grid_sample in float16 and bfloat16 reads addresses that are not its own (`grids` computes it in float32).
    """
    import os

    program = root / "tests" / "support" / "exact_cases.py"

    def run(threads, **env):
        done = subprocess.run(
            [sys.executable, program, "large", threads],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        return {
            name: one
            for name, one in found.items()
            if not (name.startswith("grid_sample") and "float16" in name)
        }

    here = run("1")
    assert len(here) > 2000
    assert run("1", ATEN_CPU_CAPABILITY="avx2") == here
    assert run("3") == here


def test_the_lists_name_ops_that_there_are():
    """Each name of the lists of torch's kernels is an op of torch, in one list, with a reason."""
    assert not set(EXACT) & set(REFUSED)
    for name in (*EXACT, *NEEDS_OURS, *REFUSED):
        assert hasattr(torch.ops.aten, name.partition(".")[0]), name
    assert all((EXACT | NEEDS_OURS | REFUSED).values())


def test_the_battery_names_every_module():
    """The modules of replacements are those of the battery: none is installed without a case."""
    assert len(machine_reductions.MODULES) == len({one.__name__ for one in machine_reductions.MODULES})
    assert sum(len(one.REPLACEMENTS) for one in machine_reductions.MODULES) > 50

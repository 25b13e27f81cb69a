"""Reductions of `across="machines"` on played machines and threads, and torch's own kernels that it keeps."""

import json

import pytest
import torch

import exact_cases
import machine_reductions
from exact_reductions import EXACT, NEEDS_OURS, REFUSED
from op_testing import over_threads, printed_elsewhere, replaced
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.determinism._ops import sums

pytestmark = pytest.mark.slow


def digests_elsewhere(program, *args, **environment):
    """The digests of a program of tests/support for each number of threads, in a process of its own."""
    return json.loads(printed_elsewhere(program.__file__, *args, **environment))


def test_every_reduction_has_the_same_bits_at_any_thread_count():
    """The battery at 1, 2, 3 and 7 threads, in all types and layouts."""
    first, *others = digests_elsewhere(machine_reductions, "short", "1,2,3,7")
    assert len(first) > 1000
    assert len(others) == 3 and all(one == first for one in others)


def test_every_reduction_has_the_same_bits_without_avx512():
    """The battery where the CPU is played as Haswell; with torch's own kernels, cases differ (the negative control)."""
    ours = digests_elsewhere(machine_reductions, "long", "1")
    assert ours == digests_elsewhere(machine_reductions, "long", "1", **AVX2_ENVIRONMENT)
    if torch.backends.cpu.get_cpu_capability() == "AVX512":
        torchs = digests_elsewhere(machine_reductions, "short", "1", "torch")
        assert torchs != digests_elsewhere(machine_reductions, "short", "1", "torch", **AVX2_ENVIRONMENT)


def test_a_sum_has_the_same_bits_at_any_thread_count():
    """Sums of long and of many rows, at 1, 2, 3 and 7 threads."""
    x = exact_cases.numbers(300, 1000)
    with replaced(sums):
        seen, _ = over_threads(lambda: [x.sum(), x.sum(0), x.sum(1), x.mean((0, 1))], (1, 2, 3, 7))
    assert len(seen) == 1


def test_torchs_kernels_that_stay_are_equal_with_avx2():
    """Indexed writes, windows, interpolation: torch's kernels give the same bits with AVX2 as here, and at 3 threads.

    But grid_sample in float16 and bfloat16 reads addresses that are not its own (`grids` computes it in float32).
    """

    def kept(found):
        return {
            name: one
            for name, one in found.items()
            if not (name.startswith("grid_sample") and "float16" in name)
        }

    one_thread, three_threads = map(kept, digests_elsewhere(exact_cases, "large", "1,3"))
    assert len(one_thread) > 2000 and three_threads == one_thread
    (avx2,) = digests_elsewhere(exact_cases, "large", "1", ATEN_CPU_CAPABILITY="avx2")
    assert kept(avx2) == one_thread


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

"""Every elementwise function has the same bits for any number of threads, and compiled for AVX2 or for AVX-512."""

import json
import os
import subprocess
import sys

import pytest
import torch

import elementwise_digests
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT

pytestmark = pytest.mark.slow

FEW = ("exp", "log", "gelu", "pow", "sin", "add_scaled")


def played(names, environment):
    """The digests of a process that compiles for another CPU."""
    command = [sys.executable, elementwise_digests.__file__, *names]
    run = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


def test_bits_do_not_depend_on_the_number_of_threads():
    """With 1, 2, 3 and 7 threads all digests are equal."""
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            found.append(elementwise_digests.digests(FEW[2:4]))
    finally:
        torch.set_num_threads(before)
    assert found[1:] == found[:1] * 3


def test_a_few_functions_have_the_same_bits_without_avx_512():
    """Compiled for Haswell, some functions of each kind have the digests of this CPU's code."""
    assert played(FEW[:2], AVX2_ENVIRONMENT) == elementwise_digests.digests(FEW[:2])


@pytest.mark.slow
def test_all_functions_have_the_same_bits_without_avx_512():
    """Compiled for Haswell, every function in every type has the digests of this CPU's code."""
    ours, haswells = elementwise_digests.digests(), played((), AVX2_ENVIRONMENT)
    assert len(ours) > 200
    assert [key for key in ours if haswells[key] != ours[key]] == []


def test_the_played_cpu_has_shorter_vectors():
    """Negative control: code for Haswell is other code, with registers of 256 bits."""
    script = (
        "from samebits.arithmetic.elementwise_functions import FUNCTIONS; import torch\n"
        "kernel = FUNCTIONS['square'].kernels[torch.float32]; x = torch.ones(9)\n"
        "kernel(9, x.data_ptr(), 1, x.data_ptr())\n"
        "print('zmm' in kernel._run._compiled[0]._library.get_asm_str())"
    )
    environment = {**os.environ, **AVX2_ENVIRONMENT, "SAMEBITS_CACHE_DIR": os.devnull}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "False"

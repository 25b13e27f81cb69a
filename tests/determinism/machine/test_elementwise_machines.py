"""Every elementwise function has the same bits for any number of threads, and compiled for AVX2 or for AVX-512."""

import json
import os

import pytest

import elementwise_digests
from op_testing import over_threads, printed_elsewhere
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT

pytestmark = pytest.mark.slow


def played(names, environment):
    """The digests of a process that compiles for another CPU."""
    return json.loads(printed_elsewhere(elementwise_digests.__file__, *names, **environment))


def test_bits_do_not_depend_on_the_number_of_threads():
    """With 1, 2, 3 and 7 threads all digests are equal."""
    seen, _ = over_threads(lambda: elementwise_digests.digests(("gelu", "pow")), (1, 2, 3, 7))
    assert len(seen) == 1


def test_all_functions_have_the_same_bits_without_avx_512():
    """Compiled for Haswell, every function in every type has the digests of this CPU's code."""
    ours, haswells = elementwise_digests.digests(), played((), AVX2_ENVIRONMENT)
    assert len(ours) > 200
    assert [key for key in ours if haswells[key] != ours[key]] == []


def test_the_played_cpu_has_shorter_vectors():
    """Negative control: code for Haswell is other code, with registers of 256 bits."""
    script = (
        "from samebits.arithmetic.elementwise_functions import FUNCTIONS; import torch\n"
        "kernel = FUNCTIONS['square'].kernels[torch.float32]\n"
        "from samebits._native import llvm; print('zmm' in llvm._machine().emit_assembly(llvm._optimized(kernel._run.module(), False)))"
    )
    environment = {**AVX2_ENVIRONMENT, "SAMEBITS_CACHE_DIR": os.devnull}
    assert printed_elsewhere("-c", script, **environment).strip() == "False"

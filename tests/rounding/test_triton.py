"""The Triton form of stochastic rounding without a GPU: its bits in Triton's interpreter, its code from the compiler."""

import re
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

import torch

import samebits.random as sr
from samebits.random import _device_kernels as random_backends
from samebits.random._triton import launch as random_launch
from samebits.rounding import _stochastic_round as device_kernels
from samebits.rounding import _triton, stochastic_round
from samebits.rounding._cpu.number_formats import FORMATS
from triton_ahead import cases, compiled, kernels_of, launches


@pytest.mark.slow
def test_the_interpreter_gives_the_bits_of_the_cpu(interpreted):
    """Both kernels have the bits of the CPU in Triton's interpreter."""
    interpreted(Path(__file__).parents[1] / "support" / "interpreted_rounding_triton.py")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def rounded():
    """What the launcher launches, for each dtype."""
    with launches(device_kernels, _triton) as found:
        for dtype in FORMATS:
            stochastic_round(torch.ones(300), dtype, sr.key(1))
    return found


CASES = cases(rounded())
FLOATING = re.compile(r"^\s*(?:@%p\d+\s+)?([a-z]\w*\.\S*\.(?:f|bf)\d\d\S*)", re.MULTILINE)


@pytest.mark.parametrize("launch, capability", **CASES)
def test_what_is_launched_has_no_floating_point(launch, capability):
    """The kernels compile for sm_80 and sm_90, with the launcher's options, to integer code: nothing fuses or flushes."""
    done = compiled(launch, capability).asm
    assert done["cubin"] and FLOATING.findall(done["ptx"]) == []


def test_no_kernel_is_left_out():
    """Each kernel is among what was compiled, for both capabilities, and each dtype for one of them."""
    for capability in (80, 90):
        assert {one[0].__name__ for one, at in CASES["argvalues"] if at == capability} == kernels_of(_triton)
    assert len({str(one[2]) for one, _ in CASES["argvalues"]}) == len(FORMATS)


def test_the_check_sees_floating_point():
    """Negative control: in the normal numbers' kernel there is a lot."""
    with launches(random_backends, random_launch) as found:
        sr.normal(sr.key(1), 100)
    assert len(FLOATING.findall(compiled(found[0], 90).asm["ptx"])) > 20


def test_importing_imports_no_triton(python):
    """`import samebits.rounding`, and rounding on the CPU, leave Triton alone."""
    out = python(
        "import sys, torch, samebits\nfrom samebits.rounding import stochastic_round\n"
        "stochastic_round(torch.ones(3), torch.bfloat16, samebits.random.key(1))\nprint('triton' in sys.modules)"
    )
    assert out.stdout.strip() == "False"

"""The Triton form of stochastic rounding without a GPU: its bits in Triton's interpreter, its code from the compiler."""

import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from samebits.rounding.triton import kernels

BLOCKS = {"BLOCKS": 256, "ONE_KEY": True}
FORMAT = {"DIGITS": 3, "LEAST": 121, "OVERFLOW": 0x7E, "NAN": 0x7F, "SIZE": 1}


def test_the_interpreter_gives_the_bits_of_the_cpu(interpreted):
    """Both kernels have the bits of the CPU in Triton's interpreter."""
    interpreted(Path(__file__).with_name("interpreted_rounding_triton.py"))


@pytest.mark.parametrize(
    "kernel, out, constants",
    [
        (kernels.to_bfloat16, "*u16", {}),
        (kernels.to_format, "*u8", FORMAT),
        (kernels.to_format, "*u16", FORMAT),
    ],
)
def test_kernels_compile_for_a_gpu(kernel, out, constants, tmp_path, monkeypatch):
    """The kernels compile for sm_90 to integer code: no floating-point instruction, so none that fuses or flushes."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    pointers = {"keys": "*u64", "given": "*fp32", "out": out}
    types = {
        p.name: "constexpr" if p.is_constexpr else p.annotation_type or pointers[p.name]
        for p in kernel.params
    }
    source = ASTSource(kernel, types, constexprs={**constants, **BLOCKS})
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False})
    assert done.asm["cubin"]
    floating = [
        line for line in done.asm["ptx"].splitlines() if ".f32" in line or ".f16" in line or ".bf16" in line
    ]
    assert floating == []


def test_importing_imports_no_triton(python):
    """`import samebits.rounding`, and rounding on the CPU, leave Triton alone."""
    out = python(
        "import sys, torch, samebits\nfrom samebits.rounding import stochastic_round\n"
        "stochastic_round(torch.ones(3), torch.bfloat16, samebits.random.key(1))\nprint('triton' in sys.modules)"
    )
    assert out.stdout.strip() == "False"

"""The arithmetic's Triton kernels without a GPU: their bits in Triton's interpreter, their PTX from the compiler."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

triton = pytest.importorskip("triton")

import torch
import triton.language as tl

from lab.cuda import formula_kernels, kernels, launch
from samebits._native.formula import fma
from samebits.arithmetic.elementwise_functions import FUNCTIONS
from triton_ahead import compiled, kernels_of, launches

INTERPRETED = Path(__file__).parents[1] / "support" / "interpreted_cuda.py"


@pytest.mark.soak
def test_the_interpreter_gives_the_bits_of_the_cpu(interpreted):
    """Every kernel has the bits of the CPU in Triton's interpreter."""
    interpreted(INTERPRETED)


def test_importing_imports_no_triton(python):
    """The switch and the CPU's arithmetic leave Triton alone."""
    out = python(
        "import sys, samebits\n"
        "import samebits.arithmetic.elementwise_functions\nprint('triton' in sys.modules)"
    )
    assert out.stdout.strip() == "False"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def launched(work):
    """What is launched: (kernel, arguments, constants and options), each."""
    with launches(SimpleNamespace(_CPU=None), None) as found:
        work()
    return found


OPERATION = re.compile(
    r"^\s*(?:@%p\d+\s+)?((?:add|sub|mul|fma|mad|div|sqrt|rsqrt|rcp|ex2|lg2|sin|cos|tanh|min|max|neg|abs|mma|wgmma)\.\S*f(?:16|32|64)\S*)",
    re.MULTILINE,
)
ROUNDED = re.compile(r"(?:(?:add|sub|mul|fma|div|sqrt)\.rn|abs|neg|min|max)\.f(32|64)")
TENSOR_CORES = re.compile(r"\b(?:[HDI]MMA|[HI]?GMMA)\b")  # HFMA2.MMA is none


def counts(asm):
    """The floating-point operations of the PTX, and of them those that are not IEEE operations rounded to nearest, or choices: of a sign, or of
    one of two numbers (LLVM makes min of x < c ? x : c, where a NaN gives c in both)."""
    found = OPERATION.findall(asm["ptx"])
    return Counter(found), [one for one in found if not ROUNDED.fullmatch(one)]


def of_function(name, dtype):
    function = FUNCTIONS[name]
    inputs = [torch.ones(300, dtype=dtype)] * function.inputs
    (one,) = launched(lambda: launch.applied(function, inputs, *[1.0] * function.numbers))
    return one


def written(launch_of_one):
    """How often each thread is to fuse: the fma of the formula's text that a result needs, for its two elements."""
    needed, found = set(), 0
    for line in reversed(launch_of_one[0].src.splitlines()):
        name, _, value = line.strip().partition(" = ")
        if not value or name in needed:
            needed |= set(re.findall(r"\bv\d+\b", value or name))
            found += value.startswith("fma(")
    return 2 * found


SHARED = ("silu_backward", "gelu_tanh_backward", "glu_gate_backward")
QUICK = ["exp", "log", "tanh", "sigmoid", "erf", "gelu", "silu", "sqrt", "rsqrt", "sin", "pow"]
PARAMETERS = [
    pytest.param(
        name,
        dtype,
        id=f"{name} {dtype}",
        marks=() if name in QUICK and dtype == torch.float32 else pytest.mark.slow,
    )
    for name in FUNCTIONS
    for dtype in (torch.float32, torch.float64)
    if dtype in FUNCTIONS[name].kernels
]


@pytest.mark.parametrize("name, dtype", PARAMETERS)
def test_functions_compute_as_ieee_754_says(name, dtype):
    """Functions compile for sm_80 and sm_90: each operation is rounded to nearest, nothing is approximate or flushed to zero, and fused is what the formula fuses."""
    one = of_function(name, dtype)
    # Fewer where LLVM finds that two are equal: of numbers alone, which both elements share, and exp(-|x|) of x and -x.
    shared = FUNCTIONS[name].numbers or (name in SHARED and dtype == torch.float64)
    for capability in (80, 90):
        found, wrong = counts(compiled(one, capability).asm)
        fused = sum(number for operation, number in found.items() if operation.startswith("fma"))
        assert wrong == []
        assert fused == written(one) or (shared and fused < written(one))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_is_computed_as_float32(dtype):
    """The shorter types have the operations of float32 that round."""

    def rounding(dtype):
        found, wrong = counts(compiled(of_function("exp", dtype), 90).asm)
        # Of |x|, LLVM makes an operation of bits or one of numbers, by where x comes from.
        return Counter({one: n for one, n in found.items() if not one.startswith("abs")}), wrong

    assert rounding(dtype) == rounding(torch.float32)


def of_product(dtype=torch.float32, **given):
    a, b = torch.ones(70, 300, dtype=dtype), torch.ones(300, 50, dtype=dtype)
    (one,) = launched(lambda: launch.product(a, b, **given))
    return one


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_the_product_is_a_chain_of_fused_multiply_adds(dtype, capability):
    """A thread fuses once for each of its 16 outputs, and the factors alpha and beta are products of their own; no tensor core is used."""
    kind = "f64" if dtype == torch.float64 else "f32"
    asm = compiled(of_product(dtype, added=torch.ones(50, dtype=dtype), alpha=0.5, beta=0.3), capability).asm
    found, wrong = counts(asm)
    assert wrong == [] and found == {f"fma.rn.{kind}": 16, f"add.rn.{kind}": 32, f"mul.rn.{kind}": 32}
    assert "mma" not in asm["ptx"] and not TENSOR_CORES.search(asm["sass"])


def test_machine_code_of_the_product_fuses_what_is_written():
    """ptxas contracts nothing: in the GPU's own code, multiplications and additions stay apart, but with fusion they do not."""
    one = of_product(added=torch.ones(50), alpha=0.5, beta=0.3)
    kept, fused = (compiled(one, 90, **options).asm["sass"] for options in ({}, {"enable_fp_fusion": True}))
    for code, multiplications in ((kept, 32), (fused, 16)):
        assert len(re.findall(r"\bFMUL\b", code)) == multiplications
    assert len(re.findall(r"\bFFMA\b", fused)) > len(re.findall(r"\bFFMA\b", kept))


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("dot", [False, True], ids=["sum", "dot"])
def test_sums_are_rounded_to_nearest(dot, capability):
    """A sum has additions only; of products, each is one fused multiply-add."""
    x = torch.ones(3, 1000)
    first, again = launched(lambda: launch.summed(x, x if dot else None))
    for one, fuses in ((first, dot), (again, False)):
        found, wrong = counts(compiled(one, capability).asm)
        assert wrong == [] and set(found) == ({"fma.rn.f32", "add.rn.f32"} if fuses else {"add.rn.f32"})


def test_no_kernel_is_left_out():
    """The kernels which no formula uses are the two that these tests compile."""
    assert kernels_of(kernels) - {*formula_kernels._USED} == {"product_tile", "block_sums"}


# Negative controls.


def plain(x, y, z):
    return x * y + z


@pytest.mark.parametrize("options", [{"enable_fp_fusion": False}, {"enable_fp_fusion": True}], ids=str)
def test_a_product_and_a_sum_are_told_from_a_fused_one(options):
    """A plain a b + c is two operations with the launcher's option, and a contraction that nobody wrote without it."""
    x = torch.ones(256)
    for name, define, own in (("plain", plain, 0), ("fused", fma, 2)):
        kernel, _ = formula_kernels.kernel_of(define, name, "float32", 3, 0)
        one = kernel, (x, x, x, x.clone(), 256), {"BLOCK": 256, **options}
        found, _ = counts(compiled(one, 90).asm)
        contracted = found["fma.rn.f32"] - written(one)
        assert written(one) == own and contracted == (2 if own == 0 and options["enable_fp_fusion"] else 0)


@triton.jit
def approximate(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    here = tl.load(x + at)
    tl.store(out + at, tl.exp(here) / tl.sqrt(here))


def test_approximations_are_seen():
    """Triton's own exp, division and root of float32 are not rounded to nearest."""
    x = torch.ones(128)
    _, wrong = counts(compiled((approximate, (x, x), {"SIZE": 128, "enable_fp_fusion": False}), 90).asm)
    assert {one.split(".")[0] for one in wrong} == {"ex2", "div", "sqrt"}


@triton.jit
def on_tensor_cores(x, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    here = tl.load(x + at)
    tl.store(out + at, tl.dot(here, here))


def test_tensor_cores_are_seen():
    """Triton's own product of blocks takes tensor cores, and tf32."""
    x = torch.ones(64, 64)
    asm = compiled((on_tensor_cores, (x, x), {"SIZE": 64, "enable_fp_fusion": False}), 80).asm
    assert "mma" in asm["ptx"] and TENSOR_CORES.search(asm["sass"])

"""The Triton back end without a GPU: its bits in Triton's interpreter, its PTX from the ahead-of-time compiler."""

import re
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from samebits.random.triton.kernels import fill, integers, masks, permute, transformed

PER_THREAD = {4: 8, 2: 4}  # numbers of a thread, of 128 for 256 blocks, by numbers per block


def test_the_interpreter_gives_the_bits_of_the_cpu(interpreted):
    """Every kernel has the bits of the CPU in Triton's interpreter."""
    interpreted(Path(__file__).with_name("interpreted_random_triton.py"))


def test_importing_samebits_imports_no_triton(python):
    """`import samebits`, and drawing on the CPU, leave Triton alone."""
    out = python(
        "import sys, samebits\nsamebits.random.uniform(samebits.random.key(1), 3)\nprint('triton' in sys.modules)"
    )
    assert out.stdout.strip() == "False"


def test_without_triton_the_error_names_the_cure(python):
    """Without Triton, asking for its launchers is an UnimplementedError that says what to install, or do instead."""
    out = python(
        "import sys\nsys.modules['triton'] = None\n"
        "from samebits.errors import UnimplementedError\nfrom samebits.random.triton import launchers\n"
        "try:\n    launchers('normal')\nexcept UnimplementedError as error:\n    print(error)\n"
    ).stdout
    assert "samebits.random.normal" in out and "pip install triton" in out and "key.cpu()" in out


@pytest.fixture
def compile_ahead(tmp_path, monkeypatch):
    """Compiles a kernel for a GPU of a compute capability, which no GPU is needed for; ptxas assembles it."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def compiled(kernel, out, *, capability=90, fused=False, **constants):
        pointers = {
            "keys": "*u64",
            "round_keys": "*u64",
            "indices": "*i64",
            "p": "*fp64",
            "given": out,
            "out": out,
        }
        types = {
            p.name: "constexpr" if p.is_constexpr else p.annotation_type or pointers[p.name]
            for p in kernel.params
        }
        aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind[0] == "*"}
        source = ASTSource(kernel, types, constexprs=constants, attrs=aligned)
        target = GPUTarget("cuda", capability, 32)
        done = triton.compile(source, target=target, options={"enable_fp_fusion": fused})
        assert done.asm["cubin"]
        return done.asm

    return compiled


ONE, MANY = {"BLOCKS": 256, "ONE_KEY": True}, {"BLOCKS": 256, "ONE_KEY": False}
# kernel, dtype of its output, constants, numbers per block, fused multiply-adds per number
KERNELS = [
    (fill.words, "*u32", {"BYTES": 4, **ONE}, 4, 0),
    (fill.words, "*u8", {"BYTES": 1, **MANY}, 16, 0),
    (fill.uniform_32, "*fp32", {"DIGITS": 24, **ONE}, 4, 1),
    (fill.uniform_32, "*bf16", {"DIGITS": 8, **MANY}, 4, 1),
    (fill.uniform_64, "*fp64", ONE, 2, 1),
    (fill.normal_32, "*fp32", ONE, 4, 1),
    (fill.normal_32, "*fp16", MANY, 4, 1),
    (fill.normal_64, "*fp64", MANY, 2, 3),  # two that make the float64 of two words
    (transformed.transformed_32, "*fp32", {"NAME": "exponential", "WIDE": False, **ONE}, 4, 0),
    (transformed.transformed_32, "*fp32", {"NAME": "gumbel", "WIDE": False, **ONE}, 4, 0),
    (transformed.transformed_32, "*bf16", {"NAME": "truncated", "WIDE": True, **ONE}, 4, 0),
    (transformed.transformed_64, "*fp64", {"NAME": "exponential", **ONE}, 2, 4),
    (transformed.transformed_64, "*fp64", {"NAME": "gumbel", **MANY}, 2, 4),
    (transformed.transformed_64, "*fp64", {"NAME": "far_tail", **ONE}, 2, 4),
    (masks.bernoulli, "*i1", ONE, 4, 0),
    (masks.bernoulli, "*bf16", ONE, 4, 0),
    (masks.bernoulli_each, "*fp64", MANY, 4, 0),
    (masks.dropout, "*bf16", ONE, 4, 0),
    (masks.dropout, "*fp64", MANY, 4, 0),
    (integers.integers_32, "*i8", ONE, 4, 0),
    (integers.integers_64, "*i64", MANY, 2, 0),
    (permute.permute, "*i64", {"ROUNDS": 10, "GIVEN": True, "SIZE": 256}, 4, 0),
    (permute.shuffle, "*i64", {"SIZE": 64}, 4, 0),
]
names = {"ids": lambda x: x.__name__ if hasattr(x, "__name__") else x if isinstance(x, str) else ""}


FLOATING = re.compile(
    r"^\s*(?:@%p\d+\s+)?((?:add|sub|mul|fma|mad|div|sqrt|rsqrt|rcp|ex2|lg2|sin|cos)\.\S*f(?:16|32|64)\S*)",
    re.MULTILINE,
)


def faults(compiled, fused):
    """What the PTX has that is not IEEE arithmetic rounded to nearest, or that more or less than `fused` is fused."""
    operations = FLOATING.findall(compiled["ptx"])
    wrong = [name for name in operations if ".rn" not in name or "ftz" in name or "approx" in name]
    contracted = sum(name.startswith(("fma", "mad")) for name in operations) - fused
    return [*wrong, f"{contracted} more are fused"] if contracted else wrong


@pytest.mark.parametrize("kernel, out, constants, per_block, fused", KERNELS, **names)
def test_kernels_compile_to_ieee_arithmetic(compile_ahead, kernel, out, constants, per_block, fused):
    """Every kernel compiles for sm_90; nothing is fused, approximate or flushed to zero but the fma that are asked for."""
    assert faults(compile_ahead(kernel, out, **constants), fused * PER_THREAD.get(per_block, 0)) == []


@pytest.mark.parametrize("kernel, out, constants, per_block, fused", [KERNELS[5], KERNELS[19]], **names)
def test_kernels_compile_for_older_gpus(compile_ahead, kernel, out, constants, per_block, fused):
    """The kernels compile for sm_80, too."""
    assert faults(compile_ahead(kernel, out, capability=80, **constants), fused * PER_THREAD[per_block]) == []


def test_with_fusion_the_compiler_contracts(compile_ahead):
    """Negative control: without enable_fp_fusion=False, the logarithm's products and sums become fused multiply-adds."""
    assert (
        "more are fused"
        in faults(compile_ahead(fill.normal_32, "*fp32", fused=True, **ONE), PER_THREAD[4])[-1]
    )


@pytest.mark.parametrize("fused", [False, True])
def test_machine_code_has_no_contraction(compile_ahead, fused):
    """ptxas contracts nothing either: a Gumbel number has no FFMA in the GPU's own code, but with fusion it has."""
    constants = {"NAME": "gumbel", "WIDE": False, **ONE}
    code = compile_ahead(transformed.transformed_32, "*fp32", fused=fused, **constants)["sass"]
    assert "FMUL" in code and ("FFMA" in code) == fused


@triton.jit
def _plain(given, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(given + at)
    tl.store(out + at, tl.sqrt(x) / (x + 1.0))


def test_plain_division_and_root_are_approximate(compile_ahead):
    """Negative control: Triton's own float32 / and sqrt are not rounded to nearest; its float64 ones are."""
    assert {name.split(".")[0] for name in faults(compile_ahead(_plain, "*fp32", SIZE=128), 0)} == {
        "div",
        "sqrt",
    }
    assert faults(compile_ahead(_plain, "*fp64", SIZE=128), 0) == []


def test_stores_of_one_key_are_vectors(compile_ahead):
    """From one key, the numbers of a thread leave as they are: no exchange in shared memory."""
    assert "st.shared" not in compile_ahead(fill.uniform_32, "*fp32", DIGITS=24, **ONE)["ptx"]
    assert "st.shared" in compile_ahead(fill.uniform_32, "*fp32", DIGITS=24, **MANY)["ptx"]

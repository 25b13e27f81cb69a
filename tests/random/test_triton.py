"""The Triton back end without a GPU: its bits in Triton's interpreter, its PTX from the ahead-of-time compiler."""

import re
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")

import torch
import triton.language as tl

import samebits
import samebits.random as sr
from random_draws import DRAWS, KEYS, key_of
from samebits.random import _device_kernels as device_kernels
from samebits.random._triton import elementary, kernels, launchers, philox
from triton_ahead import cases, compiled, kernels_of, launches, name_of


@pytest.mark.slow
def test_the_interpreter_gives_the_bits_of_the_cpu(interpreted):
    """Every kernel has the bits of the CPU in Triton's interpreter."""
    interpreted(Path(__file__).parents[1] / "support" / "interpreted_random_triton.py")


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
        "from samebits.errors import UnimplementedError\nfrom samebits.random._triton import launchers\n"
        "try:\n    launchers('normal')\nexcept UnimplementedError as error:\n    print(error)\n"
    ).stdout
    assert "samebits.random.normal" in out and "pip install triton" in out and "key.cpu()" in out


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def drawn():
    """All that the launchers launch for the functions of samebits.random."""
    keys = {kind: key_of(batch) for kind, (batch, _) in KEYS.items()}
    with launches(device_kernels, launchers("a test")) as found:
        for kind, (_, shape) in KEYS.items():
            for draw in DRAWS.values():
                draw(keys[kind], shape)
    return found


LAUNCHES = drawn()
CASES = cases(LAUNCHES)
# Fused multiply-adds that each thread is to have: one for each of its 8 numbers, or of 4 in float64, and in float64 two
# or four more that make a float64 of two words.
FUSED = {"uniform_32": 8, "uniform_64": 4, "normal_32": 8, "normal_64": 12, "transformed_64": 16}


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


@pytest.mark.first_case_quick
@pytest.mark.parametrize("launch, capability", **CASES)
def test_what_is_launched_computes_as_ieee_754_says(launch, capability):
    """What the launchers launch, with their options, compiles for sm_80 and sm_90: nothing is fused but the fma asked for, and nothing approximate or flushed to zero."""
    assert faults(compiled(launch, capability).asm, FUSED.get(launch[0].__name__, 0)) == []


def test_no_kernel_is_left_out():
    """Each kernel of the package is among what was compiled, for both capabilities; one that nobody calls would be missed."""
    modules = (elementary, kernels, philox)
    for capability in (80, 90):
        tried = {one[0].__name__ for one, at in CASES["argvalues"] if at == capability}
        assert tried == kernels_of(*modules)


def test_every_file_with_kernels_is_compiled_by_a_test():
    """Functions of Triton's stand in this package, and in the arithmetic's and rounding's, whose own tests compile them, and nowhere else."""
    source = Path(samebits.__file__).parent
    files = {
        path for path in source.rglob("*.py") if re.search(r"^@triton\.jit", path.read_text(), re.MULTILINE)
    }
    folder = Path(kernels.__file__).parent
    assert len(files) == 4
    assert {file for file in files if file.parent != folder} == {
        source / "rounding" / "_triton.py",
    }


def test_the_list_of_kernels_sees_a_new_one(monkeypatch):
    """Negative control: a kernel that a module has and nobody launches is in the list; what another one calls is not."""
    before = kernels_of(elementary)
    monkeypatch.setattr(_plain, "__module__", elementary.__name__)
    monkeypatch.setattr(elementary, "_plain", _plain, raising=False)
    assert kernels_of(elementary) - before == {"_plain"} and "log" not in before


def named(name):
    return next(one for one in LAUNCHES if name_of(one) == name)


NORMAL = "normal_32 uint64 float32 BLOCKS=256 ONE_KEY=True"
GUMBEL = "transformed_32 uint64 float32 NAME=gumbel BLOCKS=256 ONE_KEY=True"
UNIFORM = "uniform_32 uint64 float32 DIGITS=24 BLOCKS=256"


def test_with_fusion_the_compiler_contracts():
    """Negative control: without enable_fp_fusion=False, the logarithm's products and sums become fused multiply-adds."""
    assert (
        "more are fused"
        in faults(compiled(named(NORMAL), 90, enable_fp_fusion=True).asm, FUSED["normal_32"])[-1]
    )


@pytest.mark.parametrize("options", [{}, {"enable_fp_fusion": True}], ids=["as launched", "fused"])
def test_machine_code_has_no_contraction(options):
    """ptxas contracts nothing either: a Gumbel number has no FFMA in the GPU's own code, but with fusion it has."""
    code = compiled(named(GUMBEL), 90, **options).asm["sass"]
    assert "FMUL" in code and ("FFMA" in code) == bool(options)


@triton.jit
def _plain(given, out, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(given + at)
    tl.store(out + at, tl.sqrt(x) / (x + 1.0))


def test_plain_division_and_root_are_approximate():
    """Negative control: Triton's own float32 / and sqrt are not rounded to nearest; its float64 ones are."""
    single, double = (
        compiled(
            (_plain, (torch.zeros(128, dtype=dtype),) * 2, {"SIZE": 128, "enable_fp_fusion": False}), 90
        ).asm
        for dtype in (torch.float32, torch.float64)
    )
    assert {name.split(".")[0] for name in faults(single, 0)} == {"div", "sqrt"}
    assert faults(double, 0) == []


def test_stores_of_one_key_are_vectors():
    """From one key, the numbers of a thread leave as they are: no exchange in shared memory."""
    assert "st.shared" not in compiled(named(f"{UNIFORM} ONE_KEY=True"), 90).asm["ptx"]
    assert "st.shared" in compiled(named(UNIFORM), 90).asm["ptx"]


def test_other_numbers_compile_nothing_anew():
    """A launch with other parameters and sizes takes the code that there is, unless 16 divides one size and not the other."""
    with launches(device_kernels, launchers("a test")) as found:
        for low, high, size in ((0, 5, 1001), (16, 32, 77), (1, 2, 3), (-48, 2**31, 4099), (0, 5, 4096)):
            sr.randint(sr.key(1), size, low=low, high=high)
    codes = [compiled(launch, 90) for launch in found]
    assert all(code is codes[0] for code in codes[:4]) and codes[4] is not codes[0]

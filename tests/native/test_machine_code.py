"""Kernels compile at first use, and their cache never gets in the way."""

import contextlib
import ctypes
import gc
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import samebits
from samebits._native import instruction, kernel, lazy_kernel, llvm, machine_code
from samebits._native.lazy_kernel import compilation_lock
from samebits.random._cpu import bernoulli_masks, philox, uniform_normal_kernels
from samebits.random._draws import feistel

# Prints the result, and whether the code came from the cache.
FOLD = """
from samebits.random._cpu import philox as _philox
from samebits._native import lazy_kernel
print(_philox.fold(1, 2, 3), 1 - len(lazy_kernel.compiled_here))
"""
FOLDED = "(5452440581865733702, 4803372148756078498)"


def run(code=FOLD, **environment):
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("SAMEBITS_CACHE_DIR", "XDG_CACHE_HOME")
    }
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        env=kept | environment, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def kernels(folder):
    return sorted(folder.rglob("fold__*.kernel"))


@pytest.mark.slow
def test_second_process_loads_what_the_first_compiled(tmp_path):
    """A process has its kernel from the cache of an earlier one; after a byte is flipped it compiles again."""
    assert run(XDG_CACHE_HOME=str(tmp_path)) == f"{FOLDED} 0"
    (stored,) = kernels(tmp_path / "samebits")
    code = bytearray(stored.read_bytes())
    code[len(code) // 2] ^= 1
    stored.write_bytes(code)
    assert run(XDG_CACHE_HOME=str(tmp_path)) == f"{FOLDED} 0"
    assert run(SAMEBITS_CACHE_DIR=str(tmp_path / "samebits")) == f"{FOLDED} 1"


@pytest.mark.slow
@pytest.mark.parametrize("named", ["SAMEBITS_CACHE_DIR", "HOME"])
def test_no_writable_folder_is_no_error(tmp_path, named):
    """Without a folder that can be written, or without a home, kernels compile and nothing is kept."""
    file = tmp_path / "file"
    file.write_text("")
    assert run(**{named: str(file)}) == f"{FOLDED} 0"


@pytest.mark.slow
def test_processes_may_compile_at_once(tmp_path):
    """Processes that compile into one empty folder at once all succeed: one compiles, the others wait and take its file."""
    with ThreadPoolExecutor(3) as pool:
        printed = list(pool.map(lambda _: run(SAMEBITS_CACHE_DIR=str(tmp_path)), range(3)))
    assert all(line.startswith(FOLDED) for line in printed)
    assert len(kernels(tmp_path)) == 1
    assert sorted(line.rsplit(" ", 1)[1] for line in printed) == ["0", "1", "1"]


EDITED = """
import sys
sys.path.insert(0, sys.argv[1])
import samebits
assert samebits.__file__.startswith(sys.argv[1]), samebits.__file__
from samebits.random._cpu import philox as _philox
from samebits._native import lazy_kernel
print(_philox.fold(1, 2, 3), 1 - len(lazy_kernel.compiled_here))
"""


def test_a_thread_that_waited_for_another_to_compile_takes_what_it_compiled(monkeypatch, tmp_path):
    """Of two threads whose first calls meet, one compiles the kernel."""
    monkeypatch.setattr(machine_code, "cache_folder", lambda: None)

    @kernel("uint64(uint64)")
    def twice(x):
        return x * np.uint64(2)

    with ThreadPoolExecutor(2) as pool:
        with compilation_lock():
            found = [pool.submit(twice, 3) for _ in range(2)]
        assert [one.result() for one in found] == [6, 6]
    assert sum("twice" in name for name in lazy_kernel.compiled_here) == 1


@kernel("uint64(uint64)")
def five_times(x):
    return x * np.uint64(5)


@pytest.mark.parametrize(
    ("spoil", "is_packed"),
    [
        (None, True),
        ("comment", False),
        ("code", False),
        ("name", False),
    ],
)
def test_code_comes_from_the_pack_if_it_is_of_these_sources_and_whole(
    monkeypatch, tmp_path, spoil, is_packed
):
    """Else (of other sources, corrupt, or without the kernel) it is compiled, and kept in the cache for the next look."""
    monkeypatch.setattr(machine_code, "PACKS", tmp_path)
    monkeypatch.setattr(machine_code, "_packs", machine_code._packs.__wrapped__)
    monkeypatch.setattr(machine_code, "cache_folder", lambda: tmp_path)
    stored = machine_code.with_checksum(machine_code.compiled(five_times))
    with ZipFile(tmp_path / f"{llvm.target()}.zip", "w") as pack:
        pack.writestr(
            "another" if spoil == "name" else five_times.name, stored[:-1] if spoil == "code" else stored
        )
        pack.comment = b"others" if spoil == "comment" else machine_code.sources_digest().encode()
    lazy_kernel.compiled_here.pop(five_times.name, None)
    assert machine_code.address_of(five_times)
    assert (five_times.name not in lazy_kernel.compiled_here) == is_packed
    lazy_kernel.compiled_here.pop(five_times.name, None)
    assert machine_code.address_of(five_times)
    assert five_times.name not in lazy_kernel.compiled_here


def test_no_garbage_is_collected_while_a_kernel_is_compiled(monkeypatch):
    """A first call collects nothing while it compiles, and leaves the collector as it was; compiling alone collects."""
    monkeypatch.setattr(machine_code, "cache_folder", lambda: None)
    compile_it, begun, during = machine_code.compiled, [], []

    def counted(one):
        before = len(begun)
        code = compile_it(one)
        during.append(len(begun) - before)
        return code

    monkeypatch.setattr(machine_code, "compiled", counted)

    @kernel("uint64(uint64)")
    def thrice(x):
        return x * np.uint64(3)

    note = lambda phase, info: begun.append(phase)  # noqa: E731
    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    try:
        gc.set_threshold(10)
        assert thrice(2) == 6
        assert gc.isenabled()
        counted(thrice)
        gc.disable()
        assert machine_code.address_of(thrice)
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(note)
    assert during[0] == 0 < during[1]


@pytest.mark.slow
def test_an_edit_of_any_kernel_is_seen(tmp_path):
    """After an edit in the cipher, which `fold` only expands, the old code of `fold` is not used."""
    copy = tmp_path / "copy"
    shutil.copytree(os.path.dirname(samebits.__file__), copy / "samebits")

    def ran():
        done = subprocess.run(
            [sys.executable, "-c", EDITED, str(copy)],
            env=os.environ | {"SAMEBITS_CACHE_DIR": str(tmp_path / "cache")}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.strip()

    assert ran() == f"{FOLDED} 0"
    cipher = copy / "samebits" / "random" / "_cpu" / "philox.py"
    cipher.write_text(cipher.read_text().replace("range(10)", "range(9)"))
    edited, hits = ran().rsplit(" ", 1)
    assert edited != FOLDED and hits == "0"


def test_an_edit_of_a_coefficient_or_of_a_formulas_operations_is_seen(tmp_path):
    """Either gives the cache another key; an edit of a file that defines no kernel gives it the same one."""
    copy = tmp_path / "samebits"
    shutil.copytree(os.path.dirname(samebits.__file__), copy)
    digest_of = machine_code.sources_digest.__wrapped__  # not cached
    keys = [digest_of(copy)]
    assert keys == [digest_of()]
    for name, old, new in (
        ("arithmetic/functions/coefficients.json", "0x1.fffffffffe028p-2", "0x1.fffffffffe029p-2"),
        ("_native/formula.py", "fadd", "fsub"),
        ("errors.py", "class", "class "),
    ):
        source = (copy / name).read_text()
        assert old in source
        (copy / name).write_text(source.replace(old, new, 1))
        keys.append(digest_of(copy))
    assert len(set(keys)) == 3 and keys[2] == keys[3]


FORKED = """
import os, threading
from samebits.random._cpu import uniform_normal_kernels as _distributions, philox as _philox
import torch
# The first use of torch's functions takes locks of the C library that no fork waits for.
keys, out = torch.zeros(1, 2, dtype=torch.uint64), torch.empty(8, dtype=torch.float64)
torch.get_num_threads()
def compile_slowly():
    _distributions.normal(keys, 0.0, 1.0, out)
thread = threading.Thread(target=compile_slowly)
thread.start()
children = []
for _ in range(5):
    child = os.fork()
    if child == 0:
        os._exit(0 if _philox.fold(1, 2, 3)[0] == 5452440581865733702 else 1)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
thread.join()
"""


@pytest.mark.slow
def test_a_fork_while_a_thread_compiles_is_safe(tmp_path):
    """Children forked while another thread imports LLVM and compiles can compile themselves (without the lock they would hang)."""
    assert run(FORKED, SAMEBITS_CACHE_DIR=str(tmp_path)) == "[0, 0, 0, 0, 0]"


def calls(kernel):
    """The mathematical functions that the machine code of a kernel calls: symbols that its object file does not define."""
    names = re.findall(rb"[A-Za-z_][\w.@]*(?=\0)", machine_code.compiled(kernel))
    return {name for name in names if re.fullmatch(rb"\w*svml\w*|(sin|cos|log|exp|pow|sqrt|fma)\w?", name)}


@pytest.mark.parametrize(
    "kernel",
    [philox.fold, philox.fill_words, feistel._permute, uniform_normal_kernels._UNIFORM[torch.float32][0],
     uniform_normal_kernels._NORMAL[torch.float64], uniform_normal_kernels._NORMAL[torch.bfloat16], bernoulli_masks._DROPOUT[torch.float16]],
)  # fmt: skip
def test_kernels_call_no_math_library(kernel):
    """The machine code has no call of libm or SVML (negative control: a kernel with a logarithm has one)."""
    assert not calls(kernel)


def test_the_check_sees_a_math_library():
    """A kernel that takes a logarithm does call a library."""

    @instruction
    def logarithm(kind):
        def write(builder, x):
            form = llvm.ir.FunctionType(kind.llvm, [kind.llvm])
            return builder.call(llvm.function(builder.module, form, "log"), [x])

        return kind(kind), write

    @kernel("float64(float64)")
    def of(x):
        return logarithm(x)

    assert calls(of) == {b"log"}
    assert of(1.0) == 0.0


@pytest.mark.slow
def test_kernels_of_one_factory_keep_apart_in_the_cache(tmp_path):
    """Kernels that differ in free variables only, compiled in processes of their own, run their own code when loaded.

    (Under one name, the code of all is linked as if it were one: the sum of float32 numbers ran the loop of bfloat16.)
    """
    source = """
import sys, torch
from samebits.arithmetic.reductions.tensors import reduce

for kind in sys.argv[1:]:
    x = torch.full((100_000,), 0.5, dtype=getattr(torch, kind))
    assert reduce("sum", x, dtype=torch.float32).item() == 50_000, kind
print("ok")
"""
    script = tmp_path / "script.py"
    script.write_text(source)
    env = {**os.environ, "SAMEBITS_CACHE_DIR": str(tmp_path / "samebits")}
    for kinds in (["float32"], ["bfloat16"], ["bfloat16", "float32"]):
        done = subprocess.run([sys.executable, str(script), *kinds], env=env, capture_output=True, text=True)
        assert done.stdout == "ok\n", done.stderr
    assert len(list(tmp_path.rglob("*.kernel"))) == 2


@kernel("int64(uint32[::1], int64[:], int64)")
def last(words, numbers, at):
    return np.int64(words[at]) + numbers[at]


WORDS, NUMBERS = np.arange(4, dtype=np.uint32), np.arange(8)[::2]


def test_a_kernel_refuses_what_is_not_of_its_signature():
    """Other types, dimensions or orders, other numbers of arguments, objects that are no arrays or numbers: TypeError, or what
    NumPy raises; the numbers of what it takes are right, and an argument is released after an error too.
    """
    # says that they are in the order of this CPU
    words = np.ctypeslib.as_array((ctypes.c_uint32 * 4)(0, 1, 2, 3))
    assert (
        last(words, NUMBERS, 3) == last(WORDS, NUMBERS, 3) == 9
        and last(WORDS, np.arange(4), np.uint64(3)) == 6
    )
    for arguments, kind, text in [
        ((WORDS, NUMBERS), TypeError, "it takes 3 arguments"),
        ((WORDS.astype(np.int64), NUMBERS, 3), TypeError, "an array of uint32 with 1 dimensions is needed"),
        ((WORDS, NUMBERS.reshape(2, 2), 3), TypeError, "an array of int64 with 1 dimensions is needed"),
        ((WORDS[::2], NUMBERS, 1), ValueError, "not C-contiguous"),
        ((WORDS.astype(">u4"), NUMBERS, 1), TypeError, "an array of uint32"),
        (([1, 2], NUMBERS, 1), TypeError, "bytes-like"),
        ((WORDS, NUMBERS, 1.5), TypeError, "float"),
        ((WORDS, NUMBERS, None), TypeError, "NoneType"),
    ]:
        with pytest.raises(kind, match=text):
            last(*arguments)
    owned = np.arange(4, dtype=np.uint32)
    before = sys.getrefcount(owned)
    for third in (1, None):
        with contextlib.suppress(TypeError):
            last(owned, NUMBERS, third)
    assert sys.getrefcount(owned) == before


def test_integers_are_taken_modulo_2_to_the_64th():
    """A negative number and one above 2**63 are the same 64 bits, signed or unsigned by the signature."""

    @kernel("int64(uint64)")
    def signed(x):
        return np.int64(x)

    assert signed(2**64 - 1) == signed(-1) == -1 and signed(2**63) == -(2**63)


DEFERRED = """
import sys, torch, samebits
samebits.set_random_seed(3)
samebits.enable_op_determinism()
torch.nn.functional.cross_entropy(torch.rand(4, 3, requires_grad=True), torch.tensor([0, 1, 2, 0])).backward()
samebits.Run, samebits.nn.Dropout, samebits.rounding.stochastic_round, samebits.data.DataLoader
print("llvmlite" in sys.modules)
samebits.random.uniform(samebits.random.key(1), 2)
print("llvmlite" in sys.modules)
"""


@pytest.mark.slow
def test_llvm_is_imported_by_the_first_call_of_a_kernel(tmp_path):
    """Not by the package, by seeding, by the switch or by a step in which no kernel of ours runs."""
    assert run(DEFERRED).splitlines() == ["False", "True"]


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_keys_are_folded_without_llvm_to_the_same_bits(seed, offset, data):
    """The cipher in Python's integers gives what the kernel gives: keys do not depend on what was imported."""
    w0, w1, w2, w3 = philox.words_of(seed, (offset + data) % 2**64)
    assert (w0 | w1 << 32, w2 | w3 << 32) == philox.fold(seed, offset, data)


@pytest.mark.slow
def test_a_key_is_the_same_before_and_after_llvm_came():
    """`words.fold` and `set_random_seed` in a process before and after its first kernel."""
    code = """
import sys, numpy, random, torch, samebits
from samebits.random import _int_keys as words
def made():
    samebits.set_random_seed(2**62 + 5)
    return words.fold((2**63, 2**64 - 1), "name", -1, 7), numpy.random.rand(), random.random(), torch.rand(()).item()
before = made()
print("llvmlite" in sys.modules)
samebits.random.uniform(samebits.random.key(1), 2)
print("llvmlite" in sys.modules, made() == before)
"""
    assert run(code).split() == ["False", "True", "True"]

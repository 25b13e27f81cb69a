"""The samples that torch tests its own ops with, under `across="machines"`: on this CPU, and as on another."""

import json
import os
import subprocess
import sys

import pytest

from samebits.audit._verify.check_process import AVX2_ENVIRONMENT

pytest.importorskip("expecttest", reason="torch's samples import it")


def results(root, file, mode, threads, dtype, environment):
    """What each call gave, in a process of its own."""
    program = root / "tests" / "support" / "op_samples.py"
    subprocess.run(
        [sys.executable, str(program), str(file), mode, str(threads), dtype],
        # torch makes the samples of meshgrid in the order of a set of strings
        env={**os.environ, "PYTHONHASHSEED": "0", **environment},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return json.loads(file.read_text())


def compared(root, tmp_path, mode, dtype):
    """The calls with equal operands, those of them that are refused, and those that differ: one thread here, three with AVX2."""
    here = results(root, tmp_path / "here.json", mode, 1, dtype, {})
    there = results(root, tmp_path / "there.json", mode, 3, dtype, AVX2_ENVIRONMENT)
    assert here.keys() == there.keys()
    called = {name for name in here if here[name][0] == there[name][0]}
    assert len(called) > 0.95 * len(here)
    return called, {n for n in called if here[n][1] == "refused"}, {n for n in called if here[n] != there[n]}


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int64"])
def test_every_sample_has_the_same_bits_or_raises(root, tmp_path, dtype):
    """Of all calls with equal operands none differs over threads and a played CPU, and few are refused."""
    called, refused, differing = compared(root, tmp_path, "on", dtype)
    print(f"{dtype}: {len(called)} calls, {len(refused)} refused, {len(differing)} differ")
    assert not differing
    assert len(refused) < 0.3 * len(called)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_without_the_mode_samples_differ(root, tmp_path):
    """Negative control: without the mode hundreds of the same calls differ."""
    called, _, differing = compared(root, tmp_path, "off", "float32")
    print(f"off: {len(called)} calls, {len(differing)} differ")
    assert len(differing) > 100

"""`tools/op_table/gpu_evidence.py`: a GPU's report goes into the data files that the switch and the op table read."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gpu_evidence as tool
import samebits
from formulation_samples import SAMPLES
from gpu_report import COVERS, EQUAL, RATIO, SCHEMA, VARYING, formulations, write
from samebits.determinism import _all_replacements as replacements
from samebits.determinism import _verified_on_gpu as verified_on_gpu
from samebits.determinism._cuda_decompositions import REPLACEMENTS
from samebits.determinism.table import _evidence as gpu_evidence
from samebits.determinism.table import reviewed
from samebits.determinism.table._evidence import seen_cases
from samebits.determinism.table._verdicts import OpTable, own_lines

OP = "aten::reflection_pad2d_backward"
GPU = {"gpu": "a GPU", "torch": "2.11.0+cu130", "date": "2026-11-22"}


@pytest.fixture
def report():
    """The report of a run in which each sample has passed, that of cuDNN too, and of two cases of the battery."""
    cases = {
        tool.CASE.format(sample.name): {
            "state": "passed", "wrong": [], "figures": {RATIO: 1.0 + number / 8, COVERS: " ".join(sample.covers)},
        }
        for number, sample in enumerate(SAMPLES)
    }  # fmt: skip
    cases["a"] = {"state": "passed", "figures": {EQUAL: "aten::cos aten::sin"}}
    cases["b"] = {"state": "passed", "figures": {VARYING: "aten::cos"}}
    return {"schema": SCHEMA, "environment": {**GPU, "formulations": formulations()}, "cases": cases}


def without_entries(source, file):
    """A copy of a data file as it was before any GPU had run anything: its comments."""
    lines = source.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if line.startswith("#")))
    return file


@pytest.fixture
def files(tmp_path):
    """(verified.toml, gpus.toml), without entries."""
    both = (verified_on_gpu.FILE, "verified.toml"), (gpu_evidence.GPU_FILE, "gpus.toml")
    return tuple(without_entries(source, tmp_path / name) for source, name in both)


def test_the_samples_of_a_report_are_those_of_a_test(request, root):
    """The tool reads the cases by the name that the test of tests/gpu has."""
    name = tool.CASE.partition("::")[2].partition("[")[0]
    assert f"def {name}(target, sample)" in (root / "tests/gpu/test_switch.py").read_text()


def test_what_a_report_has_verified_is_recorded(report, files):
    """Each replaced overload gets an entry with GPU, torch, date and the worst ratio of its samples."""
    found = tool.record(report, *files)
    assert len(found.entries) == len(REPLACEMENTS) and not found.failed and not found.untried
    entries = {e.op: e for e in verified_on_gpu.read(files[0])}
    assert set(entries) == {r.op for r in REPLACEMENTS}
    one = entries["aten::median.dim_values"]
    assert (one.gpu, one.torch, str(one.date)) == ("a GPU", "2.11.0+cu130", "2026-11-22")
    ratios = [1.0 + number / 8 for number, sample in enumerate(SAMPLES) if OP in sample.covers]
    assert entries[OP].ratio == pytest.approx(max(ratios), abs=1e-3)


def test_what_the_battery_has_seen_equal_is_evidence_of_the_table(report, files):
    """An overload of equal cases, and of none that varied, is recorded; the table shows the GPU as evidence "battery"."""
    for _ in range(2):  # the second time takes the place of the first
        assert tool.record(report, *files).seen == {"sin"}
    (seen,) = gpu_evidence.read_gpu_evidence(files[1])
    assert (seen.gpu, seen.torch, seen.ops) == ("a GPU", "2.11.0+cu130", {"sin"})
    table = OpTable(reviewed(), replacements.all_replacements(), own_lines(), seen_cases(), [seen])
    entry, plain = table.lookup("aten::sin", "cuda"), table.lookup("aten::cos", "cuda")
    assert (entry.evidence, entry.torch) == ("battery", "2.11.0") and "seen equal on a GPU" in entry.reason
    assert plain.evidence == "source" and "GPU" not in plain.reason
    assert "GPU" not in table.lookup("aten::sin", "cpu").reason


def test_one_failed_sample_keeps_its_overloads_out(report, files):
    """What failed, or was not run, is not recorded; an older entry of that GPU goes, that of another stays."""
    tool.record(report, *files)
    date = verified_on_gpu.read(files[0])[0].date
    verified_on_gpu.record(
        [verified_on_gpu.GpuVerification(OP, "another GPU", date, "2.13.0", 1.0)], files[0]
    )
    failed = tool.CASE.format("reflection_pad2d_backward")
    report["cases"][failed].update(state="failed", wrong=["float32 large: the runs gave 2 different results"])
    del report["cases"][tool.CASE.format("put_")]
    found = tool.record(report, *files)
    assert set(found.failed) == {OP, f"{OP}.grad_input"} and set(found.untried) == {"aten::put_"}
    entries = verified_on_gpu.read(files[0])
    assert [e.gpu for e in entries if e.op == OP] == ["another GPU"]
    assert "aten::put_" in {e.op for e in entries}  # of an earlier run, and nothing said against it


def test_a_report_of_other_code_is_refused(report, files):
    """Entries speak for the code that ran: another digest, or no formulation, leaves the file as it was."""
    before = files[0].read_text()
    cases, report["cases"] = report["cases"], {}
    with pytest.raises(ValueError, match="has no formulation"):
        tool.record(report, *files)
    report["cases"], report["environment"]["formulations"] = cases, "another"
    with pytest.raises(ValueError, match="record it with the sources that made it"):
        tool.record(report, *files)
    assert files[0].read_text() == before


PROGRAM = """
import samebits
from samebits.determinism import _cuda_loading as cuda, table
from torch._subclasses.fake_tensor import FakeTensorMode
import torch
entry = table.lookup("aten::median.dim_values", "cuda")
print(entry.verdict, "|", entry.evidence, "|", entry.reason.rpartition("; ")[2])
samebits.enable_op_determinism()
with FakeTensorMode():
    print(len(cuda.installable()), torch.ones(3, 3, device="cuda").median(0).values.shape)
"""


@pytest.mark.slow
def test_the_tool_installs_what_was_verified(report, tmp_path, root):
    """Run in a copy of the sources, without a GPU: the op table shows the evidence, and the switch installs."""
    for folder in ("src", "tests/support", "tools/op_table"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (verified_on_gpu.FILE, gpu_evidence.GPU_FILE):
        copy = tmp_path / "src" / file.relative_to(Path(samebits.__file__).parents[1])
        without_entries(file, copy)
    write(tmp_path, report)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}

    def run(*words):
        return subprocess.run(
            [sys.executable, *words], env=environment, cwd=tmp_path, capture_output=True, text=True
        )

    done = run("tools/op_table/gpu_evidence.py", "report.json")
    assert done.returncode == 0 and f"{len(REPLACEMENTS)} overloads verified on a GPU" in done.stdout, done
    first, second = run("-c", PROGRAM).stdout.splitlines()
    assert first.startswith("has an alternative here | battery | ran on a GPU, torch 2.11.0+cu130")
    assert second == f"{len(REPLACEMENTS)} {torch.Size([3])}"

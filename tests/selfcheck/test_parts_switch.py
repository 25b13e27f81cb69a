"""The part `switch` of the self-check, without a GPU: its plants, its judges on what is really broken, and `--install`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import samebits
from lab.catalogue.case import ReviewCase as Reviewed
from lab.catalogue.case import built_on, forward, normal
from samebits._context import process
from samebits.determinism import (
    _all_replacements as replacements,
)
from samebits.determinism import (
    _verified_on_gpu as verified_on_gpu,
)
from samebits.determinism._cuda_decompositions import REPLACEMENTS
from samebits.determinism._guards import refused_ops
from samebits.determinism._replacement import Replacement
from samebits.determinism.table import _gpu_evidence as gpu_evidence
from samebits.determinism.table import reviewed
from samebits.determinism.table._thread_evidence import seen_cases
from samebits.determinism.table._verdicts import OpTable, own_lines
from samebits.errors import InvalidArgumentError
from samebits.selfcheck import adopt
from samebits.selfcheck.case import Target
from samebits.selfcheck.parts.switch import PART, battery, check, formulations, refused, repeating
from samebits.selfcheck.parts.switch.samples import SAMPLES
from samebits.selfcheck.report import SelfcheckReport

HERE = Target("cpu", small=True)
PAD = next(s for s in SAMPLES if s.name == "reflection_pad2d_backward")
OP = "aten::reflection_pad2d_backward"
MACHINE = {"gpu": "a GPU", "torch": "2.11.0+cu130", "cuda": "13.0", "samebits": "0", "date": "2026-11-22"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    samebits.set_random_seed(0)
    monkeypatch.setattr(process, "notices", {})


def test_each_formulation_has_a_case():
    """Every overload that a formulation replaces is covered by a case of its own name, with the figures that `adopt` reads."""
    names = {case.name for case in PART.cases()}
    assert {f"{formulations.PREFIX}{s.name}" for s in SAMPLES} <= names
    assert {op for s in SAMPLES for op in s.covers} == {r.op for r in REPLACEMENTS}


# --- formulations that are really broken ---


def good(*args):
    return next(r for r in REPLACEMENTS if r.op == OP).make(None)(*args)


def noisy(*args):
    return good(*args) + torch.rand(()).to(args[0].dtype) * 1e-6


def wrong(*args):
    return good(*args) * 1.001


def put_in(monkeypatch, function, op=OP):
    others = tuple(r for r in REPLACEMENTS if r.op != op)
    broken = Replacement(op, lambda kernel: function, "", device="CUDA")
    monkeypatch.setattr(check, "REPLACEMENTS", (*others, broken))


def complaints(sample=PAD):
    return list(formulations.judge(formulations._measure(sample, HERE).results))


def test_a_formulation_that_varies_is_seen(monkeypatch):
    """Noise far below the tolerance: "different results"; negative control: the formulation as it is passes."""
    assert complaints() == []
    put_in(monkeypatch, noisy)
    assert any("different results" in line for line in complaints())


def test_a_wrong_formulation_is_seen(monkeypatch):
    """Off by a thousandth, with the same bits each time: beyond the error that is allowed."""
    put_in(monkeypatch, wrong)
    lines = complaints()
    assert any("times the error that is allowed" in line for line in lines)
    assert not any("different results" in line for line in lines)


def test_a_wrong_out_form_is_seen(monkeypatch):
    """The overload that writes `grad_input`, which no other check calls."""
    put_in(
        monkeypatch,
        lambda *a, grad_input: grad_input.resize_(a[1].shape).copy_(wrong(*a)),
        f"{OP}.grad_input",
    )
    assert complaints() == [f"{OP}.grad_input has not the bits of the functional form"]


def test_a_formulation_without_a_kernel_is_no_failure_and_no_verification():
    """cuDNN's sampler on the CPU: told, and without the figures by which it would be recorded."""
    sample = next(s for s in SAMPLES if s.call == "aten::cudnn_grid_sampler_backward")
    measured = formulations._measure(sample, HERE)
    assert list(formulations.judge(measured.results)) == [] and formulations.COVERS not in measured.figures


# --- what is refused ---


def test_what_the_cpu_refuses_is_refused_in_our_words(monkeypatch):
    """With our CPU kernels taken away, `put_` and unpooling raise with the way out, and everything else runs."""
    everything = refused._measure(HERE)
    assert set(everything.results.values()) == {refused.RUNS} and len(everything.results) > 60
    monkeypatch.setattr(replacements, "REPLACEMENTS", ())
    found = refused._measure(HERE).results
    ours = {op for op, word in found.items() if word == refused.OURS}
    assert ours >= {"aten::put_", "aten::max_unpool2d", "aten::max_unpool3d.out"}
    assert list(refused.judge(found)) == []


def test_torchs_own_refusal_is_seen(monkeypatch):
    """An overload that is missing from the list of refusals ends in torch's words: the judge names it."""
    monkeypatch.setattr(replacements, "REPLACEMENTS", ())
    monkeypatch.setattr(refused_ops, "CURES", {"CUDA": refused_ops.CURES["CUDA"]})
    lines = list(refused.judge(refused._measure(HERE).results))
    assert any(line.startswith("aten::put_: refused by torch") for line in lines)


def test_arguments_are_right_for_every_overload():
    """Off the switch each refused overload that the CPU has runs with its arguments: no failure hides in a refusal."""
    with check.disable_determinism():
        for op in refused.refused("CPU"):
            if op in refused.ARGUMENTS:
                refused.with_outs(op, refused.ARGUMENTS[op]("cpu"))


# --- the battery ---


def once(run, name="case"):
    return Reviewed("test", name, lambda: iter([run]))


def words(*cases):
    return battery._measure(cases, HERE)


def test_a_case_that_varies_is_seen_with_and_without_the_switch():
    """Other bits in each call: the judge names it, and the figures count it among what varied without the switch."""
    calls = iter(range(1000))
    measured = words(
        once(lambda: torch.ones(3) * next(calls)), *forward("test", "sum", torch.sum, normal(1000))
    )
    assert measured.results == {"case": "2 of 2 further runs had other bits", "sum [float32]": battery.SAME}
    assert len(list(battery.judge(measured.results))) == 1
    assert measured.figures["varied without the switch"] == "1 (case)"
    assert measured.figures["cost, median"] > 0


def test_an_op_that_is_refused_is_no_failure():
    """The switch's own error, with the way out; the figures name it."""

    def refuse():
        if samebits.op_determinism_enabled():
            raise samebits.errors.UnimplementedError("aten::x on CUDA at f.py:1 has none. Use another op.")
        return torch.ones(1)

    measured = words(once(refuse))
    assert measured.results == {"case": battery.REFUSED} and measured.figures["refused"] == "1 (case)"
    assert list(battery.judge(measured.results)) == []


def test_an_error_under_the_switch_alone_is_a_failure():
    """Torch's own refusal, a refusal without the way out, and any other error; what raises without the switch too is told."""
    on = samebits.op_determinism_enabled

    def raising(error, *, always=False):
        def run():
            if always or on():
                raise error
            return torch.ones(1)

        return run

    unhelpful = samebits.errors.UnimplementedError("no")
    found = words(
        once(raising(RuntimeError("x does not have a deterministic implementation")), "torch's"),
        once(raising(unhelpful), "unhelpful"),
        once(raising(ValueError("other")), "other"),
        once(raising(RuntimeError("no such driver"), always=True), "elsewhere"),
        once(raising(RuntimeError("CUDA error: CUSPARSE_STATUS_NOT_SUPPORTED in f"), always=True), "library"),
        once(raising(RuntimeError("No available kernel. Aborting.")), "backend"),
        once(raising(RuntimeError("expected all tensors on the same device"), always=True), "ours"),
    )
    assert found.figures["not on this device"] == (
        "2 (elsewhere: RuntimeError: no such driver, library: RuntimeError: CUDA error: CUSPARSE_STATUS_NOT_SUPPORTED in f)"
    )
    found = found.results
    assert [line.partition(":")[0] for line in battery.judge(found)] == [
        "torch's",
        "unhelpful",
        "other",
        "ours",
    ]
    assert found["elsewhere"] == battery.ELSEWHERE and found["backend"] == battery.NO_BACKEND


def test_a_fault_of_the_device_is_raised():
    """It spoils what comes behind it: the worker must go on in another process."""

    def fault():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match=r"^the case: CUDA error"):
        words(once(fault, "the case"))


def test_a_fault_in_a_refusal_is_raised(monkeypatch):
    """It is no outcome of the overload: those behind it would all have it."""

    def fault(device):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setitem(refused.ARGUMENTS, "aten::put_", fault)
    with pytest.raises(RuntimeError, match=r"^aten::put_: CUDA error"):
        refused._measure(HERE)


def test_the_control_is_judged():
    """On one thread nothing varies without the switch: its judge says that equal runs would then prove nothing."""
    (control,) = battery.controls()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        (line,) = control.judge(battery._control(HERE).results)
    finally:
        torch.set_num_threads(threads)
    assert "prove nothing" in line


def test_bits_are_compared_with_zeros_signed_and_any_nan_equal():
    """-0 is not 0, one flipped bit is seen in each dtype, NaN is NaN, sparse tensors and complex ones are compared whole."""
    for dtype in (
        torch.float64,
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.bool,
        torch.complex64,
    ):
        x = torch.arange(4).to(dtype)
        y = x.clone()
        assert repeating.all_bits_equal([x], [y])
        y[2] = 0
        assert not repeating.all_bits_equal([x], [y])
    zero = torch.zeros(2)
    assert not repeating.all_bits_equal([zero], [-zero]) and not repeating.all_bits_equal(
        [zero], [zero.double()]
    )
    nan = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert repeating.all_bits_equal([nan], [nan.flip(0)])
    i = torch.tensor([[0, 0], [1, 1]])
    coo = [
        repeating.leaves(torch.sparse_coo_tensor(i, torch.tensor(v), (2, 2)))
        for v in ([1.0, 2.0], [2.0, 1.0])
    ]
    assert repeating.all_bits_equal(coo[0], coo[0]) and not repeating.all_bits_equal(*coo)


@pytest.mark.parametrize("one", battery.reviewed()[::23], ids=lambda one: one.full_name)
def test_everything_of_a_case_is_where_it_is_built(one):
    """Built on the meta device, inputs, parameters and upstream gradients are there, and so are the results: none is left on the CPU."""
    with built_on("meta"):
        runs = list(one.build())
    with torch.device("meta"):
        for run in runs:
            try:
                leaves = repeating.leaves(run())
            except (NotImplementedError, RuntimeError) as error:
                assert (
                    "device" not in str(error).partition(": attempted")[0]
                    or "autocast" in str(error)
                    or "supported devices" in str(error)
                )
            else:
                assert {leaf.device.type for leaf in leaves} <= {"meta"}


@pytest.mark.parametrize(
    "one",
    [c for c in battery.reviewed() if c.group in {"sparse", "indexing"}][::9],
    ids=lambda one: one.full_name,
)
def test_cases_have_the_same_bits_on_the_cpu(one):
    """The whole way of a case, on the CPU: under the switch its bits stay."""
    assert words(one).results == {one.name: battery.SAME}


# --- --install ---


@pytest.fixture(scope="module")
def cases():
    """What a run of the formulations leaves in a report, as a GPU would: each sample passed, that of cuDNN too."""
    samebits.set_random_seed(0)
    found = []
    for case in formulations.cases():
        measured = formulations._kernels(HERE) if case.example else case.measure(HERE)
        figures = dict(measured.figures)
        if case.name.startswith(formulations.PREFIX):
            figures.setdefault(formulations.RATIO, 1.5)
            sample = next(s for s in SAMPLES if case.name == f"{formulations.PREFIX}{s.name}")
            figures.setdefault(formulations.COVERS, " ".join(sample.covers))
        found.append({"case": case.name, "state": "passed", "wrong": [], "seconds": 1.0, "figures": figures})
    return json.dumps(found)


def report_of(folder, cases):
    folder.mkdir(exist_ok=True)
    content = {
        "schema": "samebits.selfcheck/1",
        "machine": MACHINE,
        "parts": {"switch": {"whole": True, "seconds": 1.0, "cases": cases}},
    }
    (folder / "report.json").write_text(json.dumps(content))
    return folder


def without_entries(source, file):
    """A copy of a data file as it was before any GPU had run anything: its comments."""
    lines = source.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if line.startswith("#")))
    return file


def data_file(folder):
    return without_entries(verified_on_gpu.FILE, folder / "verified.toml")


def table_file(folder):
    return without_entries(gpu_evidence.FILE, folder / "gpus.toml")


def test_what_the_battery_has_seen_equal_is_evidence_of_the_table(tmp_path, cases):
    """An overload of equal cases, and of no case that varied, is recorded; the table then shows the GPU as evidence "battery"."""
    calls = iter(range(1000))
    odd = once(lambda: torch.ones(3).cos() * next(calls), "odd")
    first, second = (words(c) for c in (once(lambda: torch.ones(3).sin().cos(), "good"), odd))
    assert first.figures[battery.EQUAL].split() == ["aten::cos", "aten::ones", "aten::sin"]
    assert "aten::cos" in first.figures[battery.EQUAL] and "aten::cos" in second.figures[battery.VARYING]
    extra = [
        {"case": f"x {n}", "state": "passed", "figures": m.figures} for n, m in enumerate((first, second))
    ]
    report = SelfcheckReport.stored(report_of(tmp_path / "r", [*json.loads(cases), *extra]))
    file = table_file(tmp_path)
    for _ in range(2):  # the second time takes the place of the first
        assert adopt(report, data_file(tmp_path), file).seen == {"aten::sin"}
    (seen,) = gpu_evidence.read(file)
    assert (seen.gpu, seen.torch, seen.ops) == ("a GPU", "2.11.0+cu130", {"sin"})
    table = OpTable(reviewed(), replacements.all_replacements(), own_lines(), seen_cases(), [seen])
    entry, plain = table.lookup("aten::sin", "cuda"), table.lookup("aten::cos", "cuda")
    assert (entry.evidence, entry.torch) == ("battery", "2.11.0") and "seen equal on a GPU" in entry.reason
    assert plain.evidence == "source" and "GPU" not in plain.reason
    assert "GPU" not in table.lookup("aten::sin", "cpu").reason


def test_what_a_report_has_verified_is_recorded(tmp_path, cases):
    """Each of the 64 overloads gets an entry with GPU, torch, date and the worst ratio of its samples."""
    file = data_file(tmp_path)
    found = adopt(
        SelfcheckReport.stored(report_of(tmp_path / "r", json.loads(cases))), file, table_file(tmp_path)
    )
    assert len(found.entries) == len(REPLACEMENTS) == 64 and not found.failed and not found.untried
    entries = {e.op: e for e in verified_on_gpu.read(file)}
    assert set(entries) == {r.op for r in REPLACEMENTS}
    one = entries["aten::median.dim_values"]
    assert (one.gpu, one.torch, str(one.date)) == ("a GPU", "2.11.0+cu130", "2026-11-22") and one.ratio > 0
    ratios = [
        c["figures"][formulations.RATIO] for c in json.loads(cases) if OP.removeprefix("aten::") in c["case"]
    ]
    assert entries[OP].ratio == pytest.approx(max(ratios), abs=1e-3)


def test_one_failed_sample_keeps_its_overloads_out(tmp_path, cases):
    """What failed, or has a case that was not run, is not recorded; an older entry of that GPU goes, that of another stays."""
    file, content = data_file(tmp_path), json.loads(cases)
    whole = SelfcheckReport.stored(report_of(tmp_path / "r", content))
    adopt(whole, file, table_file(tmp_path))
    other = verified_on_gpu.GpuVerification(
        OP, "another GPU", verified_on_gpu.read(file)[0].date, "2.13.0", 1.0
    )
    verified_on_gpu.record([other], file)
    for case in content:
        if case["case"] == f"{formulations.PREFIX}{PAD.name}":
            case.update(state="failed", wrong=["float32 large: 20 runs gave 2 different results"])
    content = [case for case in content if case["case"] != f"{formulations.PREFIX}put_"]
    found = adopt(SelfcheckReport.stored(report_of(tmp_path / "r", content)), file, table_file(tmp_path))
    assert set(found.failed) == {OP, f"{OP}.grad_input"} and set(found.untried) == {"aten::put_"}
    assert [e.gpu for e in verified_on_gpu.read(file) if e.op == OP] == ["another GPU"]
    assert "aten::put_" in {
        e.op for e in verified_on_gpu.read(file)
    }  # of an earlier run, and nothing said against it


def test_a_report_of_other_code_is_refused(tmp_path, cases):
    """Entries speak for the code that ran: another digest, no digest, or no such part leaves the file as it was."""
    file, content = data_file(tmp_path), json.loads(cases)
    before = file.read_text()
    for broken in ("another", None):
        for case in content:
            if case["case"] == formulations.SOURCES_CASE:
                case["figures"] = {formulations.SOURCES: broken}
        with pytest.raises(InvalidArgumentError, match="is not what would be installed"):
            adopt(SelfcheckReport.stored(report_of(tmp_path / "r", content)), file, table_file(tmp_path))
    report = SelfcheckReport.stored(report_of(tmp_path / "r", content))
    report.outcomes.clear()
    with pytest.raises(InvalidArgumentError, match="no part 'switch'"):
        adopt(report, file)
    with pytest.raises(InvalidArgumentError, match=r"no report\.json"):
        SelfcheckReport.stored(tmp_path)
    assert file.read_text() == before


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
def test_the_command_installs_what_was_verified(tmp_path, cases):
    """`samebits selfcheck --install --report FOLDER`, without a GPU, in a copy of samebits: exit 0; the table shows the evidence."""
    source = tmp_path / "src"
    shutil.copytree(
        Path(samebits.__file__).parent, source / "samebits", ignore=shutil.ignore_patterns("__pycache__")
    )
    for file in (verified_on_gpu.FILE, gpu_evidence.FILE):
        without_entries(file, source / file.relative_to(Path(samebits.__file__).parents[1]))
    environment = {**os.environ, "PYTHONPATH": str(source)}
    run = lambda *words: subprocess.run(  # noqa: E731
        [sys.executable, *words], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    done = run(
        "-m",
        "samebits",
        "selfcheck",
        "--install",
        "--report",
        str(report_of(tmp_path / "r", json.loads(cases))),
    )
    assert done.returncode == 0, done.stderr
    assert "64 overloads installed, as verified on a GPU, torch 2.11.0+cu130" in done.stdout
    told = run("-c", PROGRAM)
    assert told.stdout.splitlines()[0].startswith(
        "has an alternative here | battery | ran on a GPU, torch 2.11.0+cu130"
    ), told
    assert told.stdout.splitlines()[1] == "64 torch.Size([3])"
    alone = run("-m", "samebits", "selfcheck", "--install", "--dry-run")
    assert alone.returncode != 0 and "--install goes with --report alone" in alone.stderr

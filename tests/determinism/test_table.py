"""The op table: a verdict for every overload, from our replacements, single lines, class rules and measurements."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from lab.catalogue.battery import BATTERY
from lab.catalogue.elementwise import functional_form, names, tail_cases
from samebits.determinism import _all_replacements as catalogue
from samebits.determinism import _cuda_loading as cuda_loading
from samebits.determinism import table
from samebits.determinism._environment import TESTED_TORCH
from samebits.determinism._ops import replacements as one_arithmetic
from samebits.determinism.table._class_rules import RULES, rule_of
from samebits.determinism.table._evidence import seen_cases
from samebits.determinism.table._overload_facts import (
    OverloadRow,
    ReviewedOverloads,
    all_reviews,
    version_numbers,
)
from samebits.determinism.table._verdict_names import DEVICES, EVIDENCE, VERDICTS
from samebits.determinism.table._verdicts import OpTable, own_lines
from samebits.errors import InvalidArgumentError

REPLACEMENTS = tuple(
    one
    for one in (*catalogue.all_replacements(), *one_arithmetic.REPLACEMENTS)
    if one.device.lower() in DEVICES
)


SEEN = {"op": ("tails: op", "losses: some")}


def entry_of(name, *rows, replacements=(), own=(), cases=SEEN):
    """The CPU entry of an overload in a table of the given rows."""
    snapshot = ReviewedOverloads("2.13.0", {one.name: one for one in rows})
    return OpTable(snapshot, replacements, own, cases).lookup(name, "cpu")


def row(name, *, form_of="", traits=(), kernels=("CPU", "CUDA"), **measured):
    kernel = {"kernel": "torch", "tested": "2.13.0"} if measured.get("runs") else {}
    return OverloadRow(name, "0" * 12, traits, kernels, form_of or name, **kernel | measured)


def test_every_overload_has_one_entry_per_device_with_a_reason():
    """3,110 overloads of torch 2.13 times two devices; each word is one of the documented ones."""
    found = list(table.entries())
    assert Counter(entry.device for entry in found) == dict.fromkeys(DEVICES, len(table.reviewed().rows))
    assert len({(entry.op, entry.device) for entry in found}) == len(found)
    assert all(entry.verdict in VERDICTS and entry.evidence in EVIDENCE for entry in found)
    assert all(entry.reason and entry.torch and entry.rule for entry in found)


def test_what_we_replace_is_read_from_the_catalogue():
    """An overload has an alternative (or is serial, or waits for a GPU) exactly where a replacement stands."""
    known = {f"aten::{name}" for review in all_reviews().values() for name in review.rows}
    assert {one.op for one in REPLACEMENTS} <= known
    for one in {
        (one.op, one.device): one for one in REPLACEMENTS
    }.values():  # the last of several stands in front
        if one.op.removeprefix("aten::") not in table.reviewed().rows:
            continue  # this torch has no such op
        entry = table.lookup(one.op, one.device.lower())
        expected = "refused" if not one.verified else "serial" if one.serial else "has an alternative here"
        assert (entry.verdict, entry.rule) == (expected, "replacement")
        assert one.reason in entry.reason
    replaced = {(one.op, one.device.lower()) for one in REPLACEMENTS}
    for entry in table.entries():
        if entry.rule == "replacement" and (entry.op, entry.device) not in replaced:
            row = table.reviewed().rows[entry.op.removeprefix("aten::")]
            forms = {
                f"aten::{one.name}" for one in table.reviewed().rows.values() if one.form_of == row.form_of
            }
            assert row.kernels == ("explicit",)
            assert any((form, entry.device) in replaced for form in forms)


def test_an_alternative_that_no_gpu_has_run_is_refused():
    """`verified=""` shows as refused, with the word unverified; negative control: verified, it is an alternative."""
    one = replace(REPLACEMENTS[0], op="aten::histc", verified="", serial=False)
    entry = entry_of("histc", row("histc"), replacements=(one,))
    assert entry.verdict == "refused" and "unverified" in entry.reason
    verified = entry_of("histc", row("histc"), replacements=(replace(one, verified="CPU"),))
    assert verified.verdict == "has an alternative here"


CUDA_REFUSALS = """avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
adaptive_max_pool2d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward max_unpool2d max_unpool3d
upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward
reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward nll_loss2d_forward _ctc_loss_backward
_embedding_bag_dense_backward put_ histc bincount median.dim grid_sampler_2d_backward grid_sampler_3d_backward cumsum
scatter_reduce.two upsample_bilinear2d_backward.grad_input cumsum_ cumsum.out""".split()


@pytest.mark.parametrize("op", CUDA_REFUSALS)
def test_what_torch_documents_as_refused_on_cuda_is_refused_or_has_an_alternative(op):
    """Each op behind torch's 25 documented errors, in every form, is refused until an alternative is verified."""
    verified = cuda_loading.computes(
        f"aten::{op}", (one.op for one in REPLACEMENTS if one.device == "CUDA" and one.verified)
    )
    assert (table.lookup(f"aten::{op}", "cuda").verdict == "refused") is not verified


def test_a_composite_is_as_deterministic_as_what_it_calls():
    """The worst of its parts counts; nothing known of its parts, nothing claimed: evidence none."""
    parts = (
        row("op", source="battery", runs="equal", threads="equal"),
        row("bad", source="battery", runs="varies"),
    )
    whole = row("whole", kernels=("composite",), calls=("op", "bad"))
    assert entry_of("whole", whole, *parts).verdict == "varies"
    assert entry_of("whole", replace(whole, calls=("op",)), *parts).verdict == "deterministic over threads"
    unknown = entry_of("whole", replace(whole, calls=()), *parts)
    assert (unknown.verdict, unknown.evidence) == ("deterministic", "none")


def test_what_was_measured_raises_and_lowers_a_verdict():
    """Equal over threads: over threads. Varies over threads: not, whatever the class says. Varies from run to run: said."""
    plain = row("op")
    assert entry_of("op", plain).evidence == "none"
    measured = row("op", source="battery", runs="equal", threads="equal")
    equal = entry_of("op", measured)
    assert (equal.verdict, equal.evidence) == ("deterministic over threads", "battery")
    assert equal.reason.endswith("; seen equal in tails: op, losses: some")
    assert entry_of("op", measured, cases={}).verdict == "deterministic"  # no case could have differed
    line = {
        "ops": ["op"],
        "device": "cpu",
        "verdict": "deterministic",
        "reason": "with an alpha",
        "evidence": "battery",
    }
    # what a line says is not overruled
    assert entry_of("op", measured, own=(line,)).verdict == "deterministic"
    small = entry_of("op", row("op", source="opinfo", runs="equal"))
    # too small to be split: says nothing
    assert (small.verdict, small.evidence) == ("deterministic", "opinfo")
    view = row("op", traits=("view",), source="battery", runs="equal", threads="varies")
    assert entry_of("op", view).verdict == "deterministic"
    assert entry_of("op", row("op", source="battery", runs="varies")).verdict == "varies"


def test_seen_equal_names_cases_that_could_have_differed():
    """Each entry that says so names cases that there are; of an elementwise op, that of its tails and no other."""
    known = {case.full_name for case in (*BATTERY, *tail_cases())}
    said = [entry for entry in table.entries() if "seen equal" in entry.reason and entry.device == "cpu"]
    assert len(said) > 500
    for entry in said:
        cases = seen_cases()[(entry.measured_as or entry.op).removeprefix("aten::")]
        form = functional_form(entry.op.removeprefix("aten::"))
        assert all(case in known or case.startswith("sweep: ") for case in cases), entry
        assert form not in names() or cases == (f"tails: {form}",), entry


def test_other_forms_of_a_measured_op_follow_it():
    """`op.out` runs the kernel of `op`: what varies there varies here; negative control: another op does not."""
    measured = row("op", source="battery", runs="equal", threads="varies")
    entry = entry_of("op.out", row("op.out", form_of="op"), measured)
    assert (entry.threads, entry.evidence) == ("varies", "source") and entry.measured_as == "aten::op"
    assert entry_of("other", row("other"), measured).threads == ""


def test_a_measurement_counts_only_for_the_kernel_that_was_measured():
    """What was measured before ours stood in front of an op says nothing of ours."""
    measured = row("op", source="battery", runs="varies")
    ours = (replace(REPLACEMENTS[0], op="aten::op", serial=False),)
    entry = entry_of("op", measured, replacements=ours)
    assert (entry.verdict, entry.evidence) == ("has an alternative here", "none")
    assert entry_of("op", replace(measured, kernel="ours"), replacements=ours).verdict == "varies"


def test_nothing_varies_from_run_to_run_on_the_cpu_and_stands_alone():
    """Under the switch no overload that was measured on the CPU is left varying: no silent gap."""
    assert [
        entry.op for entry in table.entries() if entry.device == "cpu" and entry.verdict == "varies"
    ] == []


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("add.Tensor", "pointwise"),
        ("add_.Tensor", "pointwise"),
        ("add.out", "pointwise"),
        ("sum.dim_IntList", "reduction"),
        ("transpose.int", "view"),
        ("bernoulli_.float", "random"),
        ("empty.memory_format", "unwritten"),
        ("zeros", "fill"),
        ("clone", "copy"),
        ("mm", "matmul"),
        ("convolution_backward", "convolution"),
        ("_foreach_add_.List", "foreach"),
        ("native_layer_norm_backward", "normalisation"),
        ("linalg_qr", "linalg"),
        ("_fft_r2c", "fft"),
        ("index_put_", "indexed write"),
        ("sort.stable", "order"),
        ("_cudnn_ctc_loss", "backend"),
        ("_coalesce", "sparse or nested"),
    ],
)
def test_class_rules(name, rule):
    """A known member of each class is in it."""
    rows = table.reviewed().rows
    assert rule_of(rows[name], rows[rows[name].form_of]).name == rule


def test_every_class_rule_has_members():
    """No rule that nothing matches any more."""
    reviews = [review.rows for review in all_reviews().values()]
    found = {rule_of(one, rows[one.form_of]).name for rows in reviews for one in rows.values()}
    assert found == {rule.name for rule in RULES}


def test_every_line_of_the_own_verdicts_names_a_functional_form_that_exists():
    """A misspelt or vanished op in own.toml is found; negative control: a misspelt one is not among the names."""
    heads = {one.form_of for review in all_reviews().values() for one in review.rows.values()}
    known = heads | {head.partition(".")[0] for head in heads}
    assert {name for line in own_lines() for name in line["ops"]} <= known
    assert "scatter_reduce.too" not in known
    assert all(
        line["verdict"] in VERDICTS and line["evidence"] in EVIDENCE and line["reason"]
        for line in own_lines()
    )


def test_lookup_refuses_what_is_not_in_the_table():
    """Overloads that only TorchScript knows, misspelt ones and other devices raise, with the form of a full name."""
    for op, device in (("aten::len.t", "cpu"), ("aten::summ", "cpu"), ("aten::mm", "mps")):
        with pytest.raises(InvalidArgumentError, match="as aten::sum.dim_IntList"):
            table.lookup(op, device)
    assert table.lookup("mm", "cpu") == table.lookup("aten::mm", "cpu")


def test_the_tested_versions_of_torch_name_the_reviewed_one():
    """What samebits calls tested is what the op table was reviewed with, from the oldest to the newest."""
    assert list(TESTED_TORCH) == sorted(all_reviews(), key=version_numbers)


@pytest.mark.slow
def test_another_version_has_its_own_overloads():
    """What is gone there is gone, what is new is new, and what is alike has the evidence of the pinned version."""
    pinned, *others = all_reviews().values()
    newest = others[-1]
    assert len(others) >= 2
    assert "cholesky" in pinned.rows and "cholesky" not in newest.rows
    assert "linalg_polar" in newest.rows and "linalg_polar" not in pinned.rows
    assert newest.rows["mm"] == pinned.rows["mm"]
    verdicts = {
        name: OpTable(newest, REPLACEMENTS, own_lines(), seen_cases()).lookup(name, "cpu")
        for name in newest.rows
    }
    assert all(entry.reason and entry.verdict in VERDICTS for entry in verdicts.values())


def test_the_switch_does_not_read_the_table():
    """`import samebits` and switching on import nothing of the table."""
    source = "import sys, samebits; samebits.set_random_seed(0); samebits.enable_op_determinism()\n"
    source += "print([name for name in sys.modules if 'determinism.table' in name])"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr

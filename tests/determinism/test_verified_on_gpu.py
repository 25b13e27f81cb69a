"""The file that says which formulations a GPU has run, and what follows from it."""

import datetime
import shutil

import pytest

from samebits.determinism._cuda_decompositions import REPLACEMENTS
from samebits.determinism._verified_on_gpu import FILE, GpuVerification, read, record, verification_text


def entry(**changes):
    plain = dict(op="aten::put_", gpu="A", date=datetime.date(2026, 1, 31), torch="2.13.0", ratio=1.25)
    return GpuVerification(**plain | changes)


def test_what_was_recorded_is_read_back_and_newer_entries_take_the_place_of_older(tmp_path):
    """Entries survive the file, one per overload and GPU, sorted, and the comments at the top stay."""
    file = tmp_path / "verified.toml"
    shutil.copy(FILE, file)
    comments = [line for line in file.read_text().splitlines() if line.startswith("#")]
    before = len(read(file))
    record([entry(gpu="some GPU", op="aten::x"), entry(gpu="another", op="aten::x", ratio=3.0)], file)
    record([entry(gpu="some GPU", op="aten::x", ratio=2.0)], file)
    found = [e for e in read(file) if e.op == "aten::x"]
    assert found == [
        entry(gpu="another", op="aten::x", ratio=3.0),
        entry(gpu="some GPU", op="aten::x", ratio=2.0),
    ]
    assert len(read(file)) == before + 2
    assert [line for line in file.read_text().splitlines() if line.startswith("#")] == comments


def test_an_overload_is_verified_by_its_own_entries_only():
    """The text names GPU, torch, date and ratio of every entry; an overload without one is unverified: empty."""
    entries = [entry(), entry(gpu="B", ratio=0.5)]
    assert verification_text("aten::put_", entries) == (
        "A, torch 2.13.0, 2026-01-31, 1.25x torch's time; B, torch 2.13.0, 2026-01-31, 0.50x torch's time"
    )
    assert verification_text("aten::put", entries) == ""


def test_only_what_the_file_names_is_verified():
    """Each replacement is verified exactly where the shipped file has an entry for it."""
    assert all(bool(r.verified) == any(e.op == r.op for e in read()) for r in REPLACEMENTS)
    assert {e.op for e in read()} <= {r.op for r in REPLACEMENTS}


def test_a_broken_entry_is_refused(tmp_path):
    """Negative control: an entry without a GPU cannot be read."""
    file = tmp_path / "verified.toml"
    file.write_text('[[verified]]\nop = "aten::put_"\n')
    with pytest.raises(TypeError, match="gpu"):
        read(file)
